#include "telemetry/trtllm_json.h"

#include <gtest/gtest.h>

namespace foreload::telemetry {
namespace {

TrtllmPull Decode(std::string_view json) {
  auto pull = DecodeTrtllmJson(json);
  EXPECT_TRUE(pull.ok()) << pull.status().ToString();
  return pull.ok() ? std::move(pull).value() : TrtllmPull{};
}

constexpr std::string_view kPull = R"([
 {"event_id": 7, "data": {"type": "created", "num_blocks_per_cache_level": [101, 33]}, "window_size": 4096},
 {"event_id": 8, "window_size": 4096, "data": {"type": "stored", "parent_hash": null, "blocks": [
   {"type": "stored_block", "block_hash": 18446744073709551615, "cache_level": 0, "priority": 35,
    "tokens": [{"type": "unique_token", "token_id": 1, "token_extra_id": 0}, {"token_id": 2, "token_extra_id": 0}]},
   {"block_hash": 12, "cache_level": 0, "tokens": [{"token_id": 3}, {"token_id": 4}]},
   {"block_hash": 13, "cache_level": 1, "tokens": [{"token_id": 5}]}]}},
 {"event_id": 9, "window_size": 4096, "data": {"type": "updated", "block_hash": 12, "priority": null,
   "cache_level": {"type": "event_diff", "old_value": 0, "new_value": 1}}},
 {"event_id": 10, "data": {"type": "updated", "block_hash": 12, "cache_level": null,
   "priority": {"type": "event_diff", "old_value": 35, "new_value": 80}}},
 {"event_id": 11, "data": {"type": "removed", "block_hashes": [12, 13]}, "attention_dp_rank": 1},
 {"event_id": 12, "data": {"type": "evaporated"}, "attention_dp_rank": 1}
])";

TEST(TrtllmJson, EveryKindOfEventIsRead) {
  const TrtllmPull pull = Decode(kPull);
  EXPECT_EQ(pull.first_event_id, 7u);
  EXPECT_EQ(pull.last_event_id, 12u);
  EXPECT_TRUE(pull.ids_consecutive);
  ASSERT_EQ(pull.batches.size(), 2u);
  const auto& events = pull.batches[0].events;
  ASSERT_EQ(events.size(), 5u);
  EXPECT_TRUE(std::holds_alternative<AllBlocksCleared>(events[0]));
  const auto& gpu = std::get<BlockStored>(events[1]);
  EXPECT_EQ(gpu.hashes.size(), 2u);
  EXPECT_EQ(gpu.hashes[0].low64, ~std::uint64_t{0});
  EXPECT_EQ(gpu.block_size, 2u);
  EXPECT_EQ(gpu.token_count, 4u);
  EXPECT_EQ(gpu.group, 4096u);
  EXPECT_FALSE(gpu.parent.has_value());
  const auto& host = std::get<BlockStored>(events[2]);
  EXPECT_EQ(host.medium, Medium::kCpu);
  EXPECT_EQ(host.parent->low64, 12u) << "the chain goes on over the change of level";
  EXPECT_EQ(std::get<BlockRemoved>(events[3]).medium, Medium::kGpu);
  EXPECT_EQ(std::get<BlockStored>(events[4]).medium, Medium::kCpu);
  EXPECT_EQ(pull.batches[1].data_parallel_rank, 1u);
  EXPECT_EQ(std::get<BlockRemoved>(pull.batches[1].events.at(0)).hashes.size(), 2u);
  EXPECT_EQ(pull.batches[1].unknown_events, 1u);
}

TEST(TrtllmJson, OneEventAloneAndAGapAreRead) {
  EXPECT_EQ(Decode(R"({"event_id": 3, "data": {"type": "removed", "block_hashes": []}})").batches.size(), 1u);
  EXPECT_TRUE(Decode("[]").batches.empty());
  EXPECT_FALSE(Decode(R"([{"event_id": 1, "data": {"type": "created"}}, {"event_id": 3, "data": {"type": "created"}}])")
                   .ids_consecutive);
}

TEST(TrtllmJson, BadEventsCostThemselvesAlone) {
  DecodeReport report;
  const auto pull = DecodeTrtllmJson(R"([1, {"data": 3}, {"data": {}}, {"data": {"type": "stored", "blocks": [{}]}},
    {"data": {"type": "removed", "block_hashes": ["x"]}}, {"data": {"type": "updated", "block_hash": 1, "cache_level": {}}},
    {"data": {"type": "removed", "block_hashes": [-1]}}])",
                                     {}, &report);
  ASSERT_TRUE(pull.ok());
  ASSERT_EQ(pull.value().batches.size(), 1u);
  EXPECT_EQ(pull.value().batches[0].bad_events, 6u);
  EXPECT_EQ(pull.value().batches[0].events.size(), 1u);
  EXPECT_EQ(report.errors[static_cast<std::size_t>(DecodeError::kHash)], 2u);
  EXPECT_EQ(report.errors[static_cast<std::size_t>(DecodeError::kEventShape)], 2u);
}

TEST(TrtllmJson, WhatIsNoEventListIsAnError) {
  for (const std::string_view json : {"", "{", "[", "3", "null", "[1,]", "[] x", "\"stored\""}) {
    EXPECT_FALSE(DecodeTrtllmJson(json).ok()) << json;
  }
  EXPECT_FALSE(DecodeTrtllmJson(std::string(100, '[') + std::string(100, ']')).ok());
  DecodeLimits limits;
  limits.events_max = 1;
  EXPECT_FALSE(DecodeTrtllmJson("[{},{}]", limits).ok());
  limits.payload_bytes_max = 3;
  EXPECT_FALSE(DecodeTrtllmJson("[{},{}]", limits).ok());
}

}  // namespace
}  // namespace foreload::telemetry
