#include <gtest/gtest.h>

#include "base/rng.h"
#include "prefetcher/core/codec.h"

namespace foreload::core {
namespace {

EventBatch OneOfEach() {
  EventBatch batch;
  batch.blocks = {BlockId{1}, BlockId{2}, BlockId{}};
  batch.events = {EngineUp{EngineId{1}, 16, 1 << 20, 1e-4, EnginePolicy::kDemandOnly},
                  EngineDown{EngineId{1}},
                  ArenaGranted{EngineId{1}, 7},
                  ArenaRevoked{EngineId{1}},
                  KvStored{EngineId{1}, BlockId{2}, BlockId{3}, Tier::kDram},
                  KvRemoved{EngineId{1}, BlockId{2}, Tier::kSsd},
                  KvCleared{EngineId{1}},
                  KvUnknown{EngineId{1}},
                  RequestQueued{EngineId{1}, RequestId{2}, SessionId{3}, RequestKind::kTool, -4, 5, 6, 7, true, {1, 2}},
                  RequestScheduled{RequestId{1}},
                  RequestFirstToken{RequestId{1}},
                  RequestFinished{RequestId{1}, {0, 1}},
                  RequestAborted{RequestId{1}},
                  HintGiven{EngineId{1}, HintAction::kPin, SessionId{2}, 3, 4, 5, {0, 3}},
                  StoreOffered{1, EngineId{2}, BlockId{3}, BlockId{4}, 5},
                  SsdRecovered{BlockId{1}, BlockId{2}, 3},
                  SsdDropped{BlockId{1}},
                  DemandAsked{1, EngineId{2}, RequestId{3}, 4, {0, 2}},
                  DemandDropped{1},
                  TransferDone{TransferId{1}, TransferStatus::kTimeout, 2, 3},
                  SlotUsed{EngineId{1}, SlotIndex{2}},
                  SlotFree{EngineId{1}, SlotIndex{2}},
                  NamespacePurged{1, {0, 3}},
                  FlushAsked{1},
                  PolicyChanged{false}};
  return batch;
}

std::vector<std::uint8_t> Encoded(const EventBatch& batch) {
  std::vector<std::uint8_t> bytes;
  EncodeBatch(batch, bytes);
  return bytes;
}

TEST(Codec, EveryKindOfEventSurvives) {
  const EventBatch batch = OneOfEach();
  ASSERT_EQ(batch.events.size(), std::variant_size_v<Event>) << "one of each kind";
  for (std::size_t i = 0; i < batch.events.size(); ++i) ASSERT_EQ(batch.events[i].index(), i);
  EventBatch decoded;
  ASSERT_TRUE(DecodeBatch(Encoded(batch), decoded).ok());
  EXPECT_EQ(decoded.blocks, batch.blocks);
  EXPECT_EQ(Encoded(decoded), Encoded(batch));
}

TEST(Codec, EveryTruncationIsRefusedAndLeavesNothing) {
  const std::vector<std::uint8_t> bytes = Encoded(OneOfEach());
  EventBatch decoded;
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(DecodeBatch(std::span(bytes).first(n), decoded).ok()) << n;
    EXPECT_TRUE(decoded.events.empty() && decoded.blocks.empty());
  }
  std::vector<std::uint8_t> longer = bytes;
  longer.push_back(0);
  EXPECT_FALSE(DecodeBatch(longer, decoded).ok());
}

TEST(Codec, ChangedBytesAreRefusedOrDecodeToSomethingEncodable) {
  const std::vector<std::uint8_t> bytes = Encoded(OneOfEach());
  Rng rng(11);
  EventBatch decoded;
  for (int i = 0; i < 5000; ++i) {
    std::vector<std::uint8_t> changed = bytes;
    changed[rng.Below(changed.size())] = static_cast<std::uint8_t>(rng.Next());
    if (!DecodeBatch(changed, decoded).ok()) continue;
    EXPECT_EQ(Encoded(decoded), changed);
  }
}

TEST(Codec, ALengthThatClaimsGigabytesAllocatesNothing) {
  std::vector<std::uint8_t> bytes = {'F', 'E', 1, 0, 0xFF, 0xFF, 0xFF, 0xFF};
  EventBatch decoded;
  EXPECT_FALSE(DecodeBatch(bytes, decoded).ok());
  EXPECT_LT(decoded.blocks.capacity(), 1024u);
}

TEST(Codec, AnotherVersionIsRefusedByName) {
  std::vector<std::uint8_t> bytes = Encoded(OneOfEach());
  bytes[2] = 9;
  EventBatch decoded;
  const Status status = DecodeBatch(bytes, decoded);
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("version 9"), std::string::npos);
}

TEST(Codec, AConfigurationSurvivesAndIsValidated) {
  CoreConfig config;
  config.dram_bytes = 12345;
  config.hold_out_fraction = 0.25;
  config.links[2].bytes_per_second = 3.5e9;
  config.purges_max = 17;
  const std::vector<std::uint8_t> bytes = EncodeConfig(config);
  Result<CoreConfig> decoded = DecodeConfig(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(EncodeConfig(*decoded), bytes);
  EXPECT_EQ(decoded->purges_max, 17u);
  config.hold_out_fraction = 2.0;
  EXPECT_EQ(DecodeConfig(EncodeConfig(config)).status().code(), StatusCode::kInvalidArgument);
  config.hold_out_fraction = 0.0 / 0.0;
  EXPECT_FALSE(DecodeConfig(EncodeConfig(config)).ok());
  for (std::size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(DecodeConfig(std::span(bytes).first(n)).ok());
}

TEST(Codec, TheDigestSeesOrderAndContentAndIsFixed) {
  const std::vector<Command> a = {Cancel{TransferId{1}}, Cancel{TransferId{2}}};
  const std::vector<Command> b = {Cancel{TransferId{2}}, Cancel{TransferId{1}}};
  EXPECT_NE(CommandDigest(a), CommandDigest(b));
  EXPECT_NE(CommandDigest(a), CommandDigest(std::span(a).first(1)));
  EXPECT_NE(CommandDigest({}), CommandDigest(a));
  EXPECT_EQ(CommandDigest(a), 773477618326251924ull);
}

}  // namespace
}  // namespace foreload::core
