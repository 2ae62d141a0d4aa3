// One segment file as the store sees it, and the shapes of its records.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/block_key.h"
#include "proto/unique_fd.h"
#include "transport/backend.h"
#include "transport/ssd/format.h"
#include "transport/ssd/record_index.h"
#include "transport/ssd/ssd_store.h"

namespace foreload::ssd {

// What all blocks of one engine have in common, kept once: where each extent lies follows from the sizes.
struct Shape {
  LayoutFingerprint layout;
  std::vector<ExpectedExtent> extents;
  std::uint64_t raw_bytes = 0;
  std::uint64_t record_bytes = 0;
  std::uint32_t header_blocks = 0;

  std::uint64_t header_bytes() const { return header_blocks * kBlockBytes; }
};

enum class SegmentPhase : std::uint8_t {
  kActive,   // takes records
  kClosing,  // takes no more; sealed once all of its writes and syncs have ended
  kSealed,
  kAbandoned  // a sync failed: what was durable before can be read, the rest is gone, and it is never sealed
};

// Life: made as spare (kActive, but not yet `active_`), active, closing, sealed or abandoned, reclaimed. Guarded by the
// store's mutex, except what is fixed at creation (id to direct).
struct Segment {
  std::uint32_t id = 0;
  std::uint64_t nonce = 0;
  std::string path;
  UniqueFd fd;
  RegionId region;
  bool direct = false;

  SegmentPhase phase = SegmentPhase::kActive;
  std::uint64_t file_bytes = 0;  // on disk, counted as used
  std::uint64_t tail = kSegmentDataOffset;
  std::uint64_t appended = 0;  // records
  std::uint64_t live_bytes = 0;
  std::uint32_t writing = 0;     // plans open
  std::uint32_t readers = 0;     // plans open
  std::uint32_t unsynced = 0;    // finished, not yet covered by a sync
  std::uint32_t tombstones = 0;  // not yet on disk
  bool may_seal = true;          // false: a tombstone could not be written, so recovery must check payloads
  bool spared = false;           // had its second chance
  std::vector<std::pair<RecordEntry*, std::uint64_t>> records;  // entry and sequence; another sequence: gone

  bool idle() const { return writing == 0 && readers == 0 && unsynced == 0; }
  Place place(std::uint64_t offset) const { return {id, nonce, offset}; }
};

}  // namespace foreload::ssd
