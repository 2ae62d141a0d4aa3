#include "cmd/drive/kv_encoding.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "telemetry/kv_decoder.h"

namespace foreload::drive {
namespace {

constexpr Namespace kEncodedSpace{9};

Result<telemetry::KvEventBatch> Decode(const std::string& payload) {
  telemetry::DecodeReport report;
  return telemetry::DecodeKvBatch({reinterpret_cast<const std::uint8_t*>(payload.data()), payload.size()},
                                  telemetry::Dialect::kVllm, {}, &report);
}

std::uint64_t AliasOf(const Digest& digest) {
  std::uint64_t alias = 0;
  for (std::size_t i = 24; i < 32; ++i) alias = alias << 8 | digest[i];
  return alias;
}

void RoundTrip(HashForm form) {
  std::vector<Digest> chain;
  for (std::uint64_t i = 0; i < 40; ++i) chain.push_back(DigestOf(kEncodedSpace, i));
  KvBatchEncoder encoder(form);
  EXPECT_TRUE(encoder.empty());
  encoder.AddStored({chain.data(), 1}, nullptr, 16);
  encoder.AddStored({chain.data() + 1, 39}, &chain[0], 512);
  encoder.AddRemoved({chain.data() + 20, 20});
  EXPECT_FALSE(encoder.empty());
  auto batch = Decode(encoder.Take(1789.25));
  EXPECT_TRUE(encoder.empty());
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ(batch->bad_events, 0u);
  EXPECT_EQ(batch->unknown_fields, 0u);
  EXPECT_DOUBLE_EQ(batch->wall_time_seconds, 1789.25);
  EXPECT_EQ(batch->data_parallel_rank, 0u);
  ASSERT_EQ(batch->events.size(), 3u);

  const auto& root = std::get<telemetry::BlockStored>(batch->events[0]);
  EXPECT_FALSE(root.parent.has_value());
  EXPECT_EQ(root.block_size, 16u);
  EXPECT_EQ(root.token_count, 16u);
  const auto& rest = std::get<telemetry::BlockStored>(batch->events[1]);
  ASSERT_EQ(rest.hashes.size(), 39u);
  EXPECT_EQ(rest.token_count, 39u * 512);
  EXPECT_TRUE(rest.chain_known);
  EXPECT_EQ(rest.medium, telemetry::Medium::kGpu);
  ASSERT_TRUE(rest.parent.has_value());
  EXPECT_EQ(rest.parent->low64, AliasOf(chain[0]));
  const auto& removed = std::get<telemetry::BlockRemoved>(batch->events[2]);
  ASSERT_EQ(removed.hashes.size(), 20u);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(removed.hashes[i].low64, AliasOf(chain[20 + i]));
    EXPECT_EQ(removed.hashes[i].digest_bytes, form == HashForm::kDigest ? 32 : 0);
    if (form == HashForm::kDigest) {
      EXPECT_EQ(removed.hashes[i].digest, chain[20 + i]);
    }
  }
}

TEST(KvEncoding, IsReadByTheVllmDecoderWithIntegerHashes) {
  RoundTrip(HashForm::kInt64);
}
TEST(KvEncoding, IsReadByTheVllmDecoderWithDigests) {
  RoundTrip(HashForm::kDigest);
}

TEST(KvEncoding, FitsManyEventsIntoOneBatch) {
  KvBatchEncoder encoder(HashForm::kInt64);
  const Digest digest = DigestOf(kEncodedSpace, 1);
  for (int i = 0; i < 300; ++i) encoder.AddRemoved({&digest, 1});
  auto batch = Decode(encoder.Take(1));
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ(batch->events.size(), 300u);
}

}  // namespace
}  // namespace foreload::drive
