#include "proto/namespace.h"

#include <gtest/gtest.h>

#include <set>

#include "proto/sha256.h"
#include "proto/xxh3.h"

namespace foreload {
namespace {

TEST(Fingerprints, EveryFieldOfANamespaceCounts) {
  const NamespaceFields base{
      .model_revision = "rev", .lora = "a", .cache_salt = "b", .kv_group = 1, .weights_epoch = 2};
  std::set<NamespaceFingerprint> seen = {FingerprintOf(base)};
  const auto add = [&](auto change) {
    NamespaceFields fields = base;
    change(fields);
    return seen.insert(FingerprintOf(fields)).second;
  };
  EXPECT_TRUE(add([](NamespaceFields& f) { f.model_revision = "rev2"; }));
  EXPECT_TRUE(add([](NamespaceFields& f) { f.lora = ""; }));
  EXPECT_TRUE(add([](NamespaceFields& f) { f.cache_salt = ""; }));
  EXPECT_TRUE(add([](NamespaceFields& f) { f.kv_group = 0; }));
  EXPECT_TRUE(add([](NamespaceFields& f) { f.weights_epoch = 1; }));
}

TEST(Fingerprints, TextsThatRunTogetherStayDifferent) {
  EXPECT_NE(EncodeNamespace({.model_revision = "ab", .lora = "c"}),
            EncodeNamespace({.model_revision = "a", .lora = "bc"}));
  EXPECT_NE(EncodeNamespace({.lora = "x"}), EncodeNamespace({.cache_salt = "x"})) << "adapter against tenant";
  EXPECT_NE(EncodeNamespace({.model_revision = std::string("a\0", 2)}), EncodeNamespace({.model_revision = "a"}));
  EXPECT_NE(EncodeLayout({.dtype = "f16", .kv_layout = "LB"}), EncodeLayout({.dtype = "f16L", .kv_layout = "B"}));
}

TEST(Fingerprints, EveryFieldOfALayoutAndTheRankCount) {
  const LayoutFields base{.dtype = "bfloat16",
                          .block_tokens = 16,
                          .kv_layout = "LBHNC",
                          .kernel = "avx512",
                          .engine_version = "1",
                          .rank_count = 2};
  std::set<LayoutFingerprint> seen = {FingerprintOf(base)};
  const auto add = [&](auto change) {
    LayoutFields fields = base;
    change(fields);
    return seen.insert(FingerprintOf(fields)).second;
  };
  EXPECT_TRUE(add([](LayoutFields& f) { f.dtype = "float16"; }));
  EXPECT_TRUE(add([](LayoutFields& f) { f.block_tokens = 32; }));
  EXPECT_TRUE(add([](LayoutFields& f) { f.kv_layout = "LBNHC"; }));
  EXPECT_TRUE(add([](LayoutFields& f) { f.kernel = "amx"; }));
  EXPECT_TRUE(add([](LayoutFields& f) { f.engine_version = "2"; }));
  EXPECT_TRUE(add([](LayoutFields& f) { f.rank_count = 1; }));
  EXPECT_TRUE(seen.insert(RankLayout(FingerprintOf(base), 0)).second);
  EXPECT_TRUE(seen.insert(RankLayout(FingerprintOf(base), 1)).second);
}

// Stored blocks live as long as these: a change of the encoding loses every one of them.
TEST(Fingerprints, AreTheSameForEver) {
  EXPECT_EQ(ToHex(FingerprintOf(NamespaceFields{.model_revision = "rev"}).bytes), "c8541d2d5781bb6f964f274192d85865");
  EXPECT_EQ(ToHex(FingerprintOf(LayoutFields{.dtype = "bfloat16", .block_tokens = 16}).bytes),
            "a088ca07467d96d4d11cf11931c64fd4");
}

TEST(Hashes, KnownAnswers) {
  EXPECT_EQ(ToHex(Sha256("abc", 3)), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");  // FIPS 180-4
  EXPECT_EQ(Xxh3(nullptr, 0), 0x2d06800538d394c2u);  // XXH3_64bits of nothing, from xxHash's own test vectors
}

}  // namespace
}  // namespace foreload
