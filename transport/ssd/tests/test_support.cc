#include "transport/ssd/tests/test_support.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>

#include "transport/ssd/directory.h"

namespace foreload::ssd::testing {
namespace {

constexpr std::size_t kMemoryBytes = 4 << 20;
constexpr std::uintmax_t kRoomInMemory = 512 << 20;

}  // namespace

TempDir::TempDir(Where where) {
  std::error_code error;
  const auto room = std::filesystem::space("/dev/shm", error);
  const bool memory = where == Where::kMemory && !error && room.available > kRoomInMemory;
  const std::filesystem::path parent = memory ? "/dev/shm" : std::filesystem::temp_directory_path();
  std::string name = (parent / "foreload-ssd-XXXXXX").string();
  FORELOAD_CHECK(::mkdtemp(name.data()) != nullptr, "mkdtemp");
  path_ = name;
}
TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

// ---- DiskLog

void DiskLog::Add(DiskOp op) {
  const std::lock_guard lock(mutex_);
  ops_.push_back(std::move(op));
}
void DiskLog::Opened(int fd, const std::string& path) {
  const std::lock_guard lock(mutex_);
  paths_[fd] = path;
}
std::string DiskLog::PathOf(int fd) {
  const std::lock_guard lock(mutex_);
  return paths_.at(fd);
}
std::uint64_t DiskLog::NextId() {
  const std::lock_guard lock(mutex_);
  return ++next_id_;
}
std::vector<DiskOp> DiskLog::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(ops_, {});
}

// ---- TestBackend

Capabilities TestBackend::capabilities() const {
  return {.name = "test",
          .memory_to_memory = false,
          .file_to_memory = true,
          .memory_to_file = true,
          .queue_depth = 1024,
          .transfer_bytes_max = transfer_bytes_max,
          .alignment = kBlockBytes};
}

Result<RegionId> TestBackend::Register(const Region& region) {
  const std::lock_guard lock(mutex_);
  regions_[next_region_] = region;
  return RegionId{next_region_++};
}

Status TestBackend::Unregister(RegionId region) {
  const std::lock_guard lock(mutex_);
  return regions_.erase(region.value) == 1 ? OkStatus() : NotFound("no such region");
}

std::size_t TestBackend::regions() {
  const std::lock_guard lock(mutex_);
  return regions_.size();
}

std::size_t TestBackend::Submit(std::span<const Transfer> transfers) {
  for (const Transfer& transfer : transfers) done_.push_back(Move(transfer));
  return transfers.size();
}

std::size_t TestBackend::Poll(std::span<Completion> completions) {
  std::size_t n = 0;
  for (; n < completions.size() && !done_.empty(); ++n) {
    completions[n] = done_.front();
    done_.pop_front();
  }
  return n;
}

Completion TestBackend::Move(const Transfer& transfer) {
  Region source;
  Region destination;
  {
    const std::lock_guard lock(mutex_);
    const auto s = regions_.find(transfer.source.value);
    const auto d = regions_.find(transfer.destination.value);
    if (s == regions_.end() || d == regions_.end() || transfer.bytes > transfer_bytes_max ||
        transfer.source_offset + transfer.bytes > s->second.bytes ||
        transfer.destination_offset + transfer.bytes > d->second.bytes) {
      return {transfer.token, 0, TransferError::kBadRegion, 0};
    }
    source = s->second;
    destination = d->second;
  }
  if (fail_errno != 0) {
    return {transfer.token, 0, fail_errno == ENOSPC ? TransferError::kNoSpace : TransferError::kIo, fail_errno};
  }
  const bool to_file = destination.kind == Region::Kind::kFile;
  auto* memory = static_cast<std::byte*>(to_file ? source.base : destination.base) +
                 (to_file ? transfer.source_offset : transfer.destination_offset);
  const ssize_t n =
      to_file ? ::pwrite(destination.fd, memory, transfer.bytes, static_cast<off_t>(transfer.destination_offset))
              : ::pread(source.fd, memory, transfer.bytes, static_cast<off_t>(transfer.source_offset));
  if (n != static_cast<ssize_t>(transfer.bytes)) {
    return {transfer.token, 0, n < 0 ? TransferError::kIo : TransferError::kShort, n < 0 ? errno : 0};
  }
  if (to_file && log_ != nullptr) {
    log_->Add({DiskOp::Kind::kWrite, log_->PathOf(destination.fd), transfer.destination_offset,
               std::vector<std::byte>(memory, memory + transfer.bytes)});
  }
  return {transfer.token, transfer.bytes, TransferError::kNone, 0};
}

// ---- TestFiles

TestFiles::TestFiles(std::shared_ptr<Faults> faults, DiskLog* log, DirectIo direct_io)
    : real_(NewSegmentFiles(direct_io)), faults_(std::move(faults)), log_(log) {}

Result<OpenedFile> TestFiles::Create(const std::string& path, std::uint64_t bytes) {
  {
    const std::lock_guard lock(faults_->mutex);
    if (faults_->create_errno != 0) return Status::FromErrno(faults_->create_errno, "create " + path);
  }
  auto file = real_->Create(path, bytes);
  if (file.ok() && log_ != nullptr) {
    log_->Opened(file->fd.get(), path);
    log_->Add({DiskOp::Kind::kCreate, path, bytes, {}});
  }
  return file;
}

Result<OpenedFile> TestFiles::Open(const std::string& path) {
  auto file = real_->Open(path);
  if (file.ok() && log_ != nullptr) log_->Opened(file->fd.get(), path);
  return file;
}

Status TestFiles::Read(int fd, std::uint64_t offset, std::span<std::byte> out) {
  return real_->Read(fd, offset, out);
}

Status TestFiles::Write(int fd, std::uint64_t offset, std::span<const std::byte> bytes) {
  {
    const std::lock_guard lock(faults_->mutex);
    if (faults_->write_errno != 0) return Status::FromErrno(faults_->write_errno, "write");
  }
  FORELOAD_RETURN_IF_ERROR(real_->Write(fd, offset, bytes));
  if (log_ != nullptr) log_->Add({DiskOp::Kind::kWrite, log_->PathOf(fd), offset, {bytes.begin(), bytes.end()}});
  return OkStatus();
}

Status TestFiles::Sync(int fd) {
  {
    const std::lock_guard lock(faults_->mutex);
    ++faults_->syncs;
    if (faults_->syncs_to_fail > 0) {
      --faults_->syncs_to_fail;
      return Status::FromErrno(faults_->sync_errno, "fdatasync");
    }
  }
  if (log_ == nullptr) return real_->Sync(fd);
  const std::uint64_t id = log_->NextId();
  log_->Add({DiskOp::Kind::kSyncBegin, log_->PathOf(fd), 0, {}, id});
  log_->Add({DiskOp::Kind::kSyncEnd, log_->PathOf(fd), 0, {}, id});
  return OkStatus();  // the log says what a power loss leaves; the real device need not be waited for
}

Status TestFiles::SyncAndForget(int fd) {
  FORELOAD_RETURN_IF_ERROR(Sync(fd));
  return log_ == nullptr ? real_->SyncAndForget(fd) : OkStatus();
}

Status TestFiles::Truncate(int fd, std::uint64_t bytes) {
  FORELOAD_RETURN_IF_ERROR(real_->Truncate(fd, bytes));
  if (log_ != nullptr) log_->Add({DiskOp::Kind::kTruncate, log_->PathOf(fd), bytes, {}});
  return OkStatus();
}

Status TestFiles::Remove(const std::string& path) {
  FORELOAD_RETURN_IF_ERROR(real_->Remove(path));
  if (log_ != nullptr) log_->Add({DiskOp::Kind::kRemove, path, 0, {}});
  return OkStatus();
}

Status TestFiles::SyncDirectory(const std::string& path) {
  if (log_ == nullptr) return real_->SyncDirectory(path);
  log_->Add({DiskOp::Kind::kDirSync, path, 0, {}});
  return OkStatus();
}

// ---- content

BlockKey KeyOf(std::uint64_t id) {
  std::array<std::uint8_t, 32> digest{};
  Rng rng(id);
  for (std::size_t i = 0; i < 24; i += 8) {
    const std::uint64_t word = rng.Next();
    std::memcpy(digest.data() + i, &word, sizeof word);
  }
  std::memcpy(digest.data() + 24, &id, sizeof id);
  NamespaceFingerprint name_space;
  name_space.bytes.fill(7);
  return BlockKey::From(name_space, digest);
}

std::uint64_t IdOf(const BlockKey& key) {
  std::uint64_t id = 0;
  std::memcpy(&id, key.digest.data() + 24, sizeof id);
  return id;
}

LayoutFingerprint LayoutOf(std::uint8_t n) {
  LayoutFingerprint layout;
  layout.bytes.fill(n);
  return layout;
}

void FillExtent(std::uint64_t id, std::size_t extent, std::span<std::byte> out) {
  Rng rng(id * 1000003 + extent);
  while (!out.empty()) {
    const std::uint64_t word = rng.Next();
    const std::size_t n = std::min(out.size(), sizeof word);
    std::memcpy(out.data(), &word, n);
    out = out.subspan(n);
  }
}

std::uint64_t PaddedBytes(const ExtentSizes& sizes) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t size : sizes) bytes += RoundUpToBlock(size);
  return bytes;
}

TimeNs TestDeadline() {
  return MonotonicNow() + 60 * kSecond;
}

// ---- StoreBench

StoreBench::StoreBench(std::string directory, DiskLog* disk_log)
    : backend(disk_log), log(disk_log), memory_(kMemoryBytes) {
  options.directory = std::move(directory);
  options.capacity_bytes = 16 << 20;
  options.segment_bytes = 1 << 20;
  options.sync_interval_ns = kMillisecond;
  memory_region_ =
      backend.Register({.kind = Region::Kind::kHostMemory, .base = memory_.data(), .bytes = kMemoryBytes}).value();
}

StoreBench::~StoreBench() {
  store.reset();
  EXPECT_EQ(backend.regions(), 1u) << "the store has left a region registered";
}

Status StoreBench::Open() {
  store.reset();
  registry = std::make_unique<MetricRegistry>();
  metrics = std::make_unique<SsdMetrics>(*registry);
  SsdSinks sinks;
  sinks.durable = [this](const BlockKey& key, std::uint64_t token, const Status& status) {
    EXPECT_EQ(token, IdOf(key) + 1);
    if (on_durable && status.ok()) on_durable(IdOf(key));
    if (log != nullptr && status.ok()) log->Add({DiskOp::Kind::kDurable, "", 0, {}, IdOf(key)});
    const std::lock_guard lock(sink_mutex);
    if (status.ok()) {
      durable.insert(IdOf(key));
    } else {
      failed[IdOf(key)] = status;
    }
    sink_called.notify_all();
  };
  sinks.dropped = [this](const BlockKey& key, DropReason reason) {
    if (on_dropped) on_dropped(IdOf(key));
    if (log != nullptr) log->Add({DiskOp::Kind::kGone, "", 0, {}, IdOf(key)});
    const std::lock_guard lock(sink_mutex);
    dropped[IdOf(key)] = reason;
    sink_called.notify_all();
  };
  auto opened = SsdStore::Open(options, backend, *clock, *metrics, std::move(sinks),
                               std::make_unique<TestFiles>(faults, log, options.direct_io));
  if (!opened.ok()) return opened.status();
  store = std::move(opened).value();
  return OkStatus();
}

Result<WritePlan> StoreBench::Prepare(std::uint64_t id, const ExtentSizes& sizes, std::uint8_t layout) {
  std::vector<ExtentData> extents;
  std::size_t at = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::span<std::byte> data(memory_.data() + at, sizes[i]);
    FillExtent(id, i, data);
    extents.push_back({.rank = static_cast<std::uint16_t>(i % 2),
                       .layer_group = static_cast<std::uint16_t>(i / 2),
                       .data = data,
                       .xxh3 = {}});
    at += RoundUpToBlock(sizes[i]);
  }
  return store->PrepareWrite({.key = KeyOf(id),
                              .parent = id == 0 ? BlockKey{} : KeyOf(id - 1),
                              .layout = LayoutOf(layout),
                              .token = id + 1,
                              .extents = extents});
}

IoResult StoreBench::MoveParts(std::span<const SsdPart> parts, bool to_file) {
  IoResult result = IoResult::kOk;
  for (const SsdPart& part : parts) {
    const bool mine = !part.memory_region.valid();
    const RegionId memory = mine ? memory_region_ : part.memory_region;
    const std::uint64_t offset = mine ? static_cast<std::uint64_t>(part.memory - memory_.data()) : part.memory_offset;
    const Transfer transfer = to_file ? Transfer{1, memory, offset, part.file, part.file_offset, part.bytes}
                                      : Transfer{1, part.file, part.file_offset, memory, offset, part.bytes};
    backend.Submit({&transfer, 1});
    Completion done;
    FORELOAD_CHECK(backend.Poll({&done, 1}) == 1, "no completion");
    FORELOAD_CHECK(done.error != TransferError::kBadRegion, "the store named a bad region");
    if (done.error == TransferError::kNoSpace)
      result = IoResult::kNoSpace;
    else if (done.error != TransferError::kNone)
      result = IoResult::kError;
  }
  return result;
}

Status StoreBench::Write(std::uint64_t id, const ExtentSizes& sizes, std::uint8_t layout) {
  auto plan = Prepare(id, sizes, layout);
  while (!plan.ok() && plan.status().code() == StatusCode::kUnavailable) {
    FORELOAD_RETURN_IF_ERROR(store->WaitWritable(TestDeadline()));
    plan = Prepare(id, sizes, layout);
  }
  if (!plan.ok()) return plan.status();
  return store->FinishWrite(plan.value(), MoveParts(plan->parts, true));
}

Status StoreBench::Read(std::uint64_t id, const ExtentSizes& sizes, std::uint8_t layout) {
  std::memset(memory_.data(), 0xEE, PaddedBytes(sizes));
  auto plan = store->PrepareRead({.key = KeyOf(id), .layout = LayoutOf(layout), .memory = memory_.first(kMemoryBytes)});
  if (!plan.ok()) return plan.status();
  FORELOAD_RETURN_IF_ERROR(store->FinishRead(plan.value(), MoveParts(plan->parts, false)));
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::vector<std::byte> expected(sizes[i]);
    FillExtent(id, i, expected);
    if (std::memcmp(expected.data(), memory_.data() + at, sizes[i]) != 0) return DataLoss("WRONG BYTES were returned");
    at += RoundUpToBlock(sizes[i]);
  }
  return OkStatus();
}

Status StoreBench::ReadRun(std::uint64_t id, const ExtentSizes& sizes, std::uint32_t first, std::uint32_t count) {
  auto plan = store->PrepareRead({.key = KeyOf(id),
                                  .layout = LayoutOf(1),
                                  .first_extent = first,
                                  .extent_count = count,
                                  .memory = memory_.first(kMemoryBytes)});
  if (!plan.ok()) return plan.status();
  FORELOAD_RETURN_IF_ERROR(store->FinishRead(plan.value(), MoveParts(plan->parts, false)));
  std::uint64_t at = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    std::vector<std::byte> expected(sizes[i]);
    FillExtent(id, i, expected);
    if (std::memcmp(expected.data(), memory_.data() + at, sizes[i]) != 0) return DataLoss("WRONG BYTES were returned");
    at += RoundUpToBlock(sizes[i]);
  }
  return OkStatus();
}

std::set<std::uint64_t> StoreBench::Stored() {
  std::set<std::uint64_t> ids;
  store->ForEachRecord([&](const RecordInfo& info) { ids.insert(IdOf(info.key)); });
  return ids;
}

void StoreBench::ExpectAllReadable(const ExtentSizes& sizes) {
  for (const std::uint64_t id : Stored()) {
    const Status status = Read(id, sizes);
    if (status.code() == StatusCode::kNotFound) {
      EXPECT_TRUE(WaitFor([&] { return dropped.count(id) == 1; })) << id;
    } else {
      EXPECT_TRUE(status.ok()) << id << ": " << status.ToString();
    }
  }
}

bool StoreBench::WaitFor(const std::function<bool()>& condition) {
  std::unique_lock lock(sink_mutex);
  const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(TestDeadline())};
  return sink_called.wait_until(lock, until, condition);
}

std::set<std::uint64_t> StoreBench::Durable() {
  const std::lock_guard lock(sink_mutex);
  return durable;
}
std::map<std::uint64_t, Status> StoreBench::Failed() {
  const std::lock_guard lock(sink_mutex);
  return failed;
}
std::map<std::uint64_t, DropReason> StoreBench::Dropped() {
  const std::lock_guard lock(sink_mutex);
  return dropped;
}

// ---- files

std::uint64_t DiskUse(const std::string& directory) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    struct stat info {};
    if (::lstat(entry.path().c_str(), &info) == 0) bytes += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

std::vector<std::byte> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> chars{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto bytes = std::as_bytes(std::span(chars));
  return {bytes.begin(), bytes.end()};
}

void WriteFile(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  FORELOAD_CHECK(out.good(), "write a test file");
}

std::vector<std::string> SegmentPaths(const std::string& directory) {
  std::vector<std::string> paths;
  const auto segments = ListSegments(directory);
  for (const std::uint32_t id : segments.value()) paths.push_back(directory + "/" + SegmentFileName(id));
  return paths;
}

}  // namespace foreload::ssd::testing
