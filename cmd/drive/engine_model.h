// An inference engine without a model: queue, one prefill server, a decode batch, a paged prefix cache, and the KV
// connector's protocol around them. All that it does follows from its configuration, the trace, what the port answers,
// and the times at which Advance is called.
//
// A request's life: arrival (announced with all its keys) -> queue -> scheduled when a place before prefill, a decode
// sequence and pages are free -> own cache, then the arena's READY blocks, then one demand fetch for the rest with
// deadline min(configured, time to recompute them), then the arena again -> prefill of what is still missing -> first
// token -> decode -> finished. New full blocks are offered to the store after the prefill that computed them, and what
// the output fills at the end.
//
// `admitted_max` 1 is a synchronous connector: the prefill server waits for the loads of the request that it took. More
// lets so many requests load while another one computes.
//
// Thread: one. Times are the caller's; arrivals of the trace are divided by `speed_up`, everything else is as
// configured.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cmd/drive/engine_port.h"
#include "cmd/drive/own_cache.h"
#include "replay/trace_source.h"

namespace foreload::drive {

struct EngineConfig {
  double prefill_tokens_per_second = 10'000;
  double decode_seconds_per_token = 0.01;
  std::uint32_t sequences_max = 32;  // scheduled and not finished
  std::uint32_t admitted_max = 1;    // scheduled and not yet through prefill
  std::uint64_t cache_blocks = 1000;
  DurationNs demand_deadline = 1 * kSecond;
  double speed_up = 1;
  bool priority_queue = false;  // smaller priority first, then arrival; else arrival alone
  bool session_order = true;    // a turn arrives no earlier than the answer to the one before it
};

struct EngineCounts {
  std::uint64_t stores = 0;
  std::uint64_t stores_full = 0;
  std::uint64_t stores_unavailable = 0;
  std::uint64_t fetches = 0;
  std::uint64_t fetches_refused = 0;
  std::uint64_t fetches_timed_out = 0;
  std::uint64_t too_large = 0;  // requests that the cache could never hold: not run
};

class EngineModel {
 public:
  // `source` and `port` outlive the model. The trace's time 0 is `start`.
  EngineModel(const EngineConfig& config, replay::TraceSource& source, EnginePort& port, TimeNs start);

  // Does everything that is due at `now`; times never go back. An error ends the run: unreadable trace, wrong bytes.
  Status Advance(TimeNs now);

  // When Advance has something to do of itself. Fetches that end earlier are the port's to notice.
  TimeNs NextWake() const;

  // Every request of the trace has finished.
  bool done() const;

  const std::vector<RequestRecord>& finished() const { return finished_; }
  const EngineCounts& counts() const { return counts_; }
  std::size_t queued() const { return queue_.size(); }
  std::size_t running() const { return admitted_ + decoding_.size(); }

 private:
  struct Active {
    EngineRequest request;
    OwnCache::Lease lease;
    std::uint64_t fetch = 0;
    std::uint32_t have = 0;  // blocks of the prefix that are in HBM now
    TimeNs fetch_started = 0;
  };
  using ActivePtr = std::shared_ptr<Active>;  // shared with the stores that outlive it
  struct PendingStore {
    ActivePtr active;
    std::uint32_t index = 0;
  };

  Status PullArrivals(TimeNs now);
  void Arrive(ActivePtr active);
  void Enqueue(ActivePtr active);
  bool EndDecodes(TimeNs now);
  bool EndPrefill(TimeNs now);
  Status EndLoads(TimeNs now, bool& progress);
  bool StartPrefill(TimeNs now);
  Status Schedule(TimeNs now, bool& progress);
  Status BeginLoads(ActivePtr active, TimeNs now);
  Status TakeReady(Active& active, std::uint32_t& taken);
  void LoadsEnded(ActivePtr active);
  void NameBlocks(Active& active, std::uint32_t first, std::uint32_t count);
  void QueueStores(const ActivePtr& active, std::uint32_t first, std::uint32_t count);
  void StoreSome();
  void Finish(ActivePtr active, TimeNs now);
  DurationNs PrefillTime(std::uint64_t tokens) const;

  EngineConfig config_;
  replay::TraceSource& source_;
  EnginePort& port_;
  TimeNs start_;
  OwnCache cache_;

  bool source_ended_ = false;
  ActivePtr next_;  // read ahead of its arrival
  std::uint64_t arrivals_ = 0;
  std::map<std::pair<std::int64_t, std::uint64_t>, ActivePtr> queue_;
  // Turns that wait for the answer to the one before, by (session, stream); present while a turn is unanswered.
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::deque<ActivePtr>> sessions_;
  std::uint64_t held_back_ = 0;
  std::uint32_t admitted_ = 0;  // loading, ready or in prefill
  std::vector<ActivePtr> loading_;
  std::deque<ActivePtr> ready_;
  ActivePtr prefill_;
  TimeNs prefill_ends_ = kTimeNever;
  std::multimap<TimeNs, ActivePtr> decoding_;  // by their end
  bool head_blocked_ = false;                  // the next one waits for pages, until some are released

  std::deque<PendingStore> stores_;  // off the critical path: a few in each Advance

  std::unordered_set<std::uint64_t> computed_;  // blocks that this run has computed
  std::vector<RequestRecord> finished_;
  std::vector<std::uint64_t> evicted_;
  EngineCounts counts_;
};

}  // namespace foreload::drive
