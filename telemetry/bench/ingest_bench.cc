// What one core takes in, in block accesses a second (items_per_second): decoding alone, and the whole path of a
// message after the socket (sequence, decode, stage, drain).
#include <benchmark/benchmark.h>

#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "proto/telemetry.pb.h"
#include "telemetry/access_validate.h"
#include "telemetry/kv_decoder.h"
#include "telemetry/kv_stream.h"
#include "telemetry/staging_queue.h"

namespace foreload::telemetry {
namespace {

using Bytes = std::vector<std::uint8_t>;

void PutUint(Bytes& out, std::uint8_t tag, std::uint64_t value, int width) {
  out.push_back(tag);
  for (int i = width - 1; i >= 0; --i) out.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}
void PutText(Bytes& out, std::string_view text) {
  out.push_back(static_cast<std::uint8_t>(0xa0 + text.size()));
  out.insert(out.end(), text.begin(), text.end());
}

constexpr std::uint32_t kTokensPerBlock = 16;

// The shape of vLLM 0.26: maps, u64 hashes (or 32-byte digests), token ids of 16 bits.
Bytes StoredBatch(std::uint32_t events, std::uint32_t blocks, bool digests, bool tokens) {
  Rng rng(1);
  Bytes out{0x93};
  PutUint(out, 0xcb, std::bit_cast<std::uint64_t>(1785155462.02), 8);
  PutUint(out, 0xdc, events, 2);
  for (std::uint32_t e = 0; e < events; ++e) {
    out.push_back(0x8b);
    PutText(out, "type"), PutText(out, "BlockStored");
    PutText(out, "block_hashes");
    PutUint(out, 0xdc, blocks, 2);
    for (std::uint32_t b = 0; b < blocks; ++b) {
      if (!digests) {
        PutUint(out, 0xcf, rng.Next(), 8);
        continue;
      }
      out.insert(out.end(), {0xc4, 32});
      for (int i = 0; i < 32; ++i) out.push_back(static_cast<std::uint8_t>(rng.Next()));
    }
    PutText(out, "parent_block_hash"), PutUint(out, 0xcf, rng.Next(), 8);
    PutText(out, "token_ids");
    const std::uint32_t token_count = tokens ? blocks * kTokensPerBlock : 0;
    PutUint(out, 0xdd, token_count, 4);
    for (std::uint32_t t = 0; t < token_count; ++t) PutUint(out, 0xcd, rng.Below(50000), 2);
    PutText(out, "block_size"), out.push_back(kTokensPerBlock);
    PutText(out, "lora_id"), out.push_back(0xc0);
    PutText(out, "medium"), PutText(out, "GPU");
    PutText(out, "lora_name"), out.push_back(0xc0);
    PutText(out, "extra_keys"), out.push_back(0xc0);
    PutText(out, "group_idx"), out.push_back(0);
    PutText(out, "kv_cache_spec_kind"), PutText(out, "full_attention");
  }
  out.push_back(0);
  return out;
}

void Decode(benchmark::State& state, bool digests, bool tokens) {
  const auto events = static_cast<std::uint32_t>(state.range(0));
  const auto blocks = static_cast<std::uint32_t>(state.range(1));
  const Bytes payload = StoredBatch(events, blocks, digests, tokens);
  for (auto _ : state) {
    auto batch = DecodeKvBatch(payload);
    if (!batch.ok() || batch.value().events.size() != events) state.SkipWithError("not decoded");
    benchmark::DoNotOptimize(batch);
  }
  state.SetItemsProcessed(state.iterations() * events * blocks);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(payload.size()));
}

// Events a batch x blocks an event: decode-time (one block each), a prompt, a busy scheduler step.
#define SHAPES ->Args({1, 1})->Args({13, 1})->Args({1, 45})->Args({16, 64})
BENCHMARK_CAPTURE(Decode, integers, false, true) SHAPES;
BENCHMARK_CAPTURE(Decode, digests, true, true) SHAPES;
BENCHMARK_CAPTURE(Decode, integers_without_tokens, false, false) SHAPES;

void Path(benchmark::State& state) {
  const auto events = static_cast<std::uint32_t>(state.range(0));
  const auto blocks = static_cast<std::uint32_t>(state.range(1));
  const Bytes payload = StoredBatch(events, blocks, false, true);
  MetricRegistry registry;
  TelemetryMetrics metrics(registry);
  StagingQueue queue({}, metrics, [] {});
  KvStream stream({}, queue, metrics);
  std::vector<StagedItem> items;
  std::uint64_t number = 0;
  for (auto _ : state) {
    stream.OnLive({number++, std::nullopt}, payload, 0);
    stream.Pump(64, 0);
    if (number % 64 == 0) queue.Drain(items);
  }
  if (metrics.kv_blocks.value() != number * events * blocks) state.SkipWithError("blocks were lost");
  state.SetItemsProcessed(state.iterations() * events * blocks);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(payload.size()));
}
BENCHMARK(Path) SHAPES;

// Access stream: sparse selections, 64 blocks a record.
void Access(benchmark::State& state) {
  constexpr int kRecords = 64;
  constexpr int kBlocks = 64;
  AccessBatch batch;
  batch.set_publisher_id(std::string(16, 'p'));
  for (int r = 0; r < kRecords; ++r) {
    StepAccess* step = batch.add_events()->mutable_step_access();
    step->set_request_id("request-" + std::to_string(r % 8));
    for (int b = 0; b < kBlocks; ++b) step->add_block_ordinal_deltas(static_cast<std::uint32_t>(1 + b % 5));
    step->set_scores(std::string(kBlocks, 's'));
    step->set_query_sketch(std::string(16, 'q'));
  }
  const std::string payload = batch.SerializeAsString();
  for (auto _ : state) {
    auto decoded = DecodeAccessBatch({reinterpret_cast<const std::uint8_t*>(payload.data()), payload.size()});
    if (!decoded.ok() || decoded.value()->events_size() != kRecords) state.SkipWithError("not decoded");
    benchmark::DoNotOptimize(decoded);
  }
  state.SetItemsProcessed(state.iterations() * kRecords * kBlocks);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(payload.size()));
}
BENCHMARK(Access);

}  // namespace
}  // namespace foreload::telemetry

BENCHMARK_MAIN();
