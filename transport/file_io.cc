#include "transport/file_io.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace foreload {

TransferError ErrorFromErrno(int errnum) {
  return errnum == ENOSPC || errnum == EDQUOT ? TransferError::kNoSpace : TransferError::kIo;
}

IoOutcome MoveFileBytes(const TransferEnd& source, const TransferEnd& destination, std::uint64_t bytes) {
  const bool reading = source.kind == Region::Kind::kFile;
  const TransferEnd& file = reading ? source : destination;
  std::uint8_t* const memory = reading ? destination.memory : source.memory;
  IoOutcome outcome;
  while (outcome.bytes < bytes) {
    const std::uint64_t want = std::min(bytes - outcome.bytes, kIoBytesMax);
    const auto offset = static_cast<off_t>(file.offset + outcome.bytes);
    const ssize_t moved = reading ? ::pread(file.fd, memory + outcome.bytes, want, offset)
                                  : ::pwrite(file.fd, memory + outcome.bytes, want, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) {
      outcome.errnum = errno;
      outcome.error = ErrorFromErrno(outcome.errnum);
      return outcome;
    }
    outcome.bytes += static_cast<std::uint64_t>(moved);
    const bool at_end = moved == 0 || EndsInsideBlock(file.direct, static_cast<std::uint64_t>(moved));
    if (at_end && outcome.bytes < bytes) {
      outcome.error = TransferError::kShort;
      return outcome;
    }
  }
  return outcome;
}

}  // namespace foreload
