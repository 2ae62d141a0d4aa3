// The store's thread: group commit, sealing, and segments made and reclaimed ahead of need.
#include <errno.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "transport/ssd/store_impl.h"

namespace foreload::ssd {

void SsdStore::Impl::Run() {
  Lock lock(mutex_);
  for (;;) {
    const TimeNs now = clock_.Now();
    if (GroupDue(now)) {
      CommitGroup(lock);
    } else if (Segment* segment = SealableSegment(); segment != nullptr) {
      Seal(lock, *segment);
    } else if (!stop_ && SegmentWanted(now)) {
      MakeSpare(lock);
    } else if (stop_) {
      CloseAll(lock);
      return;
    } else {
      WaitForWork(lock);
    }
  }
}

void SsdStore::Impl::WaitForWork(Lock& lock) {
  const TimeNs group_at = pending_since_ == kTimeNever ? kTimeNever : pending_since_ + options_.sync_interval_ns;
  const TimeNs retry_at = state_ == SsdState::kWritesStopped ? space_retry_at_ : kTimeNever;
  const TimeNs at = std::min(group_at, retry_at);
  if (at == kTimeNever) {
    work_.wait(lock);
  } else {  // at least 1 ms: a clock that a test moves by hand must not make this loop spin
    work_.wait_for(lock, std::chrono::nanoseconds(std::max(at - clock_.Now(), kMillisecond)));
  }
}

bool SsdStore::Impl::GroupDue(TimeNs now) const {
  if (flush_wanted_ != flush_done_) return true;
  if (pending_since_ == kTimeNever) return false;
  // What is unsynced keeps its segment from being reclaimed: when that is what a write waits for, sync at once.
  return stop_ || unsynced_bytes_ >= options_.sync_bytes || now - pending_since_ >= options_.sync_interval_ns ||
         (segment_short_ && reclaim_blocked_);
}

bool SsdStore::Impl::SegmentWanted(TimeNs now) const {
  if (spare_ != nullptr || reclaim_blocked_ || state_ == SsdState::kOff) return false;
  if (state_ == SsdState::kWritesStopped && now < space_retry_at_) return false;
  return active_ == nullptr || active_->tail >= options_.segment_bytes / 2;
}

// ---- group commit ---------------------------------------------------------------------------------------------------

void SsdStore::Impl::CommitGroup(Lock& lock) {
  const std::uint64_t ticket = flush_wanted_;
  std::vector<Unsynced> group = std::exchange(unsynced_, {});
  const std::vector<Tombstone> tombstones = std::exchange(tombstones_, {});
  unsynced_bytes_ = 0;
  pending_since_ = kTimeNever;

  lock.unlock();
  const std::map<Segment*, Status> synced = SyncSegments(group, tombstones);
  lock.lock();

  for (const auto& [segment, status] : synced) {
    if (status.ok())
      NoteIoSuccess(IoKind::kSync);
    else
      Abandon(*segment, status, group);
  }
  for (const Tombstone& tombstone : tombstones) --tombstone.segment->tombstones;
  std::vector<Report> reports;
  SettleGroup(group, synced, reports);
  reclaim_blocked_ = false;
  Publish();

  lock.unlock();
  for (const Report& report : reports) {
    if (sinks_.durable) sinks_.durable(report.key, report.token, report.status);
  }
  lock.lock();
  flush_done_ = ticket;
  progress_.notify_all();
}

// Writes the tombstones, then one fdatasync for each segment that has something new. Lock not held.
std::map<Segment*, Status> SsdStore::Impl::SyncSegments(const std::vector<Unsynced>& group,
                                                        const std::vector<Tombstone>& tombstones) {
  std::map<Segment*, Status> result;
  std::map<Segment*, Status> burials;
  AlignedBuffer block(kBlockBytes);
  for (const Unsynced& record : group) result.emplace(record.segment, OkStatus());
  for (const Tombstone& tombstone : tombstones) {
    Segment& segment = *tombstone.segment;
    result.emplace(&segment, OkStatus());
    EncodeTombstone(segment.place(tombstone.offset), tombstone.sequence, tombstone.record_bytes, block.block());
    Status status = files_->Write(segment.fd.get(), tombstone.offset, block.block());
    if (!status.ok()) burials.emplace(&segment, std::move(status));
  }
  for (auto& [segment, status] : result) {
    const TimeNs begin = clock_.Now();
    status = files_->Sync(segment->fd.get());
    metrics_.sync_seconds.Observe(static_cast<double>(clock_.Now() - begin) * 1e-9);
  }
  metrics_.syncs.Add();
  if (!burials.empty()) {
    const Lock lock(mutex_);
    for (const auto& [segment, status] : burials) {
      segment->may_seal = false;
      ++group_failures_;
      NoteIoError(IoKind::kWrite, status);
    }
  }
  return result;
}

// A failed fdatasync may have marked lost pages clean: nothing since the last good one is trusted, nothing is retried.
void SsdStore::Impl::Abandon(Segment& segment, const Status& status, std::vector<Unsynced>& group) {
  ++group_failures_;
  if (status.code() == StatusCode::kResourceExhausted) {
    metrics_.io_error(IoKind::kSync).Add();
    StopWrites(status);
  } else {
    NoteIoError(IoKind::kSync, status);
  }
  segment.may_seal = false;
  // Only tombstones failed: its records were durable before, or are gone already.
  if (segment.phase == SegmentPhase::kSealed || segment.phase == SegmentPhase::kAbandoned) return;
  metrics_.abandoned_segments.Add();
  segment.phase = SegmentPhase::kAbandoned;
  if (active_ == &segment) active_ = nullptr;
  // Those that were finished while the sync ran share its fate.
  const auto of_segment = [&](const Unsynced& record) { return record.segment == &segment; };
  const auto lost = std::stable_partition(unsynced_.begin(), unsynced_.end(), std::not_fn(of_segment));
  for (auto it = lost; it != unsynced_.end(); ++it) unsynced_bytes_ -= it->bytes;
  group.insert(group.end(), lost, unsynced_.end());
  unsynced_.erase(lost, unsynced_.end());
}

void SsdStore::Impl::SettleGroup(const std::vector<Unsynced>& group, const std::map<Segment*, Status>& synced,
                                 std::vector<Report>& reports) {
  reports.reserve(group.size());
  for (const Unsynced& record : group) {
    --record.segment->unsynced;
    RecordEntry* entry = index_.Find(record.key);
    if (entry != nullptr && entry->sequence != record.sequence) entry = nullptr;
    Status status = synced.at(record.segment);
    if (status.ok() && entry == nullptr) status = Cancelled("dropped before it was durable");
    if (status.ok()) {
      entry->durable = true;
      metrics_.durable_records.Add();
    } else if (entry != nullptr) {
      metrics_.failed_writes.Add();
      EraseWithTombstone(*entry);
    }
    Settle(record.sequence);
    reports.push_back({record.key, record.token, std::move(status)});
  }
}

// ---- segments -------------------------------------------------------------------------------------------------------

Segment* SsdStore::Impl::SealableSegment() const {
  for (const auto& [id, segment] : segments_) {
    if (segment->phase == SegmentPhase::kClosing && segment->writing == 0 && segment->unsynced == 0 &&
        segment->tombstones == 0) {
      return segment.get();
    }
  }
  return nullptr;
}

// Gives back what the last record left free, then marks the file as wholly on disk, so that the next start need not
// read its payloads.
void SsdStore::Impl::Seal(Lock& lock, Segment& segment) {
  const std::uint64_t tail = segment.tail;
  const SegmentSeal seal{tail, segment.appended};
  const bool may_seal = segment.may_seal;
  lock.unlock();
  Status status = files_->Truncate(segment.fd.get(), tail);
  const bool truncated = status.ok();
  if (may_seal) {
    AlignedBuffer block(kBlockBytes);
    EncodeSeal(segment.place(kSealOffset), seal, block.block());
    if (status.ok()) status = files_->Write(segment.fd.get(), kSealOffset, block.block());
    if (status.ok()) status = files_->Sync(segment.fd.get());
  }
  lock.lock();
  segment.phase = SegmentPhase::kSealed;
  if (truncated) {
    used_bytes_ -= segment.file_bytes - tail;
    segment.file_bytes = tail;
  }
  if (!status.ok()) NoteIoError(IoKind::kSync, status);
  reclaim_blocked_ = false;
  Publish();
}

void SsdStore::Impl::MakeSpare(Lock& lock) {
  if (used_bytes_ + options_.segment_bytes > options_.capacity_bytes || segments_.size() >= kSegmentFilesMax) {
    Segment* victim = PickVictim();
    if (victim == nullptr) {
      reclaim_blocked_ = true;
    } else {
      (void)Reclaim(lock, *victim);
    }
    return;  // the loop comes back when there is room
  }
  const std::uint32_t id = next_segment_++;
  const std::uint64_t first_sequence = next_sequence_;
  lock.unlock();
  auto made = MakeSegment(id, first_sequence);
  lock.lock();
  if (!made.ok()) {
    metrics_.io_error(IoKind::kCreate).Add();
    // A disk that others filled: live within what we hold, one segment at a time.
    const bool full = made.status().code() == StatusCode::kResourceExhausted;
    const bool first_time = state_ == SsdState::kOn;
    StopWrites(made.status());
    Segment* victim = full ? PickVictim() : nullptr;
    if (victim != nullptr && Reclaim(lock, *victim) && first_time) space_retry_at_ = clock_.Now();
    Publish();
    progress_.notify_all();
    return;
  }
  spare_ = made.value().get();
  used_bytes_ += spare_->file_bytes;
  segments_.emplace(id, std::move(made).value());
  segment_short_ = false;
  ResumeWrites();
  Publish();
  progress_.notify_all();
}

// An empty segment, else the oldest; one whose records were read lately is passed over once.
Segment* SsdStore::Impl::PickVictim() {
  std::vector<Segment*> candidates;
  for (const auto& [id, segment] : segments_) {
    const bool closed = segment->phase == SegmentPhase::kSealed || segment->phase == SegmentPhase::kAbandoned;
    if (!closed || !segment->idle()) continue;
    if (segment->live_bytes == 0) return segment.get();
    candidates.push_back(segment.get());
  }
  for (Segment* segment : candidates) {
    if (segment->spared || !LooksWarm(*segment)) return segment;
    segment->spared = true;
    metrics_.spared_segments.Add();
  }
  return candidates.empty() ? nullptr : candidates.front();
}

bool SsdStore::Impl::LooksWarm(Segment& segment) {
  std::uint64_t read_bytes = 0;
  for (const auto& [entry, sequence] : segment.records) {
    if (entry->segment != &segment || entry->sequence != sequence || !entry->read_lately) continue;
    entry->read_lately = false;
    read_bytes += entry->shape->record_bytes;
  }
  return static_cast<double>(read_bytes) >= options_.keep_read_share * static_cast<double>(segment.live_bytes);
}

// False when the file could not be removed: then it still counts as used, and writes stop.
bool SsdStore::Impl::Reclaim(Lock& lock, Segment& victim) {
  Drops drops;
  for (const auto& [entry, sequence] : victim.records) {
    if (entry->segment != &victim || entry->sequence != sequence) continue;
    drops.emplace_back(entry->key, DropReason::kReclaimed);
    Erase(*entry);
  }
  victim.records.clear();
  std::erase_if(tombstones_, [&](const Tombstone& tombstone) { return tombstone.segment == &victim; });
  victim.tombstones = 0;
  Publish();
  lock.unlock();
  ReportDrops(drops);
  const Status removed = RemoveFile(victim);
  lock.lock();
  if (!removed.ok()) {
    StopWrites(removed);
    Publish();
    return false;
  }
  metrics_.reclaimed_segments.Add();
  metrics_.reclaimed_bytes.Add(victim.file_bytes);
  used_bytes_ -= victim.file_bytes;
  segments_.erase(victim.id);
  Publish();
  return true;
}

Result<std::unique_ptr<Segment>> SsdStore::Impl::MakeSegment(std::uint32_t id, std::uint64_t first_sequence) {
  auto segment = std::make_unique<Segment>();
  segment->id = id;
  segment->path = options_.directory + "/" + SegmentFileName(id);
  if (::getrandom(&segment->nonce, sizeof segment->nonce, 0) != sizeof segment->nonce) {
    return Status::FromErrno(errno, "getrandom");
  }
  FORELOAD_ASSIGN_OR_RETURN(OpenedFile file, files_->Create(segment->path, options_.segment_bytes));
  segment->fd = std::move(file.fd);
  segment->direct = file.direct;
  segment->file_bytes = file.bytes;

  AlignedBuffer block(kBlockBytes);
  EncodeSegmentHeader({id, segment->nonce, options_.segment_bytes, first_sequence}, block.block());
  Status status = files_->Write(segment->fd.get(), 0, block.block());
  if (status.ok()) status = files_->Sync(segment->fd.get());
  if (status.ok()) status = files_->SyncDirectory(options_.directory);  // else the file itself may be lost
  if (status.ok()) {
    auto region = backend_.Register(
        {.kind = Region::Kind::kFile, .bytes = file.bytes, .fd = segment->fd.get(), .direct = segment->direct});
    if (region.ok()) {
      segment->region = region.value();
      return segment;
    }
    status = region.status();
  }
  (void)files_->Remove(segment->path);  // the cause is what matters; the next start drops what stays
  return status;
}

// Durably, so that a dropped record in it cannot come back.
Status SsdStore::Impl::RemoveFile(Segment& segment) {
  if (segment.region.valid()) {
    FORELOAD_CHECK(backend_.Unregister(segment.region).ok(), "a segment without plans has transfers in flight");
    segment.region = {};
  }
  if (segment.fd.valid()) FORELOAD_RETURN_IF_ERROR(files_->Remove(segment.path));
  segment.fd.reset();
  return files_->SyncDirectory(options_.directory);
}

// The last act of the thread: everything is synced; nothing more will be written.
void SsdStore::Impl::CloseAll(Lock& lock) {
  if (active_ != nullptr && active_->appended > 0) {
    active_->phase = SegmentPhase::kClosing;
    if (SealableSegment() == active_) Seal(lock, *active_);
    active_ = nullptr;
  }
  for (Segment* unused : {std::exchange(active_, nullptr), std::exchange(spare_, nullptr)}) {
    if (unused == nullptr || unused->appended > 0) continue;
    const std::uint64_t bytes = unused->file_bytes;
    lock.unlock();
    const bool removed = RemoveFile(*unused).ok();
    lock.lock();
    if (removed) {
      used_bytes_ -= bytes;
      segments_.erase(unused->id);
    }
  }
  Publish();
}

}  // namespace foreload::ssd
