#include "prefetcher/core/core.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "prefetcher/core/core_impl.h"

namespace foreload::core {
namespace {

// Expiries, sessions and stale copies handled in one step, each.
constexpr std::uint32_t kHousekeepingMax = 1024;
// While something waits, plans are looked at again after this long even when nothing has happened.
constexpr DurationNs kPlanIntervalNs = 1 * kMillisecond;
constexpr DurationNs kTickNs = 10 * kMillisecond;

}  // namespace

// Hands each event to the part that it concerns.
struct EventDispatch {
  CoreParts& core;
  const EventBatch& batch;
  State& state = core.state;

  // The blocks of a range, or nothing and a count when it lies outside the pool.
  bool Resolve(const BlockRange& range, std::span<const BlockId>& blocks) const {
    if (std::uint64_t{range.begin} + range.count > batch.blocks.size()) {
      state.Ignore(IgnoredReason::kBadRange);
      return false;
    }
    blocks = std::span<const BlockId>(batch.blocks).subspan(range.begin, range.count);
    return true;
  }

  void operator()(const EngineUp& e) { core.engines.Up(e); }
  void operator()(const EngineDown& e) { core.engines.Down(e.engine); }
  void operator()(const ArenaGranted& e) { core.engines.Granted(e.engine, e.slot_count); }
  void operator()(const ArenaRevoked& e) { core.engines.Revoked(e.engine); }
  void operator()(const KvStored& e) { core.engines.Stored(e); }
  void operator()(const KvRemoved& e) { core.engines.Removed(e); }
  void operator()(const KvCleared& e) { core.engines.ViewLost(e.engine, true); }
  void operator()(const KvUnknown& e) { core.engines.ViewLost(e.engine, false); }
  void operator()(const RequestQueued& e) {
    std::span<const BlockId> blocks;
    if (Resolve(e.blocks, blocks)) core.admission.Queued(e, blocks);
  }
  void operator()(const RequestScheduled& e) {
    core.admission.Scheduled(e.request);
    if (!state.config.ssd_second_use_admission) return;
    for (const BlockId block : core.admission.BlocksOf(e.request)) core.store_path.UsedAgain(block);
  }
  void operator()(const RequestFirstToken& e) { core.admission.FirstToken(e.request); }
  void operator()(const RequestFinished& e) {
    std::span<const BlockId> blocks;
    if (Resolve(e.blocks, blocks)) core.admission.Finished(e.request, blocks);
  }
  void operator()(const RequestAborted& e) { core.admission.Aborted(e.request); }
  void operator()(const HintGiven& e) {
    std::span<const BlockId> blocks;
    if (Resolve(e.blocks, blocks)) core.hints.Given(e, blocks);
  }
  void operator()(const StoreOffered& e) { core.store_path.Offered(e); }
  void operator()(const SsdRecovered& e) { core.store_path.Recovered(e); }
  void operator()(const SsdDropped& e) { core.store_path.Dropped(e.block); }
  void operator()(const DemandAsked& e) {
    std::span<const BlockId> blocks;
    if (!Resolve(e.blocks, blocks)) blocks = {};  // answered all the same: somebody waits
    core.demands.Asked(e, blocks);
  }
  void operator()(const DemandDropped& e) { core.demands.Dropped(e.demand); }
  void operator()(const TransferDone& e) {
    const Transfers::Ended ended = core.transfers.End(e);
    if (!ended.known) return state.Ignore(IgnoredReason::kUnknownTransfer);
    switch (ended.transfer.kind) {
      case TransferKind::kLoadToDram: core.demands.Wake(ended); break;
      case TransferKind::kLoadToArena:
        if (!ended.stale) core.demands.Wake(ended);
        break;
      case TransferKind::kSpill:
      case TransferKind::kStore: core.store_path.Ended(ended); break;
    }
    core.purge.Continue(ended.transfer.block);
  }
  void operator()(const SlotUsed& e) { core.engines.Used(e.engine, e.slot); }
  void operator()(const SlotFree& e) { core.engines.Freed(e.engine, e.slot); }
  void operator()(const NamespacePurged& e) {
    std::span<const BlockId> blocks;
    if (!Resolve(e.blocks, blocks)) blocks = {};
    core.purge.Begin(e.purge, blocks);
  }
  void operator()(const FlushAsked& e) { core.store_path.Flush(e.flush); }
  void operator()(const PolicyChanged& e) {
    state.prefetch_enabled = e.prefetch;
    state.Replan();
  }
};

Core::Core(const CoreConfig& config) {
  FORELOAD_CHECK(Validate(config).ok(), "the configuration must be validated first");
  impl_ = std::make_unique<Impl>(config);
}

Core::~Core() = default;

void Core::Step(TimeNs now, const EventBatch& batch, std::vector<Command>& commands) {
  Impl& core = *impl_;
  State& state = core.state;
  state.now = std::clamp<TimeNs>(now, state.now, std::max(state.now, kTimeMax));
  state.out = &commands;
  for (LinkModel& link : state.links) link.Tick(state.now);

  EventDispatch dispatch{core, batch};
  for (const Event& event : batch.events) std::visit(dispatch, event);

  core.demands.Expire();
  core.work_left = core.admission.Expire(kHousekeepingMax);
  core.work_left |= core.transfers.Expire(kHousekeepingMax);
  core.work_left |= core.engines.SweepStaleViews(kHousekeepingMax);
  core.work_left |= state.sessions.Advance(state.now, kHousekeepingMax,
                                           [&state](std::uint32_t session) { state.idle_sessions.push_back(session); });
  for (const std::uint32_t session : state.idle_sessions) core.planner.Consider(session);
  state.idle_sessions.clear();

  core.demands.Pump();
  const bool waits = core.admission.AnyWaiting() || core.planner.Waiting();
  const bool due = state.plan_due || core.planner.NextExpected() <= state.now;
  if (due || (waits && state.now - core.last_plan >= kPlanIntervalNs)) {
    state.plan_due = false;
    core.last_plan = state.now;
    core.planner.Plan();
  }
  core.store_path.Run();
  core.purge.Run();

  state.stats.blocks = state.catalog.size();
  for (std::size_t i = 0; i < kLinkCount; ++i) {
    state.stats.link_bytes_per_second[i] = state.links[i].bytes_per_second();
    state.stats.link_latency_ns[i] = state.links[i].latency_ns();
  }
  state.out = nullptr;
}

TimeNs Core::NextWake() const {
  const Impl& core = *impl_;
  const TimeNs now = core.state.now;
  if (core.work_left || core.state.plan_due) return now;
  TimeNs next = std::min({core.demands.NextExpiry(), core.admission.NextExpiry(), core.transfers.NextExpiry(),
                          core.state.sessions.NextCrossing(), core.planner.NextExpected(), core.store_path.NextDue()});
  if (core.admission.AnyWaiting() || core.planner.Waiting()) next = std::min(next, now + kTickNs);
  return std::max(next, now);
}

void Core::Verify() const {
  VerifyParts(*impl_);
}

BlockView Core::View(EngineId engine_id, BlockId id) const {
  State& state = impl_->state;
  BlockView view;
  const Block* block = state.catalog.Find(id);
  const Engine* engine = state.FindEngine(engine_id);
  if (block == nullptr) return view;
  view.in_dram = block->DramReadable();
  view.on_ssd = block->SsdReadable();
  if (engine == nullptr) return view;
  const std::uint32_t i = state.catalog.FindCopy(*block, engine_id);
  if (i == kNone) return view;
  const Copy& copy = state.catalog.copy(i);
  view.in_engine = engine->Holds(copy);
  if (copy.slot == kNone) return view;
  view.slot = SlotIndex{copy.slot};
  view.slot_ready = engine->arena[copy.slot].state == SlotState::kReady;
  return view;
}

std::string Core::Explain(BlockId block) const {
  return ExplainBlock(*impl_, block);
}

const CoreStats& Core::stats() const {
  return impl_->state.stats;
}

}  // namespace foreload::core
