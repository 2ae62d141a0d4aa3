#include "prefetcher/core/planner.h"

#include <algorithm>

#include "prefetcher/core/keep_value.h"

namespace foreload::core {
namespace {

constexpr std::uint32_t kRequestsPerPlan = 1024;  // looked at in one step, all engines together
constexpr std::size_t kPromotionsMax = 1024;      // sessions waiting for promotion
constexpr std::size_t kExpectedMax = 65536;       // hinted sessions
constexpr std::uint32_t kPromotionsPerPlan = 8;
// How often an announced request or a hint comes true; a router's word is good, not certain.
constexpr double kAnnouncedProbability = 0.9;
// What a load that comes after its need still saves: rewards of Pythia, late 12 against timely 20 (prediction.md 7).
constexpr double kLateShare = 0.6;

}  // namespace

void Planner::Plan() {
  looks_left_ = state_.config.plan_blocks_max;
  loads_left_ = state_.config.plan_loads_max;
  dram_full_ = false;
  arena_full_.assign(state_.engines.size(), 0);
  Collect();
  for (const Candidate& candidate : candidates_) {
    if (looks_left_ == 0 || loads_left_ == 0) {
      state_.plan_due = true;  // the rest in the next step
      return;
    }
    PlanRequest(candidate);
  }
  while (!expected_.empty() && expected_.begin()->first <= state_.now) {
    if (promotions_.size() < kPromotionsMax) promotions_.push_back(expected_.begin()->second);
    expected_.erase(expected_.begin());
  }
  const auto waiting = static_cast<std::uint32_t>(promotions_.size());
  for (std::uint32_t n = std::min(kPromotionsPerPlan, waiting); n > 0 && looks_left_ > 0; --n) {
    const std::uint64_t key = promotions_.front();
    promotions_.pop_front();
    Promote(key);
  }
}

// Heads of the engines' queues, by predicted start. Every engine has its share, so that none starves another.
void Planner::Collect() {
  candidates_.clear();
  std::uint32_t queues = 0;
  state_.ForEachEngine([&](const Engine& engine) { queues += engine.queue.empty() ? 0 : 1; });
  if (queues == 0) return;
  const std::uint32_t share = std::max(1u, kRequestsPerPlan / queues);
  state_.ForEachEngine([&](const Engine& engine) {
    if (!engine.up) return;
    std::uint32_t position = 0;
    for (const QueueKey& key : engine.queue) {
      if (position >= share) break;
      const Request& request = admission_[key.request];
      const TimeNs start = admission_.PredictedStart(engine, request, position++);
      if (request.done && request.plan_epoch == state_.plan_epoch) continue;
      candidates_.push_back({start, request.key.serial, key.request});
    }
  });
  std::sort(candidates_.begin(), candidates_.end());
}

void Planner::PlanRequest(const Candidate& candidate) {
  Request& request = admission_[candidate.request];
  Engine& engine = state_.EngineAt(request.engine);
  if (request.plan_epoch != state_.plan_epoch) {
    request.plan_epoch = state_.plan_epoch;
    request.settled = 0;
    request.done = false;
  }
  bool in_order = true;  // everything so far is settled
  const auto count = static_cast<std::uint32_t>(request.blocks.size());
  for (std::uint32_t k = request.settled; k < count; ++k) {
    if (looks_left_ == 0 || loads_left_ == 0) return;
    --looks_left_;
    const Verdict verdict = PlanBlock(request, engine, k, candidate.start);
    if (verdict == Verdict::kStop) return;
    // On the way into the arena, or there; a step into DRAM is looked at again.
    const bool settled = verdict == Verdict::kIssued;
    if (settled && in_order) request.settled = k + 1;
    in_order = in_order && settled;
  }
  request.done = in_order;
}

bool Planner::SuppressedByPolicy(const Request& request, const Engine& engine, SuppressReason& reason) const {
  if (!state_.prefetch_enabled || engine.info.policy == EnginePolicy::kDemandOnly) {
    reason = SuppressReason::kPolicy;
    return true;
  }
  reason = SuppressReason::kHoldOut;
  return request.held_out;
}

Planner::Verdict Planner::PlanBlock(Request& request, Engine& engine, std::uint32_t position, TimeNs start) {
  const BlockId id = request.blocks[position];
  const Block& block = state_.catalog.At(id);
  const Copy& copy = state_.catalog.copy(state_.catalog.FindCopy(block, engine.id));
  if (engine.Holds(copy)) return Verdict::kIssued;
  if (copy.slot != kNone) {
    const Slot& slot = engine.arena[copy.slot];
    if (slot.state == SlotState::kLoading) transfers_.Tighten(slot.transfer, start);
    return Verdict::kIssued;
  }
  const bool from_dram = block.DramReadable();
  const bool stored = from_dram || block.SsdReadable();
  if (!stored || block.bytes != engine.info.block_bytes) {
    // Blocks after the first absent one are useless. The plan starts again when something becomes visible.
    request.done = request.settled == position;
    return Verdict::kStop;
  }
  SuppressReason reason{};
  if (SuppressedByPolicy(request, engine, reason)) {
    Suppress(request, position, reason);
    return Verdict::kIssued;  // nothing more to do for it
  }
  if (block.retry_at > state_.now) return Verdict::kLater;
  if (from_dram) return PlanArena(request, engine, position, start);
  if (block.dram == DramState::kLoading) {
    transfers_.Tighten(block.dram_load, start);
    return Verdict::kInFlight;
  }
  if (block.dram != DramState::kAbsent) return Verdict::kLater;
  return PlanDram(request, engine, position, start);
}

Planner::Verdict Planner::PlanDram(Request& request, Engine& engine, std::uint32_t position, TimeNs start) {
  const BlockId id = request.blocks[position];
  const Block& block = state_.catalog.At(id);
  LinkModel& link = state_.link(Link::kSsdToDram);
  if (dram_full_ || !link.PrefetchRoom(block.bytes)) return Verdict::kLater;
  if (!Pays(request, engine, position, start, true)) return Verdict::kStop;
  const double probability = request.announced ? kAnnouncedProbability : 1.0;
  const double gain = Gain(engine, block, probability, start, true);
  const DurationNs window = request.announced ? DramResidency(state_) : std::max<DurationNs>(start - state_.now, 0);
  switch (eviction_.MakeDram(block.bytes, Purpose::kPrefetch, {gain, window})) {
    case Eviction::Room::kReady: break;
    case Eviction::Room::kWarmer:
      dram_full_ = true;
      Suppress(request, position, SuppressReason::kVictimWarmer);
      return Verdict::kLater;
    default:
      dram_full_ = true;
      Suppress(request, position, SuppressReason::kNoDram);
      return Verdict::kLater;
  }
  --loads_left_;
  transfers_.LoadDram(id, Traffic::kPrefetch, start);
  return Verdict::kInFlight;
}

Planner::Verdict Planner::PlanArena(Request& request, Engine& engine, std::uint32_t position, TimeNs start) {
  const BlockId id = request.blocks[position];
  const Block& block = state_.catalog.At(id);
  Arena& arena = engine.arena;
  if (arena_full_[engine.id.value] != 0 || arena.size() == 0) return Verdict::kLater;
  if (!state_.link(Link::kDramToHbm).PrefetchRoom(block.bytes)) return Verdict::kLater;
  if (!Pays(request, engine, position, start, false)) return Verdict::kStop;
  const double share = state_.config.arena_prefetch_share_max * static_cast<double>(arena.size());
  if (static_cast<double>(arena.speculative() + 1) > share) {
    arena_full_[engine.id.value] = 1;
    Suppress(request, position, SuppressReason::kNoSlot);
    return Verdict::kLater;
  }
  const double probability = request.announced ? kAnnouncedProbability : 1.0;
  const double gain = Gain(engine, block, probability, start, false);
  const DurationNs window = request.announced ? ArenaResidency(engine) : std::max<DurationNs>(start - state_.now, 0);
  switch (eviction_.MakeSlot(engine, Purpose::kPrefetch, {gain, window})) {
    case Eviction::Room::kReady: break;
    case Eviction::Room::kComing: return Verdict::kLater;
    case Eviction::Room::kWarmer:
      arena_full_[engine.id.value] = 1;
      Suppress(request, position, SuppressReason::kVictimWarmer);
      return Verdict::kLater;
    case Eviction::Room::kNothing:
      arena_full_[engine.id.value] = 1;
      Suppress(request, position, SuppressReason::kNoSlot);
      return Verdict::kLater;
  }
  --loads_left_;
  transfers_.LoadArena(id, engine, Traffic::kPrefetch, start);
  return Verdict::kIssued;
}

// No load that recomputing beats. The request starts at `start`; from there on the engine
// could compute the blocks that are missing one after the other, this one being the n-th. A load that ends after that
// is worse than none.
bool Planner::Pays(Request& request, const Engine& engine, std::uint32_t position, TimeNs start, bool from_ssd) {
  const Block& block = state_.catalog.At(request.blocks[position]);
  const LinkModel& ssd = state_.link(Link::kSsdToDram);
  const LinkModel& hbm = state_.link(Link::kDramToHbm);
  const double recompute = engine.recompute_block_seconds();
  const TimeNs finish =
      from_ssd ? hbm.Finish(ssd.Finish(state_.now, block.bytes), block.bytes) : hbm.Finish(state_.now, block.bytes);
  if (recompute > 0) {
    const double missing = static_cast<double>(position - request.settled + 1);
    const double allowed_ns = std::min(missing * recompute * 1e9, static_cast<double>(kTimeMax));
    const TimeNs latest = Later(std::max(start, state_.now), static_cast<DurationNs>(allowed_ns));
    if (finish > latest) {
      const double alone = hbm.Seconds(block.bytes) + (from_ssd ? ssd.Seconds(block.bytes) : 0.0);
      const bool slow = alone > missing * recompute;
      Suppress(request, position, slow ? SuppressReason::kRecomputeFaster : SuppressReason::kTooLate);
      return false;
    }
  }
  if (!request.announced) return true;
  // A guess: in time within eta of the link, and above break-even p* = u (6.5).
  const LinkModel& link = from_ssd ? ssd : hbm;
  const bool feasible = link.Feasible(state_.now, block.bytes, start, state_.config.link_utilisation_max);
  if (feasible && kAnnouncedProbability > link.utilisation()) return true;
  Suppress(request, position, SuppressReason::kLinkBusy);
  return false;
}

// (G - C) / b of 6.5: stall saved less what the link's time and a possible waste cost, per byte.
double Planner::Gain(const Engine& engine, const Block& block, double probability, TimeNs start, bool from_ssd) const {
  const LinkModel& link = state_.link(from_ssd ? Link::kSsdToDram : Link::kDramToHbm);
  const auto bytes = static_cast<double>(block.bytes);
  const double on_time = link.OnTime(link.Finish(state_.now, block.bytes), start);
  const double saved = ReloadSeconds(state_, block, Tier::kHbm, engine.recompute_block_seconds());
  const double gain = probability * (on_time + kLateShare * (1.0 - on_time)) * saved / bytes;
  // A certain need takes the link's time now or, as demand, later: only a guess pays for it.
  return probability >= 1.0 ? gain : gain - link.shadow_price() - (1.0 - probability) * link.WastePrice();
}

void Planner::Suppress(Request& request, std::uint32_t position, SuppressReason reason) {
  std::uint32_t& counted = request.suppressed[static_cast<std::size_t>(reason)];
  if (position < counted) return;
  counted = position + 1;
  ++state_.stats.suppressed[static_cast<std::size_t>(reason)];
}

void Planner::Consider(std::uint32_t i) {
  const Session& session = state_.sessions[i];
  if (!session.leaf.valid() || promotions_.size() >= kPromotionsMax || !state_.prefetch_enabled) return;
  const DurationNs horizon = PromotionHorizon();
  const double probability = state_.sessions.ReturnProbability(session, state_.now, horizon);
  if (probability < state_.config.session_promote_probability_min) return;
  promotions_.push_back(session.key);
  state_.plan_due = true;
}

void Planner::ConsiderAt(TimeNs at, std::uint64_t session_key) {
  if (expected_.size() < kExpectedMax) expected_.insert({at, session_key});
}

// W of 6.4: what is promoted now is evicted again after the tier's residency time, so a later return is none.
DurationNs Planner::PromotionHorizon() const {
  return std::min(state_.config.session_promote_horizon_ns, DramResidency(state_));
}

// ssd -> dram of a returning session's chain, root first (6.4; HBM only by admission).
void Planner::Promote(std::uint64_t key) {
  const std::uint32_t i = state_.sessions.Find(key);
  if (i == kNone || !state_.prefetch_enabled || state_.sessions[i].live_requests > 0) return;
  const Session& session = state_.sessions[i];
  const Engine* engine = state_.FindEngine(session.engine);
  if (engine == nullptr || !engine->up || engine->info.policy == EnginePolicy::kDemandOnly) return;
  const DurationNs horizon = PromotionHorizon();
  const double probability = state_.sessions.ReturnProbability(session, state_.now, horizon);
  if (probability < state_.config.session_promote_probability_min) return;
  if (HeldOut(key, state_.config.hold_out_fraction)) return;

  chain_.clear();
  BlockId id = session.leaf;
  // Ids are reused: a chain that has been forgotten and replaced leads astray at worst into a useless, bounded
  // promotion.
  while (id.valid() && state_.catalog.Find(id) != nullptr && looks_left_ > 0) {
    --looks_left_;
    chain_.push_back(id);
    id = state_.catalog.At(id).parent;
  }
  LinkModel& link = state_.link(Link::kSsdToDram);
  const TimeNs need = Later(state_.now, horizon);
  for (std::size_t k = chain_.size(); k > 0 && loads_left_ > 0; --k) {
    const Block& block = state_.catalog.At(chain_[k - 1]);
    if (block.DramReadable() || block.dram != DramState::kAbsent) continue;
    if (!block.SsdReadable()) return;
    if (block.retry_at > state_.now) return;
    if (!link.PrefetchRoom(block.bytes)) {  // the rest when something has landed
      promotions_.push_back(key);
      return;
    }
    const bool pays = probability > link.utilisation() &&
                      link.Feasible(state_.now, block.bytes, need, state_.config.link_utilisation_max);
    const double gain = Gain(*engine, block, probability, need, true);
    if (!pays) {
      ++state_.stats.suppressed[static_cast<std::size_t>(SuppressReason::kLinkBusy)];
      return;
    }
    const Eviction::Room room = eviction_.MakeDram(block.bytes, Purpose::kPrefetch, {gain, DramResidency(state_)});
    if (room != Eviction::Room::kReady) {
      const auto reason = room == Eviction::Room::kWarmer ? SuppressReason::kVictimWarmer : SuppressReason::kNoDram;
      ++state_.stats.suppressed[static_cast<std::size_t>(reason)];
      return;
    }
    --loads_left_;
    transfers_.LoadDram(chain_[k - 1], Traffic::kPrefetch, need);
  }
}

}  // namespace foreload::core
