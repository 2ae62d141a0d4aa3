#include "prefetcher/core/demand.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace foreload::core {

void DemandTable::Asked(const DemandAsked& event, std::span<const BlockId> blocks) {
  if (index_.Find(event.demand) != kNone) return state_.Ignore(IgnoredReason::kDuplicate);
  ++state_.stats.demand_requests;
  const auto count = static_cast<std::uint32_t>(blocks.size());
  const Engine* engine = state_.FindEngine(event.engine);
  const bool refused = engine == nullptr || !engine->up || demands_.live() >= state_.config.demands_max;
  if (refused) {
    state_.Ignore(engine == nullptr || !engine->up ? IgnoredReason::kUnknownEngine : IgnoredReason::kTooManyRequests);
    state_.stats.demand_blocks_failed += count;
    state_.Emit(DemandDone{.demand = event.demand, .engine = event.engine, .failed_blocks = count});
    return;
  }
  const std::uint32_t i = demands_.Add();
  index_.Insert(event.demand, i);
  Start(i, event, blocks);
  AnswerIfDone(i);
}

void DemandTable::Start(std::uint32_t i, const DemandAsked& event, std::span<const BlockId> blocks) {
  Demand& demand = demands_[i];
  Engine& engine = state_.EngineAt(event.engine);
  demand.id = event.demand;
  demand.engine = event.engine;
  demand.deadline = event.deadline == kTimeNever ? kTimeNever : std::clamp<TimeNs>(event.deadline, 0, kTimeMax);
  demand.asked = static_cast<std::uint32_t>(blocks.size());
  demand.usable = UsablePrefix(engine, blocks);
  demand.limit = demand.open = demand.usable;
  demand.blocks.assign(blocks.begin(), blocks.begin() + demand.usable);
  demand.waits.assign(demand.usable, Wait::kPlace);
  demand.counted.assign(demand.usable, 0);
  demand.places = demand.usable;
  demand.result = {.demand = event.demand, .engine = event.engine};
  engine.demands.push_back(i);
  if (demand.deadline != kTimeNever) deadlines_.insert({demand.deadline, i});
  // All of it counts as waited for before any place is made for some of it.
  Catalog& catalog = state_.catalog;
  for (std::uint32_t k = 0; k < demand.usable; ++k) {
    const std::uint32_t index = catalog.ObtainCopy(demand.blocks[k], engine.id);
    Copy& copy = catalog.copy(index);
    const std::uint32_t node = waiters_.Add();
    waiters_[node].demand = i;
    waiters_[node].position = k;
    waiters_[node].next = copy.first_waiter;
    copy.first_waiter = node;
    demand.waiters.push_back(node);
    ++copy.demand_refs;
    ++catalog.At(demand.blocks[k]).demand_refs;
  }
  engine.arena.ResetClaims();
  for (std::uint32_t k = 0; k < demand.limit; ++k) {
    const Block& block = catalog.At(demand.blocks[k]);
    const Copy& copy = catalog.copy(catalog.FindCopy(block, engine.id));
    const bool in_arena = copy.slot != kNone;
    if (in_arena && engine.arena[copy.slot].state == SlotState::kReady) {
      ++demand.result.already_ready_blocks;
      // Asked for: no longer a guess, whether or not the reader comes to use it.
      engine.arena.NotSpeculative(copy.slot);
    } else if (in_arena || block.dram == DramState::kLoading) {
      ++demand.result.joined_blocks;
    }
    Move(demand, k, Advance(demand, engine, k));
  }
}

// What can be used of the range: up to the first block that lies nowhere here.
std::uint32_t DemandTable::UsablePrefix(const Engine& engine, std::span<const BlockId> blocks) const {
  std::uint32_t n = 0;
  const std::size_t max = std::min<std::size_t>(blocks.size(), state_.config.request_blocks_max);
  for (; n < max; ++n) {
    const Block* block = state_.catalog.Find(blocks[n]);
    if (block == nullptr || block->purge_refs > 0) break;
    const std::uint32_t copy = state_.catalog.FindCopy(*block, engine.id);
    if (copy != kNone && state_.catalog.copy(copy).slot != kNone) continue;
    const bool stored = block->DramReadable() || block->SsdReadable();
    if (!stored || block->bytes != engine.info.block_bytes) break;
  }
  return n;
}

Wait DemandTable::Advance(Demand& demand, Engine& engine, std::uint32_t position) {
  const BlockId id = demand.blocks[position];
  const Block& block = state_.catalog.At(id);
  const Copy& copy = state_.catalog.copy(state_.catalog.FindCopy(block, engine.id));
  if (copy.slot != kNone) {
    const Slot& slot = engine.arena[copy.slot];
    if (slot.state == SlotState::kReady) return Wait::kReady;
    transfers_.Join(slot.transfer, demand.deadline);
    return Wait::kArena;
  }
  if (block.purge_refs > 0 || block.bytes != engine.info.block_bytes) return Wait::kFailed;
  if (block.DramReadable()) {
    if (eviction_.MakeSlot(engine, Purpose::kDemand) != Eviction::Room::kReady) return Wait::kPlace;
    transfers_.LoadArena(id, engine, Traffic::kDemand, demand.deadline);
    if (!std::exchange(demand.counted[position], 1)) demand.result.bytes_from_dram += block.bytes;
    return Wait::kArena;
  }
  if (block.dram == DramState::kLoading) {
    transfers_.Join(block.dram_load, demand.deadline);
    if (!std::exchange(demand.counted[position], 1)) demand.result.bytes_from_ssd += block.bytes;
    return Wait::kDram;
  }
  if (!block.SsdReadable() || block.bytes > state_.dram.budget()) return Wait::kFailed;
  if (block.dram != DramState::kAbsent) return Wait::kPlace;  // a bad copy is about to go
  if (eviction_.MakeDram(block.bytes, Purpose::kDemand) != Eviction::Room::kReady) return Wait::kPlace;
  transfers_.LoadDram(id, Traffic::kDemand, demand.deadline);
  if (!std::exchange(demand.counted[position], 1)) demand.result.bytes_from_ssd += block.bytes;
  return Wait::kDram;
}

void DemandTable::Move(Demand& demand, std::uint32_t position, Wait to) {
  Wait& wait = demand.waits[position];
  if (position >= demand.limit) {
    wait = to;
    return;
  }
  if (wait == Wait::kPlace) --demand.places;
  if (wait != Wait::kReady) {
    --demand.open;
    --state_.catalog.At(demand.blocks[position]).demand_refs;
  }
  wait = to;
  if (to == Wait::kFailed) return CutAt(demand, position);
  if (to == Wait::kPlace) {
    ++demand.places;
    demand.first_place = std::min(demand.first_place, position);
    state_.EngineAt(demand.engine).needs_slots = true;
  }
  if (to != Wait::kReady) {
    ++demand.open;
    ++state_.catalog.At(demand.blocks[position]).demand_refs;
  }
}

// Nothing from here on can be used any more; what runs already goes on, the rest is not begun.
void DemandTable::CutAt(Demand& demand, std::uint32_t position) {
  for (std::uint32_t k = position + 1; k < demand.limit; ++k) {
    if (demand.waits[k] == Wait::kPlace) --demand.places;
    if (demand.waits[k] == Wait::kReady) continue;
    --demand.open;
    --state_.catalog.At(demand.blocks[k]).demand_refs;
  }
  demand.limit = position;
}

void DemandTable::Wake(const Transfers::Ended& ended) {
  const Transfer& transfer = ended.transfer;
  const Block& block = state_.catalog.At(transfer.block);
  woken_.clear();
  for (std::uint32_t copy = block.first_copy; copy != kNone; copy = state_.catalog.copy(copy).next) {
    if (transfer.kind == TransferKind::kLoadToArena && state_.catalog.copy(copy).engine != transfer.engine) continue;
    WakeCopy(copy, ended);
  }
  for (const std::uint32_t i : woken_) {
    if (demands_.Live(i)) AnswerIfDone(i);
  }
}

void DemandTable::WakeCopy(std::uint32_t copy, const Transfers::Ended& ended) {
  Engine& engine = state_.EngineAt(state_.catalog.copy(copy).engine);
  const bool to_arena = ended.transfer.kind == TransferKind::kLoadToArena;
  for (std::uint32_t node = state_.catalog.copy(copy).first_waiter; node != kNone; node = waiters_[node].next) {
    Demand& demand = demands_[waiters_[node].demand];
    const std::uint32_t position = waiters_[node].position;
    if (position >= demand.limit || demand.waits[position] != (to_arena ? Wait::kArena : Wait::kDram)) continue;
    // A load that failed is begun again only where it was cancelled before this demand came, or its source has turned
    // out bad and another tier has the block. (A second position of the same block may have begun it already.)
    const Block& block = state_.catalog.At(ended.transfer.block);
    const bool cancelled = ended.status == TransferStatus::kCancelled && ended.transfer.cancelled;
    const bool other_tier = to_arena && !block.DramReadable() && block.SsdReadable();
    const bool goes_on = ended.status == TransferStatus::kOk || cancelled || other_tier ||
                         state_.catalog.copy(copy).slot != kNone || block.dram == DramState::kLoading;
    Move(demand, position, goes_on ? Advance(demand, engine, position) : Wait::kFailed);
    woken_.push_back(waiters_[node].demand);
  }
}

void DemandTable::Pump() {
  state_.ForEachEngine([this](Engine& engine) {
    engine.arena.ResetClaims();
    if (engine.needs_slots) PumpEngine(engine);
  });
}

void DemandTable::PumpEngine(Engine& engine) {
  engine.needs_slots = false;
  woken_.clear();
  std::optional<bool> full;  // looked at once: it takes a walk over the slots
  for (const std::uint32_t i : engine.demands) {
    Demand& demand = demands_[i];
    std::uint32_t first_place = demand.limit;
    for (std::uint32_t k = demand.first_place; k < demand.limit && demand.places > 0; ++k) {
      if (demand.waits[k] != Wait::kPlace) continue;
      Wait next = Advance(demand, engine, k);
      if (next == Wait::kPlace) {
        if (!full.has_value()) full = ArenaFullOfDemands(engine);
        if (*full && engine.arena.free() + engine.arena.retiring() == 0) next = Wait::kFailed;
      }
      Move(demand, k, next);
      if (next == Wait::kPlace) first_place = std::min(first_place, k);
    }
    demand.first_place = first_place;
    if (demand.open == 0) woken_.push_back(i);
  }
  for (const std::uint32_t i : woken_) AnswerIfDone(i);
}

// No slot is coming by itself, and none can be made: what waits here would wait for other demands, or for itself.
bool DemandTable::ArenaFullOfDemands(const Engine& engine) const {
  const Arena& arena = engine.arena;
  if (arena.free() > 0 || arena.retiring() > 0) return false;
  if (arena.loading() == 0) return true;
  // A load that nobody waits for becomes a slot that can be evicted.
  for (const Slot& slot : arena.slots()) {
    if (slot.state != SlotState::kLoading) continue;
    const std::uint32_t copy = state_.catalog.FindCopy(state_.catalog.At(slot.block), engine.id);
    if (state_.catalog.copy(copy).demand_refs == 0) return false;
  }
  return true;
}

void DemandTable::AnswerIfDone(std::uint32_t i) {
  if (demands_[i].open == 0) Answer(i);
}

void DemandTable::Answer(std::uint32_t i) {
  Demand& demand = demands_[i];
  DemandDone& result = demand.result;
  const Engine& engine = state_.EngineAt(demand.engine);
  std::uint32_t ready = 0;
  while (ready < demand.usable) {
    const std::uint32_t copy = state_.catalog.FindCopy(state_.catalog.At(demand.blocks[ready]), demand.engine);
    const std::uint32_t slot = state_.catalog.copy(copy).slot;
    if (slot == kNone || engine.arena[slot].state != SlotState::kReady) break;
    ++ready;
  }
  result.ready_blocks = ready;
  result.failed_blocks = demand.usable - ready;
  result.absent_blocks = demand.asked - demand.usable;
  CoreStats& stats = state_.stats;
  stats.demand_blocks_ready += result.ready_blocks;
  stats.demand_blocks_failed += result.failed_blocks;
  stats.demand_blocks_absent += result.absent_blocks;
  stats.demand_blocks_joined += result.joined_blocks;
  stats.demand_bytes_dram += result.bytes_from_dram;
  stats.demand_bytes_ssd += result.bytes_from_ssd;
  state_.Emit(result);
  Release(i);
}

void DemandTable::Dropped(std::uint64_t id) {
  const std::uint32_t i = index_.Find(id);
  if (i == kNone) return state_.Ignore(IgnoredReason::kUnknownDemand);
  Release(i);
}

// Nobody waits for its blocks any more; loads that only it wanted are cancelled.
void DemandTable::Release(std::uint32_t i) {
  Demand& demand = demands_[i];
  Catalog& catalog = state_.catalog;
  Engine& engine = state_.EngineAt(demand.engine);
  for (std::uint32_t k = demand.usable; k > 0; --k) {
    const BlockId id = demand.blocks[k - 1];
    const std::uint32_t node = demand.waiters[k - 1];
    const std::uint32_t index = catalog.FindCopy(catalog.At(id), demand.engine);
    Copy& copy = catalog.copy(index);
    std::uint32_t* link = &copy.first_waiter;
    while (*link != node) link = &waiters_[*link].next;
    *link = waiters_[node].next;
    waiters_.Remove(node);
    --copy.demand_refs;
    if (k - 1 < demand.limit && demand.waits[k - 1] != Wait::kReady) --catalog.At(id).demand_refs;
    if (copy.slot != kNone) engine.arena.Touch(copy.slot);
    state_.dram.Touch(id);
    transfers_.CancelUnneeded(id, demand.engine);
    catalog.ReleaseCopyIfEmpty(index);
  }
  if (demand.deadline != kTimeNever) deadlines_.erase({demand.deadline, i});
  engine.demands.erase(std::find(engine.demands.begin(), engine.demands.end(), i));
  index_.Erase(demand.id);
  demands_.Remove(i);
}

void DemandTable::Expire() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= state_.now) Answer(deadlines_.begin()->second);
}

void DemandTable::EngineGone(Engine& engine) {
  while (!engine.demands.empty()) Release(engine.demands.back());
}

void DemandTable::ArenaGone(Engine& engine) {
  while (!engine.demands.empty()) Answer(engine.demands.front());
}

}  // namespace foreload::core
