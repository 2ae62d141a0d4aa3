// The contract of every data mover: at most six virtuals, one conformance suite (transport/tests/conformance_test.cc).
//
// - Each accepted transfer completes exactly once, errors and shutdown included, with the bytes that were really moved.
// - `Submit` never blocks. It accepts a prefix of its argument and returns how many; 0 means "full, poll first".
// - There is no cancel: the mover cancels what is queued; what was submitted reaches its terminal event.
// - Shutdown: stop submitting, poll until `outstanding` is 0, destroy. Destroying with work outstanding is a bug.
// - Memory and files are named by registered regions; a transfer outside its regions is refused at submission with a
//   completion of kBadRegion, never performed.
//
// Thread: one thread at a time submits and polls (the mover's); registration may come from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"

namespace foreload {

using RegionId = Id<struct RegionTag, std::uint32_t>;

struct Region {
  enum class Kind : std::uint8_t { kHostMemory, kFile };
  Kind kind = Kind::kHostMemory;
  void* base = nullptr;     // kHostMemory
  std::uint64_t bytes = 0;  // both; a file may grow up to this
  int fd = -1;              // kFile; stays the caller's, open until Unregister returns
  bool direct = false;      // kFile: opened with O_DIRECT, so offsets, lengths and addresses are 4 KiB multiples
};

struct Transfer {
  std::uint64_t token = 0;  // the caller's; comes back in the completion
  RegionId source;
  std::uint64_t source_offset = 0;
  RegionId destination;
  std::uint64_t destination_offset = 0;
  std::uint64_t bytes = 0;  // > 0
};

enum class TransferError : std::uint8_t {
  kNone,
  kBadRegion,  // unknown region, or outside it
  kShort,      // fewer bytes than asked for
  kIo,         // the device said no: `errnum`
  kNoSpace,    // ENOSPC, EDQUOT
  kShutdown
};

struct Completion {
  std::uint64_t token = 0;
  std::uint64_t bytes = 0;  // moved; == asked when error is kNone
  TransferError error = TransferError::kNone;
  int errnum = 0;
};

struct Capabilities {
  std::string name;  // "host", "uring", "sim", "fault(host)"
  bool memory_to_memory = false;
  bool file_to_memory = false;
  bool memory_to_file = false;
  std::uint32_t queue_depth = 1;  // transfers outstanding at most
  std::uint64_t transfer_bytes_max = 0;
  std::uint64_t alignment = 1;  // of offsets and lengths on the file side
  int poll_fd = -1;             // readable when Poll may return something; -1: call Poll, work is done inside it
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Whether this backend works here; the message says why not, in words an operator can act on.
  virtual Status Probe() = 0;
  virtual Capabilities capabilities() const = 0;
  virtual Result<RegionId> Register(const Region& region) = 0;
  // FailedPrecondition while transfers that name the region are outstanding.
  virtual Status Unregister(RegionId region) = 0;
  virtual std::size_t Submit(std::span<const Transfer> transfers) = 0;
  virtual std::size_t Poll(std::span<Completion> completions) = 0;
};

}  // namespace foreload
