#include "transport/region_table.h"

#include <fcntl.h>

#include <cerrno>
#include <string>

#include "base/check.h"

namespace foreload {
namespace {

constexpr std::uint32_t kGenerations = UINT32_MAX / kRegionsMax;  // so that no id is ever RegionId::kInvalidValue

bool IsAligned(std::uint64_t value) {
  return value % kDirectAlignment == 0;
}

TransferEnd EndOf(const Region& region, std::uint64_t offset, std::uint32_t slot) {
  TransferEnd end;
  end.kind = region.kind;
  if (region.base != nullptr) end.memory = static_cast<std::uint8_t*>(region.base) + offset;
  end.fd = region.fd;
  end.direct = region.kind == Region::Kind::kFile && region.direct;
  end.offset = offset;
  end.slot = slot;
  return end;
}

bool Overlaps(const TransferEnd& a, const TransferEnd& b, std::uint64_t bytes) {
  if (a.memory == nullptr || b.memory == nullptr) return false;
  return a.memory < b.memory + bytes && b.memory < a.memory + bytes;
}

Status Check(const Region& region, bool model_only_memory) {
  if (region.bytes == 0) return InvalidArgument("a region needs at least one byte");
  if (region.kind == Region::Kind::kFile) {
    if (region.bytes > static_cast<std::uint64_t>(INT64_MAX)) return InvalidArgument("a file ends before 2^63 bytes");
    if (region.fd < 0 || ::fcntl(region.fd, F_GETFL) < 0)
      return InvalidArgument("file region: descriptor " + std::to_string(region.fd) + " is not open");
    return OkStatus();
  }
  if (region.base == nullptr && !model_only_memory) return InvalidArgument("a memory region needs a base address");
  if (region.bytes > UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(region.base))
    return InvalidArgument("memory region wraps around the address space");
  return OkStatus();
}

}  // namespace

Result<RegionId> RegionTable::Add(const Region& region) {
  FORELOAD_RETURN_IF_ERROR(Check(region, options_.model_only_memory));
  const std::lock_guard lock(mutex_);
  std::uint32_t index = 0;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (slots_.size() < kRegionsMax) {
    index = static_cast<std::uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    return ResourceExhausted("all " + std::to_string(kRegionsMax) + " regions are in use: unregister some");
  }
  Slot& slot = slots_[index];
  slot.region = region;
  slot.id.value = slot.generation * kRegionsMax + index;
  slot.outstanding = 0;
  slot.state = State::kLive;
  return slot.id;
}

Result<Region> RegionTable::BeginRemove(RegionId id) {
  const std::lock_guard lock(mutex_);
  Slot* slot = Find(id);
  if (slot == nullptr) return NotFound("no such region");
  if (slot->outstanding > 0)
    return FailedPrecondition(std::to_string(slot->outstanding) + " transfers of the region are outstanding");
  slot->state = State::kRemoving;
  return slot->region;
}

void RegionTable::FinishRemove(RegionId id) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[SlotOf(id)];
  FORELOAD_CHECK(slot.id == id && slot.state == State::kRemoving, "FinishRemove follows BeginRemove");
  slot.state = State::kFree;
  slot.generation = (slot.generation + 1) % kGenerations;
  free_.insert(free_.begin(), SlotOf(id));  // least recently used first: generations wrap as late as possible
}

RegionTable::Slot* RegionTable::Find(RegionId id) {
  const std::uint32_t index = SlotOf(id);
  if (!id.valid() || index >= slots_.size()) return nullptr;
  Slot& slot = slots_[index];
  return slot.state == State::kLive && slot.id == id ? &slot : nullptr;
}

bool RegionTable::Inside(const Region& region, std::uint64_t offset, std::uint64_t bytes) {
  return offset <= region.bytes && bytes <= region.bytes - offset;
}

bool RegionTable::Acquire(const Transfer& transfer, TransferEnd& source, TransferEnd& destination) {
  if (transfer.bytes == 0) return false;
  const std::lock_guard lock(mutex_);
  Slot* from = Find(transfer.source);
  Slot* to = Find(transfer.destination);
  if (from == nullptr || to == nullptr) return false;
  const bool from_file = from->region.kind == Region::Kind::kFile;
  const bool to_file = to->region.kind == Region::Kind::kFile;
  if (from_file && (to_file || !options_.file_to_memory)) return false;
  if (to_file && !options_.memory_to_file) return false;
  if (!from_file && !to_file && !options_.memory_to_memory) return false;
  if (!Inside(from->region, transfer.source_offset, transfer.bytes)) return false;
  if (!Inside(to->region, transfer.destination_offset, transfer.bytes)) return false;

  source = EndOf(from->region, transfer.source_offset, SlotOf(transfer.source));
  destination = EndOf(to->region, transfer.destination_offset, SlotOf(transfer.destination));
  if (!from_file && !to_file && Overlaps(source, destination, transfer.bytes)) return false;
  if (source.direct || destination.direct) {
    const TransferEnd& memory = source.direct ? destination : source;
    const TransferEnd& file = source.direct ? source : destination;
    if (!IsAligned(file.offset) || !IsAligned(transfer.bytes)) return false;
    if (!IsAligned(reinterpret_cast<std::uintptr_t>(memory.memory))) return false;
  }
  ++from->outstanding;
  ++to->outstanding;
  return true;
}

void RegionTable::Release(const Transfer& transfer) {
  const std::lock_guard lock(mutex_);
  Slot* from = Find(transfer.source);
  Slot* to = Find(transfer.destination);
  FORELOAD_CHECK(from != nullptr && to != nullptr && from->outstanding > 0 && to->outstanding > 0,
                 "only what was acquired is released");
  --from->outstanding;
  --to->outstanding;
}

}  // namespace foreload
