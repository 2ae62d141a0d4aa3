// The store's directory: its permissions, the lock that keeps a second sidecar out, and the names of segment files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "proto/unique_fd.h"

namespace foreload::ssd {

// Held for the life of the store. Released by the kernel when the process dies, however it dies.
class DirectoryLock {
 public:
  // Creates `directory` (mode 0700, parents too) when it is absent; refuses one that others may enter, since KV bytes
  // tell prompts. FailedPrecondition when another process holds it, naming its pid.
  static Result<DirectoryLock> Acquire(const std::string& directory);

 private:
  explicit DirectoryLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// "seg-0000002a.fls" for 42. Whatever else lies in the directory is not ours and is left alone.
std::string SegmentFileName(std::uint32_t segment);
std::optional<std::uint32_t> ParseSegmentFileName(std::string_view name);

// Ascending ids of the segment files there.
Result<std::vector<std::uint32_t>> ListSegments(const std::string& directory);

}  // namespace foreload::ssd
