// The store's inside. Three source files: ssd_store.cc (the owner's calls), maintenance.cc (the store's thread: group
// commit, sealing, making and reclaiming segments), recovery.cc (Open).
//
// One mutex guards everything below it. The store's thread never holds it over a system call, the owner never over a
// checksum. Segments are freed by the store's thread alone, so it may use one without the lock.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "transport/ssd/aligned_buffer.h"
#include "transport/ssd/directory.h"
#include "transport/ssd/header_pool.h"
#include "transport/ssd/record_index.h"
#include "transport/ssd/segment.h"
#include "transport/ssd/ssd_store.h"

namespace foreload::ssd {

class SsdStore::Impl {
 public:
  Impl(SsdOptions options, Backend& backend, const Clock& clock, SsdMetrics& metrics, SsdSinks sinks,
       std::unique_ptr<SegmentFiles> files, DirectoryLock lock);
  ~Impl();

  Status Recover();
  void Start();

  Result<WritePlan> PrepareWrite(const RecordDescription& record);
  Status FinishWrite(WritePlan& plan, IoResult result);
  Result<ReadPlan> PrepareRead(const ReadRequest& request);
  Status FinishRead(ReadPlan& plan, IoResult result);
  bool Drop(const BlockKey& key);
  std::optional<RecordInfo> Find(const BlockKey& key);
  void ForEachRecord(const std::function<void(const RecordInfo&)>& fn);
  std::uint64_t durable_sequence();
  void RequestFlush();
  Status Flush();
  Status WaitWritable(TimeNs deadline);
  SsdStats stats();
  std::uint64_t record_bytes_max() const { return options_.segment_bytes - kSegmentDataOffset; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Drops = std::vector<std::pair<BlockKey, DropReason>>;

  struct Unsynced {
    BlockKey key;
    std::uint64_t token = 0;
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
    Segment* segment = nullptr;
  };
  struct Tombstone {
    Segment* segment = nullptr;
    std::uint64_t offset = 0;
    std::uint64_t sequence = 0;
    std::uint64_t record_bytes = 0;
  };
  struct Report {  // one call of the durable sink
    BlockKey key;
    std::uint64_t token = 0;
    Status status;
  };
  struct Scanned;

  // ---- any thread, lock held (ssd_store.cc)
  const Shape* Intern(const RecordHeader& header);
  void Erase(RecordEntry& entry);
  void EraseWithTombstone(RecordEntry& entry);
  void Bury(const Tombstone& tombstone);
  void Settle(std::uint64_t sequence);
  void NoteIoError(IoKind kind, const Status& status);
  void NoteIoSuccess(IoKind kind) { errors_in_row_[static_cast<std::size_t>(kind)] = 0; }
  void StopWrites(const Status& status);
  void ResumeWrites();
  void Publish();
  static RecordInfo InfoOf(const RecordEntry& entry);
  Segment* SegmentFor(std::uint64_t record_bytes);
  Status Refuse(RefuseReason reason, Status status);
  Result<RecordHeader> Describe(const RecordDescription& record);
  void AddParts(const std::byte* memory, RegionId memory_region, std::uint64_t memory_offset, const Segment& segment,
                std::uint64_t file_offset, std::uint64_t bytes, std::vector<SsdPart>& parts) const;
  void PendingBegins();
  // Lock not held.
  void ReportDrops(const Drops& drops);

  // ---- the store's thread (maintenance.cc); those with a Lock& release it for the device and the sinks
  void Run();
  void WaitForWork(Lock& lock);
  bool GroupDue(TimeNs now) const;
  bool SegmentWanted(TimeNs now) const;
  void CommitGroup(Lock& lock);
  std::map<Segment*, Status> SyncSegments(const std::vector<Unsynced>& group, const std::vector<Tombstone>& tombstones);
  void Abandon(Segment& segment, const Status& status, std::vector<Unsynced>& group);
  void SettleGroup(const std::vector<Unsynced>& group, const std::map<Segment*, Status>& synced,
                   std::vector<Report>& reports);
  Segment* SealableSegment() const;
  void Seal(Lock& lock, Segment& segment);
  void MakeSpare(Lock& lock);
  Segment* PickVictim();
  bool LooksWarm(Segment& segment);
  bool Reclaim(Lock& lock, Segment& victim);
  Result<std::unique_ptr<Segment>> MakeSegment(std::uint32_t id, std::uint64_t first_sequence);
  Status RemoveFile(Segment& segment);
  void CloseAll(Lock& lock);

  // ---- Open (recovery.cc)
  Status ScanAll();
  void ScanOne(Scanned& scanned);
  Status Adopt(Scanned& scanned);
  void SealRecovered(Segment& segment, const Scanned& scanned, AlignedBuffer& block);
  void IndexRecord(Segment& segment, const ScannedRecord& record);
  void ShrinkToCapacity();

  const SsdOptions options_;
  Backend& backend_;
  const Clock& clock_;
  SsdMetrics& metrics_;
  const SsdSinks sinks_;
  const std::unique_ptr<SegmentFiles> files_;
  const DirectoryLock lock_;
  const std::uint64_t part_bytes_max_;
  std::unique_ptr<HeaderPool> headers_;

  std::mutex mutex_;
  std::condition_variable work_;      // the store's thread waits
  std::condition_variable progress_;  // Flush and WaitWritable wait

  RecordIndex index_;
  std::map<std::pair<LayoutFingerprint, std::vector<ExpectedExtent>>, Shape> shapes_;
  std::map<std::uint32_t, std::unique_ptr<Segment>> segments_;  // by id, which is by age
  Segment* active_ = nullptr;
  Segment* spare_ = nullptr;
  std::uint32_t next_segment_ = 1;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t live_bytes_ = 0;
  std::uint32_t open_plans_ = 0;

  std::uint64_t next_sequence_ = 1;
  std::uint64_t settled_below_ = 1;  // all smaller sequences are durable or gone
  std::deque<bool> settled_;         // from settled_below_ on

  std::vector<Unsynced> unsynced_;
  std::uint64_t unsynced_bytes_ = 0;
  std::vector<Tombstone> tombstones_;
  TimeNs pending_since_ = kTimeNever;  // the oldest of both
  std::uint64_t flush_wanted_ = 0;     // tickets
  std::uint64_t flush_done_ = 0;
  std::uint64_t group_failures_ = 0;

  bool segment_short_ = false;    // PrepareWrite found no segment
  bool reclaim_blocked_ = false;  // every segment is in use; FinishRead and CommitGroup clear it
  SsdState state_ = SsdState::kOn;
  std::string last_error_;
  std::array<std::uint32_t, kIoKindCount> errors_in_row_{};
  DurationNs space_backoff_ = 0;
  TimeNs space_retry_at_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace foreload::ssd
