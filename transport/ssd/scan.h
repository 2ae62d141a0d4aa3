// Reads a segment file and tells which whole, valid records it holds. The one place that parses what a crash, a failing
// disk or a stranger may have left; it never fails, it finds less.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "transport/ssd/format.h"

namespace foreload::ssd {

enum class DiscardReason : std::uint8_t {
  kTorn,        // unreadable bytes where a record should start: a run of them counts once
  kHeader,      // a later block of a record's header is damaged, or the header contradicts itself
  kPayload,     // an extent's checksum does not match
  kTruncated,   // the file ends inside the record
  kMisplaced,   // a sound block of another place: a misdirected write
  kSuperseded,  // the same key was stored again later
  kReadError    // the device refused to read it
};
inline constexpr std::size_t kDiscardReasonCount = 7;
std::string_view DiscardReasonName(DiscardReason reason);

// Reads exactly `out.size()` bytes at `offset`; both are multiples of 4 KiB, `out` is aligned to 4 KiB.
using ReadAt = std::function<Status(std::uint64_t offset, std::span<std::byte> out)>;

struct ScannedRecord {
  std::uint64_t offset = 0;
  RecordHeader header;
};

// The range of a record that is not whole. It must get a tombstone before its segment may count as sealed.
struct RejectedRecord {
  std::uint64_t offset = 0;
  std::uint64_t sequence = 0;
  std::uint64_t record_bytes = 0;
};

struct ScanResult {
  BlockVerdict segment_verdict = BlockVerdict::kGarbage;  // not kGood: no records, nothing else is set
  SegmentHeader segment;
  bool sealed = false;  // all records were on disk when the seal was written: payloads are not read again
  std::uint64_t end_offset = kSegmentDataOffset;  // end of the last record or tombstone
  std::uint64_t tombstones = 0;
  std::uint64_t sequence_max = 0;      // of all records and tombstones seen
  std::vector<ScannedRecord> records;  // ascending offsets, not overlapping
  std::vector<RejectedRecord> rejected;
  std::array<std::uint64_t, kDiscardReasonCount> discarded{};
};

// Reads that fail before the rest of a file is given up: a dying disk answers slowly.
inline constexpr int kScanReadErrorsMax = 16;

ScanResult ScanSegment(const ReadAt& read, std::uint64_t file_bytes);

}  // namespace foreload::ssd
