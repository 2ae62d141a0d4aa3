#include "cmd/drive/block_content.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

namespace foreload::drive {
namespace {

constexpr Namespace kSpace{1, 2, 3};
constexpr Namespace kOtherSpace{1, 2, 4};

TEST(BlockContent, GivesDistinctDigestsAndDistinctAliases) {
  std::set<Digest> digests;
  std::set<std::vector<std::uint8_t>> aliases;
  for (std::uint64_t block = 0; block < 20'000; ++block) {
    for (const Namespace& space : {kSpace, kOtherSpace}) {
      const Digest digest = DigestOf(space, block);
      digests.insert(digest);
      aliases.insert({digest.end() - 8, digest.end()});
    }
  }
  EXPECT_EQ(digests.size(), 40'000u);
  EXPECT_EQ(aliases.size(), 40'000u);
  EXPECT_EQ(DigestOf(kSpace, 7), DigestOf(kSpace, 7));
}

TEST(BlockContent, FindsAnyWrongByteAndSaysWhere) {
  const Digest digest = DigestOf(kSpace, 5);
  const std::uint64_t seed = ContentSeed(kSpace, digest, 0);
  std::vector<std::byte> bytes(3 * 4096 + 40);
  FillContent(seed, bytes);
  EXPECT_FALSE(FindMismatch(seed, bytes).has_value());
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{4095}, std::size_t{4096}, std::size_t{9000}, bytes.size() - 1}) {
    auto broken = bytes;
    broken[at] ^= std::byte{1};
    ASSERT_TRUE(FindMismatch(seed, broken).has_value()) << at;
    EXPECT_EQ(*FindMismatch(seed, broken), at / 8 * 8);
  }
}

TEST(BlockContent, DiffersByBlockRankAndNamespace) {
  std::vector<std::byte> bytes(64);
  FillContent(ContentSeed(kSpace, DigestOf(kSpace, 5), 0), bytes);
  EXPECT_TRUE(FindMismatch(ContentSeed(kSpace, DigestOf(kSpace, 6), 0), bytes).has_value());
  EXPECT_TRUE(FindMismatch(ContentSeed(kSpace, DigestOf(kSpace, 5), 1), bytes).has_value());
  EXPECT_TRUE(FindMismatch(ContentSeed(kOtherSpace, DigestOf(kOtherSpace, 5), 0), bytes).has_value());
  EXPECT_TRUE(FindMismatch(ContentSeed(kSpace, DigestOf(kSpace, 5), 0), std::vector<std::byte>(64)).has_value())
      << "zeroed memory is wrong content";
}

}  // namespace
}  // namespace foreload::drive
