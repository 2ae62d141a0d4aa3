// One engine's access stream: numbered AccessBatch messages in, decoded batches out. Gaps are counted only; a new
// publisher id (the client process has started anew) begins a new count. Single-threaded.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "telemetry/metrics.h"
#include "telemetry/sequence_tracker.h"
#include "telemetry/sink.h"

namespace foreload::telemetry {

class AccessStream {
 public:
  AccessStream(SourceIndex source, Sink& sink, TelemetryMetrics& metrics)
      : source_(source), sink_(sink), metrics_(metrics) {}

  void OnMessage(const SequenceFrame& frame, std::span<const std::uint8_t> payload, TimeNs now);

 private:
  const SourceIndex source_;
  Sink& sink_;
  TelemetryMetrics& metrics_;
  std::string publisher_;  // empty: none seen yet
  std::uint64_t next_ = 0;
};

}  // namespace foreload::telemetry
