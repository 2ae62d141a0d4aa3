#include "transport/region_map.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace foreload {

Result<RegionMap> RegionMap::Register(Backend& backend, void* base, std::uint64_t bytes, std::uint64_t piece_bytes) {
  if (base == nullptr || bytes == 0 || piece_bytes == 0)
    return InvalidArgument("a region map needs a base, a size and a piece size");
  RegionMap map;
  map.piece_bytes_ = piece_bytes;
  map.bytes_ = bytes;
  for (std::uint64_t offset = 0; offset < bytes; offset += std::min(piece_bytes, bytes - offset)) {
    Region region;
    region.base = static_cast<std::uint8_t*>(base) + offset;
    region.bytes = std::min(piece_bytes, bytes - offset);
    auto id = backend.Register(region);
    if (!id.ok()) {
      const Status undone = map.Release(backend);
      FORELOAD_CHECK(undone.ok(), "a region that nobody knows yet has no transfers");
      return id.status();
    }
    map.pieces_.push_back(id.value());
  }
  return map;
}

RegionMap RegionMap::Of(RegionId region, std::uint64_t bytes) {
  RegionMap map;
  map.pieces_.push_back(region);
  map.piece_bytes_ = bytes;
  map.bytes_ = bytes;
  return map;
}

Status RegionMap::Release(Backend& backend) {
  while (!pieces_.empty()) {
    FORELOAD_RETURN_IF_ERROR(backend.Unregister(pieces_.back()));
    pieces_.pop_back();
  }
  bytes_ = 0;
  return OkStatus();
}

RegionMap::Place RegionMap::At(std::uint64_t offset) const {
  FORELOAD_CHECK(offset < bytes_, "the caller checks the range");
  const std::uint64_t index = offset / piece_bytes_;
  const std::uint64_t inside = offset % piece_bytes_;
  return {.region = pieces_[index], .offset = inside, .left = std::min(piece_bytes_ - inside, bytes_ - offset)};
}

Status AppendParts(const RegionMap& source, std::uint64_t source_offset, const RegionMap& destination,
                   std::uint64_t destination_offset, std::uint64_t bytes, std::vector<MovePart>& parts) {
  const auto inside = [bytes](const RegionMap& map, std::uint64_t offset) {
    return offset <= map.bytes() && bytes <= map.bytes() - offset;
  };
  if (!inside(source, source_offset)) return InvalidArgument("source range leaves its region map");
  if (!inside(destination, destination_offset)) return InvalidArgument("destination range leaves its region map");
  while (bytes > 0) {
    const RegionMap::Place from = source.At(source_offset);
    const RegionMap::Place to = destination.At(destination_offset);
    const std::uint64_t run = std::min({bytes, from.left, to.left});
    parts.push_back({.source = from.region,
                     .source_offset = from.offset,
                     .destination = to.region,
                     .destination_offset = to.offset,
                     .bytes = run});
    source_offset += run;
    destination_offset += run;
    bytes -= run;
  }
  return OkStatus();
}

}  // namespace foreload
