#include "cmd/drive/engine_model.h"

#include <algorithm>
#include <utility>

namespace foreload::drive {
namespace {

// Every pass of Advance ends at least one state of one request or stops, so this bounds a bug, not a workload.
constexpr std::uint64_t kPassesMax = 10'000'000;
constexpr std::size_t kStoresPerAdvance = 4;

std::uint64_t BlockOf(const EngineRequest& request, std::uint32_t index) {
  const std::uint32_t prompt = request.record.full_blocks;
  return index < prompt ? request.trace.blocks[index] : request.trace.output_blocks[index - prompt];
}

}  // namespace

EngineModel::EngineModel(const EngineConfig& config, replay::TraceSource& source, EnginePort& port, TimeNs start)
    : config_(config), source_(source), port_(port), start_(start), cache_(config.cache_blocks) {}

DurationNs EngineModel::PrefillTime(std::uint64_t tokens) const {
  return static_cast<DurationNs>(static_cast<double>(tokens) / config_.prefill_tokens_per_second * 1e9);
}

bool EngineModel::done() const {
  return source_ended_ && next_ == nullptr && queue_.empty() && held_back_ == 0 && admitted_ == 0 &&
         decoding_.empty() && stores_.empty();
}

TimeNs EngineModel::NextWake() const {
  if (!stores_.empty()) return start_;
  TimeNs wake = prefill_ends_;
  if (next_ != nullptr) wake = std::min(wake, next_->request.record.arrival);
  if (!decoding_.empty()) wake = std::min(wake, decoding_.begin()->first);
  return wake;
}

Status EngineModel::Advance(TimeNs now) {
  bool progress = true;
  for (std::uint64_t pass = 0; progress; ++pass) {
    FORELOAD_CHECK(pass < kPassesMax, "the engine model goes round in circles");
    progress = false;
    FORELOAD_RETURN_IF_ERROR(PullArrivals(now));
    progress |= EndDecodes(now);
    progress |= EndPrefill(now);
    FORELOAD_RETURN_IF_ERROR(EndLoads(now, progress));
    progress |= StartPrefill(now);
    FORELOAD_RETURN_IF_ERROR(Schedule(now, progress));
  }
  StoreSome();
  port_.EndStep();
  return OkStatus();
}

Status EngineModel::PullArrivals(TimeNs now) {
  while (true) {
    if (next_ == nullptr && !source_ended_) {
      auto active = std::make_shared<Active>();
      FORELOAD_ASSIGN_OR_RETURN(const bool more, source_.Next(active->request.trace));
      if (!more) {
        source_ended_ = true;
        return OkStatus();
      }
      EngineRequest& request = active->request;
      request.record.number = arrivals_++;
      request.record.arrival =
          start_ + static_cast<TimeNs>(static_cast<double>(request.trace.arrival) / config_.speed_up);
      request.record.full_blocks = static_cast<std::uint32_t>(request.trace.full_blocks());
      const std::uint32_t reachable =
          request.trace.input_tokens == 0 ? 0 : (request.trace.input_tokens - 1) / request.trace.block_tokens;
      request.usable_blocks = std::min(request.record.full_blocks, reachable);
      next_ = std::move(active);
    }
    if (next_ == nullptr || next_->request.record.arrival > now) return OkStatus();
    Arrive(std::move(next_));
  }
}

void EngineModel::Arrive(ActivePtr active) {
  EngineRequest& request = active->request;
  const std::uint64_t tokens = static_cast<std::uint64_t>(request.trace.input_tokens) + request.trace.output_tokens;
  if (tokens / request.trace.block_tokens + 1 > config_.cache_blocks) {
    ++counts_.too_large;
    return;
  }
  if (config_.session_order && request.trace.session != replay::kNoSession) {
    const auto [it, first] = sessions_.try_emplace({request.trace.session, request.trace.stream});
    if (!first) {
      ++held_back_;
      it->second.push_back(std::move(active));
      return;
    }
  }
  Enqueue(std::move(active));
}

void EngineModel::Enqueue(ActivePtr active) {
  EngineRequest& request = active->request;
  port_.Announce(request, RequestState::kQueued);
  const std::int64_t priority = config_.priority_queue ? request.trace.priority : 0;
  queue_.emplace(std::pair(priority, request.record.number), std::move(active));
}

bool EngineModel::EndDecodes(TimeNs now) {
  bool any = false;
  while (!decoding_.empty() && decoding_.begin()->first <= now) {
    ActivePtr active = std::move(decoding_.begin()->second);
    decoding_.erase(decoding_.begin());
    Finish(std::move(active), now);
    any = true;
  }
  return any;
}

void EngineModel::Finish(ActivePtr active, TimeNs now) {
  EngineRequest& request = active->request;
  request.record.finished = now;
  const auto outputs = static_cast<std::uint32_t>(request.trace.output_blocks.size());
  NameBlocks(*active, request.record.full_blocks, outputs);
  QueueStores(active, request.record.full_blocks, outputs);
  port_.Announce(request, RequestState::kFinished);
  cache_.Release(active->lease);
  head_blocked_ = false;
  finished_.push_back(request.record);

  const auto session = sessions_.find({request.trace.session, request.trace.stream});
  if (session == sessions_.end()) return;
  if (session->second.empty()) {
    sessions_.erase(session);
    return;
  }
  // The next turn was due already: it comes now, and its wait for the answer is not the engine's.
  ActivePtr following = std::move(session->second.front());
  session->second.pop_front();
  --held_back_;
  following->request.record.arrival = now;
  Enqueue(std::move(following));
}

bool EngineModel::EndPrefill(TimeNs now) {
  if (prefill_ == nullptr || prefill_ends_ > now) return false;
  ActivePtr active = std::move(prefill_);
  prefill_ends_ = kTimeNever;
  --admitted_;
  EngineRequest& request = active->request;
  request.record.first_token = now;
  port_.Announce(request, RequestState::kFirstToken);
  const std::uint32_t fresh = request.record.full_blocks - active->have;
  NameBlocks(*active, active->have, fresh);
  QueueStores(active, active->have, fresh);
  const std::uint32_t later_tokens = request.trace.output_tokens > 0 ? request.trace.output_tokens - 1 : 0;
  const TimeNs end = now + static_cast<DurationNs>(later_tokens * config_.decode_seconds_per_token * 1e9);
  decoding_.emplace(end, std::move(active));
  return true;
}

void EngineModel::NameBlocks(Active& active, std::uint32_t first, std::uint32_t count) {
  // Runs of blocks that are new in the cache are announced together.
  std::uint32_t run = first;
  for (std::uint32_t i = first; i < first + count; ++i) {
    if (cache_.Name(active.lease, BlockOf(active.request, i))) continue;
    if (i > run) port_.PublishStored(active.request, run, i - run);
    run = i + 1;
  }
  if (first + count > run) port_.PublishStored(active.request, run, first + count - run);
}

void EngineModel::QueueStores(const ActivePtr& active, std::uint32_t first, std::uint32_t count) {
  for (std::uint32_t i = first; i < first + count; ++i) {
    computed_.insert(BlockOf(active->request, i));
    stores_.push_back({active, i});
  }
}

// As an engine's copy stream does, so that a burst of stores does not hold up the next request's loads.
void EngineModel::StoreSome() {
  for (std::size_t n = 0; n < kStoresPerAdvance && !stores_.empty(); ++n) {
    const PendingStore store = std::move(stores_.front());
    stores_.pop_front();
    switch (port_.Store(store.active->request, store.index)) {
      case StoreOutcome::kStored: ++counts_.stores; break;
      case StoreOutcome::kFull: ++counts_.stores_full; break;
      case StoreOutcome::kUnavailable: ++counts_.stores_unavailable; break;
    }
  }
}

bool EngineModel::StartPrefill(TimeNs now) {
  if (prefill_ != nullptr || ready_.empty()) return false;
  prefill_ = std::move(ready_.front());
  ready_.pop_front();
  EngineRequest& request = prefill_->request;
  request.record.prefill_started = now;
  const std::uint64_t tokens =
      request.trace.input_tokens - static_cast<std::uint64_t>(prefill_->have) * request.trace.block_tokens;
  prefill_ends_ = now + PrefillTime(tokens);
  return true;
}

Status EngineModel::Schedule(TimeNs now, bool& progress) {
  while (!queue_.empty() && !head_blocked_ && admitted_ < config_.admitted_max &&
         admitted_ + decoding_.size() < config_.sequences_max) {
    Active& head = *queue_.begin()->second;
    EngineRequest& request = head.request;
    const std::span<const std::uint64_t> prompt(request.trace.blocks.data(), request.usable_blocks);
    const std::size_t matched = cache_.Match(prompt);
    const std::uint64_t tokens = static_cast<std::uint64_t>(request.trace.input_tokens) + request.trace.output_tokens;
    evicted_.clear();
    if (!cache_.Acquire(prompt, matched, tokens / request.trace.block_tokens + 1, head.lease, evicted_)) {
      head_blocked_ = true;  // as in vLLM, those behind it wait too
      return OkStatus();
    }
    if (!evicted_.empty()) port_.PublishRemoved(evicted_);
    ActivePtr active = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
    ++admitted_;
    progress = true;
    active->have = static_cast<std::uint32_t>(matched);
    active->request.record.own_blocks = active->have;
    active->request.record.scheduled = now;
    port_.Announce(active->request, RequestState::kScheduled);
    FORELOAD_RETURN_IF_ERROR(BeginLoads(std::move(active), now));
  }
  return OkStatus();
}

Status EngineModel::TakeReady(Active& active, std::uint32_t& taken) {
  FORELOAD_ASSIGN_OR_RETURN(taken, port_.ReadReady(active.request, active.have));
  NameBlocks(active, active.have, taken);
  active.have += taken;
  return OkStatus();
}

Status EngineModel::BeginLoads(ActivePtr active, TimeNs now) {
  EngineRequest& request = active->request;
  if (active->have < request.usable_blocks) {
    FORELOAD_RETURN_IF_ERROR(TakeReady(*active, request.record.arena_blocks));
  }
  const std::uint32_t missing = request.usable_blocks - active->have;
  if (missing > 0) {
    const DurationNs recompute = PrefillTime(static_cast<std::uint64_t>(missing) * request.trace.block_tokens);
    const auto ticket = port_.StartFetch(request, active->have, std::min(config_.demand_deadline, recompute));
    if (ticket.has_value()) {
      ++counts_.fetches;
      request.record.fetched = true;
      active->fetch = *ticket;
      active->fetch_started = now;
      loading_.push_back(std::move(active));
      return OkStatus();
    }
    ++counts_.fetches_refused;
    request.record.fetch_refused = true;
  }
  LoadsEnded(std::move(active));
  return OkStatus();
}

Status EngineModel::EndLoads(TimeNs now, bool& progress) {
  for (std::size_t i = 0; i < loading_.size();) {
    const auto outcome = port_.PollFetch(loading_[i]->fetch);
    if (!outcome.has_value()) {
      ++i;
      continue;
    }
    ActivePtr active = std::move(loading_[i]);
    loading_.erase(loading_.begin() + static_cast<std::ptrdiff_t>(i));
    progress = true;
    RequestRecord& record = active->request.record;
    record.stall = outcome->waited_ns > 0 ? outcome->waited_ns : now - active->fetch_started;
    record.fetch_timed_out = outcome->timed_out;
    if (outcome->timed_out) ++counts_.fetches_timed_out;
    std::uint32_t taken = 0;
    FORELOAD_RETURN_IF_ERROR(TakeReady(*active, taken));
    // By where the fetch found them; what it moved and the prefix rule lost is nobody's hit.
    record.demand_ssd_blocks = std::min(outcome->ssd_blocks, taken);
    record.demand_dram_blocks = std::min(outcome->dram_blocks, taken - record.demand_ssd_blocks);
    record.demand_joined_blocks = taken - record.demand_ssd_blocks - record.demand_dram_blocks;
    LoadsEnded(std::move(active));
  }
  return OkStatus();
}

void EngineModel::LoadsEnded(ActivePtr active) {
  RequestRecord& record = active->request.record;
  record.recomputed_blocks = record.full_blocks - active->have;
  for (std::uint32_t i = active->have; i < record.full_blocks; ++i) {
    record.recomputed_stored_blocks += computed_.contains(active->request.trace.blocks[i]) ? 1 : 0;
  }
  ready_.push_back(std::move(active));
}

}  // namespace foreload::drive
