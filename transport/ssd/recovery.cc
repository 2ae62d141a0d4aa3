// Open: what is on disk becomes the index again, or is removed and counted.
#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "transport/ssd/scan.h"
#include "transport/ssd/store_impl.h"

namespace foreload::ssd {
namespace {

constexpr std::uint64_t kMebi = std::uint64_t{1} << 20;
constexpr std::uint64_t kPartBytesMax = std::uint64_t{1} << 30;

std::uint64_t DefaultSegmentBytes(std::uint64_t capacity_bytes) {
  const std::uint64_t bytes = std::clamp(capacity_bytes / 64, 4 * kMebi, 256 * kMebi);
  return std::max(bytes, capacity_bytes / 512) / kMebi * kMebi;
}

std::uint64_t PartBytesMax(const Capabilities& capabilities) {
  if (capabilities.transfer_bytes_max == 0) return kPartBytesMax;
  return std::clamp(capabilities.transfer_bytes_max / kBlockBytes * kBlockBytes, kBlockBytes, kPartBytesMax);
}

Status Validate(const SsdOptions& options) {
  if (options.directory.empty()) return InvalidArgument("the SSD tier needs a directory");
  if (options.segment_bytes % kBlockBytes != 0 || options.segment_bytes < kSegmentBytesMin ||
      options.segment_bytes > kSegmentBytesMax) {
    return InvalidArgument("segment_bytes must be a multiple of 4 KiB between 1 MiB and 16 GiB");
  }
  if (options.capacity_bytes < 2 * options.segment_bytes) {
    return InvalidArgument("the SSD tier's capacity must hold two segments, " +
                           std::to_string(2 * options.segment_bytes) + " bytes");
  }
  if (options.capacity_bytes / options.segment_bytes > kSegmentFilesMax) {
    return InvalidArgument("segment_bytes is too small for the capacity: more than " +
                           std::to_string(kSegmentFilesMax) + " files");
  }
  if (options.extents_max == 0 || options.extents_max > kExtentsMax || options.headers_in_flight == 0 ||
      options.io_errors_max == 0 || options.recovery_threads == 0) {
    return InvalidArgument(
        "extents_max (at most 4096), headers_in_flight, io_errors_max, recovery_threads must be > 0");
  }
  if (options.sync_interval_ns <= 0 || options.space_retry_min_ns <= 0 ||
      options.space_retry_max_ns < options.space_retry_min_ns) {
    return InvalidArgument("sync and retry intervals must be > 0, and the longest retry not below the shortest");
  }
  return OkStatus();
}

}  // namespace

struct SsdStore::Impl::Scanned {
  std::uint32_t id = 0;
  OpenedFile file = {};
  Status opened = {};
  ScanResult scan = {};
};

SsdStore::Impl::Impl(SsdOptions options, Backend& backend, const Clock& clock, SsdMetrics& metrics, SsdSinks sinks,
                     std::unique_ptr<SegmentFiles> files, DirectoryLock lock)
    : options_(std::move(options)),
      backend_(backend),
      clock_(clock),
      metrics_(metrics),
      sinks_(std::move(sinks)),
      files_(std::move(files)),
      lock_(std::move(lock)),
      part_bytes_max_(PartBytesMax(backend.capabilities())) {
  metrics_.capacity_bytes.Set(static_cast<double>(options_.capacity_bytes));
}

SsdStore::Impl::~Impl() {
  if (thread_.joinable()) {
    {
      const Lock lock(mutex_);
      FORELOAD_CHECK(open_plans_ == 0, "the SSD store is destroyed with plans open");
      stop_ = true;
      work_.notify_one();
    }
    thread_.join();
  }
  for (const auto& [id, segment] : segments_) {
    if (segment->region.valid()) {
      FORELOAD_CHECK(backend_.Unregister(segment->region).ok(), "a segment without plans has transfers in flight");
    }
  }
}

Result<std::unique_ptr<SsdStore>> SsdStore::Open(SsdOptions options, Backend& backend, const Clock& clock,
                                                 SsdMetrics& metrics, SsdSinks sinks,
                                                 std::unique_ptr<SegmentFiles> files) {
  if (options.segment_bytes == 0) options.segment_bytes = DefaultSegmentBytes(options.capacity_bytes);
  FORELOAD_RETURN_IF_ERROR(Validate(options));
  if (files == nullptr) files = NewSegmentFiles(options.direct_io);
  FORELOAD_ASSIGN_OR_RETURN(DirectoryLock lock, DirectoryLock::Acquire(options.directory));
  auto impl = std::make_unique<Impl>(std::move(options), backend, clock, metrics, std::move(sinks), std::move(files),
                                     std::move(lock));
  FORELOAD_RETURN_IF_ERROR(impl->Recover());
  impl->Start();
  return std::unique_ptr<SsdStore>(new SsdStore(std::move(impl)));
}

Status SsdStore::Impl::Recover() {
  FORELOAD_ASSIGN_OR_RETURN(headers_, HeaderPool::Create(backend_, options_.headers_in_flight,
                                                         HeaderBlocks(options_.extents_max) * kBlockBytes));
  FORELOAD_RETURN_IF_ERROR(ScanAll());
  metrics_.recovered_records.Add(index_.size());
  settled_below_ = next_sequence_;
  ShrinkToCapacity();
  return OkStatus();
}

// Makes the first segment before anybody writes, then lets the thread do it.
void SsdStore::Impl::Start() {
  Lock lock(mutex_);
  while (SegmentWanted(clock_.Now())) MakeSpare(lock);
  Publish();
  lock.unlock();
  thread_ = std::thread([this] { Run(); });
}

// Scans on several threads; adopts each segment as soon as it is scanned, since the headers of all of them at once may
// be larger than memory. The order does not matter: the newest record of a key wins.
Status SsdStore::Impl::ScanAll() {
  FORELOAD_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> ids, ListSegments(options_.directory));
  std::atomic<std::size_t> next{0};
  Status result;
  const auto work = [&] {
    for (std::size_t i = next++; i < ids.size(); i = next++) {
      Scanned scanned{.id = ids[i]};
      ScanOne(scanned);
      const Lock lock(mutex_);
      const Status adopted = Adopt(scanned);
      if (result.ok()) result = adopted;
    }
  };
  std::vector<std::thread> helpers;
  for (std::uint32_t i = 1; i < options_.recovery_threads && i < ids.size(); ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return result;
}

// Scans from the device, not from a page cache that may hold what the device never got.
void SsdStore::Impl::ScanOne(Scanned& scanned) {
  auto opened = files_->Open(options_.directory + "/" + SegmentFileName(scanned.id));
  scanned.opened = opened.status();
  if (!opened.ok()) return;
  scanned.file = std::move(opened).value();
  const int fd = scanned.file.fd.get();
  const bool synced = files_->SyncAndForget(fd).ok();
  scanned.scan =
      ScanSegment([&](std::uint64_t offset, std::span<std::byte> out) { return files_->Read(fd, offset, out); },
                  scanned.file.bytes);
  if (!synced && !scanned.scan.sealed) scanned.scan = {};  // nothing of it may be trusted
}

Status SsdStore::Impl::Adopt(Scanned& scanned) {
  const std::string path = options_.directory + "/" + SegmentFileName(scanned.id);
  FORELOAD_RETURN_IF_ERROR(scanned.opened);
  ScanResult& scan = scanned.scan;
  if (scan.segment_verdict == BlockVerdict::kNewerVersion) {
    return FailedPrecondition(path + " was written by a later version; use that version, or another directory");
  }
  if (scan.segment_verdict == BlockVerdict::kGood && scan.segment.segment != scanned.id) {
    scan = {};
    ++scan.discarded[static_cast<std::size_t>(DiscardReason::kMisplaced)];
  }
  for (std::size_t i = 0; i < kDiscardReasonCount; ++i) metrics_.discarded_records[i]->Add(scan.discarded[i]);
  metrics_.recovered_tombstones.Add(scan.tombstones);
  next_segment_ = std::max(next_segment_, scanned.id + 1);
  next_sequence_ = std::max({next_sequence_, scan.segment.first_sequence, scan.sequence_max + 1});

  auto owned = std::make_unique<Segment>();
  Segment& segment = *owned;
  segment.id = scanned.id;
  segment.nonce = scan.segment.nonce;
  segment.path = path;
  segment.fd = std::move(scanned.file.fd);
  segment.direct = scanned.file.direct;
  segment.file_bytes = scanned.file.bytes;
  segment.tail = scan.end_offset;
  segment.phase = SegmentPhase::kSealed;
  if (scan.records.empty()) {
    metrics_.discarded_segments.Add();
    const Status removed = RemoveFile(segment);
    if (removed.ok()) return OkStatus();
    last_error_ = removed.ToString();  // keep counting its bytes; reclaim tries again
  } else {
    AlignedBuffer block(kBlockBytes);
    if (!scan.sealed) SealRecovered(segment, scanned, block);
    FORELOAD_ASSIGN_OR_RETURN(segment.region, backend_.Register({.kind = Region::Kind::kFile,
                                                                 .bytes = segment.file_bytes,
                                                                 .fd = segment.fd.get(),
                                                                 .direct = segment.direct}));
    segment.appended = scan.records.size();
    segment.records.reserve(scan.records.size());
  }
  used_bytes_ += segment.file_bytes;
  segments_.emplace(segment.id, std::move(owned));
  for (const ScannedRecord& record : scan.records) IndexRecord(segment, record);
  return OkStatus();
}

// Trims a segment that a crash left open to its whole records, and seals it once the others cannot come back.
void SsdStore::Impl::SealRecovered(Segment& segment, const Scanned& scanned, AlignedBuffer& block) {
  const int fd = segment.fd.get();
  const ScanResult& scan = scanned.scan;
  if (files_->Truncate(fd, segment.tail).ok()) segment.file_bytes = segment.tail;
  for (const RejectedRecord& rejected : scan.rejected) {
    EncodeTombstone(segment.place(rejected.offset), rejected.sequence, rejected.record_bytes, block.block());
    if (!files_->Write(fd, rejected.offset, block.block()).ok()) return;
  }
  if (!files_->Sync(fd).ok()) return;
  EncodeSeal(segment.place(kSealOffset), {segment.tail, scan.records.size()}, block.block());
  if (files_->Write(fd, kSealOffset, block.block()).ok()) (void)files_->Sync(fd);
}

// The newest record of a key counts. An older one gets a tombstone: it must not come back when the newer is dropped.
void SsdStore::Impl::IndexRecord(Segment& segment, const ScannedRecord& record) {
  const RecordFixed& fixed = record.header.fixed;
  const Shape* shape = Intern(record.header);
  RecordEntry* existing = index_.Find(fixed.key);
  const bool older = existing != nullptr && existing->sequence > record.header.sequence;
  if (existing != nullptr) metrics_.discarded(DiscardReason::kSuperseded).Add();
  // Headers are read into buffers of this size: a record from a larger configuration cannot be read here.
  const bool readable = shape != nullptr && shape->header_blocks <= HeaderBlocks(options_.extents_max);
  if (older || !readable) {
    Bury({&segment, record.offset, record.header.sequence, fixed.record_bytes});
    return;
  }
  if (existing != nullptr) EraseWithTombstone(*existing);
  RecordEntry& entry = index_.Insert(fixed.key, segment);
  entry.parent = fixed.parent;
  entry.sequence = record.header.sequence;
  entry.offset_blocks = static_cast<std::uint32_t>(record.offset / kBlockBytes);
  entry.shape = shape;
  entry.written = entry.durable = true;
  segment.records.emplace_back(&entry, entry.sequence);
  segment.live_bytes += shape->record_bytes;
  live_bytes_ += shape->record_bytes;
}

// A capacity lowered since the last run is kept from the first moment: the oldest segments go. Nobody has been told of
// their records yet.
void SsdStore::Impl::ShrinkToCapacity() {
  while (used_bytes_ > options_.capacity_bytes && !segments_.empty()) {
    Segment& oldest = *segments_.begin()->second;
    for (const auto& [entry, sequence] : oldest.records) {
      if (entry->segment == &oldest && entry->sequence == sequence) Erase(*entry);
    }
    std::erase_if(tombstones_, [&](const Tombstone& tombstone) { return tombstone.segment == &oldest; });
    oldest.records.clear();
    oldest.tombstones = 0;
    const Status removed = RemoveFile(oldest);
    if (!removed.ok()) {
      StopWrites(removed);
      return;
    }
    metrics_.reclaimed_segments.Add();
    metrics_.reclaimed_bytes.Add(oldest.file_bytes);
    used_bytes_ -= oldest.file_bytes;
    segments_.erase(segments_.begin());
  }
}

}  // namespace foreload::ssd
