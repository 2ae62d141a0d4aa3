#include "prefetcher/core/dram_tier.h"

namespace foreload::core {

void DramTier::Reserve(BlockId id, DramState state) {
  Block& block = catalog_.At(id);
  FORELOAD_CHECK(block.dram == DramState::kAbsent && Fits(block.bytes), "no place for this block");
  block.dram = state;
  catalog_.UpdateIdle(id);
  block.list = BlockList::kDram;
  list_.PushBack(catalog_.blocks(), id.value);
  stats_.dram_bytes_used += block.bytes;
  if (block.parent.valid()) ++catalog_.At(block.parent).dram_children;
}

void DramTier::Landed(BlockId id) {
  Block& block = catalog_.At(id);
  FORELOAD_CHECK(block.dram == DramState::kLoading || block.dram == DramState::kStoring, "nothing was on its way");
  block.dram = DramState::kClean;
  block.dram_load = kNone;
  Touch(id);
}

void DramTier::Free(BlockId id) {
  Block& block = catalog_.At(id);
  FORELOAD_CHECK(block.dram != DramState::kAbsent && block.dram_transfers == 0, "freed under a transfer");
  if (block.dirty_serial != 0) LeaveDirty(id);
  block.dram = DramState::kAbsent;
  block.dram_doomed = false;
  block.dram_load = kNone;
  block.list = BlockList::kNotListed;
  list_.Remove(catalog_.blocks(), id.value);
  stats_.dram_bytes_used -= block.bytes;
  if (block.parent.valid()) --catalog_.At(block.parent).dram_children;
  catalog_.UpdateIdle(id);
}

void DramTier::QueueDirty(BlockId id, TimeNs now) {
  Block& block = catalog_.At(id);
  block.dirty_serial = ++dirty_serial_;
  block.dirty_since = now;
  dirty_.PushBack(catalog_.blocks(), id.value);
}

void DramTier::MarkDirty(BlockId id) {
  Block& block = catalog_.At(id);
  block.dram = DramState::kDirty;
  stats_.dram_bytes_dirty += block.bytes;
}

void DramTier::LeaveDirty(BlockId id) {
  Block& block = catalog_.At(id);
  dirty_.Remove(catalog_.blocks(), id.value);
  block.dirty_serial = 0;
  if (block.dram == DramState::kDirty || block.dram == DramState::kSpilling) {
    block.dram = DramState::kClean;
    stats_.dram_bytes_dirty -= block.bytes;
  }
}

}  // namespace foreload::core
