// Real captures and third-party conformance cases. They lie outside the tree: each test skips where they are absent.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <fstream>
#include <map>
#include <set>

#include "telemetry/kv_decoder.h"
#include "telemetry/tests/test_support.h"

namespace foreload::telemetry {
namespace {

using simdjson::dom::element;
using testing::Bytes;

#define SKIP_WITHOUT(path) \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no test data at " << (path) << " (set FORELOAD_DATA)"

std::filesystem::path EventsDir() {
  return testing::DataDir() / "kv_events";
}

// One block's worth of an event, as the conformance cases list them.
struct Flat {
  std::string type;
  std::optional<std::uint64_t> hash;
  std::optional<std::uint64_t> parent;
  bool parent_unknown = false;
  std::optional<std::uint64_t> block_size;
  std::string medium;
  std::string spec_kind;
  std::string locality;
  std::string salt;
  std::optional<std::uint64_t> group;
  std::optional<std::uint64_t> rank;

  friend bool operator==(const Flat&, const Flat&) = default;
};

std::string NameOf(Medium medium) {
  return medium == Medium::kGpu ? "GPU" : "other";
}

std::vector<Flat> Flatten(const KvEventBatch& batch) {
  std::vector<Flat> out;
  for (const KvEvent& event : batch.events) {
    Flat flat;
    flat.rank = batch.data_parallel_rank;
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      std::optional<std::uint64_t> parent;
      if (stored->parent) parent = stored->parent->low64;
      for (std::size_t i = 0; i < stored->hashes.size(); ++i) {
        flat.type = "Stored";
        flat.hash = stored->hashes[i].low64;
        flat.parent = stored->chain_known ? parent : std::nullopt;
        flat.parent_unknown = !stored->chain_known;
        flat.block_size = stored->block_size;
        flat.medium = NameOf(stored->medium);
        flat.spec_kind = stored->spec_kind;
        flat.locality = stored->locality;
        flat.salt = i == 0 ? stored->cache_salt : "";
        flat.group = stored->group;
        out.push_back(flat);
        parent = flat.hash;
      }
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      for (const BlockHash& hash : removed->hashes) {
        flat.type = "Removed";
        flat.hash = hash.low64;
        flat.medium = NameOf(removed->medium);
        flat.locality = removed->locality;
        flat.group = removed->group;
        out.push_back(flat);
      }
    } else {
      flat.type = "Cleared";
      out.push_back(flat);
    }
  }
  return out;
}

std::string Text(const element& object, const char* name) {
  std::string_view text;
  return object[name].get(text) == simdjson::SUCCESS ? std::string(text) : std::string();
}

std::optional<std::uint64_t> Number(const element& object, const char* name) {
  std::uint64_t number = 0;
  if (object[name].get(number) == simdjson::SUCCESS) return number;
  return std::nullopt;
}

Flat Expected(const element& event) {
  Flat flat;
  flat.type = Text(event, "type");
  flat.hash = Number(event, "block_hash");
  flat.parent = Number(event, "parent_hash");
  bool unknown = false;
  flat.parent_unknown = event["parent_unknown"].get(unknown) == simdjson::SUCCESS && unknown;
  flat.block_size = Number(event, "block_size");
  flat.medium = Text(event, "medium");
  flat.spec_kind = Text(event, "spec_kind");
  flat.locality = Text(event, "locality");
  simdjson::dom::array keys;
  if (event["extra_keys"].get(keys) == simdjson::SUCCESS) {
    for (const element key : keys) flat.salt += std::string(std::string_view(key));
  }
  flat.group = Number(event, "group_idx");
  flat.rank = Number(event, "dp_rank");
  return flat;
}

// Where this decoder is wider than the cases' authors, or spends an event instead of a batch.
enum class Verdict { kBatchRefused, kEventRefused, kAccepted };
const std::map<std::string, Verdict>& MalformedCases() {
  static const std::map<std::string, Verdict> cases{
      {"batch_is_a_map", Verdict::kBatchRefused},     {"events_not_array", Verdict::kBatchRefused},
      {"garbage_bytes", Verdict::kBatchRefused},      {"top_level_string", Verdict::kBatchRefused},
      {"trailing_garbage", Verdict::kBatchRefused},   {"truncated_payload", Verdict::kBatchRefused},
      {"ts_missing", Verdict::kBatchRefused},         {"block_hashes_missing", Verdict::kEventRefused},
      {"block_size_missing", Verdict::kEventRefused}, {"event_no_type", Verdict::kEventRefused},
      {"hash_is_string", Verdict::kEventRefused},     {"event_is_tag_array", Verdict::kAccepted},
      {"hash_is_negative", Verdict::kAccepted}};
  return cases;
}

void CheckCase(const std::string& name, const element& root) {
  SCOPED_TRACE(name);
  const Bytes wire = testing::FromHex(std::string_view(root["wire_hex"]));
  const auto batch = DecodeKvBatch(wire);
  const element expect = root["expect"];
  element error;
  if (expect["error"].get(error) == simdjson::SUCCESS) {
    const auto it = MalformedCases().find(name);
    ASSERT_NE(it, MalformedCases().end()) << "a new malformed case: decide what it means here";
    ASSERT_EQ(batch.ok(), it->second != Verdict::kBatchRefused);
    if (batch.ok()) {
      EXPECT_EQ(batch.value().bad_events, it->second == Verdict::kEventRefused ? 1u : 0u);
      EXPECT_EQ(batch.value().events.size(), it->second == Verdict::kEventRefused ? 0u : 1u);
    }
    return;
  }
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ(batch.value().bad_events, 0u);
  EXPECT_EQ(batch.value().unknown_events, Number(expect, "unknown_types").value_or(0));
  const std::vector<Flat> got = Flatten(batch.value());
  const simdjson::dom::array events = simdjson::dom::array(element(expect["events"]));
  ASSERT_EQ(got.size(), events.size());
  std::size_t i = 0;
  for (const element event : events) {
    EXPECT_EQ(got[i], Expected(event)) << "event " << i;
    EXPECT_NEAR(batch.value().wall_time_seconds * 1000, double(element(event["at_ms"])), 0.001);
    ++i;
  }
}

TEST(KvConformance, VllmWireCasesGiveTheirEvents) {
  const auto dir = EventsDir() / "vllm-0.26.0/vllm-wire";
  SKIP_WITHOUT(dir);
  std::size_t cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().stem() == "manifest") continue;
    simdjson::dom::parser parser;
    element root;
    ASSERT_EQ(parser.load(entry.path()).get(root), simdjson::SUCCESS) << entry.path();
    CheckCase(entry.path().stem(), root);
    ++cases;
  }
  EXPECT_EQ(cases, 30u);
}

struct Totals {
  std::size_t messages = 0, stored = 0, removed = 0, cleared = 0, stored_hashes = 0, above_i64 = 0, with_digest = 0;
  std::size_t salted = 0, sessions = 0, bad = 0, unknown = 0, token_mismatch = 0;
};

Totals DecodeCapture(const std::filesystem::path& path, const char* payload_key) {
  Totals totals;
  std::ifstream file(path);
  std::string line;
  simdjson::dom::parser parser;
  while (std::getline(file, line)) {
    const element message = parser.parse(line);
    const auto batch = DecodeKvBatch(testing::FromHex(std::string_view(message[payload_key])), Dialect::kAuto);
    EXPECT_TRUE(batch.ok()) << batch.status().ToString();
    if (!batch.ok()) continue;
    ++totals.messages;
    totals.bad += batch.value().bad_events;
    totals.unknown += batch.value().unknown_events + batch.value().unknown_fields;
    for (const KvEvent& event : batch.value().events) {
      if (const auto* stored = std::get_if<BlockStored>(&event)) {
        ++totals.stored;
        totals.stored_hashes += stored->hashes.size();
        totals.salted += !stored->cache_salt.empty();
        totals.sessions += !stored->session_id.empty();
        totals.token_mismatch += stored->token_count != stored->hashes.size() * stored->block_size;
        for (const BlockHash& hash : stored->hashes) {
          totals.with_digest += hash.digest_bytes == 32;
          totals.above_i64 += hash.low64 >> 63;
        }
      } else {
        ++(std::holds_alternative<BlockRemoved>(event) ? totals.removed : totals.cleared);
      }
    }
  }
  return totals;
}

TEST(KvConformance, Vllm026CaptureDecodesWhole) {
  const auto path = EventsDir() / "vllm-0.26.0/capture-salt.jsonl";
  SKIP_WITHOUT(path);
  const Totals totals = DecodeCapture(path, "payload_hex");
  EXPECT_EQ(totals.messages, 93u);
  EXPECT_EQ(totals.stored, 223u);
  EXPECT_EQ(totals.removed, 55u);
  EXPECT_GT(totals.above_i64, 0u);
  EXPECT_GT(totals.salted, 0u);
  EXPECT_EQ(totals.bad + totals.unknown + totals.token_mismatch, 0u);
}

TEST(KvConformance, Vllm032CaptureWithIntegerHashesDecodesWhole) {
  const auto path = EventsDir() / "vllm-0.32.0/vllm032-events.jsonl";
  SKIP_WITHOUT(path);
  const Totals totals = DecodeCapture(path, "payload");
  EXPECT_EQ(totals.messages, 39u);
  EXPECT_EQ(totals.stored, 36u);
  EXPECT_EQ(totals.stored_hashes, 339u);
  EXPECT_EQ(totals.removed, 138u);
  EXPECT_EQ(totals.cleared, 1u);
  EXPECT_GT(totals.salted, 0u);
  EXPECT_EQ(totals.bad + totals.unknown, 0u);
}

TEST(KvConformance, Vllm032CaptureWithDigestsKeepsThemWhole) {
  const auto path = EventsDir() / "vllm-0.32.0/vllm032-events-bytes.jsonl";
  SKIP_WITHOUT(path);
  const Totals totals = DecodeCapture(path, "payload");
  EXPECT_EQ(totals.messages, 6u);
  EXPECT_EQ(totals.stored, 8u);
  EXPECT_EQ(totals.with_digest, totals.stored_hashes);
  EXPECT_GT(totals.sessions, 0u);
  EXPECT_EQ(totals.bad + totals.unknown, 0u);
}

TEST(KvConformance, SglangMessagesKeepSignedHashesAndTiers) {
  const auto path = EventsDir() / "sglang-0.5.20/sglang_0.5.20_wire_selected.jsonl";
  SKIP_WITHOUT(path);
  const Totals totals = DecodeCapture(path, "wire_hex");
  EXPECT_EQ(totals.messages, 4u);
  EXPECT_EQ(totals.stored, 3u);
  EXPECT_EQ(totals.removed, 2u);
  EXPECT_EQ(totals.cleared, 1u);
  EXPECT_EQ(totals.bad + totals.unknown, 0u);

  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    simdjson::dom::parser parser;
    const element message = parser.parse(line);
    if (std::string_view(message["name"]) != "stored_host_tier") continue;
    const auto batch = DecodeKvBatch(testing::FromHex(std::string_view(message["wire_hex"])));
    const auto& stored = std::get<BlockStored>(batch.value().events.at(0));
    EXPECT_EQ(stored.medium, Medium::kCpu);
    EXPECT_EQ(stored.hashes.at(0).low64, 0xfe1ac4c3c48a8c78u) << "an int64 keeps its bit pattern";
    EXPECT_EQ(stored.parent->low64, 0x66be329edb7d4b06u);
  }
}

// The two llm-d events come as JSON; they go through the wire form that their engine would have used.
TEST(KvConformance, LlmDEventsSurviveTheWire) {
  for (const char* name : {"kv_event_base.json", "kv_event_lora.json"}) {
    const auto path = EventsDir() / "llm-d" / name;
    SKIP_WITHOUT(path);
    simdjson::dom::parser parser;
    const element root = parser.load(path);
    testing::Pack pack;
    pack.Map(5).Str("event_type").Str(std::string_view(root["event_type"])).Str("block_size").Uint(16);
    std::vector<std::uint64_t> hashes;
    for (const element hash : simdjson::dom::array(element(root["block_hashes"])))
      hashes.push_back(std::uint64_t(hash));
    pack.Str("block_hashes").Hashes(hashes).Str("lora_name");
    std::string_view lora;
    if (root["lora_name"].get(lora) == simdjson::SUCCESS) {
      pack.Str(lora);
    } else {
      pack.Nil();
    }
    pack.Str("parent_block_hash").Nil();
    const auto batch = DecodeKvBatch(testing::BatchOf({pack.bytes()}));
    ASSERT_TRUE(batch.ok());
    const auto& stored = std::get<BlockStored>(batch.value().events.at(0));
    ASSERT_EQ(stored.hashes.size(), hashes.size());
    for (std::size_t i = 0; i < hashes.size(); ++i) EXPECT_EQ(stored.hashes[i].low64, hashes[i]);
    EXPECT_EQ(stored.lora_name, lora);
  }
}

}  // namespace
}  // namespace foreload::telemetry
