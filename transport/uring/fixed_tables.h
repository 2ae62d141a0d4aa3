// The kernel-side tables of one ring: registered buffers in pieces, and registered files.
//
// Thread: any; each table entry is written before its region's id is handed out.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "transport/backend.h"
#include "transport/region_table.h"
#include "transport/uring/uring_backend.h"

struct io_uring;

namespace foreload {

inline constexpr std::uint64_t kBufferPieceBytes = std::uint64_t{1} << 30;  // the kernel refuses larger ones (EFAULT)
inline constexpr std::uint32_t kFixedBuffersMax = 4096;                     // 4 TiB in whole pieces

class FixedTables {
 public:
  // Allocates the sparse tables; a refusal leaves that table unused, with the reason in `registration()`.
  FixedTables(io_uring& ring, bool buffers, bool files);

  void AddRegion(std::uint32_t slot, const Region& region);
  void RemoveRegion(std::uint32_t slot, const Region& region);

  // Index of the registered buffer that holds byte `offset` of the region, or -1.
  int BufferAt(std::uint32_t slot, std::uint64_t offset) const {
    const std::vector<int>& pieces = entries_[slot].pieces;
    return pieces.empty() ? -1 : pieces[offset / kBufferPieceBytes];
  }
  // Index of the registered file, or -1.
  int FileAt(std::uint32_t slot) const { return entries_[slot].file; }

  UringRegistration registration() const;

 private:
  struct Entry {
    std::vector<int> pieces;  // fixed buffer index of each piece, -1 when the kernel refused it
    int file = -1;
  };

  int RegisterPiece(std::uint8_t* base, std::uint64_t bytes);
  void Refuse(const char* what, int errnum);

  io_uring& ring_;
  bool buffers_;
  bool files_;
  std::vector<Entry> entries_;  // by region slot

  mutable std::mutex mutex_;
  std::vector<int> free_buffers_;
  UringRegistration registration_;
};

}  // namespace foreload
