// One engine's KV-event stream between sockets and sink: feeds the sequence tracker, decodes what is due, offers it.
// No sockets in here. Single-threaded.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "telemetry/kv_decoder.h"
#include "telemetry/metrics.h"
#include "telemetry/sequence_tracker.h"
#include "telemetry/sink.h"

namespace foreload::telemetry {

class KvStream {
 public:
  struct Options {
    SourceIndex source = 0;
    Dialect dialect = Dialect::kAuto;
    std::optional<std::uint32_t> data_parallel_rank;
    DecodeLimits limits;
    SequenceTracker::Options tracker;
  };

  KvStream(const Options& options, Sink& sink, TelemetryMetrics& metrics);

  void OnLive(const SequenceFrame& frame, SequenceTracker::Payload payload, TimeNs now);
  void OnReplayed(const SequenceFrame& frame, SequenceTracker::Payload payload, TimeNs now);  // end marker included

  enum class Pumped : std::uint8_t { kIdle, kMore, kRefused };
  // Offers at most `batches_max` batches to the sink. kMore: more are due. kRefused: the sink is full; try again soon.
  Pumped Pump(std::size_t batches_max, TimeNs now);

  SequenceTracker& tracker() { return tracker_; }
  const SequenceTracker& tracker() const { return tracker_; }

 private:
  void Count(SequenceTracker::Fed fed);
  bool Decode(const SequenceTracker::Due& due, TimeNs now);
  bool Offer(TimeNs now);

  const Options options_;
  Sink& sink_;
  TelemetryMetrics& metrics_;
  SequenceTracker tracker_;
  // The batch that is due, decoded once however often it is refused.
  std::optional<KvEventBatch> decoded_;
  std::uint64_t decoded_number_ = 0;
  std::uint64_t gaps_seen_ = 0;
  std::uint64_t restarts_seen_ = 0;
};

}  // namespace foreload::telemetry
