#include "prefetcher/service/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace foreload::service {
namespace {

std::string ReadSmall(const char* path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "re"), &std::fclose);
  if (file == nullptr) return {};
  std::array<char, 4096> buffer;
  return {buffer.data(), std::fread(buffer.data(), 1, buffer.size(), file.get())};
}

// Field `index` (1-based, as in proc_pid_stat(5)) of /proc/self/stat. The name in field 2 may hold spaces and
// parentheses, so counting begins after its last one.
double StatField(std::string_view stat, std::size_t index) {
  const std::size_t close = stat.rfind(')');
  if (close == std::string_view::npos) return 0;
  stat.remove_prefix(close + 1);
  for (std::size_t field = 3; !stat.empty(); ++field) {
    const std::size_t begin = stat.find_first_not_of(' ');
    if (begin == std::string_view::npos) return 0;
    stat.remove_prefix(begin);
    const std::size_t end = std::min(stat.find(' '), stat.size());
    if (field == index) {
      std::uint64_t value = 0;
      std::from_chars(stat.data(), stat.data() + end, value);
      return static_cast<double>(value);
    }
    stat.remove_prefix(end);
  }
  return 0;
}

double CountOpenFds() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), &closedir);
  if (folder == nullptr) return 0;
  double count = 0;
  while (readdir(folder.get()) != nullptr) ++count;
  return count - 3;  // ".", ".." and the folder itself
}

// Wall time of the start: the age by the boot clock, taken from now.
double StartTimeSeconds(double start_ticks) {
  timespec boot{};
  timespec wall{};
  clock_gettime(CLOCK_BOOTTIME, &boot);
  clock_gettime(CLOCK_REALTIME, &wall);
  const double age = static_cast<double>(boot.tv_sec) - start_ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(wall.tv_sec) - age;
}

}  // namespace

ProcessUsage ReadProcessUsage() {
  const std::string stat = ReadSmall("/proc/self/stat");
  const double tick = static_cast<double>(sysconf(_SC_CLK_TCK));
  ProcessUsage usage;
  usage.cpu_seconds = (StatField(stat, 14) + StatField(stat, 15)) / tick;
  usage.threads = StatField(stat, 20);
  // The start does not change; computed once, so that clock steps do not move it between scrapes.
  static const double start_time = StartTimeSeconds(StatField(stat, 22));
  usage.start_time_seconds = start_time;
  usage.virtual_bytes = StatField(stat, 23);
  usage.resident_bytes = StatField(stat, 24) * static_cast<double>(sysconf(_SC_PAGESIZE));
  usage.open_fds = CountOpenFds();
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) usage.max_fds = static_cast<double>(files.rlim_cur);
  return usage;
}

}  // namespace foreload::service
