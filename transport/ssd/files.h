// The file operations that the SSD store makes itself (bytes of records are moved by the caller's backend): one seam,
// so that tests can record them, fail them, and play a power loss.
//
// Thread: any; calls on one file are not concurrent, except Sync with the backend's writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "proto/unique_fd.h"

namespace foreload::ssd {

enum class DirectIo : std::uint8_t { kAuto, kOn, kOff };  // kAuto: O_DIRECT where the file system takes it

struct OpenedFile {
  UniqueFd fd;
  std::uint64_t bytes = 0;
  bool direct = false;
};

class SegmentFiles {
 public:
  virtual ~SegmentFiles() = default;

  // A new file of mode 0600 with all its space allocated, so that a full disk says so here and not at a write. Leaves
  // nothing behind on failure. kResourceExhausted: ENOSPC, EDQUOT.
  virtual Result<OpenedFile> Create(const std::string& path, std::uint64_t bytes) = 0;
  virtual Result<OpenedFile> Open(const std::string& path) = 0;
  // Whole or an error. Offsets, lengths and addresses are multiples of 4 KiB.
  virtual Status Read(int fd, std::uint64_t offset, std::span<std::byte> out) = 0;
  virtual Status Write(int fd, std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  // fdatasync. After a failure nothing that was written since the last success may be trusted.
  virtual Status Sync(int fd) = 0;
  // Sync, then forget what the page cache holds, so that the next Read comes from the device.
  virtual Status SyncAndForget(int fd) = 0;
  virtual Status Truncate(int fd, std::uint64_t bytes) = 0;
  virtual Status Remove(const std::string& path) = 0;
  virtual Status SyncDirectory(const std::string& path) = 0;
};

std::unique_ptr<SegmentFiles> NewSegmentFiles(DirectIo direct_io);

}  // namespace foreload::ssd
