#include "telemetry/kv_decoder.h"

#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"
#include "telemetry/tests/test_support.h"

namespace foreload::telemetry {
namespace {

using testing::BatchOf;
using testing::Bytes;
using testing::FromHex;
using testing::Pack;

std::uint64_t Errors(const DecodeReport& report, DecodeError error) {
  return report.errors[static_cast<std::size_t>(error)];
}

// Decodes a batch that must be good as a whole.
KvEventBatch Decode(const Bytes& payload, Dialect dialect = Dialect::kAuto, DecodeReport* report = nullptr) {
  auto batch = DecodeKvBatch(payload, dialect, {}, report);
  EXPECT_TRUE(batch.ok()) << batch.status().ToString();
  return batch.ok() ? std::move(batch).value() : KvEventBatch{};
}

const BlockStored& Stored(const KvEventBatch& batch, std::size_t i = 0) {
  return std::get<BlockStored>(batch.events.at(i));
}

DecodeError BatchErrorOf(const Bytes& payload, const DecodeLimits& limits = {}) {
  DecodeReport report;
  EXPECT_FALSE(DecodeKvBatch(payload, Dialect::kAuto, limits, &report).ok());
  for (std::size_t i = 0; i < kDecodeErrorCount; ++i) {
    if (report.errors[i] == 1) return static_cast<DecodeError>(i);
  }
  ADD_FAILURE() << "no reason was counted";
  return DecodeError::kMalformed;
}

constexpr std::string_view kNarrowStore =
    "93cb41da556e402000009186a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739664ccc8cd9c40ce00011170cf0000"
    "01"
    "0000000000cf8000000000000001b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739c0102030405060708090a0b0caa"
    "62"
    "6c6f636b5f73697a6502a66d656469756da347505500";
constexpr std::string_view kWideRemove =
    "93cb41da556e402000009183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657392cf0000000000000064d200009c"
    "40"
    "a66d656469756da347505500";
constexpr std::string_view kOwnParent =
    "93cb41da556e402000009186a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739107b1706172656e745f626c6f636b"
    "5f"
    "6861736807a9746f6b656e5f696473920101aa626c6f636b5f73697a6502a66d656469756da347505500";
constexpr std::string_view kCycle =
    "93cb41da556e402000009286a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573920506b1706172656e745f626c6f63"
    "6b"
    "5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6502a66d656469756da347505586a474797065ab426c6f636b53"
    "74"
    "6f726564ac626c6f636b5f6861736865739105b1706172656e745f626c6f636b5f6861736806a9746f6b656e5f696473920102aa626c6f636b"
    "5f"
    "73697a6502a66d656469756da347505500";

TEST(KvDecoder, IdentityIsTheValueNotTheWidthOfItsEncoding) {
  const KvEventBatch stored = Decode(FromHex(kNarrowStore));
  std::set<std::uint64_t> resident;
  for (const BlockHash& hash : Stored(stored).hashes) resident.insert(hash.low64);
  EXPECT_EQ(resident.size(), 6u);
  EXPECT_EQ(Stored(stored).token_count, 12u);
  EXPECT_TRUE(Stored(stored).chain_known);

  const KvEventBatch removed = Decode(FromHex(kWideRemove));
  for (const BlockHash& hash : std::get<BlockRemoved>(removed.events.at(0)).hashes) resident.erase(hash.low64);
  EXPECT_EQ(resident, (std::set<std::uint64_t>{200, 70000, 1ull << 40, (1ull << 63) + 1}));
  EXPECT_EQ(stored.bad_events + removed.bad_events, 0u);
}

TEST(KvDecoder, ImpossibleChainsDecodeAsTheyAreSent) {
  const KvEventBatch own_parent = Decode(FromHex(kOwnParent));
  EXPECT_EQ(Stored(own_parent).hashes.at(0), *Stored(own_parent).parent);
  const KvEventBatch cycle = Decode(FromHex(kCycle));
  ASSERT_EQ(cycle.events.size(), 2u);
  EXPECT_EQ(Stored(cycle, 1).hashes.at(0).low64, 5u);
  EXPECT_EQ(Stored(cycle, 1).parent->low64, 6u);
}

TEST(KvDecoder, PositionalEventsOfEveryLengthAreRead) {
  const Bytes shortest = Pack().Array(5).Str("BlockStored").Hashes({1}).Nil().Hashes({9}).Uint(16).bytes();
  const Bytes longest = Pack()
                            .Array(16)
                            .Str("BlockStored")
                            .Hashes({1, 2})
                            .Uint(7)
                            .Hashes({9, 9})
                            .Uint(1)
                            .Nil()
                            .Str("cpu")
                            .Str("ada")
                            .Nil()
                            .Uint(3)
                            .Str("full_attention")
                            .Nil()
                            .Str("LOCAL")
                            .Str("tier-2")
                            .Str("sess")
                            .Str("a field of tomorrow")
                            .bytes();
  const Bytes removed = Pack().Array(4).Str("BlockRemoved").Hashes({1}).Str("GPU").Uint(2).bytes();
  const Bytes cleared = Pack().Array(1).Str("AllBlocksCleared").bytes();
  const KvEventBatch batch = Decode(BatchOf({shortest, longest, removed, cleared}));
  ASSERT_EQ(batch.events.size(), 4u);
  EXPECT_EQ(Stored(batch, 0).medium, Medium::kGpu);
  EXPECT_EQ(Stored(batch, 1).medium, Medium::kCpu);
  EXPECT_EQ(Stored(batch, 1).lora_name, "ada");
  EXPECT_EQ(Stored(batch, 1).group, 3u);
  EXPECT_EQ(Stored(batch, 1).spec_kind, "full_attention");
  EXPECT_EQ(Stored(batch, 1).locality, "LOCAL");
  EXPECT_EQ(Stored(batch, 1).ownership, "tier-2");
  EXPECT_EQ(Stored(batch, 1).session_id, "sess");
  EXPECT_EQ(batch.unknown_fields, 1u);
  EXPECT_EQ(std::get<BlockRemoved>(batch.events[2]).group, 2u);
  EXPECT_TRUE(std::holds_alternative<AllBlocksCleared>(batch.events[3]));
}

TEST(KvDecoder, MapAtPositionSevenIsNamedFields) {
  const Bytes salted = Pack()
                           .Array(8)
                           .Str("BlockStored")
                           .Hashes({1})
                           .Nil()
                           .Hashes({9})
                           .Uint(1)
                           .Nil()
                           .Str("GPU")
                           .Map(1)
                           .Str("cache_salt")
                           .Str("tenant")
                           .bytes();
  const KvEventBatch batch = Decode(BatchOf({salted}));
  EXPECT_EQ(Stored(batch).cache_salt, "tenant");
  EXPECT_EQ(Stored(batch).lora_name, "");
}

TEST(KvDecoder, OuterBatchMayBeAMapOrLackOrExceedTheRank) {
  const Bytes event = testing::ClearedEvent();
  const KvEventBatch map = Decode(
      Pack().Map(3).Str("events").Array(1).Raw(event).Str("ts").Real(2.5).Str("data_parallel_rank").Uint(4).bytes());
  EXPECT_EQ(map.wall_time_seconds, 2.5);
  EXPECT_EQ(map.data_parallel_rank, 4u);
  EXPECT_EQ(map.events.size(), 1u);
  const KvEventBatch two = Decode(Pack().Array(2).Real(1).Array(1).Raw(event).bytes());
  EXPECT_EQ(two.data_parallel_rank, std::nullopt);
  const KvEventBatch five = Decode(Pack().Array(5).Real(1).Array(1).Raw(event).Nil().Str("new").Nil().bytes());
  EXPECT_EQ(five.data_parallel_rank, std::nullopt);
  EXPECT_EQ(five.unknown_fields, 2u);
}

TEST(KvDecoder, EmptyBatchIsAHeartbeat) {
  EXPECT_TRUE(Decode(BatchOf({})).events.empty());
}

TEST(KvDecoder, MooncakeEnvelopeNeedsNoBlockSizeAndCountsMilliseconds) {
  const Bytes stored = Pack()
                           .Map(7)
                           .Str("event_id")
                           .Uint(1)
                           .Str("event_type")
                           .Str("stored")
                           .Str("seq_hashes")
                           .Hashes({5})
                           .Str("block_hashes")
                           .Array(1)
                           .Int(5)
                           .Str("block_size")
                           .Nil()
                           .Str("medium")
                           .Str("disk")
                           .Str("additional_salt")
                           .Str("s")
                           .bytes();
  const Bytes removed = Pack()
                            .Map(4)
                            .Str("event_id")
                            .Uint(2)
                            .Str("type")
                            .Str("BlockRemoved")
                            .Str("seq_hashes")
                            .Hashes({5})
                            .Str("block_hashes")
                            .Array(0)
                            .bytes();
  const Bytes keyless = Pack()
                            .Map(4)
                            .Str("event_id")
                            .Uint(3)
                            .Str("event_type")
                            .Str("stored")
                            .Str("seq_hashes")
                            .Array(0)
                            .Str("object_key")
                            .Str("m@x")
                            .bytes();
  Pack pack;
  pack.Array(3).Uint(1'789'095'808'830).Array(3).Raw(stored).Raw(removed).Raw(keyless).Nil();
  const KvEventBatch batch = Decode(pack.bytes());
  EXPECT_DOUBLE_EQ(batch.wall_time_seconds, 1'789'095'808.830);
  ASSERT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(Stored(batch).hashes.at(0).low64, 5u);
  EXPECT_EQ(Stored(batch).medium, Medium::kStorage);
  EXPECT_EQ(Stored(batch).cache_salt, "s");
  EXPECT_EQ(std::get<BlockRemoved>(batch.events[1]).hashes.at(0).low64, 5u);
  EXPECT_EQ(batch.unknown_events, 1u);
  EXPECT_EQ(batch.unknown_fields, 0u);
}

TEST(KvDecoder, HashFormsKeepTheirIdentity) {
  Bytes digest(32);
  for (std::size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<std::uint8_t>(i + 1);
  const Bytes five(digest.begin(), digest.begin() + 5);
  const Bytes event = Pack()
                          .Map(2)
                          .Str("type")
                          .Str("BlockRemoved")
                          .Str("block_hashes")
                          .Array(4)
                          .Int(-2)
                          .Bin(digest)
                          .Bin(five)
                          .Bool(true)
                          .bytes();
  DecodeReport report;
  EXPECT_EQ(Decode(BatchOf({event}), Dialect::kAuto, &report).bad_events, 1u) << "a boolean is no hash";
  EXPECT_EQ(Errors(report, DecodeError::kHash), 1u);

  const Bytes good =
      Pack().Map(2).Str("type").Str("BlockRemoved").Str("block_hashes").Array(3).Int(-2).Bin(digest).Bin(five).bytes();
  const KvEventBatch batch = Decode(BatchOf({good}));
  const auto& hashes = std::get<BlockRemoved>(batch.events.at(0)).hashes;
  EXPECT_EQ(hashes[0].low64, ~std::uint64_t{1});
  EXPECT_EQ(hashes[0].digest_bytes, 0);
  EXPECT_EQ(hashes[1].low64, 0x191a1b1c1d1e1f20u);
  EXPECT_EQ(hashes[1].digest_bytes, 32);
  EXPECT_EQ(hashes[1].digest[31], 32);
  EXPECT_EQ(hashes[2].low64, 0x0102030405u);
  EXPECT_EQ(hashes[2].digest_bytes, 0) << "too short to name stored bytes";
}

TEST(KvDecoder, OnlyVllmRefusesNegativeHashes) {
  const Bytes event = Pack().Map(2).Str("type").Str("BlockRemoved").Str("block_hashes").Array(1).Int(-1).bytes();
  EXPECT_EQ(Decode(BatchOf({event}), Dialect::kVllm).bad_events, 1u);
  for (const Dialect dialect : {Dialect::kAuto, Dialect::kSglang, Dialect::kTrtllm, Dialect::kMooncake}) {
    EXPECT_EQ(Decode(BatchOf({event}), dialect).events.size(), 1u);
  }
}

TEST(KvDecoder, OneBadEventCostsItselfAlone) {
  const std::vector<std::pair<Bytes, DecodeError>> bad{
      {Pack().Uint(7).bytes(), DecodeError::kEventShape},
      {Pack().Array(0).bytes(), DecodeError::kEventType},
      {Pack().Map(1).Str("block_hashes").Hashes({1}).bytes(), DecodeError::kEventType},
      {Pack().Map(1).Str("type").Uint(1).bytes(), DecodeError::kEventType},
      {Pack().Map(2).Str("type").Str("BlockStored").Str("block_size").Uint(1).bytes(), DecodeError::kHash},
      {Pack().Map(2).Str("type").Str("BlockRemoved").Str("block_hashes").Bin(Bytes(8)).bytes(), DecodeError::kHash},
      {Pack().Map(2).Str("type").Str("BlockRemoved").Str("block_hashes").Array(1).Bin(Bytes(33)).bytes(),
       DecodeError::kHash},
      {Pack().Map(2).Str("type").Str("BlockRemoved").Str("block_hashes").Array(1).Bin({}).bytes(), DecodeError::kHash},
      {Pack().Map(2).Str("type").Str("BlockStored").Str("block_hashes").Hashes({1}).bytes(), DecodeError::kBlockSize},
      {Pack().Map(3).Str("type").Str("BlockStored").Str("block_hashes").Hashes({1}).Str("block_size").Int(-1).bytes(),
       DecodeError::kBlockSize},
      {Pack().Map(3).Str("type").Str("BlockRemoved").Str("block_hashes").Hashes({1}).Str("medium").Uint(1).bytes(),
       DecodeError::kField},
      {Pack()
           .Map(3)
           .Str("type")
           .Str("BlockRemoved")
           .Str("block_hashes")
           .Hashes({1})
           .Str("locality")
           .Str(std::string(5000, 'x'))
           .bytes(),
       DecodeError::kField},
  };
  for (const auto& [event, reason] : bad) {
    DecodeReport report;
    const KvEventBatch batch =
        Decode(BatchOf({testing::StoredEvent({1}), event, testing::RemovedEvent({1})}), Dialect::kAuto, &report);
    EXPECT_EQ(batch.events.size(), 2u) << DecodeErrorName(reason);
    EXPECT_EQ(batch.bad_events, 1u) << DecodeErrorName(reason);
    EXPECT_EQ(Errors(report, reason), 1u) << DecodeErrorName(reason);
  }
}

TEST(KvDecoder, UnknownTagsAndFieldsAreCountedAndSkipped) {
  const Bytes future = Pack().Map(2).Str("type").Str("BlockPinned").Str("depth").Array(1).Array(1).Nil().bytes();
  const Bytes extra = Pack()
                          .Map(4)
                          .Str("type")
                          .Str("BlockRemoved")
                          .Str("block_hashes")
                          .Hashes({1})
                          .Str("new")
                          .Map(1)
                          .Str("a")
                          .Uint(1)
                          .Uint(3)
                          .Uint(4)
                          .bytes();
  const KvEventBatch batch = Decode(BatchOf({future, extra}));
  EXPECT_EQ(batch.unknown_events, 1u);
  EXPECT_EQ(batch.unknown_fields, 2u);
  EXPECT_EQ(batch.bad_events, 0u);
  EXPECT_EQ(batch.events.size(), 1u);
}

TEST(KvDecoder, SaltIsWhatTheRootsExtraKeysHoldBesideTheLora) {
  const auto event = [](bool root, const Bytes& extra_keys) {
    Pack pack;
    pack.Map(6).Str("type").Str("BlockStored").Str("block_hashes").Hashes({1}).Str("block_size").Uint(1);
    pack.Str("lora_name").Str("ada").Str("extra_keys").Raw(extra_keys).Str("parent_block_hash");
    return root ? pack.Nil().bytes() : pack.Uint(9).bytes();
  };
  const Bytes keys = Pack().Array(1).Array(3).Str("ada").Array(2).Str("image").Uint(0).Str("tenant").bytes();
  const Bytes lora_only = Pack().Array(2).Array(1).Str("ada").Nil().bytes();
  const Bytes two = Pack().Array(1).Array(3).Str("ada").Str("ada").Str("b").bytes();
  const KvEventBatch batch =
      Decode(BatchOf({event(true, keys), event(false, keys), event(true, lora_only), event(true, two)}));
  ASSERT_EQ(batch.events.size(), 4u);
  EXPECT_EQ(Stored(batch, 0).cache_salt, "tenant");
  EXPECT_EQ(Stored(batch, 1).cache_salt, "");
  EXPECT_EQ(Stored(batch, 2).cache_salt, "");
  EXPECT_EQ(Stored(batch, 3).cache_salt,
            "ada\x1f"
            "b");
}

TEST(KvDecoder, TokenPairsCountAsAbsentAndShortListsBreakTheChain) {
  const auto event = [](std::uint32_t hashes, const Bytes& tokens) {
    return Pack()
        .Map(5)
        .Str("type")
        .Str("BlockStored")
        .Str("block_hashes")
        .Hashes(std::vector<std::uint64_t>(hashes, 3))
        .Str("block_size")
        .Uint(2)
        .Str("token_ids")
        .Raw(tokens)
        .Str("parent_block_hash")
        .Nil()
        .bytes();
  };
  Pack pairs;
  pairs.Array(2).Hashes({1, 2}).Hashes({2, 3});
  const KvEventBatch batch =
      Decode(BatchOf({event(1, pairs.bytes()), event(1, Pack().Hashes({1, 2, 3, 4}).bytes()),
                      event(2, Pack().Hashes({1, 2, 3}).bytes()), event(2, Pack().Nil().bytes())}));
  ASSERT_EQ(batch.events.size(), 4u);
  EXPECT_EQ(Stored(batch, 0).token_count, 0u);
  EXPECT_TRUE(Stored(batch, 0).chain_known);
  EXPECT_FALSE(Stored(batch, 1).chain_known);
  EXPECT_TRUE(Stored(batch, 2).chain_known);
  EXPECT_FALSE(Stored(batch, 3).chain_known) << "a placeholder without tokens and parent tells nothing of its chain";
}

TEST(KvDecoder, DeclaredSizesTakeNoMemory) {
  EXPECT_EQ(BatchErrorOf(FromHex("ddff000000")), DecodeError::kLimit);
  EXPECT_EQ(BatchErrorOf(FromHex("dfff000000")), DecodeError::kLimit);
  EXPECT_EQ(BatchErrorOf(FromHex("93cb0000000000000000dd000fffff")), DecodeError::kTruncated);
  EXPECT_EQ(BatchErrorOf(FromHex("dbffffffff61")), DecodeError::kTruncated);
  EXPECT_EQ(BatchErrorOf(FromHex("c6ffffffff61")), DecodeError::kTruncated);
  EXPECT_EQ(BatchErrorOf(FromHex("c9ffffffff0161")), DecodeError::kTruncated);
}

TEST(KvDecoder, LimitsHold) {
  Bytes deep(1000, 0x91);
  deep.push_back(0xc0);
  EXPECT_EQ(BatchErrorOf(deep), DecodeError::kLimit);
  DecodeLimits limits;
  limits.payload_bytes_max = 100;
  EXPECT_EQ(BatchErrorOf(Bytes(101), limits), DecodeError::kLimit);
  limits = {};
  limits.nodes_max = 10;
  EXPECT_EQ(BatchErrorOf(BatchOf({testing::StoredEvent({1, 2, 3})}), limits), DecodeError::kLimit);
  limits = {};
  limits.events_max = 1;
  EXPECT_EQ(BatchErrorOf(BatchOf({testing::ClearedEvent(), testing::ClearedEvent()}), limits), DecodeError::kLimit);
  limits = {};
  limits.hashes_per_event_max = 2;
  const auto batch =
      DecodeKvBatch(BatchOf({testing::RemovedEvent({1, 2, 3}), testing::RemovedEvent({1})}), Dialect::kAuto, limits);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch.value().bad_events, 1u);
  EXPECT_EQ(batch.value().events.size(), 1u);
}

TEST(KvDecoder, EveryPrefixOfABatchIsAnErrorAndNoFlippedBitIsACrash) {
  const Bytes whole = FromHex(kCycle);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(DecodeKvBatch(std::span(whole).first(size)).ok()) << size;
  }
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    Bytes flipped = whole;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    const auto batch = DecodeKvBatch(flipped);
    if (batch.ok()) {
      EXPECT_LE(batch.value().events.size(), 2u);
    }
  }
}

TEST(KvDecoder, MediaAreComparedWithoutCase) {
  EXPECT_EQ(MediumFromName("GPU"), Medium::kGpu);
  EXPECT_EQ(MediumFromName("gpu"), Medium::kGpu);
  EXPECT_EQ(MediumFromName("CPU_PINNED"), Medium::kCpu);
  EXPECT_EQ(MediumFromName("Storage"), Medium::kStorage);
  EXPECT_EQ(MediumFromName("DISK"), Medium::kStorage);
  EXPECT_EQ(MediumFromName("EXTERNAL"), Medium::kExternal);
  EXPECT_EQ(MediumFromName("GPUS"), Medium::kOther);
  EXPECT_EQ(MediumFromName(""), Medium::kOther);
}

}  // namespace
}  // namespace foreload::telemetry
