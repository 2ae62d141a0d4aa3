// A range of memory (or a file) known to one backend as one or more regions, laid end to end.
//
// Some backends refuse large registrations, so an arena may be registered in pieces; a block that straddles a piece
// boundary then needs one transfer part per piece. AppendParts cuts a copy at the boundaries of both of its sides.
//
// Thread: immutable after Register; Release is the owner's.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/backend.h"
#include "transport/mover.h"

namespace foreload {

class RegionMap {
 public:
  // Registers [base, base + bytes) in pieces of `piece_bytes` (the last may be shorter). On failure nothing stays
  // registered.
  static Result<RegionMap> Register(Backend& backend, void* base, std::uint64_t bytes, std::uint64_t piece_bytes);
  // One region that the caller registered and will unregister itself.
  static RegionMap Of(RegionId region, std::uint64_t bytes);

  // Unregisters every piece. FailedPrecondition while transfers are outstanding; then call again later.
  Status Release(Backend& backend);

  std::uint64_t bytes() const { return bytes_; }

  // The piece that holds byte `offset` < bytes(), the byte's offset in it, and how many bytes of the piece follow.
  struct Place {
    RegionId region;
    std::uint64_t offset = 0;
    std::uint64_t left = 0;
  };
  Place At(std::uint64_t offset) const;

 private:
  std::vector<RegionId> pieces_;
  std::uint64_t piece_bytes_ = 0;
  std::uint64_t bytes_ = 0;
};

// Appends the parts that copy `bytes` from one place to the other. InvalidArgument when a range leaves its map.
Status AppendParts(const RegionMap& source, std::uint64_t source_offset, const RegionMap& destination,
                   std::uint64_t destination_offset, std::uint64_t bytes, std::vector<MovePart>& parts);

}  // namespace foreload
