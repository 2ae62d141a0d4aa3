// Whole reads and writes by pread and pwrite: interrupted and short calls are continued, large ones are split.
#pragma once

#include <cstdint>

#include "transport/backend.h"
#include "transport/region_table.h"

namespace foreload {

// The kernel stops a single call short near 2 GiB, and registered buffers end at 1 GiB.
inline constexpr std::uint64_t kIoBytesMax = std::uint64_t{1} << 30;

struct IoOutcome {
  std::uint64_t bytes = 0;  // moved
  TransferError error = TransferError::kNone;
  int errnum = 0;
};

// kNoSpace for ENOSPC and EDQUOT, else kIo.
TransferError ErrorFromErrno(int errnum);

// True when `moved` of one O_DIRECT call can only mean that the file ends there.
inline bool EndsInsideBlock(bool direct, std::uint64_t moved) {
  return direct && moved % kDirectAlignment != 0;
}

// Blocks until all bytes are moved, the file ends (kShort) or an error. Exactly one of the two ends is a file.
IoOutcome MoveFileBytes(const TransferEnd& source, const TransferEnd& destination, std::uint64_t bytes);

}  // namespace foreload
