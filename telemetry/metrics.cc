#include "telemetry/metrics.h"

#include <string>
#include <string_view>

namespace foreload::telemetry {
namespace {

TelemetryMetrics::PerStream Stream(MetricRegistry& registry, const char* stream) {
  return {registry.AddCounter("foreload_telemetry_messages_total", "Messages received.", {{"stream", stream}}),
          registry.AddCounter("foreload_telemetry_bytes_total", "Payload bytes received.", {{"stream", stream}})};
}

std::string_view DropReasonName(std::size_t reason) {
  constexpr std::string_view kNames[kDropReasonCount] = {"buffer_full",      "staging_full",      "access_full",
                                                         "step_access_shed", "block_sketch_shed", "sequence_frame",
                                                         "frame_count",      "stale_replay"};
  return kNames[reason];
}

constexpr const char* kDecodeErrorsName = "foreload_telemetry_decode_errors_total";
constexpr const char* kDecodeErrorsHelp = "Batches and events that could not be decoded.";

}  // namespace

TelemetryMetrics::TelemetryMetrics(MetricRegistry& registry)
    : kv_live(Stream(registry, "kv_live")),
      kv_replayed(Stream(registry, "kv_replayed")),
      access(Stream(registry, "access")),
      kv_events(registry.AddCounter("foreload_telemetry_kv_events_total", "KV events delivered.")),
      kv_blocks(registry.AddCounter("foreload_telemetry_kv_blocks_total", "Blocks named by delivered KV events.")),
      access_events(registry.AddCounter("foreload_telemetry_access_events_total", "Access events delivered.")),
      kv_gaps(registry.AddCounter("foreload_telemetry_gaps_total", "Holes in sequence numbers.", {{"stream", "kv"}})),
      access_gaps(
          registry.AddCounter("foreload_telemetry_gaps_total", "Holes in sequence numbers.", {{"stream", "access"}})),
      access_missing(registry.AddCounter("foreload_telemetry_access_missing_messages_total",
                                         "Access messages that never arrived; re-announcement heals them.")),
      replays(registry.AddCounter("foreload_telemetry_replays_total", "Replay requests sent.")),
      kv_restarts(registry.AddCounter("foreload_telemetry_restarts_total", "Publishers that started anew.",
                                      {{"stream", "kv"}})),
      access_restarts(registry.AddCounter("foreload_telemetry_restarts_total", "Publishers that started anew.",
                                          {{"stream", "access"}})),
      duplicates(registry.AddCounter("foreload_telemetry_duplicates_total", "Batches that were known already.")),
      unknown_events(
          registry.AddCounter("foreload_telemetry_unknown_events_total", "Events with a tag that is unknown here.")),
      unknown_fields(registry.AddCounter("foreload_telemetry_unknown_fields_total", "Fields that are unknown here.")),
      reconnects(
          registry.AddCounter("foreload_telemetry_reconnects_total", "Connections established after the first.")),
      heartbeats(registry.AddCounter("foreload_telemetry_heartbeats_total", "KV batches without events.")),
      sources_unknown(registry.AddGauge("foreload_telemetry_sources_unknown", "KV sources whose view is unknown.")),
      lag_seconds(registry.AddHistogram("foreload_telemetry_lag_seconds", "Receipt minus the publisher's time stamp.",
                                        DurationBucketsSeconds())) {
  for (std::size_t i = 0; i < kDecodeErrorCount; ++i) {
    decode_errors[i] =
        &registry.AddCounter(kDecodeErrorsName, kDecodeErrorsHelp,
                             {{"stream", "kv"}, {"reason", std::string(DecodeErrorName(static_cast<DecodeError>(i)))}});
  }
  for (std::size_t i = 0; i < kAccessErrorCount; ++i) {
    access_errors[i] = &registry.AddCounter(
        kDecodeErrorsName, kDecodeErrorsHelp,
        {{"stream", "access"}, {"reason", std::string(AccessErrorName(static_cast<AccessError>(i)))}});
  }
  for (std::size_t i = 0; i < kDropReasonCount; ++i) {
    dropped[i] = &registry.AddCounter("foreload_telemetry_dropped_total", "What arrived and never reached the core.",
                                      {{"reason", std::string(DropReasonName(i))}});
  }
}

void TelemetryMetrics::CountDecodeErrors(const DecodeReport& report) {
  for (std::size_t i = 0; i < kDecodeErrorCount; ++i) {
    if (report.errors[i] > 0) decode_errors[i]->Add(report.errors[i]);
  }
}

void TelemetryMetrics::CountAccessErrors(const AccessReport& report) {
  for (std::size_t i = 0; i < kAccessErrorCount; ++i) {
    if (report.errors[i] > 0) access_errors[i]->Add(report.errors[i]);
  }
}

}  // namespace foreload::telemetry
