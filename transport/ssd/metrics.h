// The SSD tier's metric cells: every series exists at 0 from the start.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/metric.h"
#include "transport/ssd/scan.h"

namespace foreload::ssd {

// Why a readable record ceased to be one without its owner asking.
enum class DropReason : std::uint8_t {
  kReclaimed,  // its segment was needed
  kCorrupt,    // its bytes are not what was stored
  kIoError,    // the device refused to read it
  kReplaced    // stored again under another layout
};
inline constexpr std::size_t kDropReasonCount = 4;
std::string_view DropReasonName(DropReason reason);

// Why PrepareWrite said no.
enum class RefuseReason : std::uint8_t { kExists, kInvalid, kNoSegment, kNoHeader, kNoSpace, kOff };
inline constexpr std::size_t kRefuseReasonCount = 6;

enum class IoKind : std::uint8_t { kRead, kWrite, kSync, kCreate };
inline constexpr std::size_t kIoKindCount = 4;

struct SsdMetrics {
  explicit SsdMetrics(MetricRegistry& registry);

  Gauge& capacity_bytes;
  Gauge& used_bytes;  // of segment files on disk
  Gauge& live_bytes;  // of records that can be read
  Gauge& records;
  Gauge& segments;
  Gauge& state;  // SsdState: 0 on, 1 writes stopped, 2 off
  Gauge& unsynced_bytes;

  Counter& written_records;
  Counter& written_bytes;
  Counter& failed_writes;
  Counter& durable_records;
  Counter& read_records;
  Counter& read_bytes;
  Counter& checksum_failures;
  Counter& recovered_records;
  Counter& recovered_tombstones;
  Counter& discarded_segments;  // at start: half-written or empty
  Counter& reclaimed_segments;
  Counter& reclaimed_bytes;
  Counter& spared_segments;     // second chances
  Counter& abandoned_segments;  // fsync failures
  Counter& syncs;
  Histogram& sync_seconds;
  std::array<Counter*, kDiscardReasonCount> discarded_records;  // at start
  std::array<Counter*, kDropReasonCount> dropped_records;
  std::array<Counter*, kRefuseReasonCount> refused_writes;
  std::array<Counter*, kIoKindCount> io_errors;

  Counter& discarded(DiscardReason reason) { return *discarded_records[static_cast<std::size_t>(reason)]; }
  Counter& dropped(DropReason reason) { return *dropped_records[static_cast<std::size_t>(reason)]; }
  Counter& refused(RefuseReason reason) { return *refused_writes[static_cast<std::size_t>(reason)]; }
  Counter& io_error(IoKind kind) { return *io_errors[static_cast<std::size_t>(kind)]; }
};

}  // namespace foreload::ssd
