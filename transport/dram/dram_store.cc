#include "transport/dram/dram_store.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "transport/dram/arena_mapping.h"

namespace foreload {
namespace {

constexpr std::uint64_t kSlabBytesMin = std::uint64_t{256} << 10;
constexpr std::uint64_t kSlabBytesMax = std::uint64_t{32} << 20;
constexpr std::uint64_t kSlabsWanted = 128;  // bounds what one class can hold back of a small arena
constexpr std::uint64_t kArenaBytesMax = std::uint64_t{1} << 46;

std::uint64_t SlabBytesFor(std::uint64_t bytes) {
  return std::clamp(std::bit_floor(std::max<std::uint64_t>(bytes / kSlabsWanted, 1)), kSlabBytesMin, kSlabBytesMax);
}

}  // namespace

Result<std::unique_ptr<DramStore>> DramStore::Create(const DramStoreOptions& options) {
  const std::uint64_t slab = options.slab_bytes != 0 ? options.slab_bytes : SlabBytesFor(options.bytes);
  if (!std::has_single_bit(slab) || slab < kDramAlignment)
    return InvalidArgument("DRAM slab size must be a power of two of at least 4 KiB");
  if (options.bytes < slab || options.bytes > kArenaBytesMax)
    return InvalidArgument("DRAM capacity must lie between " + std::to_string(slab) + " bytes (one slab) and 64 TiB");
  const std::uint64_t bytes = options.bytes / slab * slab;
  FORELOAD_ASSIGN_OR_RETURN(const ArenaMapping mapping, MapArena({.bytes = bytes,
                                                                  .huge_pages = options.huge_pages,
                                                                  .lock_memory = options.lock_memory,
                                                                  .numa_node = options.numa_node}));
  std::unique_ptr<DramStore> store(new DramStore());
  store->base_ = mapping.base;
  store->bytes_ = bytes;
  store->mapped_bytes_ = mapping.bytes;
  store->slab_bytes_ = slab;
  store->slabs_.resize(bytes / slab);
  for (std::uint32_t i = 0; i < store->slabs_.size(); ++i) store->free_slabs_.insert(store->free_slabs_.end(), i);
  store->summary_ =
      std::to_string(bytes >> 20) + " MiB in " + std::to_string(store->slabs_.size()) + " slabs; " + mapping.summary;
  return store;
}

DramStore::~DramStore() {
  UnmapArena({.base = base_, .bytes = mapped_bytes_, .summary = {}});
}

Result<DramBlock> DramStore::Allocate(std::uint64_t bytes) {
  if (bytes == 0) return InvalidArgument("a block has at least one byte");
  if (bytes > bytes_) return ResourceExhausted("the block is larger than the DRAM tier");
  const std::uint64_t slot_bytes = AlignUp(bytes, kDramAlignment);
  return slot_bytes <= slab_bytes_ ? AllocateSlot(slot_bytes, bytes) : AllocateLarge(slot_bytes, bytes);
}

Result<DramBlock> DramStore::AllocateSlot(std::uint64_t slot_bytes, std::uint64_t bytes) {
  std::set<std::uint32_t>& partial = partial_[slot_bytes];
  if (partial.empty()) {
    if (free_slabs_.empty()) {
      partial_.erase(slot_bytes);
      return ResourceExhausted("the DRAM tier is full");
    }
    const std::uint32_t index = *free_slabs_.begin();
    free_slabs_.erase(free_slabs_.begin());
    Slab& slab = slabs_[index];
    slab.use = Slab::Use::kSlots;
    slab.slot_bytes = slot_bytes;
    slab.used = 0;
    slab.slots = static_cast<std::uint32_t>(slab_bytes_ / slot_bytes);
    slab.free_bits.assign((slab.slots + 63) / 64, ~std::uint64_t{0});
    if (slab.slots % 64 != 0) slab.free_bits.back() = (std::uint64_t{1} << (slab.slots % 64)) - 1;
    partial.insert(index);
  }
  const std::uint32_t index = *partial.begin();
  Slab& slab = slabs_[index];
  std::size_t word = 0;
  while (slab.free_bits[word] == 0) ++word;
  const auto bit = static_cast<std::uint64_t>(std::countr_zero(slab.free_bits[word]));
  slab.free_bits[word] &= slab.free_bits[word] - 1;
  if (++slab.used == slab.slots) partial.erase(index);
  if (partial.empty()) partial_.erase(slot_bytes);
  bytes_used_ += slot_bytes;
  return DramBlock{.offset = index * slab_bytes_ + (word * 64 + bit) * slot_bytes, .bytes = bytes};
}

Result<DramBlock> DramStore::AllocateLarge(std::uint64_t slot_bytes, std::uint64_t bytes) {
  const auto wanted = static_cast<std::uint32_t>((slot_bytes + slab_bytes_ - 1) / slab_bytes_);
  std::uint32_t run = 0;
  std::uint32_t previous = UINT32_MAX;
  for (const std::uint32_t index : free_slabs_) {
    run = index == previous + 1 ? run + 1 : 1;
    previous = index;
    if (run < wanted) continue;
    const std::uint32_t first = index - wanted + 1;
    for (std::uint32_t i = 0; i < wanted; ++i) {
      slabs_[first + i].use = i == 0 ? Slab::Use::kLarge : Slab::Use::kLargeTail;
      slabs_[first + i].slot_bytes = i == 0 ? slot_bytes : 0;
    }
    free_slabs_.erase(free_slabs_.find(first), std::next(free_slabs_.find(index)));
    bytes_used_ += slot_bytes;
    return DramBlock{.offset = first * slab_bytes_, .bytes = bytes};
  }
  return ResourceExhausted("no " + std::to_string(wanted) + " adjacent slabs are free in the DRAM tier");
}

void DramStore::Free(const DramBlock& block) {
  FORELOAD_CHECK(block.offset < bytes_, "a block of this store");
  const auto index = static_cast<std::uint32_t>(block.offset / slab_bytes_);
  Slab& slab = slabs_[index];
  FORELOAD_CHECK(slab.use == Slab::Use::kSlots || slab.use == Slab::Use::kLarge, "a block that is in use");
  FORELOAD_CHECK(slab.slot_bytes == AlignUp(block.bytes, kDramAlignment),
                 "a block is freed with the size it was allocated with");
  bytes_used_ -= slab.slot_bytes;
  if (slab.use == Slab::Use::kLarge) {
    FORELOAD_CHECK(block.offset % slab_bytes_ == 0, "a large block begins with its slab");
    FreeLarge(index, slab);
  } else {
    FreeSlot(index, slab, block.offset % slab_bytes_);
  }
}

void DramStore::FreeSlot(std::uint32_t index, Slab& slab, std::uint64_t offset) {
  const std::uint64_t slot = offset / slab.slot_bytes;
  FORELOAD_CHECK(offset % slab.slot_bytes == 0 && slot < slab.slots, "a block begins where its slot begins");
  std::uint64_t& word = slab.free_bits[slot / 64];
  const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
  FORELOAD_CHECK((word & bit) == 0, "a block is freed once");
  word |= bit;
  --slab.used;
  if (slab.used > 0) {
    partial_[slab.slot_bytes].insert(index);
    return;
  }
  const auto partial = partial_.find(slab.slot_bytes);
  if (partial != partial_.end()) {
    partial->second.erase(index);
    if (partial->second.empty()) partial_.erase(partial);
  }
  slab.use = Slab::Use::kFree;
  free_slabs_.insert(index);
}

void DramStore::FreeLarge(std::uint32_t index, Slab& slab) {
  const std::uint64_t count = (slab.slot_bytes + slab_bytes_ - 1) / slab_bytes_;
  for (std::uint64_t i = 0; i < count; ++i) {
    slabs_[index + i].use = Slab::Use::kFree;
    free_slabs_.insert(static_cast<std::uint32_t>(index + i));
  }
}

std::uint64_t DramStore::BlocksThatFit(std::uint64_t bytes) const {
  if (bytes == 0 || bytes > bytes_) return 0;
  const std::uint64_t slot_bytes = AlignUp(bytes, kDramAlignment);
  if (slot_bytes <= slab_bytes_) return slabs_.size() * (slab_bytes_ / slot_bytes);
  return slabs_.size() / ((slot_bytes + slab_bytes_ - 1) / slab_bytes_);
}

}  // namespace foreload
