// What queue look-ahead is for, on virtual time: the same seeded multi-turn workload, the same memory and links, with
// prefetch and demand-only. Everything is deterministic, so a ratio can be asserted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>

#include "base/rng.h"
#include "prefetcher/core/tests/world.h"

namespace foreload::core {
namespace {

struct Workload {
  std::uint32_t sessions = 60;
  std::uint32_t turns = 6;
  std::uint32_t first_turn_blocks = 16;
  std::uint32_t blocks_per_turn = 4;
  double load = 0.7;                       // of the engine
  DurationNs service = 40 * kMillisecond;  // of one request, without stall
};

struct Played {
  DurationNs stall = 0;
  std::vector<DurationNs> stalls, waits;
  std::uint64_t requests = 0;
  std::uint64_t ready_at_schedule = 0;
  CoreStats stats;
};

// One engine that serves one request at a time, first come first served, and waits for the blocks of its prompt.
class Player {
 public:
  Player(const Workload& workload, bool prefetch, std::uint64_t seed)
      : load_(workload), rng_(seed), config_(Config(workload, prefetch)), core_(config_), executor_(config_) {
    executor_.block_bytes_default = kBlockBytes;
  }

  static CoreConfig Config(const Workload& w, bool prefetch) {
    CoreConfig config = SmallConfig();
    config.prefetch = prefetch;
    const std::uint32_t per_session = w.first_turn_blocks + w.turns * w.blocks_per_turn;
    config.dram_bytes = std::uint64_t{w.sessions} * per_session * kBlockBytes / 4;  // the rest is on SSD
    config.ssd_bytes = 1ull << 40;
    config.blocks_max = 1u << 16;
    return config;
  }

  Played Run() {
    const std::uint32_t per_session = load_.first_turn_blocks + load_.turns * load_.blocks_per_turn;
    Send(EngineUp{kEngine, 16, kBlockBytes, 0, EnginePolicy::kPredict});
    Send(ArenaGranted{kEngine, load_.sessions * per_session / 10});  // a tenth of the footprint
    Recover(per_session);
    MakeArrivals();
    while (Advance()) {
    }
    result_.stats = core_.stats();
    return result_;
  }

 private:
  struct Arrival {
    TimeNs at = 0;
    std::uint32_t session = 0;
    std::uint32_t turn = 0;
    std::uint32_t request = 0;
  };

  void Send(const Event& event) { batch_.events.push_back(event); }

  // Everything that a prompt will need lies on SSD from the start.
  void Recover(std::uint32_t per_session) {
    for (std::uint32_t s = 0; s < load_.sessions; ++s) {
      for (std::uint32_t k = 0; k < per_session; ++k) {
        const std::uint32_t id = s * 256 + k;
        Send(SsdRecovered{BlockId{id}, k == 0 ? BlockId{} : BlockId{id - 1}, kBlockBytes});
      }
      Step();
    }
  }

  // Poisson arrivals at the offered load; each session's turns in order.
  void MakeArrivals() {
    const double gap = static_cast<double>(load_.service) / load_.load;
    std::vector<std::uint32_t> next_turn(load_.sessions, 0);
    TimeNs at = now_ + kSecond;
    const std::uint32_t total = load_.sessions * load_.turns;
    result_.stalls.resize(total);
    result_.waits.resize(total);
    for (std::uint32_t i = 0; i < total;) {
      const auto s = static_cast<std::uint32_t>(rng_.Below(load_.sessions));
      if (next_turn[s] >= load_.turns) continue;
      // Exponential gap from a sum of uniforms is not needed: an Erlang of two keeps bursts and queues.
      at += static_cast<DurationNs>(gap * (rng_.Uniform() + rng_.Uniform() + (rng_.Below(4) == 0 ? 2.0 : 0.0)) * 2.0 /
                                    3.0);
      arrivals_.push_back({at, s, next_turn[s]++, i++});
    }
  }

  std::vector<std::uint32_t> Prompt(const Arrival& a) const {
    return Iota(a.session * 256, load_.first_turn_blocks + a.turn * load_.blocks_per_turn);
  }
  BlockRange Range(const std::vector<std::uint32_t>& ids) {
    const BlockRange range{static_cast<std::uint32_t>(batch_.blocks.size()), static_cast<std::uint32_t>(ids.size())};
    for (const std::uint32_t id : ids) batch_.blocks.push_back(BlockId{id});
    return range;
  }

  void Step() {
    commands_.clear();
    core_.Step(now_, batch_, commands_);
    batch_.Clear();
    executor_.Execute(now_, commands_);
    for (const Command& command : executor_.TakeAnswers()) {
      if (const auto* done = std::get_if<DemandDone>(&command)) DemandAnswered(*done);
    }
    for (const Command& command : commands_) {
      if (const auto* load = std::get_if<LoadToArena>(&command)) slot_of_[load->slot.value] = load->block;
    }
  }

  // To the next thing that happens; false at the end.
  bool Advance() {
    TimeNs next = std::min(executor_.NextEventTime(), core_.NextWake());
    if (!arrivals_.empty()) next = std::min(next, arrivals_.front().at);
    if (running_) next = std::min(next, finish_at_);
    if (arrivals_.empty() && queue_.empty() && !running_) return false;
    now_ = std::max(now_ + 1, next);
    executor_.CollectUntil(now_, batch_);
    while (!arrivals_.empty() && arrivals_.front().at <= now_) {
      const Arrival a = arrivals_.front();
      arrivals_.pop_front();
      RequestQueued queued;
      queued.engine = kEngine;
      queued.request = RequestId{a.request};
      queued.session = SessionId{a.session};
      queued.turn = a.turn + 1;
      queued.blocks = Range(Prompt(a));
      Send(queued);
      queue_.push_back(a);
    }
    if (running_ && finish_at_ <= now_) {
      Send(RequestFinished{RequestId{current_.request}, Range(Prompt(current_))});
      running_ = false;
    }
    if (!running_ && !queue_.empty()) Schedule();
    Step();
    return true;
  }

  void Schedule() {
    current_ = queue_.front();
    queue_.pop_front();
    running_ = true;
    finish_at_ = kTimeNever;
    scheduled_at_ = now_;
    ++result_.requests;
    Send(RequestScheduled{RequestId{current_.request}});
    DemandAsked asked;
    asked.demand = current_.request + 1;
    asked.engine = kEngine;
    asked.request = RequestId{current_.request};
    asked.blocks = Range(Prompt(current_));
    Send(asked);
  }

  void DemandAnswered(const DemandDone& done) {
    EXPECT_EQ(done.ready_blocks, Prompt(current_).size());
    result_.stall += now_ - scheduled_at_;
    result_.stalls[current_.request] = now_ - scheduled_at_;
    result_.waits[current_.request] = scheduled_at_ - current_.at;
    finish_at_ = now_ + load_.service;
    for (const auto& [slot, block] : slot_of_) {
      if (block.value / 256 == current_.session) Send(SlotUsed{kEngine, SlotIndex{slot}});
    }
    Send(RequestFirstToken{RequestId{current_.request}});
  }

  const Workload load_;
  Rng rng_;
  const CoreConfig config_;
  Core core_;
  VirtualExecutor executor_;
  EventBatch batch_;
  std::vector<Command> commands_;
  std::deque<Arrival> arrivals_;
  std::deque<Arrival> queue_;
  std::map<std::uint32_t, BlockId> slot_of_;
  Arrival current_;
  bool running_ = false;
  TimeNs now_ = kSecond;
  TimeNs scheduled_at_ = 0;
  TimeNs finish_at_ = kTimeNever;
  Played result_;
};

TEST(LookAhead, HalvesTheStallOfDemandOnlyWithATenthOfTheFootprintInTheArena) {
  const Workload workload;
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    const Played off = Player(workload, false, seed).Run();
    const Played on = Player(workload, true, seed).Run();
    ASSERT_EQ(on.requests, off.requests);
    {
      double ideal = 0, zero = 0, zerow = 0;
      for (std::size_t i = 0; i < on.stalls.size(); ++i) {
        ideal += std::max<double>(0, off.stalls[i] - on.waits[i]);
        if (on.waits[i] < 1000000) {
          zero += on.stalls[i];
          zerow += 1;
        }
      }
      std::printf("ideal ratio %.3f; zero-lead requests %.0f of %zu stall share %.3f\n", ideal / off.stall, zerow,
                  on.stalls.size(), zero / on.stall);
      const CoreStats& t = on.stats;
      std::printf(
          "needed ready %lu inflight %lu dram %lu ssd %lu; off: ready %lu dram %lu ssd %lu; dram issued %lu useful %lu "
          "wasted %lu late %lu\n",
          t.needed_ready, t.needed_in_flight, t.needed_dram, t.needed_ssd, off.stats.needed_ready,
          off.stats.needed_dram, off.stats.needed_ssd, t.prefetch[1].issued, t.prefetch[1].ended[0],
          t.prefetch[1].ended[2], t.prefetch[1].ended[1]);
      for (int q = 0; q < 8; ++q) std::printf("suppressed[%d]=%lu ", q, t.suppressed[q]);
      std::printf("\n");
    }
    const double ratio = static_cast<double>(on.stall) / static_cast<double>(off.stall);
    const PrefetchLedger& ledger = on.stats.prefetch[static_cast<std::size_t>(Tier::kHbm)];
    RecordProperty("stall_ratio_seed_" + std::to_string(seed), std::to_string(ratio));
    std::printf(
        "seed %llu: stall %.1f ms a request with prefetch, %.1f ms demand-only, ratio %.3f; useful %llu of %llu\n",
        static_cast<unsigned long long>(seed), static_cast<double>(on.stall) / 1e6 / static_cast<double>(on.requests),
        static_cast<double>(off.stall) / 1e6 / static_cast<double>(off.requests), ratio,
        static_cast<unsigned long long>(ledger.ended[0]), static_cast<unsigned long long>(ledger.issued));
    EXPECT_GT(off.stall, 0);
    EXPECT_LE(ratio, 0.5) << "seed " << seed;
    EXPECT_EQ(off.stats.prefetch[static_cast<std::size_t>(Tier::kHbm)].issued, 0u);
  }
}

}  // namespace
}  // namespace foreload::core
