// Everything that the ingest side counts. Declared once for all sources of a process; cells are lock-free.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/metric.h"
#include "telemetry/access_validate.h"
#include "telemetry/kv_decoder.h"

namespace foreload::telemetry {

// Why something that arrived never reached the core.
enum class DropReason : std::uint8_t {
  kBufferFull,       // KV batch: the tracker's buffer overflowed; replayed, or the view becomes unknown
  kStagingFull,      // KV batch: refused by the staging queue and held back (counted at each refusal)
  kAccessFull,       // access batch: not even its reserve had room
  kStepAccessShed,   // StepAccess records shed to keep request events
  kBlockSketchShed,  // BlockSketch records shed likewise
  kSequenceFrame,    // message with an impossible sequence frame
  kFrameCount,       // message with another number of frames
  kStaleReplay,      // reply that no request waits for
};
inline constexpr std::size_t kDropReasonCount = 8;

struct TelemetryMetrics {
  explicit TelemetryMetrics(MetricRegistry& registry);

  void CountDecodeErrors(const DecodeReport& report);
  void CountAccessErrors(const AccessReport& report);
  void Drop(DropReason reason, std::uint64_t n = 1) { dropped[static_cast<std::size_t>(reason)]->Add(n); }

  struct PerStream {
    Counter& messages;
    Counter& bytes;
  };
  PerStream kv_live;
  PerStream kv_replayed;
  PerStream access;
  Counter& kv_events;  // delivered
  Counter& kv_blocks;  // block hashes in them
  Counter& access_events;
  Counter& kv_gaps;
  Counter& access_gaps;
  Counter& access_missing;  // sequence numbers that the access gaps span
  Counter& replays;         // requests sent
  Counter& kv_restarts;
  Counter& access_restarts;
  Counter& duplicates;
  Counter& unknown_events;
  Counter& unknown_fields;
  Counter& reconnects;     // connections established after a first one
  Counter& heartbeats;     // KV batches without events
  Gauge& sources_unknown;  // KV sources whose view is unknown
  Histogram& lag_seconds;  // wall clock at receipt minus the publisher's time stamp
  std::array<Counter*, kDecodeErrorCount> decode_errors;
  std::array<Counter*, kAccessErrorCount> access_errors;
  std::array<Counter*, kDropReasonCount> dropped;
};

}  // namespace foreload::telemetry
