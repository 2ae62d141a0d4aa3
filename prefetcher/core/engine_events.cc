#include "prefetcher/core/engine_events.h"

#include <algorithm>

namespace foreload::core {
namespace {

constexpr double kRecomputeSecondsMax = 3600;  // per token: anything above is nonsense from outside

double SaneSeconds(double value) {
  return value > 0 && value <= kRecomputeSecondsMax ? value : 0.0;
}

}  // namespace

Engine* EngineEvents::FindUp(EngineId id) {
  Engine* engine = state_.FindEngine(id);
  if (engine != nullptr && engine->up) return engine;
  state_.Ignore(IgnoredReason::kUnknownEngine);
  return nullptr;
}

void EngineEvents::Up(const EngineUp& event) {
  Engine* engine = state_.ObtainEngine(event.engine);
  if (engine == nullptr) return state_.Ignore(IgnoredReason::kUnknownEngine);
  if (engine->up) Down(event.engine);  // its death was not seen
  engine->up = true;
  engine->info = event;
  engine->info.recompute_seconds_per_token = SaneSeconds(event.recompute_seconds_per_token);
  if (event.policy != EnginePolicy::kPredict) engine->info.policy = EnginePolicy::kDemandOnly;
  state_.recompute_block_seconds_max = std::max(state_.recompute_block_seconds_max, engine->recompute_block_seconds());
  state_.Replan();
}

void EngineEvents::Down(EngineId id) {
  Engine* engine = FindUp(id);
  if (engine == nullptr) return;
  demands_.EngineGone(*engine);
  admission_.EngineGone(*engine);
  DropArena(*engine);
  DropView(*engine);
  engine->view_known = true;  // a new process has an empty cache
  engine->up = false;
  state_.recompute_block_seconds_max = 0;
  state_.ForEachEngine([this](const Engine& other) {
    if (!other.up) return;
    state_.recompute_block_seconds_max = std::max(state_.recompute_block_seconds_max, other.recompute_block_seconds());
  });
}

void EngineEvents::Granted(EngineId id, std::uint32_t slot_count) {
  Engine* engine = FindUp(id);
  if (engine == nullptr) return;
  DropArena(*engine);
  engine->arena.Grant(std::min(slot_count, state_.config.slots_max));
  engine->last_insert = state_.now;
  state_.Replan();
}

void EngineEvents::Revoked(EngineId id) {
  Engine* engine = FindUp(id);
  if (engine == nullptr) return;
  DropArena(*engine);
  demands_.ArenaGone(*engine);
}

// Every slot is gone at once, without SlotFree. Its loads are cancelled and end later under an old epoch.
void EngineEvents::DropArena(Engine& engine) {
  const std::vector<TransferId> withdrawn = transfers_.Withdraw(engine.id);
  Arena& arena = engine.arena;
  for (std::uint32_t i = 0; i < arena.size(); ++i) {
    Slot& slot = arena[i];
    if (slot.state == SlotState::kFree) continue;
    state_.ledger.Settle(Tier::kHbm, slot.mark, Outcome::kWasted);
    const bool handed_over = slot.state == SlotState::kLoading && !transfers_.In(slot.transfer, withdrawn);
    if (handed_over) transfers_.Cancel(slot.transfer);
    if (slot.state != SlotState::kRetiring) eviction_.Detach(engine, i);
    --state_.catalog.At(slot.block).slots;
    state_.catalog.UpdateIdle(slot.block);
  }
  arena.Grant(0);
  for (const TransferId id : withdrawn) transfers_.End({id, TransferStatus::kGone, 0, 0});
}

Slot* EngineEvents::FindSlot(EngineId id, SlotIndex slot) {
  Engine* engine = FindUp(id);
  if (engine == nullptr) return nullptr;
  if (slot.value < engine->arena.size()) return &engine->arena[slot.value];
  state_.Ignore(IgnoredReason::kBadSlot);
  return nullptr;
}

void EngineEvents::Used(EngineId id, SlotIndex index) {
  Slot* slot = FindSlot(id, index);
  if (slot == nullptr) return;
  if (slot->state == SlotState::kFree) return state_.Ignore(IgnoredReason::kBadSlot);
  if (slot->state == SlotState::kLoading) {  // the reader was faster than TransferDone
    slot->used_early = true;
    return;
  }
  if (slot->mark.live) {
    ++state_.stats.lead_count;
    state_.stats.lead_seconds_sum += static_cast<double>(state_.now - slot->mark.landed_at) * 1e-9;
    state_.ledger.Settle(Tier::kHbm, slot->mark, Outcome::kUseful);
  }
  state_.EngineAt(id).arena.NotSpeculative(index.value);
}

void EngineEvents::Freed(EngineId id, SlotIndex index) {
  Slot* slot = FindSlot(id, index);
  if (slot == nullptr) return;
  if (slot->state != SlotState::kRetiring) return state_.Ignore(IgnoredReason::kBadSlot);
  state_.ledger.Settle(Tier::kHbm, slot->mark, Outcome::kWasted);
  const BlockId block = slot->block;
  state_.EngineAt(id).arena.Freed(index.value);
  --state_.catalog.At(block).slots;
  state_.catalog.UpdateIdle(block);
  state_.plan_due = true;
}

void EngineEvents::Stored(const KvStored& event) {
  Engine* engine = state_.ObtainEngine(event.engine);
  if (engine == nullptr) return state_.Ignore(IgnoredReason::kUnknownEngine);
  if (!admission_.Link(event.block, event.parent) || event.tier != Tier::kHbm) return;
  Copy& copy = state_.catalog.copy(state_.catalog.ObtainCopy(event.block, event.engine));
  const std::uint32_t index = state_.catalog.FindCopy(state_.catalog.At(event.block), event.engine);
  if (copy.in_view_list && copy.view_epoch != engine->view_epoch) {
    state_.stale_views.Remove(state_.catalog.copies(), index);
    copy.in_view_list = false;
  }
  if (!copy.in_view_list) {
    copy.in_view_list = true;
    copy.view_epoch = engine->view_epoch;
    copy.view_refs = 0;
    engine->view.PushBack(state_.catalog.copies(), index);
  }
  if (copy.view_refs < UINT32_MAX) ++copy.view_refs;
}

void EngineEvents::Removed(const KvRemoved& event) {
  Engine* engine = state_.FindEngine(event.engine);
  if (engine == nullptr) return state_.Ignore(IgnoredReason::kUnknownEngine);
  if (event.tier != Tier::kHbm) return;
  const Block* block = state_.catalog.Find(event.block);
  const std::uint32_t index = block == nullptr ? kNone : state_.catalog.FindCopy(*block, event.engine);
  if (index == kNone) return state_.Ignore(IgnoredReason::kUnknownBlock);
  Copy& copy = state_.catalog.copy(index);
  if (!copy.in_view_list || copy.view_epoch != engine->view_epoch) return state_.Ignore(IgnoredReason::kUnknownBlock);
  if (--copy.view_refs > 0) return;
  engine->view.Remove(state_.catalog.copies(), index);
  copy.in_view_list = false;
  if (copy.wanted > 0) state_.Replan();
  state_.catalog.ReleaseCopyIfEmpty(index);
}

void EngineEvents::ViewLost(EngineId id, bool known) {
  Engine* engine = state_.ObtainEngine(id);
  if (engine == nullptr) return state_.Ignore(IgnoredReason::kUnknownEngine);
  engine->view_known = known;
  DropView(*engine);
}

void EngineEvents::DropView(Engine& engine) {
  ++engine.view_epoch;
  state_.stale_views.Splice(state_.catalog.copies(), engine.view);
  state_.Replan();
}

bool EngineEvents::SweepStaleViews(std::uint32_t limit) {
  for (; !state_.stale_views.empty(); --limit) {
    if (limit == 0) return true;
    const std::uint32_t index = state_.stale_views.front();
    state_.stale_views.Remove(state_.catalog.copies(), index);
    Copy& copy = state_.catalog.copy(index);
    copy.in_view_list = false;
    copy.view_refs = 0;
    state_.catalog.ReleaseCopyIfEmpty(index);
  }
  return false;
}

}  // namespace foreload::core
