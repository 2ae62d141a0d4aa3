#include "replay/session_script.h"

#include <algorithm>

namespace foreload::replay {
namespace {

// A request that comes within this time of its predecessor's end was sent by a program: TraceLab's tool latency is 13.6
// s at p90, its human wait 84 s at p50 (facts of published agent traces).
constexpr double kToolThinkSecondsMax = 15;

constexpr unsigned kLocalIdBits = 40;
constexpr std::uint64_t kRunsMax = UINT32_MAX;

std::uint64_t StreamKey(std::uint32_t session, std::uint32_t stream) {
  return (static_cast<std::uint64_t>(session) << 32) | stream;
}

}  // namespace

SessionScript::SessionScript(const TraceOptions& options) : options_(options), rng_(options.seed) {}

void SessionScript::BeginSession(std::uint64_t id, std::uint32_t block_tokens, bool global_ids) {
  Session session{id, block_tokens, global_ids, 0};
  session.start = static_cast<TimeNs>(rng_.Uniform() * static_cast<double>(options_.session_spread));
  sessions_.push_back(session);
  writing_.clear();
}

void SessionScript::LostRequest() {
  for (auto& [stream, writing] : writing_) writing.broken = true;
}

Status SessionScript::Add(const Request& request) {
  if (sessions_.empty()) return InvalidArgument("a request before any session header");
  if (held_.size() >= options_.held_requests_max || runs_.size() + request.runs.size() > kRunsMax) {
    return ResourceExhausted("more than " + std::to_string(options_.held_requests_max) + " requests to hold");
  }
  const Session& session = sessions_.back();
  Writing& writing = writing_[request.stream];
  if (request.keep == 0) writing.broken = false;
  if (writing.broken) return InvalidArgument("keeps ids of a request that was lost");
  if (request.keep > writing.length) {
    writing.broken = true;
    return InvalidArgument("keeps " + std::to_string(request.keep) + " ids of a request that has " +
                           std::to_string(writing.length));
  }
  std::uint64_t length = request.keep;
  for (const BlockRun& run : request.runs) {
    length += run.count;
    if (!session.global_ids && run.start + run.count > (1ull << kLocalIdBits)) {
      writing.broken = true;
      return InvalidArgument("has a session-local id of 2^40 or more");
    }
  }
  const std::uint64_t tokens_blocks =
      (static_cast<std::uint64_t>(request.input_tokens) + session.block_tokens - 1) / session.block_tokens;
  if (length > tokens_blocks) {
    writing.broken = true;
    return InvalidArgument("has " + std::to_string(length) + " ids for " + std::to_string(request.input_tokens) +
                           " input tokens");
  }

  Held held;
  held.arrival = session.start + static_cast<TimeNs>(request.at_seconds * 1e9);
  held.arrival = std::max(held.arrival, writing.last_arrival);
  held.session = static_cast<std::uint32_t>(sessions_.size() - 1);
  held.stream = request.stream;
  held.kind = request.kind;
  if (held.kind == RequestKind::kUnknown) {
    const bool by_tool = writing.any && writing.think_seconds <= kToolThinkSecondsMax;
    held.kind = by_tool || request.stream != 0 ? RequestKind::kTool : RequestKind::kHuman;
  }
  held.input_tokens = request.input_tokens;
  held.output_tokens = request.output_tokens;
  held.keep = static_cast<std::uint32_t>(request.keep);
  held.run_begin = static_cast<std::uint32_t>(runs_.size());
  held.run_count = static_cast<std::uint32_t>(request.runs.size());
  runs_.insert(runs_.end(), request.runs.begin(), request.runs.end());
  held_.push_back(held);
  ++reading_[StreamKey(held.session, held.stream)].left;

  writing.length = length;
  writing.last_arrival = held.arrival;
  writing.think_seconds = request.think_seconds;
  writing.any = true;
  return OkStatus();
}

Status SessionScript::AddWhole(Request request, std::span<const std::uint64_t> ids) {
  Writing& writing = writing_[request.stream];
  std::size_t keep = 0;
  while (keep < ids.size() && keep < writing.ids.size() && ids[keep] == writing.ids[keep]) ++keep;
  scratch_runs_.clear();
  for (std::size_t i = keep; i < ids.size(); ++i) {
    if (!scratch_runs_.empty() && scratch_runs_.back().start + scratch_runs_.back().count == ids[i]) {
      ++scratch_runs_.back().count;
    } else {
      scratch_runs_.push_back({ids[i], 1});
    }
  }
  request.keep = keep;
  request.runs = scratch_runs_;
  const bool was_broken = std::exchange(writing.broken, false);  // nothing depends on a lost request here
  Status status = Add(request);
  if (status.ok()) {
    writing.ids.assign(ids.begin(), ids.end());
  } else {
    writing.broken = was_broken;
  }
  return status;
}

void SessionScript::Arrange() {
  const auto earlier = [](const Held& a, const Held& b) { return a.arrival < b.arrival; };
  std::stable_sort(held_.begin(), held_.end(), earlier);
  if (options_.session_gap_max > 0) {
    struct Pace {
      TimeNs last = 0;
      DurationNs cut = 0;
    };
    std::vector<Pace> paces(sessions_.size());
    for (std::size_t i = 0; i < sessions_.size(); ++i) paces[i].last = sessions_[i].start;
    for (Held& held : held_) {
      Pace& pace = paces[held.session];
      const DurationNs gap = held.arrival - pace.last;
      pace.last = held.arrival;
      if (gap > options_.session_gap_max) pace.cut += gap - options_.session_gap_max;
      held.arrival -= pace.cut;
    }
    std::stable_sort(held_.begin(), held_.end(), earlier);
  }
  writing_.clear();
  sorted_ = true;
}

bool SessionScript::Next(TraceRequest& request) {
  if (!sorted_) Arrange();
  if (next_ == held_.size()) return false;
  const Held& held = held_[next_++];
  const Session& session = sessions_[held.session];
  const auto it = reading_.find(StreamKey(held.session, held.stream));
  Reading& reading = it->second;
  reading.ids.resize(held.keep);
  const std::uint64_t local = session.global_ids ? 0 : (static_cast<std::uint64_t>(held.session) + 1) << kLocalIdBits;
  for (std::uint32_t r = 0; r < held.run_count; ++r) {
    const BlockRun& run = runs_[held.run_begin + r];
    for (std::uint32_t i = 0; i < run.count; ++i) reading.ids.push_back(local + run.start + i);
  }
  request.arrival = held.arrival;
  request.session = session.id;
  request.stream = held.stream;
  request.turn = ++reading.turn;
  request.kind = held.kind;
  request.priority = 0;
  request.block_tokens = session.block_tokens;
  request.input_tokens = held.input_tokens;
  request.output_tokens = held.output_tokens;
  request.blocks = reading.ids;
  request.output_blocks.clear();
  if (--reading.left == 0) reading_.erase(it);
  return true;
}

}  // namespace foreload::replay
