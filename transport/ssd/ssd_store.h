// The SSD tier: a log of segment files that keeps whole, verifiable records across kill -9 and power loss.
//
// The store owns files, index and durability; bytes are moved by the caller's mover over a file backend. So a write is
// PrepareWrite -> the caller moves plan.parts -> FinishWrite -> (group fdatasync) -> durable sink, and a read is
// PrepareRead -> the caller moves plan.parts -> FinishRead, which verifies. Format: docs/ssd-format.md.
//
// What holds:
// - A record is returned byte-exact, under the key and layout that it was stored with, or not at all.
// - A record that the durable sink called ok survives kill -9 and power loss, until it is dropped or reclaimed.
// - A dropped record stays dropped across a restart, once the next sync (Flush) is done.
// - Segment files never take more than `capacity_bytes`; what is found above it at Open is reclaimed before it returns.
// - After a failed fdatasync nothing written since the last good one is trusted: those records are reported failed and
//   the segment takes no more.
// - The store never blocks on the device in Prepare*, Finish*, Drop: segments are made and reclaimed ahead of need by
//   its own thread. Open, Flush, WaitWritable and the destructor block.
//
// Thread: one owner thread calls everything that is not marked otherwise. The store's own thread syncs, reclaims, and
// calls sinks. No sink is called with a lock held; a sink may queue, but must not call the store or block.
//
// Used wrongly: every plan must be finished exactly once (a cancelled move too), with its memory untouched until then,
// and before the store is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/block_key.h"
#include "base/clock.h"
#include "base/status.h"
#include "transport/backend.h"
#include "transport/mover.h"
#include "transport/ssd/files.h"
#include "transport/ssd/format.h"
#include "transport/ssd/metrics.h"

namespace foreload::ssd {

struct Segment;

inline constexpr std::uint64_t kSegmentBytesMin = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kSegmentBytesMax = std::uint64_t{16} << 30;
inline constexpr std::size_t kSegmentFilesMax = 4096;  // each is an open descriptor
inline constexpr std::size_t kShapesMax = 65536;       // distinct (layout, extent table) in one store

struct SsdOptions {
  std::string directory;             // made with mode 0700; a second store on it is refused
  std::uint64_t capacity_bytes = 0;  // at least two segments
  std::uint64_t segment_bytes = 0;   // 0: capacity / 64 within 4 MiB .. 256 MiB, at most 512 files
  DirectIo direct_io = DirectIo::kAuto;
  DurationNs sync_interval_ns = 20 * kMillisecond;     // oldest unsynced record waits this long at most
  std::uint64_t sync_bytes = std::uint64_t{64} << 20;  // or until this much is unsynced
  std::uint32_t extents_max = 512;                     // of one record; sizes the header buffers
  std::uint32_t headers_in_flight = 128;               // writes and reads at once
  std::uint32_t io_errors_max = 8;          // refusals of one kind of operation in a row that turn the tier off
  DurationNs space_retry_min_ns = kSecond;  // after a full disk; doubles up to
  DurationNs space_retry_max_ns = 60 * kSecond;
  double keep_read_share = 0.5;  // a segment is spared once when this share of its live bytes was read lately
  std::uint32_t recovery_threads = 4;
};

enum class SsdState : std::uint8_t {
  kOn,
  kWritesStopped,  // no space or a read-only file system: reads go on, space is asked for again with backoff
  kOff             // one kind of operation failed io_errors_max times in a row; until restart
};

// The end of a move, as the mover told it.
enum class IoResult : std::uint8_t { kOk, kCancelled, kNoSpace, kError };
inline IoResult IoResultOf(const MoveResult& result) {
  switch (result.outcome) {
    case MoveResult::Outcome::kOk: return IoResult::kOk;
    case MoveResult::Outcome::kCancelled:
    case MoveResult::Outcome::kTimeout: return IoResult::kCancelled;
    case MoveResult::Outcome::kFailed: break;
  }
  if (result.error == TransferError::kShutdown) return IoResult::kCancelled;
  return result.error == TransferError::kNoSpace ? IoResult::kNoSpace : IoResult::kError;
}

struct ExtentData {
  std::uint16_t rank = 0;
  std::uint16_t layer_group = 0;
  // Aligned to 4 KiB. The move reads on to the next multiple of 4 KiB: those bytes must be the caller's too; they land
  // in the record's padding and are never verified.
  std::span<const std::byte> data;
  std::optional<std::uint64_t> xxh3;  // when known since the bytes arrived; else computed in PrepareWrite
};

struct RecordDescription {
  BlockKey key;
  BlockKey parent;  // digest_bytes 0: root or unknown
  LayoutFingerprint layout;
  std::uint64_t token = 0;              // comes back in the durable sink
  std::span<const ExtentData> extents;  // in the order in which runs of them will be read
};

// One move between memory and a segment file.
struct SsdPart {
  const std::byte* memory = nullptr;  // inside the caller's memory, or the store's header buffer
  RegionId memory_region;             // valid: the store's own, at memory_offset; else the caller knows `memory`
  std::uint64_t memory_offset = 0;
  RegionId file;
  std::uint64_t file_offset = 0;
  std::uint64_t bytes = 0;  // multiple of 4 KiB, at most the backend's transfer_bytes_max
};

struct PlanPlace {  // the store's; not for callers
  Segment* segment = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t record_bytes = 0;
  std::uint32_t header_buffer = 0;
  bool open = false;
};

struct WritePlan {
  BlockKey key;
  std::uint64_t token = 0;
  std::uint64_t sequence = 0;
  std::vector<SsdPart> parts;  // memory -> file, in any order
  PlanPlace place;
};

struct ReadRequest {
  BlockKey key;
  LayoutFingerprint layout;
  std::uint32_t first_extent = 0;
  std::uint32_t extent_count = UINT32_MAX;  // to the last one
  // Aligned to 4 KiB. Each extent lands at the next multiple of 4 KiB after the one before; padding is overwritten too.
  std::span<std::byte> memory;
};

struct ExpectedExtent {  // the store's; what a read must turn out to be
  std::uint16_t rank = 0;
  std::uint16_t layer_group = 0;
  std::uint64_t bytes = 0;
  friend auto operator<=>(const ExpectedExtent&, const ExpectedExtent&) = default;
};

struct ReadPlan {
  BlockKey key;
  LayoutFingerprint layout;
  std::uint64_t sequence = 0;
  std::vector<SsdPart> parts;  // file -> memory, in any order; the header among them
  PlanPlace place;

  std::uint32_t first_extent = 0;
  std::uint32_t extent_count = 0;
  std::byte* memory = nullptr;
  Place record;  // who the header must say it is
  std::span<const std::byte> header;
  std::span<const ExpectedExtent> expected;  // of the whole record
  std::optional<Status> verdict;             // of Verify
};

struct RecordInfo {
  BlockKey key;
  BlockKey parent;
  LayoutFingerprint layout;
  std::uint64_t raw_bytes = 0;
  std::uint64_t memory_bytes = 0;  // what ReadRequest::memory must hold for all extents
  std::uint32_t extent_count = 0;
  std::uint64_t sequence = 0;
  bool durable = false;
};

struct SsdSinks {
  // Once for each FinishWrite that returned ok, on the store's thread. Not ok: the record is gone.
  std::function<void(const BlockKey& key, std::uint64_t token, const Status& status)> durable;
  // A record that could be read is gone without the owner's asking. Store's thread or, inside a call, the owner's.
  std::function<void(const BlockKey& key, DropReason reason)> dropped;
};

struct SsdStats {
  SsdState state = SsdState::kOn;
  std::string last_error;  // empty: none yet
  std::uint64_t capacity_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t segments = 0;
  std::uint64_t records = 0;
  std::uint64_t unsynced_bytes = 0;
  std::uint64_t durable_sequence = 0;
  bool direct_io = false;
};

class SsdStore {
 public:
  // Recovers what is on disk and makes the first segment. `backend`, `clock` and `metrics` outlive the store; segment
  // files are registered with `backend` as regions. `files`: the seam for tests, null for the real ones.
  // FailedPrecondition: directory in use, open to others, or written by a later version.
  static Result<std::unique_ptr<SsdStore>> Open(SsdOptions options, Backend& backend, const Clock& clock,
                                                SsdMetrics& metrics, SsdSinks sinks,
                                                std::unique_ptr<SegmentFiles> files = nullptr);
  // Syncs what is written, seals, closes.
  ~SsdStore();
  SsdStore(const SsdStore&) = delete;
  SsdStore& operator=(const SsdStore&) = delete;

  // Reserves room, checksums, builds the header. AlreadyExists: the record stays as it is (a record of another layout
  // is replaced). Unavailable: the next segment is still being made; see WaitWritable. ResourceExhausted: disk full, or
  // too many plans open. FailedPrecondition: the tier is off.
  Result<WritePlan> PrepareWrite(const RecordDescription& record);
  // Ok: the record can be read; the durable sink will be called. Not ok: it will not, the record is gone.
  Status FinishWrite(WritePlan& plan, IoResult result);

  // NotFound: no such key, or stored under another layout. The segment stays until FinishRead.
  Result<ReadPlan> PrepareRead(const ReadRequest& request);
  // Verifies unless Verify was called. DataLoss, IoError: the record is dropped, and the dropped sink called. Only
  // after ok may the bytes be used.
  Status FinishRead(ReadPlan& plan, IoResult result);
  // The checking part of FinishRead, for a thread that has time for it: about 0.1 ms for 2 MiB. Any thread, one at a
  // time per plan, after the move has ended well.
  static void Verify(ReadPlan& plan);

  // Forgets the record; false when there was none. It stays forgotten across a restart after the next sync.
  bool Drop(const BlockKey& key);

  bool Contains(const BlockKey& key, const LayoutFingerprint& layout) const;
  std::optional<RecordInfo> Find(const BlockKey& key) const;
  // Every record that can be read, in no order; `fn` must not call the store.
  void ForEachRecord(const std::function<void(const RecordInfo&)>& fn) const;

  // Every record with a sequence up to this one is durable, or was reported failed, dropped or reclaimed. Any thread.
  std::uint64_t durable_sequence() const;
  // Asks for a sync now and returns; the durable sink tells. Any thread.
  void RequestFlush();
  // Returns when all that was finished or dropped before the call is on disk and reported. Any thread but a sink's.
  // IoError: some of it failed.
  Status Flush();
  // After PrepareWrite said Unavailable: waits until a segment is ready. DeadlineExceeded at `deadline` (monotonic);
  // the state's error when writes are stopped. Any thread.
  Status WaitWritable(TimeNs deadline);

  SsdStats stats() const;  // any thread
  std::uint64_t record_bytes_max() const;

 private:
  class Impl;
  explicit SsdStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace foreload::ssd
