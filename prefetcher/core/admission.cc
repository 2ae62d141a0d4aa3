#include "prefetcher/core/admission.h"

#include <algorithm>

namespace foreload::core {
namespace {

constexpr double kServiceRate = 1.0 / 8;          // of the scheduling interval's average
constexpr double kServiceMaxNs = 60e9;            // a longer gap says that the engine was blocked, not slow
constexpr std::uint32_t kAnonymousLookBack = 64;  // last blocks of a prompt among which an earlier end is looked for

}  // namespace

bool Admission::Link(BlockId id, BlockId parent) {
  Catalog& catalog = state_.catalog;
  if (parent.valid() && catalog.Find(parent) == nullptr) {
    if (catalog.Obtain(parent, *state_.out) == nullptr) {
      state_.Ignore(parent.value >= catalog.id_limit() ? IgnoredReason::kUnknownBlock : IgnoredReason::kTooManyBlocks);
      parent = BlockId{};
    }
  }
  const auto hold = [&](std::uint32_t by) {  // so that the parent is not forgotten to make place for the child
    if (!parent.valid()) return;
    catalog.At(parent).children += by;
    catalog.UpdateIdle(parent);
  };
  hold(1);
  const bool made = catalog.Obtain(id, *state_.out) != nullptr;
  hold(UINT32_MAX);  // that is, one less
  if (!made) {
    state_.Ignore(id.value >= catalog.id_limit() ? IgnoredReason::kUnknownBlock : IgnoredReason::kTooManyBlocks);
    return false;
  }
  if (!parent.valid()) return true;
  switch (catalog.SetParent(id, parent)) {
    case LinkResult::kOk: break;
    case LinkResult::kSelf: state_.Ignore(IgnoredReason::kSelfParent); break;
    case LinkResult::kCycle: state_.Ignore(IgnoredReason::kParentCycle); break;
    case LinkResult::kConflict: state_.Ignore(IgnoredReason::kParentConflict); break;
  }
  return true;
}

void Admission::LinkChain(std::span<const BlockId> blocks, std::vector<BlockId>& known) {
  known.clear();
  if (blocks.size() > state_.config.request_blocks_max) {
    state_.Ignore(IgnoredReason::kTooManyBlocks);
    blocks = blocks.first(state_.config.request_blocks_max);
  }
  BlockId parent;
  for (const BlockId id : blocks) {
    Block* block = state_.catalog.Find(id);
    if (block == nullptr || block->parent != parent) {
      if (!Link(id, parent)) break;  // without it nothing after it can be used
      block = &state_.catalog.At(id);
    }
    ++block->request_refs;  // so that none of the list is forgotten for a later one of it
    state_.catalog.UpdateIdle(id);
    known.push_back(id);
    parent = id;
  }
}

void Admission::Queued(const RequestQueued& event, std::span<const BlockId> blocks) {
  if (state_.ObtainEngine(event.engine) == nullptr) return state_.Ignore(IgnoredReason::kUnknownEngine);
  if (!event.request.valid()) return state_.Ignore(IgnoredReason::kUnknownRequest);
  const std::uint32_t live = index_.Find(event.request.value);
  if (live != kNone) {
    if (!Refresh(live, event)) state_.Ignore(IgnoredReason::kDuplicate);
    return;
  }
  if (requests_.live() >= state_.config.requests_max) return state_.Ignore(IgnoredReason::kTooManyRequests);
  const std::uint32_t i = requests_.Add();
  Request& request = requests_[i];
  request.id = event.request;
  request.engine = event.engine;
  request.kind = static_cast<std::size_t>(event.kind) < kRequestKindCount ? event.kind : RequestKind::kUnknown;
  request.key.priority = event.priority;
  request.expected_start = event.expected_start;
  request.announced = event.announced;
  index_.Insert(event.request.value, i);
  Enter(i, blocks);
  request.turn = event.turn;
  if (!event.announced) request.session = MatchSession(event, request.blocks, request.turn);
  // A permanent hold-out proves that prefetching pays (6.6).
  request.held_out = HeldOut(SessionKey(event.session), state_.config.hold_out_fraction);
}

// A request that is live already: an announced one has arrived, or a scheduled one was put back.
bool Admission::Refresh(std::uint32_t i, const RequestQueued& event) {
  Request& request = requests_[i];
  if (request.engine != event.engine) return false;
  Engine& engine = state_.EngineAt(request.engine);
  if (request.announced && !event.announced) {
    engine.queue.erase(request.key);
    expiries_.erase({request.expires, i});
    request.announced = false;
    request.expires = kTimeNever;
    request.expected_start = event.expected_start;
    request.key.priority = event.priority;
    request.key.serial = next_serial_++;
    request.turn = event.turn;
    request.session = MatchSession(event, request.blocks, request.turn);
    engine.queue.insert(request.key);
    state_.plan_due = true;
    return true;
  }
  if (request.phase == RequestPhase::kQueued) return false;
  request.phase = RequestPhase::kQueued;
  request.done = false;
  request.plan_epoch = 0;
  if (!request.waits) {
    request.waits = true;
    ++waiting_;
    for (const BlockId id : request.blocks) {
      ++state_.catalog.At(id).wanted;
      ++state_.catalog.copy(state_.catalog.ObtainCopy(id, request.engine)).wanted;
    }
  }
  engine.queue.insert(request.key);
  state_.plan_due = true;
  return true;
}

void Admission::Hinted(EngineId engine, std::span<const BlockId> blocks, TimeNs expected_start, TimeNs expires) {
  if (requests_.live() >= state_.config.requests_max) return state_.Ignore(IgnoredReason::kTooManyRequests);
  const std::uint32_t i = requests_.Add();
  Request& request = requests_[i];
  request.engine = engine;
  request.expected_start = expected_start;
  request.expires = expires;
  request.announced = true;
  request.key.priority = INT32_MAX;  // behind every real one
  Enter(i, blocks);
}

void Admission::Enter(std::uint32_t i, std::span<const BlockId> blocks) {
  Request& request = requests_[i];
  request.key.serial = next_serial_++;
  request.key.request = i;
  if (request.expected_start != kTimeNever)
    request.expected_start = std::clamp<TimeNs>(request.expected_start, 0, kTimeMax);
  LinkChain(blocks, request.blocks);
  request.waits = true;
  ++waiting_;
  for (const BlockId id : request.blocks) {
    ++state_.catalog.At(id).wanted;
    ++state_.catalog.copy(state_.catalog.ObtainCopy(id, request.engine)).wanted;
  }
  Engine& engine = state_.EngineAt(request.engine);
  if (engine.queue.empty()) engine.head_since = state_.now;
  engine.queue.insert(request.key);
  if (request.announced) {
    if (request.expires == kTimeNever) {
      const TimeNs from =
          request.expected_start == kTimeNever ? state_.now : std::max(state_.now, request.expected_start);
      request.expires = Later(from, state_.config.prefetch_ttl_ns);
    }
    expiries_.insert({request.expires, i});
  }
  state_.stats.requests_live = requests_.live();
  state_.plan_due = true;
}

std::uint32_t Admission::MatchSession(const RequestQueued& event, std::span<const BlockId> blocks,
                                      std::uint32_t& turn) {
  std::uint64_t key = SessionKey(event.session);
  if (key == kNoSession && !blocks.empty()) {
    // Without an id it goes on from the deepest block at which an earlier request ended, or starts anew.
    key = AnonymousKey(blocks.back());
    for (std::uint32_t back = 0; back < kAnonymousLookBack && back < blocks.size(); ++back) {
      const std::uint64_t ended = AnonymousKey(blocks[blocks.size() - 1 - back]);
      if (state_.sessions.Find(ended) == kNone) continue;
      key = ended;
      break;
    }
  }
  const std::uint32_t session = state_.sessions.Arrived(state_.now, key);
  if (session != kNone && turn == 0 && !event.session.valid()) turn = state_.sessions[session].turns;
  return session;
}

std::uint32_t Admission::FindLive(RequestId id) {
  const std::uint32_t i = id.valid() ? index_.Find(id.value) : kNone;
  if (i == kNone) state_.Ignore(IgnoredReason::kUnknownRequest);
  return i;
}

void Admission::LeaveQueue(std::uint32_t i) {
  Request& request = requests_[i];
  state_.EngineAt(request.engine).queue.erase(request.key);
  if (request.announced) expiries_.erase({request.expires, i});
  request.announced = false;
}

void Admission::Scheduled(RequestId id) {
  const std::uint32_t i = FindLive(id);
  if (i == kNone) return;
  Request& request = requests_[i];
  if (request.phase != RequestPhase::kQueued) return state_.Ignore(IgnoredReason::kDuplicate);
  LeaveQueue(i);
  request.phase = RequestPhase::kScheduled;
  Engine& engine = state_.EngineAt(request.engine);
  const double gap = std::min(static_cast<double>(state_.now - engine.head_since), kServiceMaxNs);
  engine.schedule_interval_ns += kServiceRate * (gap - engine.schedule_interval_ns);
  engine.head_since = state_.now;
  CountNeeds(request);
}

// Where the blocks are at this moment. What is still in flight for it is late.
void Admission::CountNeeds(const Request& request) {
  const Engine& engine = state_.EngineAt(request.engine);
  CoreStats& stats = state_.stats;
  stats.needed_blocks += request.blocks.size();
  for (const BlockId id : request.blocks) {
    Block& block = state_.catalog.At(id);
    block.uses = std::min(block.uses + 1, 1u << 30);
    const std::uint32_t index = state_.catalog.FindCopy(block, request.engine);
    const Copy* copy = index == kNone ? nullptr : &state_.catalog.copy(index);
    if (copy != nullptr && engine.Holds(*copy)) {
      ++stats.needed_in_engine;
    } else if (copy != nullptr && copy->slot != kNone) {
      const Slot& slot = engine.arena[copy->slot];
      ++(slot.state == SlotState::kReady ? stats.needed_ready : stats.needed_in_flight);
      if (slot.state == SlotState::kLoading) transfers_.Late(slot.transfer);
    } else if (block.DramReadable()) {
      ++stats.needed_dram;
    } else if (block.SsdReadable()) {
      ++stats.needed_ssd;
      if (block.dram == DramState::kLoading) transfers_.Late(block.dram_load);
    } else {
      ++stats.needed_absent;
    }
  }
}

void Admission::FirstToken(RequestId id) {
  const std::uint32_t i = FindLive(id);
  if (i == kNone) return;
  if (requests_[i].phase == RequestPhase::kQueued) Scheduled(id);  // the telemetry has lost one
  requests_[i].phase = RequestPhase::kRunning;
  StopWaiting(i);
}

void Admission::StopWaiting(std::uint32_t i) {
  Request& request = requests_[i];
  if (!request.waits) return;
  request.waits = false;
  --waiting_;
  Catalog& catalog = state_.catalog;
  for (const BlockId id : request.blocks) {
    --catalog.At(id).wanted;
    const std::uint32_t copy = catalog.FindCopy(catalog.At(id), request.engine);
    --catalog.copy(copy).wanted;
    transfers_.CancelUnneeded(id, request.engine);
    catalog.ReleaseCopyIfEmpty(copy);
  }
  state_.plan_due = true;
}

// Last block first, so that a chain stands in every list with its leaf as the coldest.
void Admission::TouchChain(std::span<const BlockId> blocks, const Request& request) {
  const std::uint16_t return_class = ReturnClass(request.kind, request.turn, static_cast<std::uint32_t>(blocks.size()));
  const std::uint64_t session = request.session == kNone ? kNoSession : state_.sessions[request.session].key;
  Engine& engine = state_.EngineAt(request.engine);
  for (std::size_t k = blocks.size(); k > 0; --k) {
    Block& block = state_.catalog.At(blocks[k - 1]);
    block.last_use = state_.now;
    block.return_class = return_class;
    block.session = session;
    block.ever_used = true;
    block.demoted = false;
    if (block.retain_until_used) block.pin_until = 0;
    block.retain_until_used = false;
    state_.dram.Touch(blocks[k - 1]);
    const std::uint32_t copy = state_.catalog.FindCopy(block, request.engine);
    if (copy != kNone && state_.catalog.copy(copy).slot != kNone) engine.arena.Touch(state_.catalog.copy(copy).slot);
  }
}

void Admission::Finished(RequestId id, std::span<const BlockId> blocks) {
  const std::uint32_t i = FindLive(id);
  if (i == kNone) return;
  if (blocks.empty()) return End(i, requests_[i].blocks, true);
  LinkChain(blocks, scratch_);
  End(i, scratch_, true);
  for (const BlockId known : scratch_) {
    --state_.catalog.At(known).request_refs;
    state_.catalog.UpdateIdle(known);
  }
}

void Admission::Aborted(RequestId id) {
  const std::uint32_t i = FindLive(id);
  if (i != kNone) End(i, requests_[i].blocks, false);
}

void Admission::End(std::uint32_t i, std::span<const BlockId> chain, bool used) {
  Request& request = requests_[i];
  if (request.phase == RequestPhase::kQueued) LeaveQueue(i);
  if (request.session != kNone && !chain.empty()) {
    Session& session = state_.sessions[request.session];
    session.leaf = chain.back();
    session.engine = request.engine;
    const bool anonymous = session.key >= AnonymousKey(BlockId{0});
    if (anonymous) state_.sessions.Rename(request.session, AnonymousKey(chain.back()));
  }
  if (used) TouchChain(chain, request);
  StopWaiting(i);
  if (request.session != kNone) {
    const std::uint16_t return_class =
        ReturnClass(request.kind, request.turn, static_cast<std::uint32_t>(chain.size()));
    state_.sessions.Departed(state_.now, request.session, return_class);
    if (state_.sessions[request.session].idle) state_.idle_sessions.push_back(request.session);
  }
  for (std::size_t k = request.blocks.size(); k > 0; --k) {
    --state_.catalog.At(request.blocks[k - 1]).request_refs;
    state_.catalog.UpdateIdle(request.blocks[k - 1]);
  }
  if (request.id.valid()) index_.Erase(request.id.value);
  requests_.Remove(i);
  state_.stats.requests_live = requests_.live();
}

void Admission::EngineGone(Engine& engine) {
  // Work in proportion to the live requests: engines die rarely.
  for (std::uint32_t i = 0; i < requests_.end(); ++i) {
    if (requests_.Live(i) && requests_[i].engine == engine.id) End(i, requests_[i].blocks, false);
  }
  engine.queue.clear();
}

bool Admission::Expire(std::uint32_t limit) {
  while (!expiries_.empty() && expiries_.begin()->first <= state_.now) {
    if (limit-- == 0) return true;
    const std::uint32_t i = expiries_.begin()->second;
    End(i, requests_[i].blocks, false);
  }
  return false;
}

TimeNs Admission::PredictedStart(const Engine& engine, const Request& request, std::uint32_t position) const {
  if (request.expected_start != kTimeNever) return std::max(request.expected_start, state_.now);
  // Queue position x learned service time (6.7).
  const double wait = engine.schedule_interval_ns * static_cast<double>(position + 1);
  return std::max(state_.now, engine.head_since + static_cast<DurationNs>(std::min(wait, 1e17)));
}

}  // namespace foreload::core
