#include "transport/probe.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "base/status.h"
#include "transport/region_table.h"
#include "transport/uring/file_backend.h"
#include "transport/uring/thread_pool_backend.h"

namespace foreload {
namespace {

constexpr std::size_t kProbeBytes = std::size_t{4} << 20;

std::string MemlockLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "memlock limit unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "memlock limit: none";
  return "memlock limit: " + std::to_string(limit.rlim_cur >> 10) + " KiB";
}

ProbeLine ProbeUring() {
  const FileBackendChoice choice = ChooseFileBackend();
  return {.name = "io_uring", .works = choice.io_uring, .why = choice.reason};
}

ProbeLine ProbeThreadPool() {
  const auto pool = ThreadPoolBackend::Create({.threads = 1, .queue_depth = 1});
  return {.name = "thread pool", .works = pool.ok(), .why = pool.ok() ? "pread and pwrite" : pool.status().message()};
}

ProbeLine ProbeHugePages() {
  void* reserved =
      ::mmap(nullptr, kProbeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  if (reserved != MAP_FAILED) {
    ::munmap(reserved, kProbeBytes);
    return {.name = "huge pages", .works = true, .why = "2 MiB pages from the reserved pool"};
  }
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string mode;
  std::getline(file, mode);
  const bool transparent = mode.find("[always]") != std::string::npos || mode.find("[madvise]") != std::string::npos;
  return {.name = "huge pages",
          .works = transparent,
          .why = transparent ? "transparent (" + mode + "); none reserved in vm.nr_hugepages"
                             : "none reserved (vm.nr_hugepages) and transparent_hugepage is off"};
}

ProbeLine ProbeMemlock() {
  void* memory = ::mmap(nullptr, kProbeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {.name = "memlock", .works = false, .why = "no memory to try it with"};
  const bool locked = ::mlock(memory, kProbeBytes) == 0;
  const int errnum = errno;
  ::munmap(memory, kProbeBytes);
  std::string why = MemlockLimit();
  if (!locked) why = Status::FromErrno(errnum, "mlock of 4 MiB").message() + "; " + why + " (LimitMEMLOCK=, ulimit -l)";
  return {.name = "memlock", .works = locked, .why = why};
}

ProbeLine ProbeDirect(const std::string& directory) {
  ProbeLine line{.name = "O_DIRECT", .works = false, .why = "no directory given"};
  if (directory.empty()) return line;
  std::string path = directory + "/.foreload-probe-XXXXXX";
  const int plain = ::mkostemp(path.data(), O_CLOEXEC);
  if (plain < 0) {
    line.why = Status::FromErrno(errno, "creating a file in " + directory).message();
    return line;
  }
  const int direct = ::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  if (direct < 0) {
    line.why = Status::FromErrno(errno, "open with O_DIRECT in " + directory).message() + "; buffered files are used";
  } else {
    const std::unique_ptr<void, void (*)(void*)> block(std::aligned_alloc(kDirectAlignment, kDirectAlignment),
                                                       std::free);
    line.works = block != nullptr &&
                 ::pwrite(direct, block.get(), kDirectAlignment, 0) == static_cast<ssize_t>(kDirectAlignment);
    line.why =
        line.works ? "works in " + directory : Status::FromErrno(errno, "O_DIRECT write in " + directory).message();
    ::close(direct);
  }
  ::close(plain);
  ::unlink(path.c_str());
  return line;
}

}  // namespace

std::vector<ProbeLine> ProbeBackends(const std::string& directory) {
  return {{.name = "host", .works = true, .why = "memory to memory"},
          ProbeUring(),
          ProbeThreadPool(),
          ProbeHugePages(),
          ProbeMemlock(),
          ProbeDirect(directory)};
}

}  // namespace foreload
