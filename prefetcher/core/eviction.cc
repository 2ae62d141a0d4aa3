#include "prefetcher/core/eviction.h"

#include <algorithm>

#include "prefetcher/core/keep_value.h"

namespace foreload::core {
namespace {

// Candidates looked at from the cold end; those that may not go move to the hot end, so the next search starts behind
// them. A demand looks further: it must find the last slot that is there.
constexpr std::uint32_t kScanSpeculative = 64;
constexpr std::uint32_t kScanDemand = 4096;
// Of those that may go, this many are compared by keep-value.
constexpr std::uint32_t kChoices = 8;

std::uint32_t ScanLimit(Purpose purpose, std::uint32_t size) {
  return std::min(size, purpose == Purpose::kPrefetch ? kScanSpeculative : kScanDemand);
}

}  // namespace

Eviction::Room Eviction::MakeSlot(Engine& engine, Purpose purpose, const Bid& bid) {
  Arena& arena = engine.arena;
  if (arena.free() > 0) return Room::kReady;
  if (arena.Claim()) return Room::kComing;
  std::uint32_t victim = PickSlot(engine, purpose, false);
  if (victim == kNone && purpose == Purpose::kDemand) victim = PickSlot(engine, purpose, true);
  if (victim == kNone) return Room::kNothing;
  if (purpose == Purpose::kPrefetch) {
    const Block& block = state_.catalog.At(arena[victim].block);
    const Copy& copy = state_.catalog.copy(state_.catalog.FindCopy(block, engine.id));
    if (!Beats(bid.gain, ArenaKeepValue(state_, engine, copy, bid.window))) return Room::kWarmer;
  }
  RetireReady(engine, victim);
  arena.Claim();
  return Room::kComing;
}

std::uint32_t Eviction::PickSlot(Engine& engine, Purpose purpose, bool last_resort) {
  Arena& arena = engine.arena;
  std::uint32_t best = kNone;
  double best_value = 0;
  std::uint32_t choices = 0;
  std::uint32_t i = arena.ready().front();
  for (std::uint32_t left = ScanLimit(purpose, arena.ready().size()); left > 0 && choices < kChoices; --left) {
    const std::uint32_t next = arena.ready().Next(arena.slots(), i);
    const Block& block = state_.catalog.At(arena[i].block);
    const Copy& copy = state_.catalog.copy(state_.catalog.FindCopy(block, engine.id));
    const bool needed = copy.demand_refs > 0;
    const bool spared = copy.wanted > 0 || copy.arena_children > 0 || block.pin_until > state_.now;
    if (needed || (spared && !last_resort)) {
      arena.Touch(i);
    } else {
      const double value = ArenaKeepValue(state_, engine, copy, ArenaResidency(engine));
      if (best == kNone || value < best_value) {
        best = i;
        best_value = value;
      }
      ++choices;
    }
    i = next;
  }
  return best;
}

Eviction::Room Eviction::MakeDram(std::uint64_t bytes, Purpose purpose, const Bid& bid) {
  if (bytes > state_.dram.budget()) return Room::kNothing;
  while (!state_.dram.Fits(bytes)) {
    std::uint32_t victim = PickDram(purpose, false);
    if (victim == kNone && purpose == Purpose::kDemand) victim = PickDram(purpose, true);
    if (victim == kNone) {
      state_.dram_pressure = true;
      return Room::kNothing;
    }
    if (purpose == Purpose::kPrefetch) {
      const double keep = DramKeepValue(state_, state_.catalog.At(BlockId{victim}), bid.window);
      if (!Beats(bid.gain, keep)) return Room::kWarmer;
    }
    DropDram(BlockId{victim});
  }
  return Room::kReady;
}

std::uint32_t Eviction::PickDram(Purpose purpose, bool last_resort) {
  IndexList<& Block::link>& list = state_.dram.list();
  Chunks<Block>& blocks = state_.catalog.blocks();
  std::uint32_t best = kNone;
  double best_value = 0;
  std::uint32_t choices = 0;
  std::uint32_t i = list.front();
  for (std::uint32_t left = ScanLimit(purpose, list.size()); left > 0 && choices < kChoices; --left) {
    const std::uint32_t next = list.Next(blocks, i);
    const Block& block = blocks[i];
    const bool needed = block.dram != DramState::kClean || block.dram_transfers > 0 || block.demand_refs > 0;
    const bool spared = block.wanted > 0 || block.dram_children > 0 || block.pin_until > state_.now;
    if (needed || (spared && !last_resort)) {
      state_.dram.Touch(BlockId{i});
    } else {
      const double value = DramKeepValue(state_, block, DramResidency(state_));
      if (best == kNone || value < best_value) {
        best = i;
        best_value = value;
      }
      ++choices;
    }
    i = next;
  }
  return best;
}

void Eviction::RetireReady(Engine& engine, std::uint32_t slot) {
  Detach(engine, slot);
  engine.arena.Retire(slot);
  state_.Emit(RetireSlot{engine.id, SlotIndex{slot}});
}

void Eviction::Detach(Engine& engine, std::uint32_t slot) {
  const BlockId id = engine.arena[slot].block;
  Catalog& catalog = state_.catalog;
  const Block& block = catalog.At(id);
  const std::uint32_t index = catalog.FindCopy(block, engine.id);
  Copy& copy = catalog.copy(index);
  copy.slot = kNone;
  if (copy.wanted > 0) state_.Replan();
  if (block.parent.valid()) {
    const std::uint32_t parent = catalog.FindCopy(catalog.At(block.parent), engine.id);
    --catalog.copy(parent).arena_children;
    catalog.ReleaseCopyIfEmpty(parent);
  }
  catalog.ReleaseCopyIfEmpty(index);
}

void Eviction::DropDram(BlockId id) {
  Block& block = state_.catalog.At(id);
  state_.ledger.Settle(Tier::kDram, block.dram_mark, Outcome::kWasted);
  if (block.wanted > 0) state_.Replan();
  state_.Emit(EvictDram{id});
  state_.dram.Free(id);
}

void Eviction::DropIfDoomed(BlockId id) {
  const Block& block = state_.catalog.At(id);
  if (block.dram_doomed && block.dram >= DramState::kClean && block.dram_transfers == 0) DropDram(id);
}

}  // namespace foreload::core
