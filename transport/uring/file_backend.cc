#include "transport/uring/file_backend.h"

#include <utility>

#include "transport/uring/thread_pool_backend.h"
#include "transport/uring/uring_backend.h"

namespace foreload {
namespace {

Result<std::unique_ptr<UringBackend>> TryUring(const FileBackendOptions& options) {
  return UringBackend::Create({.queue_depth = options.queue_depth,
                               .registered_buffers = options.registered_buffers,
                               .registered_files = options.registered_files});
}

}  // namespace

FileBackendChoice ChooseFileBackend(const FileBackendOptions& options) {
  if (options.kind == FileBackendOptions::Kind::kThreadPool) return {.io_uring = false, .reason = "configured"};
  const auto uring = TryUring(options);
  return uring.ok() ? FileBackendChoice{.io_uring = true, .reason = "io_uring works here"}
                    : FileBackendChoice{.io_uring = false, .reason = uring.status().message()};
}

Result<std::unique_ptr<Backend>> MakeFileBackend(const FileBackendOptions& options, FileBackendChoice* choice) {
  FileBackendChoice chosen{.io_uring = false, .reason = "configured"};
  if (options.kind != FileBackendOptions::Kind::kThreadPool) {
    auto uring = TryUring(options);
    if (uring.ok()) {
      if (choice != nullptr) *choice = {.io_uring = true, .reason = "io_uring works here"};
      return std::unique_ptr<Backend>(std::move(uring).value());
    }
    if (options.kind == FileBackendOptions::Kind::kUring) return uring.status();
    chosen.reason = uring.status().message();
  }
  if (choice != nullptr) *choice = chosen;
  FORELOAD_ASSIGN_OR_RETURN(
      auto pool, ThreadPoolBackend::Create({.threads = options.threads, .queue_depth = options.queue_depth}));
  return std::unique_ptr<Backend>(std::move(pool));
}

}  // namespace foreload
