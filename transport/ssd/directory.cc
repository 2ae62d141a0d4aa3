#include "transport/ssd/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace foreload::ssd {
namespace {

constexpr std::string_view kPrefix = "seg-";
constexpr std::string_view kSuffix = ".fls";
constexpr std::size_t kDigits = 8;

Status EnsureDirectory(const std::string& directory) {
  const std::filesystem::path parent = std::filesystem::path(directory).parent_path();
  std::error_code error;
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (error) return Status::FromErrno(error.value(), "create " + parent.string());
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return Status::FromErrno(errno, "create " + directory);
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0) return Status::FromErrno(errno, "stat " + directory);
  if (!S_ISDIR(info.st_mode)) return FailedPrecondition(directory + " is not a directory");
  if ((info.st_mode & 077) != 0) {
    return FailedPrecondition("the SSD directory " + directory + " is open to other users; run: chmod 700 " +
                              directory);
  }
  return OkStatus();
}

std::string HolderOf(int fd) {
  char text[32] = {};
  const ssize_t n = ::pread(fd, text, sizeof text - 1, 0);
  std::string pid(text, n > 0 ? static_cast<std::size_t>(n) : 0);
  while (!pid.empty() && (pid.back() < '0' || pid.back() > '9')) pid.pop_back();
  return pid.empty() ? "another process" : "process " + pid;
}

}  // namespace

Result<DirectoryLock> DirectoryLock::Acquire(const std::string& directory) {
  FORELOAD_RETURN_IF_ERROR(EnsureDirectory(directory));
  const std::string path = directory + "/lock";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return Status::FromErrno(errno, "open " + path);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Status::FromErrno(errno, "lock " + path);
    return FailedPrecondition("the SSD directory " + directory + " is in use by " + HolderOf(fd.get()) +
                              "; give each sidecar its own directory");
  }
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(fd.get(), 0) != 0 || ::pwrite(fd.get(), pid.data(), pid.size(), 0) < 0) {
    // The lock holds without it; a full disk must not keep the store from opening.
  }
  return DirectoryLock(std::move(fd));
}

std::string SegmentFileName(std::uint32_t segment) {
  char name[32];
  std::snprintf(name, sizeof name, "seg-%08x.fls", segment);
  return name;
}

std::optional<std::uint32_t> ParseSegmentFileName(std::string_view name) {
  if (name.size() != kPrefix.size() + kDigits + kSuffix.size()) return std::nullopt;
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  std::uint32_t segment = 0;
  for (const char c : name.substr(kPrefix.size(), kDigits)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) return std::nullopt;
    segment = segment << 4 | static_cast<std::uint32_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return segment;
}

Result<std::vector<std::uint32_t>> ListSegments(const std::string& directory) {
  std::vector<std::uint32_t> segments;
  std::error_code error;
  std::filesystem::directory_iterator it(directory, error);
  while (!error && it != std::filesystem::directory_iterator()) {
    const auto segment = ParseSegmentFileName(it->path().filename().string());
    if (segment && it->is_regular_file(error)) segments.push_back(*segment);
    if (!error) it.increment(error);
  }
  if (error) return Status::FromErrno(error.value(), "list " + directory);
  std::sort(segments.begin(), segments.end());
  return segments;
}

}  // namespace foreload::ssd
