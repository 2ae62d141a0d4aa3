// The file backend that works on this machine: io_uring, or a thread pool where io_uring is refused or compiled out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/backend.h"

namespace foreload {

struct FileBackendOptions {
  enum class Kind : std::uint8_t { kAuto, kUring, kThreadPool };
  Kind kind = Kind::kAuto;  // kUring: an error instead of the fallback
  std::uint32_t queue_depth = 64;
  std::uint32_t threads = 4;  // of the thread pool
  bool registered_buffers = true;
  bool registered_files = true;
};

// What was chosen and why, in words for logs, metrics and `foreload probe`.
struct FileBackendChoice {
  bool io_uring = false;
  std::string reason;  // "io_uring works here", or why it was passed over
};

// Decides by trying; leaves nothing behind.
FileBackendChoice ChooseFileBackend(const FileBackendOptions& options = {});

// `choice`, when given, receives what ChooseFileBackend would say.
Result<std::unique_ptr<Backend>> MakeFileBackend(const FileBackendOptions& options = {},
                                                 FileBackendChoice* choice = nullptr);

}  // namespace foreload
