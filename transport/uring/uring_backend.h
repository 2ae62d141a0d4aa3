// Files by io_uring, with registered buffers and files where the kernel allows them.
//
// - A memory region is registered in pieces of at most 1 GiB, since the kernel refuses larger buffers; a transfer that
//   crosses a piece boundary is carried out in several operations, one after the other. A piece that the kernel refuses
//   (memlock limit, unsuitable memory) is used unregistered: slower, never wrong; `registration()` says so.
// - Short reads and writes are continued; a file that ends inside a transfer gives kShort.
// - poll_fd is the ring itself. Refused transfers travel through the ring as no-ops, so that it stays the only signal.
//
// Thread: as in the contract. The thread that submits must outlive its transfers: the kernel cancels them with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/backend.h"

namespace foreload {

struct UringBackendOptions {
  std::uint32_t queue_depth = 64;  // at most kUringDepthMax
  bool registered_buffers = true;
  bool registered_files = true;
};
inline constexpr std::uint32_t kUringDepthMax = 4096;

// What the kernel pinned and what it refused.
struct UringRegistration {
  std::uint64_t pinned_bytes = 0;
  std::uint64_t plain_bytes = 0;  // used unregistered
  std::string reason;             // why, of the latest refusal; empty when nothing was refused
};

class UringBackend : public Backend {
 public:
  // Unimplemented: compiled out, no such system call, or an operation is missing. FailedPrecondition: forbidden here
  // (seccomp, kernel.io_uring_disabled). ResourceExhausted: no memory or descriptors. The message says which.
  static Result<std::unique_ptr<UringBackend>> Create(const UringBackendOptions& options = {});

  // Any thread.
  virtual UringRegistration registration() const = 0;
};

}  // namespace foreload
