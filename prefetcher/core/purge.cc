#include "prefetcher/core/purge.h"

#include <utility>

namespace foreload::core {
namespace {

bool Held(const Block& block) {
  return block.dram != DramState::kAbsent || block.ssd || block.slots > 0 || block.transfers > 0;
}

}  // namespace

void Purge::Begin(std::uint64_t purge, std::span<const BlockId> blocks) {
  if (records_.size() >= state_.config.purges_max) {
    state_.Ignore(IgnoredReason::kTooManyRequests);
    state_.Emit(PurgeDone{purge, 0});
    return;
  }
  Record record;
  record.purge = purge;
  for (const BlockId id : blocks) {
    Block* block = state_.catalog.Find(id);
    if (block == nullptr) continue;  // lies nowhere
    if (Held(*block)) ++record.held;
    ++block->purge_refs;
    state_.catalog.UpdateIdle(id);
    record.blocks.push_back(id);
    DropEverywhere(id);
  }
  records_.push_back(std::move(record));
}

void Purge::DropEverywhere(BlockId id) {
  Block& block = state_.catalog.At(id);
  if (block.ssd) {
    block.ssd = false;
    state_.stats.ssd_bytes_used -= block.bytes;
    state_.Emit(DropSsd{id});
  }
  // A retired slot leaves the list of copies only through ReleaseCopyIfEmpty, so the next one is read first.
  for (std::uint32_t i = block.first_copy; i != kNone;) {
    const Copy& copy = state_.catalog.copy(i);
    const std::uint32_t next = copy.next;
    if (copy.slot != kNone) {
      Engine& engine = state_.EngineAt(copy.engine);
      const Slot& slot = engine.arena[copy.slot];
      if (slot.state == SlotState::kReady) {
        eviction_.RetireReady(engine, copy.slot);
      } else {
        transfers_.Cancel(slot.transfer);
      }
    }
    i = next;
  }
  if (block.dram == DramState::kLoading || block.dram == DramState::kStoring) {
    transfers_.Cancel(block.dram_load);
  } else if (block.dram != DramState::kAbsent) {
    block.dram_doomed = true;
    eviction_.DropIfDoomed(id);
  }
}

void Purge::Run() {
  for (std::size_t r = 0; r < records_.size();) {
    Record& record = records_[r];
    while (record.next < record.blocks.size() && !Held(state_.catalog.At(record.blocks[record.next]))) ++record.next;
    if (record.next < record.blocks.size()) {
      ++r;
      continue;
    }
    state_.Emit(PurgeDone{record.purge, record.held});
    // Children first, where the list is in prefix order: a parent can be forgotten only after them.
    for (std::size_t k = record.blocks.size(); k > 0; --k) {
      const BlockId id = record.blocks[k - 1];
      if (state_.catalog.Find(id) == nullptr) continue;  // named twice
      --state_.catalog.At(id).purge_refs;
      state_.catalog.UpdateIdle(id);
      state_.catalog.Forget(id, *state_.out);
    }
    records_.erase(records_.begin() + static_cast<std::ptrdiff_t>(r));
  }
}

}  // namespace foreload::core
