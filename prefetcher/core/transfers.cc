#include "prefetcher/core/transfers.h"

#include <algorithm>

namespace foreload::core {
namespace {

constexpr DurationNs kRetryBaseNs = 1 * kSecond;  // no prefetch of a block for this long after a failure, then doubling
constexpr std::uint8_t kFailuresMax = 10;
constexpr double kInsertRate = 1.0 / 256;

Link LinkOf(TransferKind kind) {
  switch (kind) {
    case TransferKind::kLoadToDram: return Link::kSsdToDram;
    case TransferKind::kLoadToArena: return Link::kDramToHbm;
    default: return Link::kDramToSsd;
  }
}

bool UsesLink(TransferKind kind) {
  return kind != TransferKind::kStore;
}

// How a prefetch that did not land ends. One that timed out in a queue has moved nothing.
Outcome FailedOutcome(TransferStatus status, DurationNs service_ns) {
  const bool never_ran = status == TransferStatus::kTimeout && service_ns <= 0;
  return status == TransferStatus::kCancelled || never_ran ? Outcome::kCancelled : Outcome::kFailed;
}

}  // namespace

std::uint32_t Transfers::Begin(TransferKind kind, BlockId block, Link link, Traffic traffic, TimeNs need) {
  const std::uint32_t i = transfers_.Add();
  Transfer& transfer = transfers_[i];
  Block& b = state_.catalog.At(block);
  transfer.id = TransferId{next_id_++};
  transfer.kind = kind;
  transfer.block = block;
  transfer.traffic = traffic;
  transfer.bytes = b.bytes;
  transfer.deadline = need;
  index_.Insert(transfer.id.value, i);
  ++b.transfers;
  ++b.dram_transfers;
  state_.catalog.UpdateIdle(block);
  if (UsesLink(kind)) {
    transfer.speculative = traffic == Traffic::kPrefetch;
    transfer.predicted = state_.link(link).Finish(state_.now, b.bytes);
    transfer.alone = state_.link(link).Issued(state_.now, b.bytes, transfer.speculative);
  }
  return i;
}

void Transfers::LoadDram(BlockId id, Traffic traffic, TimeNs need) {
  Block& block = state_.catalog.At(id);
  state_.dram.Reserve(id, DramState::kLoading);
  const double gap = static_cast<double>(std::max<DurationNs>(state_.now - state_.dram_last_insert, 1));
  state_.dram_insert_bytes_per_ns +=
      kInsertRate * (static_cast<double>(block.bytes) / gap - state_.dram_insert_bytes_per_ns);
  state_.dram_last_insert = state_.now;
  const std::uint32_t i = Begin(TransferKind::kLoadToDram, id, Link::kSsdToDram, traffic, need);
  block.dram_load = i;
  Transfer& transfer = transfers_[i];
  if (traffic == Traffic::kPrefetch) transfer.mark = state_.ledger.Issue(Tier::kDram, block.bytes, transfer.id.value);
  const TimeNs deadline = traffic == Traffic::kPrefetch ? Later(need, kPrefetchGraceNs) : need;
  state_.Emit(LoadToDram{transfer.id, id, traffic, deadline});
}

void Transfers::LoadArena(BlockId id, Engine& engine, Traffic traffic, TimeNs need) {
  Catalog& catalog = state_.catalog;
  Block& block = catalog.At(id);
  const std::uint32_t slot = engine.arena.TakeFree();
  const std::uint32_t i = Begin(TransferKind::kLoadToArena, id, Link::kDramToHbm, traffic, need);
  Transfer& transfer = transfers_[i];
  transfer.engine = engine.id;
  transfer.slot = slot;
  transfer.arena_epoch = engine.arena.epoch();
  if (traffic == Traffic::kPrefetch) transfer.mark = state_.ledger.Issue(Tier::kHbm, block.bytes, transfer.id.value);
  // A hop that another load consumed was useful.
  state_.ledger.Settle(Tier::kDram, block.dram_mark, Outcome::kUseful);
  state_.dram.Touch(id);
  catalog.copy(catalog.ObtainCopy(id, engine.id)).slot = slot;
  if (block.parent.valid()) ++catalog.copy(catalog.ObtainCopy(block.parent, engine.id)).arena_children;
  ++block.slots;
  engine.arena.BeginLoad(slot, id, i, traffic == Traffic::kPrefetch);
  const double gap = static_cast<double>(state_.now - engine.last_insert);
  engine.insert_interval_ns += kInsertRate * (gap - engine.insert_interval_ns);
  engine.last_insert = state_.now;
  const TimeNs deadline = traffic == Traffic::kPrefetch ? Later(need, kPrefetchGraceNs) : need;
  state_.Emit(LoadToArena{transfer.id, id, engine.id, SlotIndex{slot}, traffic, deadline});
}

void Transfers::Spill(BlockId id) {
  const std::uint32_t i = Begin(TransferKind::kSpill, id, Link::kDramToSsd, Traffic::kWriteBehind, kTimeNever);
  transfers_[i].tag = state_.catalog.At(id).dirty_serial;
  state_.dram.MarkSpilling(id);
  ++state_.stats.spills_issued;
  state_.Emit(core::Spill{transfers_[i].id, id});
}

void Transfers::Store(BlockId id, EngineId engine, std::uint64_t store) {
  state_.dram.Reserve(id, DramState::kStoring);
  const std::uint32_t i = Begin(TransferKind::kStore, id, Link::kDramToSsd, Traffic::kWriteBehind, kTimeNever);
  state_.catalog.At(id).dram_load = i;
  transfers_[i].engine = engine;
  transfers_[i].tag = store;
  state_.Emit(AcceptStore{store, transfers_[i].id, id});
}

void Transfers::Late(std::uint32_t i) {
  Transfer& transfer = transfers_[i];
  const Tier tier = transfer.kind == TransferKind::kLoadToArena ? Tier::kHbm : Tier::kDram;
  state_.ledger.Settle(tier, transfer.mark, Outcome::kLate);
  if (transfer.kind == TransferKind::kLoadToArena) {
    Engine& engine = state_.EngineAt(transfer.engine);
    if (engine.arena.epoch() == transfer.arena_epoch) engine.arena.NotSpeculative(transfer.slot);
  }
}

void Transfers::Join(std::uint32_t i, TimeNs deadline) {
  Late(i);
  Transfer& transfer = transfers_[i];
  if (transfer.traffic == Traffic::kDemand) {
    Tighten(i, deadline);
    return;
  }
  transfer.traffic = Traffic::kDemand;
  transfer.deadline = deadline;
  if (transfer.speculative) state_.link(LinkOf(transfer.kind)).Promoted(transfer.bytes);
  transfer.speculative = false;
  state_.Emit(Promote{transfer.id, deadline});
}

void Transfers::CancelUnneeded(BlockId id, EngineId engine_id) {
  const Block& block = state_.catalog.At(id);
  const std::uint32_t index = state_.catalog.FindCopy(block, engine_id);
  if (index != kNone) {
    const Copy& copy = state_.catalog.copy(index);
    if (copy.slot != kNone && copy.wanted == 0 && copy.demand_refs == 0) {
      const Slot& slot = state_.EngineAt(engine_id).arena[copy.slot];
      if (slot.state == SlotState::kLoading) Cancel(slot.transfer);
    }
  }
  if (block.dram == DramState::kLoading && block.wanted == 0 && block.demand_refs == 0) Cancel(block.dram_load);
}

void Transfers::Cancel(std::uint32_t i) {
  Transfer& transfer = transfers_[i];
  if (transfer.cancelled) return;
  transfer.cancelled = true;
  state_.Emit(core::Cancel{transfer.id});
}

std::vector<TransferId> Transfers::Withdraw(EngineId engine) {
  std::vector<TransferId> loads;
  for (const Command& command : *state_.out) {
    const auto* load = std::get_if<LoadToArena>(&command);
    if (load != nullptr && load->engine == engine) loads.push_back(load->transfer);
  }
  const auto withdrawn = [&loads](TransferId id) { return std::find(loads.begin(), loads.end(), id) != loads.end(); };
  std::erase_if(*state_.out, [&](const Command& command) {
    if (const auto* load = std::get_if<LoadToArena>(&command)) return load->engine == engine;
    if (const auto* retire = std::get_if<RetireSlot>(&command)) return retire->engine == engine;
    if (const auto* promote = std::get_if<Promote>(&command)) return withdrawn(promote->transfer);
    const auto* cancel = std::get_if<core::Cancel>(&command);
    return cancel != nullptr && withdrawn(cancel->transfer);
  });
  return loads;
}

Transfers::Ended Transfers::End(const TransferDone& done) {
  const std::uint32_t i = index_.Find(done.transfer.value);
  if (i == kNone) return {};
  Ended ended{.transfer = transfers_[i], .status = done.status, .known = true};
  const Transfer& transfer = ended.transfer;
  index_.Erase(transfer.id.value);
  transfers_.Remove(i);
  Block& block = state_.catalog.At(transfer.block);
  --block.transfers;
  --block.dram_transfers;
  if (UsesLink(transfer.kind)) {
    LinkModel& link = state_.link(LinkOf(transfer.kind));
    if (done.status == TransferStatus::kOk) {
      link.Learn(state_.now, {.bytes = transfer.bytes,
                              .service_ns = std::clamp<DurationNs>(done.service_ns, 0, kTimeMax),
                              .predicted = transfer.predicted,
                              .alone = transfer.alone});
    }
    link.Ended(state_.now, transfer.bytes, transfer.speculative);
  }
  PrefetchMark mark = transfer.mark;
  if (done.status != TransferStatus::kOk) {
    const Tier tier = transfer.kind == TransferKind::kLoadToArena ? Tier::kHbm : Tier::kDram;
    state_.ledger.Settle(tier, mark, FailedOutcome(done.status, done.service_ns));
    const bool asked_for = done.status == TransferStatus::kCancelled && transfer.cancelled;
    ended.stale = transfer.kind == TransferKind::kLoadToArena &&
                  state_.EngineAt(transfer.engine).arena.epoch() != transfer.arena_epoch;
    if (!asked_for && !ended.stale && transfer.kind != TransferKind::kSpill) CountFailure(transfer.block);
  }
  switch (transfer.kind) {
    case TransferKind::kLoadToDram: EndDramLoad(transfer, done.status, mark); break;
    case TransferKind::kLoadToArena:
      ended.stale = state_.EngineAt(transfer.engine).arena.epoch() != transfer.arena_epoch;
      EndArenaLoad(transfer, done.status, mark);
      break;
    case TransferKind::kSpill: EndSpill(transfer, done.status); break;
    case TransferKind::kStore: EndStore(transfer, done.status); break;
  }
  eviction_.DropIfDoomed(transfer.block);
  state_.catalog.UpdateIdle(transfer.block);
  state_.plan_due = true;
  return ended;
}

void Transfers::EndDramLoad(const Transfer& transfer, TransferStatus status, PrefetchMark mark) {
  Block& block = state_.catalog.At(transfer.block);
  if (status == TransferStatus::kOk) {
    state_.dram.Landed(transfer.block);
    block.failures = 0;
    if (mark.live) {
      mark.landed_at = state_.now;
      block.dram_mark = mark;
      expiries_.push_back({Later(state_.now, state_.config.prefetch_ttl_ns), mark.serial, transfer.block, EngineId{}});
    }
    return;
  }
  state_.dram.Free(transfer.block);
  if (status == TransferStatus::kCorrupt && block.ssd) {
    block.ssd = false;
    state_.stats.ssd_bytes_used -= block.bytes;
    state_.Emit(DropSsd{transfer.block});
  }
  if (block.wanted > 0) state_.Replan();
}

void Transfers::EndArenaLoad(const Transfer& transfer, TransferStatus status, PrefetchMark mark) {
  Block& block = state_.catalog.At(transfer.block);
  Engine& engine = state_.EngineAt(transfer.engine);
  if (status == TransferStatus::kCorrupt) block.dram_doomed = true;
  if (engine.arena.epoch() != transfer.arena_epoch) {
    state_.ledger.Settle(Tier::kHbm, mark, Outcome::kWasted);
    return;
  }
  if (status != TransferStatus::kOk) {
    eviction_.Detach(engine, transfer.slot);
    engine.arena.Retire(transfer.slot);
    return;
  }
  block.failures = 0;
  engine.arena.Landed(transfer.slot);
  if (!mark.live) return;
  Slot& slot = engine.arena[transfer.slot];
  mark.landed_at = state_.now;
  slot.mark = mark;
  if (slot.used_early) {
    state_.ledger.Settle(Tier::kHbm, slot.mark, Outcome::kUseful);
    engine.arena.NotSpeculative(transfer.slot);
    ++state_.stats.lead_count;  // with a lead of nothing
    return;
  }
  expiries_.push_back({Later(state_.now, state_.config.prefetch_ttl_ns), mark.serial, transfer.block, engine.id});
}

void Transfers::EndSpill(const Transfer& transfer, TransferStatus status) {
  Block& block = state_.catalog.At(transfer.block);
  state_.dram.LeaveDirty(transfer.block);
  if (status != TransferStatus::kOk) {
    ++state_.stats.spills_failed;
    return;
  }
  ++state_.stats.spills_durable;
  if (!block.ssd) state_.stats.ssd_bytes_used += block.bytes;
  block.ssd = true;
}

void Transfers::EndStore(const Transfer& transfer, TransferStatus status) {
  if (status != TransferStatus::kOk) {
    state_.dram.Free(transfer.block);
    return;
  }
  state_.dram.Landed(transfer.block);
  state_.catalog.At(transfer.block).failures = 0;
  if (state_.catalog.At(transfer.block).request_refs > 0) state_.Replan();  // visible from now on
}

void Transfers::CountFailure(BlockId id) {
  Block& block = state_.catalog.At(id);
  block.failures = static_cast<std::uint8_t>(std::min<int>(block.failures + 1, kFailuresMax));
  block.retry_at = Later(state_.now, kRetryBaseNs << (block.failures - 1));
}

PrefetchMark* Transfers::FindLanded(const Expiry& expiry, bool& wanted, Engine*& engine, std::uint32_t& slot) {
  Block* block = state_.catalog.Find(expiry.block);
  if (block == nullptr) return nullptr;
  if (!expiry.engine.valid()) {
    wanted = block->wanted > 0;
    return &block->dram_mark;
  }
  const std::uint32_t index = state_.catalog.FindCopy(*block, expiry.engine);
  if (index == kNone || state_.catalog.copy(index).slot == kNone) return nullptr;
  wanted = state_.catalog.copy(index).wanted > 0;
  engine = &state_.EngineAt(expiry.engine);
  slot = state_.catalog.copy(index).slot;
  return &engine->arena[slot].mark;
}

bool Transfers::Expire(std::uint32_t limit) {
  while (!expiries_.empty() && expiries_.front().at <= state_.now) {
    if (limit-- == 0) return true;
    Expiry expiry = expiries_.front();
    expiries_.pop_front();
    bool wanted = false;
    Engine* engine = nullptr;
    std::uint32_t slot = kNone;
    PrefetchMark* mark = FindLanded(expiry, wanted, engine, slot);
    if (mark == nullptr || !mark->live || mark->serial != expiry.serial) continue;
    if (wanted) {
      expiry.at = Later(state_.now, std::max<DurationNs>(state_.config.prefetch_ttl_ns, kMillisecond));
      expiries_.push_back(expiry);
      continue;
    }
    state_.ledger.Settle(engine == nullptr ? Tier::kDram : Tier::kHbm, *mark, Outcome::kWasted);
    if (engine != nullptr) engine->arena.NotSpeculative(slot);
  }
  return false;
}

}  // namespace foreload::core
