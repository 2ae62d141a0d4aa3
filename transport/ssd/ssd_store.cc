#include "transport/ssd/ssd_store.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "proto/xxh3.h"
#include "transport/ssd/store_impl.h"

namespace foreload::ssd {
namespace {

bool IsAligned(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % kBlockBytes == 0;
}

Status OffError(const std::string& cause) {
  return FailedPrecondition("the SSD tier is off after repeated I/O errors (" + cause +
                            "); replace the device, restart");
}

}  // namespace

// ---- helpers, lock held ---------------------------------------------------------------------------------------------

const Shape* SsdStore::Impl::Intern(const RecordHeader& header) {
  std::pair<LayoutFingerprint, std::vector<ExpectedExtent>> id{header.fixed.layout, {}};
  id.second.reserve(header.extents.size());
  for (const DiskExtent& extent : header.extents) {
    id.second.push_back({extent.rank, extent.layer_group, extent.raw_bytes});
  }
  const auto found = shapes_.find(id);
  if (found != shapes_.end()) return &found->second;
  if (shapes_.size() >= kShapesMax) return nullptr;
  Shape shape{id.first, id.second, header.fixed.raw_bytes, header.fixed.record_bytes, header.fixed.header_blocks};
  return &shapes_.emplace(std::move(id), std::move(shape)).first->second;
}

void SsdStore::Impl::Erase(RecordEntry& entry) {
  if (entry.written) {
    entry.segment->live_bytes -= entry.shape->record_bytes;
    live_bytes_ -= entry.shape->record_bytes;
  }
  index_.Erase(entry);
}

void SsdStore::Impl::EraseWithTombstone(RecordEntry& entry) {
  Bury({entry.segment, entry.offset(), entry.sequence, entry.shape->record_bytes});
  Erase(entry);
}

void SsdStore::Impl::Bury(const Tombstone& tombstone) {
  ++tombstone.segment->tombstones;
  tombstones_.push_back(tombstone);
  PendingBegins();
}

void SsdStore::Impl::PendingBegins() {
  if (pending_since_ != kTimeNever) return;
  pending_since_ = clock_.Now();
  work_.notify_one();
}

void SsdStore::Impl::Settle(std::uint64_t sequence) {
  settled_[sequence - settled_below_] = true;
  while (!settled_.empty() && settled_.front()) {
    settled_.pop_front();
    ++settled_below_;
  }
}

void SsdStore::Impl::NoteIoError(IoKind kind, const Status& status) {
  metrics_.io_error(kind).Add();
  last_error_ = status.ToString();
  if (++errors_in_row_[static_cast<std::size_t>(kind)] < options_.io_errors_max) return;
  state_ = SsdState::kOff;
  progress_.notify_all();
}

void SsdStore::Impl::StopWrites(const Status& status) {
  last_error_ = status.ToString();
  if (state_ == SsdState::kOn) state_ = SsdState::kWritesStopped;
  space_backoff_ = std::clamp(space_backoff_ * 2, options_.space_retry_min_ns, options_.space_retry_max_ns);
  space_retry_at_ = clock_.Now() + space_backoff_;
  progress_.notify_all();
}

void SsdStore::Impl::ResumeWrites() {
  if (state_ == SsdState::kWritesStopped) state_ = SsdState::kOn;
  space_backoff_ = 0;
}

void SsdStore::Impl::Publish() {
  metrics_.used_bytes.Set(static_cast<double>(used_bytes_));
  metrics_.live_bytes.Set(static_cast<double>(live_bytes_));
  metrics_.records.Set(static_cast<double>(index_.size()));
  metrics_.segments.Set(static_cast<double>(segments_.size()));
  metrics_.unsynced_bytes.Set(static_cast<double>(unsynced_bytes_));
  metrics_.state.Set(static_cast<double>(state_));
}

RecordInfo SsdStore::Impl::InfoOf(const RecordEntry& entry) {
  return {.key = entry.key,
          .parent = entry.parent,
          .layout = entry.shape->layout,
          .raw_bytes = entry.shape->raw_bytes,
          .memory_bytes = entry.shape->record_bytes - entry.shape->header_bytes(),
          .extent_count = static_cast<std::uint32_t>(entry.shape->extents.size()),
          .sequence = entry.sequence,
          .durable = entry.durable};
}

// A segment with room, or null. The spare takes over when the active one is full.
Segment* SsdStore::Impl::SegmentFor(std::uint64_t record_bytes) {
  if (active_ != nullptr && options_.segment_bytes - active_->tail < record_bytes) {
    active_->phase = SegmentPhase::kClosing;
    active_ = nullptr;
    work_.notify_one();
  }
  if (active_ == nullptr) active_ = std::exchange(spare_, nullptr);
  return active_;
}

Status SsdStore::Impl::Refuse(RefuseReason reason, Status status) {
  metrics_.refused(reason).Add();
  return status;
}

void SsdStore::Impl::AddParts(const std::byte* memory, RegionId memory_region, std::uint64_t memory_offset,
                              const Segment& segment, std::uint64_t file_offset, std::uint64_t bytes,
                              std::vector<SsdPart>& parts) const {
  while (bytes > 0) {
    const std::uint64_t now = std::min(bytes, part_bytes_max_);
    parts.push_back({memory, memory_region, memory_offset, segment.region, file_offset, now});
    memory += now;
    memory_offset += now;
    file_offset += now;
    bytes -= now;
  }
}

void SsdStore::Impl::ReportDrops(const Drops& drops) {
  for (const auto& [key, reason] : drops) {
    metrics_.dropped(reason).Add();
    if (sinks_.dropped) sinks_.dropped(key, reason);
  }
}

// ---- writing --------------------------------------------------------------------------------------------------------

Result<RecordHeader> SsdStore::Impl::Describe(const RecordDescription& record) {
  if (record.key.digest_bytes < kDigestBytesMin || record.key.digest_bytes > kDigestBytesMax ||
      (record.parent.digest_bytes != 0 && record.parent.digest_bytes < kDigestBytesMin) ||
      record.parent.digest_bytes > kDigestBytesMax) {
    return InvalidArgument("a block key's digest has 16 to 32 bytes");
  }
  if (record.extents.empty() || record.extents.size() > options_.extents_max) {
    return InvalidArgument("a record has 1 to " + std::to_string(options_.extents_max) + " extents");
  }
  RecordHeader header;
  header.fixed.key = record.key;
  header.fixed.parent = record.parent;
  header.fixed.layout = record.layout;
  header.extents.reserve(record.extents.size());
  for (const ExtentData& extent : record.extents) {
    if (extent.data.empty() || extent.data.size() > kExtentBytesMax || !IsAligned(extent.data.data())) {
      return InvalidArgument("an extent is 1 byte to 4 GiB, aligned to 4 KiB");
    }
    DiskExtent& out = header.extents.emplace_back();
    out.rank = extent.rank;
    out.layer_group = extent.layer_group;
    out.raw_bytes = out.stored_bytes = extent.data.size();
  }
  LayOutExtents(header);
  if (header.fixed.record_bytes > record_bytes_max()) {
    return InvalidArgument("a record of " + std::to_string(header.fixed.record_bytes) +
                           " bytes does not fit a segment; raise segment_bytes");
  }
  return header;
}

Result<WritePlan> SsdStore::Impl::PrepareWrite(const RecordDescription& record) {
  auto described = Describe(record);
  if (!described.ok()) return Refuse(RefuseReason::kInvalid, described.status());
  RecordHeader& header = described.value();
  WritePlan plan;
  plan.key = record.key;
  plan.token = record.token;
  Drops drops;
  {
    const Lock lock(mutex_);
    if (state_ == SsdState::kOff) return Refuse(RefuseReason::kOff, OffError(last_error_));
    RecordEntry* existing = index_.Find(record.key);
    if (existing != nullptr && (!existing->written || existing->shape->layout == record.layout)) {
      return Refuse(RefuseReason::kExists, AlreadyExists("stored already"));
    }
    if (state_ == SsdState::kWritesStopped && clock_.Now() < space_retry_at_) {
      return Refuse(RefuseReason::kNoSpace, ResourceExhausted("SSD writes are stopped: " + last_error_));
    }
    const Shape* shape = Intern(header);
    if (shape == nullptr) return Refuse(RefuseReason::kInvalid, ResourceExhausted("too many record layouts"));
    Segment* segment = SegmentFor(header.fixed.record_bytes);
    if (segment == nullptr) {
      segment_short_ = true;
      work_.notify_one();
      return Refuse(RefuseReason::kNoSegment, Unavailable("the next SSD segment is being made; retry"));
    }
    const auto buffer = headers_->Take();
    if (!buffer) return Refuse(RefuseReason::kNoHeader, ResourceExhausted("too many SSD transfers in flight"));
    if (existing != nullptr) {
      drops.emplace_back(record.key, DropReason::kReplaced);
      EraseWithTombstone(*existing);
    }
    RecordEntry& entry = index_.Insert(record.key, *segment);
    entry.parent = record.parent;
    entry.sequence = plan.sequence = header.sequence = next_sequence_++;
    entry.offset_blocks = static_cast<std::uint32_t>(segment->tail / kBlockBytes);
    entry.shape = shape;
    settled_.push_back(false);
    segment->records.emplace_back(&entry, entry.sequence);
    plan.place = {segment, segment->tail, header.fixed.record_bytes, *buffer, true};
    const bool was_half_full = segment->tail >= options_.segment_bytes / 2;
    segment->tail += header.fixed.record_bytes;
    ++segment->appended;
    ++segment->writing;
    ++open_plans_;
    if (!was_half_full && segment->tail >= options_.segment_bytes / 2) work_.notify_one();  // time to make the next
  }
  ReportDrops(drops);

  for (std::size_t i = 0; i < header.extents.size(); ++i) {
    const ExtentData& extent = record.extents[i];
    const std::uint64_t xxh3 = extent.xxh3 ? *extent.xxh3 : Xxh3(extent.data.data(), extent.data.size());
    header.extents[i].xxh3_raw = header.extents[i].xxh3_stored = xxh3;
  }
  const Segment& segment = *plan.place.segment;
  const std::uint64_t header_bytes = header.fixed.header_blocks * kBlockBytes;
  const std::span<std::byte> block = headers_->buffer(plan.place.header_buffer).first(header_bytes);
  EncodeRecordHeader(segment.place(plan.place.offset), header, block);
  AddParts(block.data(), headers_->region(), headers_->offset(plan.place.header_buffer), segment, plan.place.offset,
           header_bytes, plan.parts);
  for (std::size_t i = 0; i < header.extents.size();) {  // runs that are contiguous in memory, as they are on disk
    const std::byte* const begin = record.extents[i].data.data();
    const std::uint64_t offset = header.extents[i].offset;
    std::uint64_t bytes = 0;
    do {
      bytes += RoundUpToBlock(header.extents[i].stored_bytes);
      ++i;
    } while (i < header.extents.size() && record.extents[i].data.data() == begin + bytes);
    AddParts(begin, RegionId{}, 0, segment, plan.place.offset + offset, bytes, plan.parts);
  }
  return plan;
}

Status SsdStore::Impl::FinishWrite(WritePlan& plan, IoResult result) {
  const Lock lock(mutex_);
  FORELOAD_CHECK(plan.place.open, "a write plan is finished once");
  plan.place.open = false;
  --open_plans_;
  headers_->Give(plan.place.header_buffer);
  Segment& segment = *plan.place.segment;
  --segment.writing;
  if (segment.phase == SegmentPhase::kClosing) work_.notify_one();
  RecordEntry* entry = index_.Find(plan.key);
  if (entry != nullptr && entry->sequence != plan.sequence) entry = nullptr;

  Status status;
  if (result == IoResult::kCancelled) status = Cancelled("the write was cancelled");
  if (result == IoResult::kNoSpace) status = ResourceExhausted("no space left for an SSD write");
  if (result == IoResult::kError) status = IoError("an SSD write failed");
  if (result == IoResult::kNoSpace) StopWrites(status);
  if (result == IoResult::kError) NoteIoError(IoKind::kWrite, status);
  if (status.ok() && segment.phase == SegmentPhase::kAbandoned) status = IoError("the segment's sync failed");
  if (status.ok() && entry == nullptr) status = Cancelled("dropped while it was written");
  if (!status.ok()) {
    metrics_.failed_writes.Add();
    Bury({&segment, plan.place.offset, plan.sequence, plan.place.record_bytes});
    if (entry != nullptr) Erase(*entry);
    Settle(plan.sequence);
    Publish();
    return status;
  }
  NoteIoSuccess(IoKind::kWrite);
  if (spare_ != nullptr) ResumeWrites();
  entry->written = true;
  segment.live_bytes += plan.place.record_bytes;
  live_bytes_ += plan.place.record_bytes;
  ++segment.unsynced;
  unsynced_.push_back({plan.key, plan.token, plan.sequence, plan.place.record_bytes, &segment});
  unsynced_bytes_ += plan.place.record_bytes;
  metrics_.written_records.Add();
  metrics_.written_bytes.Add(plan.place.record_bytes);
  PendingBegins();
  if (unsynced_bytes_ >= options_.sync_bytes) work_.notify_one();
  Publish();
  return OkStatus();
}

// ---- reading --------------------------------------------------------------------------------------------------------

Result<ReadPlan> SsdStore::Impl::PrepareRead(const ReadRequest& request) {
  const Lock lock(mutex_);
  if (state_ == SsdState::kOff) return OffError(last_error_);
  RecordEntry* entry = index_.Find(request.key);
  if (entry == nullptr || !entry->written || entry->shape->layout != request.layout) return NotFound("not stored");
  const Shape& shape = *entry->shape;
  const std::size_t extents = shape.extents.size();
  if (request.first_extent >= extents || request.extent_count == 0 ||
      (request.extent_count != UINT32_MAX && request.extent_count > extents - request.first_extent)) {
    return InvalidArgument("the record has " + std::to_string(extents) + " extents");
  }
  ReadPlan plan;
  plan.first_extent = request.first_extent;
  plan.extent_count = std::min(request.extent_count, static_cast<std::uint32_t>(extents) - request.first_extent);
  std::uint64_t begin = shape.header_bytes();
  for (std::uint32_t i = 0; i < plan.first_extent; ++i) begin += RoundUpToBlock(shape.extents[i].bytes);
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < plan.extent_count; ++i) {
    bytes += RoundUpToBlock(shape.extents[plan.first_extent + i].bytes);
  }
  if (request.memory.size() < bytes || !IsAligned(request.memory.data())) {
    return InvalidArgument("the read needs " + std::to_string(bytes) + " bytes, aligned to 4 KiB");
  }
  const auto buffer = headers_->Take();
  if (!buffer) return ResourceExhausted("too many SSD transfers in flight");

  Segment& segment = *entry->segment;
  ++segment.readers;
  ++open_plans_;
  entry->read_lately = true;
  plan.key = request.key;
  plan.layout = request.layout;
  plan.sequence = entry->sequence;
  plan.place = {&segment, entry->offset(), shape.record_bytes, *buffer, true};
  plan.memory = request.memory.data();
  plan.record = segment.place(entry->offset());
  plan.header = headers_->buffer(*buffer).first(shape.header_bytes());
  plan.expected = shape.extents;
  AddParts(plan.header.data(), headers_->region(), headers_->offset(*buffer), segment, entry->offset(),
           shape.header_bytes(), plan.parts);
  AddParts(plan.memory, RegionId{}, 0, segment, entry->offset() + begin, bytes, plan.parts);
  return plan;
}

void SsdStore::Verify(ReadPlan& plan) {
  FORELOAD_CHECK(plan.place.open, "verifying a finished plan");
  RecordHeader header;
  const BlockVerdict verdict = DecodeRecordHeader(plan.record, plan.header, header);
  if (verdict != BlockVerdict::kGood || header.sequence != plan.sequence || header.fixed.key != plan.key ||
      header.fixed.layout != plan.layout || header.extents.size() != plan.expected.size()) {
    plan.verdict = DataLoss("the record's header is not what was stored");
    return;
  }
  const std::byte* memory = plan.memory;
  for (std::uint32_t i = plan.first_extent; i < plan.first_extent + plan.extent_count; ++i) {
    const DiskExtent& extent = header.extents[i];
    if (ExpectedExtent{extent.rank, extent.layer_group, extent.raw_bytes} != plan.expected[i] ||
        Xxh3(memory, extent.stored_bytes) != extent.xxh3_stored) {
      plan.verdict = DataLoss("extent " + std::to_string(i) + " is not what was stored");
      return;
    }
    memory += RoundUpToBlock(extent.stored_bytes);
  }
  plan.verdict = OkStatus();
}

Status SsdStore::Impl::FinishRead(ReadPlan& plan, IoResult result) {
  FORELOAD_CHECK(plan.place.open, "a read plan is finished once");
  Status status;
  if (result == IoResult::kOk) {
    if (!plan.verdict) SsdStore::Verify(plan);
    status = *plan.verdict;
  } else {
    status = result == IoResult::kCancelled ? Cancelled("the read was cancelled") : IoError("an SSD read failed");
  }
  Drops drops;
  {
    const Lock lock(mutex_);
    plan.place.open = false;
    --open_plans_;
    headers_->Give(plan.place.header_buffer);
    Segment& segment = *plan.place.segment;
    --segment.readers;
    if (reclaim_blocked_) {
      reclaim_blocked_ = false;
      work_.notify_one();
    }
    if (status.code() == StatusCode::kIoError) NoteIoError(IoKind::kRead, status);
    if (status.code() == StatusCode::kDataLoss) metrics_.checksum_failures.Add();
    if (status.ok()) {
      NoteIoSuccess(IoKind::kRead);
      metrics_.read_records.Add();
      for (const SsdPart& part : plan.parts) metrics_.read_bytes.Add(part.bytes);
    } else if (status.code() != StatusCode::kCancelled) {
      RecordEntry* entry = index_.Find(plan.key);
      if (entry != nullptr && entry->sequence == plan.sequence) {
        drops.emplace_back(plan.key,
                           status.code() == StatusCode::kDataLoss ? DropReason::kCorrupt : DropReason::kIoError);
        EraseWithTombstone(*entry);
      }
    }
    Publish();
  }
  ReportDrops(drops);
  return status;
}

// ---- the rest of the owner's calls ----------------------------------------------------------------------------------

bool SsdStore::Impl::Drop(const BlockKey& key) {
  const Lock lock(mutex_);
  RecordEntry* entry = index_.Find(key);
  if (entry == nullptr) return false;
  if (entry->written) {
    EraseWithTombstone(*entry);
  } else {
    Erase(*entry);  // its tombstone follows the write that is in flight: FinishWrite
  }
  Publish();
  return true;
}

std::optional<RecordInfo> SsdStore::Impl::Find(const BlockKey& key) {
  const Lock lock(mutex_);
  const RecordEntry* entry = index_.Find(key);
  if (entry == nullptr || !entry->written) return std::nullopt;
  return InfoOf(*entry);
}

void SsdStore::Impl::ForEachRecord(const std::function<void(const RecordInfo&)>& fn) {
  const Lock lock(mutex_);
  index_.ForEach([&](const RecordEntry& entry) {
    if (entry.written) fn(InfoOf(entry));
  });
}

std::uint64_t SsdStore::Impl::durable_sequence() {
  const Lock lock(mutex_);
  return settled_below_ - 1;
}

void SsdStore::Impl::RequestFlush() {
  const Lock lock(mutex_);
  ++flush_wanted_;
  work_.notify_one();
}

Status SsdStore::Impl::Flush() {
  Lock lock(mutex_);
  const std::uint64_t ticket = ++flush_wanted_;
  const std::uint64_t failures = group_failures_;
  work_.notify_one();
  progress_.wait(lock, [&] { return flush_done_ >= ticket; });
  return group_failures_ == failures ? OkStatus() : IoError("not everything became durable: " + last_error_);
}

Status SsdStore::Impl::WaitWritable(TimeNs deadline) {
  Lock lock(mutex_);
  const auto stopped = [this] { return state_ == SsdState::kWritesStopped && clock_.Now() < space_retry_at_; };
  const auto settled = [&] { return !segment_short_ || state_ == SsdState::kOff || stopped(); };
  const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline)};
  if (deadline == kTimeNever) {
    progress_.wait(lock, settled);
  } else if (!progress_.wait_until(lock, until, settled)) {
    return DeadlineExceeded("no SSD segment became free");
  }
  if (state_ == SsdState::kOff) return OffError(last_error_);
  if (stopped()) return ResourceExhausted("SSD writes are stopped: " + last_error_);
  return OkStatus();
}

SsdStats SsdStore::Impl::stats() {
  const Lock lock(mutex_);
  const Segment* any = segments_.empty() ? nullptr : segments_.rbegin()->second.get();
  return {.state = state_,
          .last_error = last_error_,
          .capacity_bytes = options_.capacity_bytes,
          .used_bytes = used_bytes_,
          .live_bytes = live_bytes_,
          .segment_bytes = options_.segment_bytes,
          .segments = segments_.size(),
          .records = index_.size(),
          .unsynced_bytes = unsynced_bytes_,
          .durable_sequence = settled_below_ - 1,
          .direct_io = any != nullptr && any->direct};
}

SsdStore::SsdStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SsdStore::~SsdStore() = default;

Result<WritePlan> SsdStore::PrepareWrite(const RecordDescription& record) {
  return impl_->PrepareWrite(record);
}
Status SsdStore::FinishWrite(WritePlan& plan, IoResult result) {
  return impl_->FinishWrite(plan, result);
}
Result<ReadPlan> SsdStore::PrepareRead(const ReadRequest& request) {
  return impl_->PrepareRead(request);
}
Status SsdStore::FinishRead(ReadPlan& plan, IoResult result) {
  return impl_->FinishRead(plan, result);
}
bool SsdStore::Drop(const BlockKey& key) {
  return impl_->Drop(key);
}
bool SsdStore::Contains(const BlockKey& key, const LayoutFingerprint& layout) const {
  const auto info = impl_->Find(key);
  return info && info->layout == layout;
}
std::optional<RecordInfo> SsdStore::Find(const BlockKey& key) const {
  return impl_->Find(key);
}
void SsdStore::ForEachRecord(const std::function<void(const RecordInfo&)>& fn) const {
  impl_->ForEachRecord(fn);
}
std::uint64_t SsdStore::durable_sequence() const {
  return impl_->durable_sequence();
}
void SsdStore::RequestFlush() {
  impl_->RequestFlush();
}
Status SsdStore::Flush() {
  return impl_->Flush();
}
Status SsdStore::WaitWritable(TimeNs deadline) {
  return impl_->WaitWritable(deadline);
}
SsdStats SsdStore::stats() const {
  return impl_->stats();
}
std::uint64_t SsdStore::record_bytes_max() const {
  return impl_->record_bytes_max();
}

}  // namespace foreload::ssd
