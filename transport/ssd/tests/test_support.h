// Shared by the tests of the SSD store: a real backend on pread and pwrite, files that can fail on demand, a log of all
// that reached the disk, and a bench that opens, writes and reads a store.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "transport/ssd/aligned_buffer.h"
#include "transport/ssd/ssd_store.h"

namespace foreload::ssd::testing {

// A directory of its own, mode 0700, removed at the end. In memory where there is room for that: a test that cuts a
// file at every offset would wait for the disk most of its time. kDisk: where temporary files normally are.
class TempDir {
 public:
  enum class Where { kMemory, kDisk };
  explicit TempDir(Where where = Where::kMemory);
  ~TempDir();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// What was done to segment files, in order. A write counts as durable once a sync that began after it has ended.
struct DiskOp {
  enum class Kind { kCreate, kWrite, kSyncBegin, kSyncEnd, kTruncate, kRemove, kDirSync, kDurable, kGone, kForgotten };
  Kind kind;
  std::string path;
  std::uint64_t offset = 0;  // kTruncate, kCreate: bytes
  std::vector<std::byte> bytes;
  std::uint64_t id = 0;  // kDurable, kGone, kForgotten: of the record; syncs: to pair them
};

class DiskLog {
 public:
  void Add(DiskOp op);
  void Opened(int fd, const std::string& path);
  std::string PathOf(int fd);
  std::uint64_t NextId();
  std::vector<DiskOp> Take();

 private:
  std::mutex mutex_;
  std::vector<DiskOp> ops_;
  std::map<int, std::string> paths_;
  std::uint64_t next_id_ = 0;
};

// Moves at once, on the caller's thread; completions wait for Poll.
class TestBackend final : public Backend {
 public:
  explicit TestBackend(DiskLog* log = nullptr) : log_(log) {}

  Status Probe() override { return OkStatus(); }
  Capabilities capabilities() const override;
  Result<RegionId> Register(const Region& region) override;
  Status Unregister(RegionId region) override;
  std::size_t Submit(std::span<const Transfer> transfers) override;
  std::size_t Poll(std::span<Completion> completions) override;

  std::size_t regions();
  int fail_errno = 0;  // != 0: every file transfer fails with it
  std::uint64_t transfer_bytes_max = std::uint64_t{1} << 30;

 private:
  Completion Move(const Transfer& transfer);

  DiskLog* const log_;
  std::mutex mutex_;  // registration comes from the store's thread
  std::map<std::uint32_t, Region> regions_;
  std::uint32_t next_region_ = 0;
  std::deque<Completion> done_;
};

// Real files; logged, and failing when told to.
class TestFiles final : public SegmentFiles {
 public:
  struct Faults {
    std::mutex mutex;
    int create_errno = 0;  // != 0: every Create fails with it
    int sync_errno = 0;
    int write_errno = 0;
    int syncs_to_fail = 0;  // of sync_errno
    int syncs = 0;          // so far
  };
  TestFiles(std::shared_ptr<Faults> faults, DiskLog* log, DirectIo direct_io = DirectIo::kOff);

  Result<OpenedFile> Create(const std::string& path, std::uint64_t bytes) override;
  Result<OpenedFile> Open(const std::string& path) override;
  Status Read(int fd, std::uint64_t offset, std::span<std::byte> out) override;
  Status Write(int fd, std::uint64_t offset, std::span<const std::byte> bytes) override;
  Status Sync(int fd) override;
  Status SyncAndForget(int fd) override;
  Status Truncate(int fd, std::uint64_t bytes) override;
  Status Remove(const std::string& path) override;
  Status SyncDirectory(const std::string& path) override;

 private:
  const std::unique_ptr<SegmentFiles> real_;
  const std::shared_ptr<Faults> faults_;
  DiskLog* const log_;
};

BlockKey KeyOf(std::uint64_t id);
std::uint64_t IdOf(const BlockKey& key);
LayoutFingerprint LayoutOf(std::uint8_t n);

// Extent sizes of a record; content is a function of (id, extent).
using ExtentSizes = std::vector<std::uint64_t>;
inline const ExtentSizes kQuarter = {200 << 10};  // four fit a 1 MiB segment
void FillExtent(std::uint64_t id, std::size_t extent, std::span<std::byte> out);
std::uint64_t PaddedBytes(const ExtentSizes& sizes);

// Deadline for everything that a test waits for: generous, since it only bounds a failure.
TimeNs TestDeadline();

// Moved by the test, read by the store's thread.
class TestClock final : public Clock {
 public:
  TimeNs Now() const override { return now_.load(); }
  void Advance(DurationNs by) { now_ += by; }

 private:
  std::atomic<TimeNs> now_{kSecond};
};

class StoreBench {
 public:
  explicit StoreBench(std::string directory, DiskLog* log = nullptr);
  ~StoreBench();

  Status Open();  // by `options`
  void Close() { store.reset(); }

  // Whole operations. Write waits for a segment; ids of records that the sinks named are in durable, failed, dropped.
  Status Write(std::uint64_t id, const ExtentSizes& sizes, std::uint8_t layout = 1);
  Result<WritePlan> Prepare(std::uint64_t id, const ExtentSizes& sizes, std::uint8_t layout = 1);
  IoResult MoveParts(std::span<const SsdPart> parts, bool to_file);
  Status Read(std::uint64_t id, const ExtentSizes& sizes, std::uint8_t layout = 1);  // DataLoss too when bytes differ
  Status ReadRun(std::uint64_t id, const ExtentSizes& sizes, std::uint32_t first, std::uint32_t count);
  std::set<std::uint64_t> Stored();
  // Each stored record reads byte-exact, unless reclaim has just taken and reported it.
  void ExpectAllReadable(const ExtentSizes& sizes);
  bool WaitFor(const std::function<bool()>& condition);  // checked under sink_mutex, after each sink call
  std::set<std::uint64_t> Durable();
  std::map<std::uint64_t, Status> Failed();
  std::map<std::uint64_t, DropReason> Dropped();

  std::function<void(std::uint64_t id)> on_durable;  // called first in the sinks
  std::function<void(std::uint64_t id)> on_dropped;
  SsdOptions options;
  TestBackend backend;
  DiskLog* const log;
  std::shared_ptr<TestFiles::Faults> faults = std::make_shared<TestFiles::Faults>();
  MonotonicClock real_clock;
  TestClock manual_clock;
  const Clock* clock = &real_clock;  // or &manual_clock
  std::unique_ptr<MetricRegistry> registry;
  std::unique_ptr<SsdMetrics> metrics;
  std::unique_ptr<SsdStore> store;

  std::mutex sink_mutex;
  std::condition_variable sink_called;
  std::set<std::uint64_t> durable;
  std::map<std::uint64_t, Status> failed;
  std::map<std::uint64_t, DropReason> dropped;

 private:
  AlignedBuffer memory_;
  RegionId memory_region_;
};

// What `du` says, in bytes: blocks that the directory's files occupy.
std::uint64_t DiskUse(const std::string& directory);
std::vector<std::byte> ReadFile(const std::string& path);
void WriteFile(const std::string& path, std::span<const std::byte> bytes);
std::vector<std::string> SegmentPaths(const std::string& directory);

}  // namespace foreload::ssd::testing
