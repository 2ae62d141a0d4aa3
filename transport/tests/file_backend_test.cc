// io_uring and its fallback where the machine refuses: seccomp, memlock, large regions, full and failing devices.
#include "transport/uring/file_backend.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>

#include "base/units.h"
#include "transport/probe.h"
#include "transport/tests/transport_testing.h"
#include "transport/uring/thread_pool_backend.h"
#include "transport/uring/uring_backend.h"

namespace foreload::testing {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

Completion Transmit(Backend& backend, const Transfer& transfer) {
  EXPECT_EQ(backend.Submit({&transfer, 1}), 1u);
  Completion completion;
  EXPECT_TRUE(Eventually([&] { return backend.Poll({&completion, 1}) == 1; }));
  return completion;
}

// Runs `body` in a child process; its text is the reason of failure, empty when it went well.
std::string InChild(const std::function<std::string()>& body) {
  int fds[2];
  EXPECT_EQ(::pipe(fds), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = body();
    const ssize_t written = ::write(fds[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(fds[1]);
  std::string text;
  char buffer[512];
  for (ssize_t got = 0; (got = ::read(fds[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(fds[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child died";
  return text;
}

// A container's default seccomp profile answers io_uring_setup with EPERM; some sandboxes with ENOSYS.
bool RefuseUring(std::uint32_t errnum) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | errnum),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{.len = 4, .filter = filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Writes a MiB to a file and reads it back through `backend`; what went wrong, in words.
std::string RoundTrip(Backend& backend) {
  TempFile file;
  Memory memory(2 * kMiB);
  const std::vector<std::uint8_t> content = Pattern(4, kMiB);
  std::memcpy(memory.data(), content.data(), kMiB);
  auto file_id = backend.Register(file.region(kMiB));
  auto memory_id = backend.Register(memory.region());
  if (!file_id.ok() || !memory_id.ok()) return "registration failed";
  const Completion wrote =
      Transmit(backend, {.token = 1, .source = memory_id.value(), .destination = file_id.value(), .bytes = kMiB});
  if (wrote.error != TransferError::kNone) return "write failed";
  const Completion read = Transmit(backend, {.token = 2,
                                             .source = file_id.value(),
                                             .destination = memory_id.value(),
                                             .destination_offset = kMiB,
                                             .bytes = kMiB});
  if (read.error != TransferError::kNone) return "read failed";
  if (std::memcmp(memory.data() + kMiB, content.data(), kMiB) != 0) return "bytes differ";
  if (!backend.Unregister(file_id.value()).ok() || !backend.Unregister(memory_id.value()).ok()) return "unregister";
  return "";
}

TEST(FileBackendTest, ChoosesIoUringWhereItWorksAndSaysSo) {
  FileBackendChoice choice;
  auto backend = MakeFileBackend({}, &choice);
  ASSERT_TRUE(backend.ok()) << backend.status().ToString();
  EXPECT_EQ((*backend)->capabilities().name, choice.io_uring ? "uring" : "threadpool");
  EXPECT_FALSE(choice.reason.empty());
  EXPECT_EQ(ChooseFileBackend().io_uring, choice.io_uring);
  EXPECT_EQ(RoundTrip(**backend), "");
}

TEST(FileBackendTest, FallsBackToThreadsWhereSeccompRefusesIoUring) {
  for (const int errnum : {EPERM, ENOSYS}) {
    const std::string problem = InChild([errnum]() -> std::string {
      if (!RefuseUring(static_cast<std::uint32_t>(errnum))) return "seccomp itself was refused";
      FileBackendChoice choice;
      auto backend = MakeFileBackend({}, &choice);
      if (!backend.ok()) return backend.status().ToString();
      if (choice.io_uring || (*backend)->capabilities().name != "threadpool") return "io_uring was chosen";
      if (choice.reason.find("io_uring") == std::string::npos) return "no reason: " + choice.reason;
      if (MakeFileBackend({.kind = FileBackendOptions::Kind::kUring}).ok()) return "kUring must not fall back";
      return RoundTrip(**backend);
    });
    EXPECT_EQ(problem, "") << "errno " << errnum;
  }
}

TEST(FileBackendTest, WithoutMemlockBuffersAreUsedUnregisteredAndTheReasonIsKept) {
  if (!ChooseFileBackend().io_uring) GTEST_SKIP() << ChooseFileBackend().reason;
  const std::string problem = InChild([]() -> std::string {
    const rlimit limit{.rlim_cur = kMiB, .rlim_max = kMiB};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "setrlimit";
    if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) return "setresuid";  // root is above the limit
    auto backend = UringBackend::Create();
    if (!backend.ok()) return backend.status().ToString();
    Memory large(64 * kMiB);
    if (!(*backend)->Register(large.region()).ok()) return "a refused pin must not fail the registration";
    const UringRegistration registration = (*backend)->registration();
    if (registration.plain_bytes != 64 * kMiB) return "64 MiB were pinned past a limit of 1 MiB";
    if (registration.reason.find("memlock") == std::string::npos) return "reason: " + registration.reason;
    return RoundTrip(**backend);
  });
  EXPECT_EQ(problem, "");
}

// 3 GiB of addresses over 64 MiB of memory, each 64 MiB window the same pages: large regions without the memory.
class LargeMapping {
 public:
  static constexpr std::uint64_t kWindow = 64 * kMiB;
  static constexpr std::uint64_t kBytes = 3 * kGiB;

  LargeMapping() {
    fd_ = ::memfd_create("large", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(fd_, kWindow), 0);
    base_ = static_cast<std::uint8_t*>(
        ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (std::uint64_t offset = 0; offset < kBytes; offset += kWindow) {
      EXPECT_NE(::mmap(base_ + offset, kWindow, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, 0), MAP_FAILED);
    }
  }
  ~LargeMapping() {
    ::munmap(base_, kBytes);
    ::close(fd_);
  }
  std::uint8_t* data() const { return base_; }
  Region region() const {
    Region region;
    region.base = base_;
    region.bytes = kBytes;
    return region;
  }

 private:
  int fd_ = -1;
  std::uint8_t* base_ = nullptr;
};

TEST(FileBackendTest, ARegionAboveOneGiBIsRegisteredInPiecesAndStraddlingBlocksAreExact) {
  auto backend = UringBackend::Create();
  if (!backend.ok()) GTEST_SKIP() << backend.status().ToString();
  LargeMapping memory;
  TempFile file;
  constexpr std::uint64_t kPiece = kMiB;
  const RegionId file_id = (*backend)->Register(file.region(16 * kMiB)).value();
  const auto memory_id = (*backend)->Register(memory.region());
  ASSERT_TRUE(memory_id.ok()) << memory_id.status().ToString();
  const UringRegistration registration = (*backend)->registration();
  EXPECT_EQ(registration.pinned_bytes + registration.plain_bytes, LargeMapping::kBytes);
  if (registration.plain_bytes > 0) {
    EXPECT_FALSE(registration.reason.empty());
  }
  const std::uint64_t offsets[] = {kGiB / 10 / 4096 * 4096, kGiB - 4096, kGiB + kGiB / 2 + 20 * kMiB,
                                   2 * kGiB - kPiece / 2, LargeMapping::kBytes - kPiece};
  for (std::size_t i = 0; i < std::size(offsets); ++i) {
    SCOPED_TRACE("offset " + std::to_string(offsets[i]));
    const std::vector<std::uint8_t> content = Pattern(i + 1, kPiece);
    std::memcpy(memory.data() + offsets[i], content.data(), kPiece);
    const Completion wrote = Transmit(**backend, {.token = 1,
                                                  .source = memory_id.value(),
                                                  .source_offset = offsets[i],
                                                  .destination = file_id,
                                                  .destination_offset = i * kPiece,
                                                  .bytes = kPiece});
    EXPECT_EQ(wrote.error, TransferError::kNone);
    EXPECT_EQ(wrote.bytes, kPiece);
    std::memset(memory.data() + offsets[i], 0, kPiece);
    const Completion read = Transmit(**backend, {.token = 2,
                                                 .source = file_id,
                                                 .source_offset = i * kPiece,
                                                 .destination = memory_id.value(),
                                                 .destination_offset = offsets[i],
                                                 .bytes = kPiece});
    EXPECT_EQ(read.error, TransferError::kNone);
    EXPECT_EQ(std::memcmp(memory.data() + offsets[i], content.data(), kPiece), 0);
  }
  EXPECT_TRUE((*backend)->Unregister(memory_id.value()).ok());
  EXPECT_EQ((*backend)->registration().pinned_bytes, 0u);
}

TEST(FileBackendTest, OneTransferAboveTwoGiBIsSplitAndWhole) {
  constexpr std::uint64_t kBytes = 2 * kGiB + 20 * kMiB;
  TempFile file(/*direct=*/true);  // holes cost no page cache
  if (file.fd() < 0) GTEST_SKIP() << "no O_DIRECT in " << TestDirectory();
  file.Resize(kBytes);  // sparse but for its last MiB
  const std::vector<std::uint8_t> tail = Pattern(8, kMiB);
  ASSERT_EQ(::pwrite(file.buffered_fd(), tail.data(), kMiB, kBytes - kMiB), static_cast<ssize_t>(kMiB));
  std::vector<std::unique_ptr<Backend>> backends;
  auto uring = UringBackend::Create();
  if (uring.ok()) backends.push_back(std::move(uring).value());
#if !defined(__SANITIZE_THREAD__)  // it would shadow every byte that pread writes: 8 GiB
  backends.push_back(ThreadPoolBackend::Create().value());
#endif
  for (const auto& backend : backends) {
    SCOPED_TRACE(backend->capabilities().name);
    LargeMapping memory;
    const RegionId file_id = backend->Register(file.region(kBytes)).value();
    const RegionId memory_id = backend->Register(memory.region()).value();
    const Completion read =
        Transmit(*backend, {.token = 1, .source = file_id, .destination = memory_id, .bytes = kBytes});
    EXPECT_EQ(read.error, TransferError::kNone);
    EXPECT_EQ(read.bytes, kBytes);
    EXPECT_EQ(std::memcmp(memory.data() + kBytes - kMiB, tail.data(), kMiB), 0);
    const Completion beyond = Transmit(
        *backend, {.token = 2, .source = file_id, .source_offset = kMiB, .destination = memory_id, .bytes = kBytes});
    EXPECT_EQ(beyond.error, TransferError::kBadRegion);
  }
}

TEST(FileBackendTest, AFullDeviceIsNoSpaceAndAFailingOneIsIo) {
  const int full = ::open("/dev/full", O_RDWR | O_CLOEXEC);
  const int failing = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);  // page 0 is not mapped: EIO
  ASSERT_GE(full, 0);
  ASSERT_GE(failing, 0);
  std::vector<std::unique_ptr<Backend>> backends;
  auto uring = UringBackend::Create();
  if (uring.ok()) backends.push_back(std::move(uring).value());
  backends.push_back(ThreadPoolBackend::Create().value());
  for (const auto& backend : backends) {
    SCOPED_TRACE(backend->capabilities().name);
    Memory memory(kMiB);
    const RegionId memory_id = backend->Register(memory.region()).value();
    Region device{.kind = Region::Kind::kFile, .bytes = kMiB, .fd = full};
    const RegionId full_id = backend->Register(device).value();
    device.fd = failing;
    const RegionId failing_id = backend->Register(device).value();
    const Completion wrote =
        Transmit(*backend, {.token = 1, .source = memory_id, .destination = full_id, .bytes = 4096});
    EXPECT_EQ(wrote.error, TransferError::kNoSpace);
    EXPECT_EQ(wrote.errnum, ENOSPC);
    const Completion read =
        Transmit(*backend, {.token = 2, .source = failing_id, .destination = memory_id, .bytes = 4096});
    EXPECT_EQ(read.error, TransferError::kIo);
    EXPECT_EQ(read.errnum, EIO);
    EXPECT_EQ(RoundTrip(*backend), "") << "an ordinary transfer after the failures";
  }
  ::close(full);
  ::close(failing);
}

// A file-size limit ends a write in the middle: the moved prefix is counted, the rest is an error.
TEST(FileBackendTest, AWriteThatStopsHalfwayIsNotTakenForWhole) {
  for (const bool threads : {false, true}) {
    const std::string problem = InChild([threads]() -> std::string {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{.rlim_cur = 64 * 1024, .rlim_max = 64 * 1024};
      if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return "setrlimit";
      const auto kind = threads ? FileBackendOptions::Kind::kThreadPool : FileBackendOptions::Kind::kAuto;
      auto backend = MakeFileBackend({.kind = kind});
      if (!backend.ok()) return backend.status().ToString();
      TempFile file;
      Memory memory(kMiB);
      const RegionId file_id = (*backend)->Register(file.region(kMiB)).value();
      const RegionId memory_id = (*backend)->Register(memory.region()).value();
      const Completion wrote =
          Transmit(**backend, {.token = 1, .source = memory_id, .destination = file_id, .bytes = 128 * 1024});
      if (wrote.error != TransferError::kIo || wrote.errnum != EFBIG) return "errno " + std::to_string(wrote.errnum);
      if (wrote.bytes != 64 * 1024) return "moved " + std::to_string(wrote.bytes);
      return "";
    });
    EXPECT_EQ(problem, "") << (threads ? "threads" : "auto");
  }
}

TEST(ProbeTest, NamesEveryBackendWithAReason) {
  const std::vector<ProbeLine> lines = ProbeBackends(TestDirectory());
  ASSERT_EQ(lines.size(), 6u);
  for (const ProbeLine& line : lines) EXPECT_FALSE(line.why.empty()) << line.name;
  EXPECT_TRUE(lines[0].works);
  EXPECT_TRUE(lines[2].works) << "threads work anywhere";
  EXPECT_FALSE(ProbeBackends("/nonexistent/directory").back().works);
  EXPECT_FALSE(ProbeBackends("").back().works);
}

}  // namespace
}  // namespace foreload::testing
