// KV-cache event batches from the wire (MessagePack) into telemetry/kv_event.h, for every dialect on record.
//
// Liberal in form: batch and event as array or map, integers of any width, hashes as integers or digests, names and
// aliases of all publishers. Strict in substance: a batch that is not wholly consumed, has no time or no event list is
// an error; an event without type, hashes or block size costs itself alone; a tag or field that nobody knows is skipped
// and counted. What each engine sends and where this reader is wider: docs/wire.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "telemetry/kv_event.h"

namespace foreload::telemetry {

// kAuto takes every form; a named dialect differs only where forms contradict each other:
// kVllm refuses negative hashes (its own are unsigned), kMooncake does not need a block size (it comes from elsewhere).
enum class Dialect : std::uint8_t { kAuto, kVllm, kSglang, kTrtllm, kMooncake };

// All limits hold before memory is taken for what they bound. Exceeding one of the first group costs the batch, of the
// second only the event.
struct DecodeLimits {
  std::size_t payload_bytes_max = 16u << 20;
  std::uint32_t depth_max = 16;
  std::uint32_t array_elements_max = 1u << 20;  // token ids of one event: a context of a million tokens
  std::uint32_t map_pairs_max = 1024;
  std::uint32_t nodes_max = 4u << 20;
  std::uint32_t events_max = 1u << 16;

  std::uint32_t hashes_per_event_max = 1u << 18;
  std::uint32_t string_bytes_max = 4096;
};

enum class DecodeError : std::uint8_t {
  // the whole batch
  kTruncated,
  kMalformed,  // not MessagePack (or, for the pull form, not JSON)
  kTrailingBytes,
  kLimit,
  kBatchShape,  // no time, no event list, a rank that is no rank
  // one event
  kEventShape,  // neither map nor array
  kEventType,   // no tag
  kHash,        // missing, or neither integer nor digest
  kBlockSize,   // missing or zero
  kField,       // a known field of a wrong type or size
};
inline constexpr std::size_t kDecodeErrorCount = 10;
std::string_view DecodeErrorName(DecodeError error);  // snake_case, for metric labels

// Why things were refused, by reason. Counts are added, so one report can run over many batches.
struct DecodeReport {
  std::array<std::uint64_t, kDecodeErrorCount> errors{};
  void Count(DecodeError error) { ++errors[static_cast<std::size_t>(error)]; }
};

// `payload` is the last frame of a live or replayed message. On an error nothing of the batch is usable. Any thread.
Result<KvEventBatch> DecodeKvBatch(std::span<const std::uint8_t> payload, Dialect dialect = Dialect::kAuto,
                                   const DecodeLimits& limits = {}, DecodeReport* report = nullptr);

// The medium that an engine names, in any case; an unknown name is kOther.
Medium MediumFromName(std::string_view name);

}  // namespace foreload::telemetry
