#include "transport/ssd/metrics.h"

#include <string>

namespace foreload::ssd {
namespace {

constexpr std::array<std::string_view, kRefuseReasonCount> kRefuseNames = {"exists",    "invalid",  "no_segment",
                                                                           "no_header", "no_space", "off"};
constexpr std::array<std::string_view, kIoKindCount> kIoNames = {"read", "write", "sync", "create"};

template <std::size_t kCount, typename NameOf>
std::array<Counter*, kCount> Family(MetricRegistry& registry, std::string_view name, std::string_view help,
                                    std::string_view label, NameOf name_of) {
  std::array<Counter*, kCount> cells{};
  for (std::size_t i = 0; i < kCount; ++i) {
    cells[i] = &registry.AddCounter(name, help, {{std::string(label), std::string(name_of(i))}});
  }
  return cells;
}

}  // namespace

std::string_view DropReasonName(DropReason reason) {
  switch (reason) {
    case DropReason::kReclaimed: return "reclaimed";
    case DropReason::kCorrupt: return "corrupt";
    case DropReason::kIoError: return "io_error";
    case DropReason::kReplaced: return "replaced";
  }
  return "unknown";
}

SsdMetrics::SsdMetrics(MetricRegistry& r)
    : capacity_bytes(r.AddGauge("foreload_transport_ssd_capacity_bytes", "Configured size of the SSD tier")),
      used_bytes(r.AddGauge("foreload_transport_ssd_used_bytes", "Bytes of segment files on disk")),
      live_bytes(r.AddGauge("foreload_transport_ssd_live_bytes", "Bytes of records that can be read")),
      records(r.AddGauge("foreload_transport_ssd_records", "Records that can be read")),
      segments(r.AddGauge("foreload_transport_ssd_segments", "Segment files")),
      state(r.AddGauge("foreload_transport_ssd_state", "0: on, 1: writes stopped, 2: off")),
      unsynced_bytes(r.AddGauge("foreload_transport_ssd_unsynced_bytes", "Written and not durable yet")),
      written_records(r.AddCounter("foreload_transport_ssd_written_records_total", "Records written")),
      written_bytes(r.AddCounter("foreload_transport_ssd_written_bytes_total", "Bytes of records written")),
      failed_writes(r.AddCounter("foreload_transport_ssd_failed_writes_total", "Records whose write or sync failed")),
      durable_records(r.AddCounter("foreload_transport_ssd_durable_records_total", "Records that became durable")),
      read_records(r.AddCounter("foreload_transport_ssd_read_records_total", "Verified reads")),
      read_bytes(r.AddCounter("foreload_transport_ssd_read_bytes_total", "Bytes of verified reads")),
      checksum_failures(r.AddCounter("foreload_transport_ssd_checksum_failures_total",
                                     "Reads whose header or extents did not match")),
      recovered_records(r.AddCounter("foreload_transport_ssd_recovered_records_total", "Records found at start")),
      recovered_tombstones(
          r.AddCounter("foreload_transport_ssd_recovered_tombstones_total", "Dropped records seen at start")),
      discarded_segments(r.AddCounter("foreload_transport_ssd_discarded_segments_total",
                                      "Half-written or empty segment files removed at start")),
      reclaimed_segments(r.AddCounter("foreload_transport_ssd_reclaimed_segments_total", "Segments reclaimed")),
      reclaimed_bytes(r.AddCounter("foreload_transport_ssd_reclaimed_bytes_total", "Bytes of segments reclaimed")),
      spared_segments(r.AddCounter("foreload_transport_ssd_spared_segments_total",
                                   "Segments passed over once by reclaim because they were being read")),
      abandoned_segments(
          r.AddCounter("foreload_transport_ssd_abandoned_segments_total", "Segments given up after a failed sync")),
      syncs(r.AddCounter("foreload_transport_ssd_syncs_total", "Group commits")),
      sync_seconds(
          r.AddHistogram("foreload_transport_ssd_sync_seconds", "Duration of one fdatasync", DurationBucketsSeconds())),
      discarded_records(Family<kDiscardReasonCount>(
          r, "foreload_transport_ssd_recovery_discarded_total", "Pieces of segment files refused at start", "reason",
          [](std::size_t i) { return DiscardReasonName(static_cast<DiscardReason>(i)); })),
      dropped_records(Family<kDropReasonCount>(
          r, "foreload_transport_ssd_dropped_records_total", "Records that the store dropped by itself", "reason",
          [](std::size_t i) { return DropReasonName(static_cast<DropReason>(i)); })),
      refused_writes(Family<kRefuseReasonCount>(r, "foreload_transport_ssd_refused_writes_total", "Writes not begun",
                                                "reason", [](std::size_t i) { return kRefuseNames[i]; })),
      io_errors(Family<kIoKindCount>(r, "foreload_transport_ssd_io_errors_total", "Refusals of the device", "operation",
                                     [](std::size_t i) { return kIoNames[i]; })) {}

}  // namespace foreload::ssd
