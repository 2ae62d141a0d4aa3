#include "transport/uring/fixed_tables.h"

#include <liburing.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/check.h"
#include "base/status.h"

namespace foreload {

FixedTables::FixedTables(io_uring& ring, bool buffers, bool files)
    : ring_(ring), buffers_(buffers), files_(files), entries_(kRegionsMax) {
  if (buffers_) {
    const int result = io_uring_register_buffers_sparse(&ring_, kFixedBuffersMax);
    buffers_ = result == 0;
    if (!buffers_) Refuse("table of registered buffers", -result);
    for (int i = kFixedBuffersMax - 1; buffers_ && i >= 0; --i) free_buffers_.push_back(i);
  }
  if (files_) {
    const int result = io_uring_register_files_sparse(&ring_, kRegionsMax);
    files_ = result == 0;  // e.g. RLIMIT_NOFILE; plain descriptors do as well, only a little slower
  }
}

void FixedTables::AddRegion(std::uint32_t slot, const Region& region) {
  Entry& entry = entries_[slot];
  if (region.kind == Region::Kind::kFile) {
    if (!files_) return;
    const int fd = region.fd;
    const int done = io_uring_register_files_update(&ring_, slot, &fd, 1);
    entry.file = done == 1 ? static_cast<int>(slot) : -1;
    return;
  }
  const std::lock_guard lock(mutex_);
  auto* base = static_cast<std::uint8_t*>(region.base);
  for (std::uint64_t offset = 0; offset < region.bytes; offset += kBufferPieceBytes) {
    const std::uint64_t bytes = std::min(region.bytes - offset, kBufferPieceBytes);
    const int index = buffers_ ? RegisterPiece(base + offset, bytes) : -1;
    entry.pieces.push_back(index);
    (index >= 0 ? registration_.pinned_bytes : registration_.plain_bytes) += bytes;
  }
}

int FixedTables::RegisterPiece(std::uint8_t* base, std::uint64_t bytes) {
  if (free_buffers_.empty()) {
    registration_.reason = "all " + std::to_string(kFixedBuffersMax) + " registered buffers are in use";
    return -1;
  }
  const int index = free_buffers_.back();
  const iovec piece{.iov_base = base, .iov_len = bytes};
  const __u64 tag = 0;
  const int done = io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(index), &piece, &tag, 1);
  if (done != 1) {
    Refuse("registered buffer", done < 0 ? -done : EIO);
    return -1;
  }
  free_buffers_.pop_back();
  return index;
}

void FixedTables::RemoveRegion(std::uint32_t slot, const Region& region) {
  Entry& entry = entries_[slot];
  if (region.kind == Region::Kind::kFile) {
    const int none = -1;
    if (entry.file >= 0) io_uring_register_files_update(&ring_, slot, &none, 1);
    entry.file = -1;
    return;
  }
  const std::lock_guard lock(mutex_);
  std::uint64_t offset = 0;
  for (const int index : entry.pieces) {
    const std::uint64_t bytes = std::min(region.bytes - offset, kBufferPieceBytes);
    offset += bytes;
    (index >= 0 ? registration_.pinned_bytes : registration_.plain_bytes) -= bytes;
    if (index < 0) continue;
    const iovec none{.iov_base = nullptr, .iov_len = 0};
    const __u64 tag = 0;
    const int done = io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(index), &none, &tag, 1);
    FORELOAD_CHECK(done == 1, "a registered buffer can be taken back");
    free_buffers_.push_back(index);
  }
  entry.pieces.clear();
}

void FixedTables::Refuse(const char* what, int errnum) {
  registration_.reason = Status::FromErrno(errnum, what).message();
  if (errnum == ENOMEM) registration_.reason += "; raise the memlock limit (LimitMEMLOCK=, ulimit -l)";
}

UringRegistration FixedTables::registration() const {
  const std::lock_guard lock(mutex_);
  return registration_;
}

}  // namespace foreload
