#include "cmd/drive/engine_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace foreload::drive {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Blocks = std::vector<std::uint64_t>;

class ListSource final : public replay::TraceSource {
 public:
  // Blocks of 10 tokens; `tail` tokens behind the last full block.
  replay::TraceRequest& Add(double seconds, Blocks blocks, std::uint32_t tail = 5, std::uint32_t output = 1) {
    replay::TraceRequest request;
    request.arrival = static_cast<TimeNs>(seconds * 1e9);
    request.block_tokens = 10;
    request.input_tokens = static_cast<std::uint32_t>(blocks.size()) * 10 + tail;
    request.output_tokens = output;
    request.blocks = std::move(blocks);
    requests_.push_back(request);
    return requests_.back();
  }
  Result<bool> Next(replay::TraceRequest& request) override {
    if (next_ == requests_.size()) return false;
    request = requests_[next_++];
    return true;
  }
  const replay::TraceStats& stats() const override { return stats_; }

 private:
  std::vector<replay::TraceRequest> requests_;
  std::size_t next_ = 0;
  replay::TraceStats stats_;
};

// A scripted outside world: which blocks are READY, what a fetch brings and when, and a log of all that the engine
// said.
class ScriptPort final : public EnginePort {
 public:
  explicit ScriptPort(const ManualClock& clock) : clock_(clock) {}

  void Announce(EngineRequest& request, RequestState state) override {
    static constexpr const char* kNames[] = {"queued", "scheduled", "first token", "finished"};
    log.push_back(std::to_string(request.record.number) + " " + kNames[static_cast<int>(state)]);
  }
  Result<std::uint32_t> ReadReady(const EngineRequest& request, std::uint32_t first) override {
    if (wrong_bytes) return DataLoss("wrong");
    std::uint32_t n = 0;
    while (first + n < request.usable_blocks && ready.contains(request.trace.blocks[first + n])) ++n;
    return n;
  }
  std::optional<std::uint64_t> StartFetch(const EngineRequest& request, std::uint32_t first,
                                          DurationNs deadline) override {
    if (!connected) return std::nullopt;
    deadlines.push_back(deadline);
    Fetch fetch;
    fetch.ends = clock_.Now() + fetch_takes;
    for (std::uint32_t i = first; i < request.usable_blocks; ++i) fetch.blocks.push_back(request.trace.blocks[i]);
    fetches.emplace(++tickets, fetch);
    return tickets;
  }
  std::optional<FetchOutcome> PollFetch(std::uint64_t ticket) override {
    Fetch& fetch = fetches.at(ticket);
    if (clock_.Now() < fetch.ends) return std::nullopt;
    FetchOutcome outcome;
    outcome.timed_out = fetch_times_out;
    for (const std::uint64_t block : fetch.blocks) {
      if (!stored.contains(block) || fetch_times_out) continue;
      ready.insert(block);
      ++outcome.ssd_blocks;
    }
    fetches.erase(ticket);
    return outcome;
  }
  StoreOutcome Store(const EngineRequest& request, std::uint32_t index) override {
    if (ring_full) return StoreOutcome::kFull;
    const std::uint32_t prompt = request.record.full_blocks;
    stored.insert(index < prompt ? request.trace.blocks[index] : request.trace.output_blocks[index - prompt]);
    return StoreOutcome::kStored;
  }
  void PublishStored(const EngineRequest& request, std::uint32_t first, std::uint32_t count) override {
    for (std::uint32_t i = first; i < first + count; ++i) {
      const std::uint32_t prompt = request.record.full_blocks;
      const std::uint64_t block = i < prompt ? request.trace.blocks[i] : request.trace.output_blocks[i - prompt];
      EXPECT_TRUE(published.insert(block).second) << "announced twice without a removal: " << block;
    }
  }
  void PublishRemoved(std::span<const std::uint64_t> blocks) override {
    for (const std::uint64_t block : blocks) {
      EXPECT_EQ(published.erase(block), 1u) << "removed what was not there: " << block;
      removed.push_back(block);
    }
  }
  void EndStep() override { ++steps; }

  TimeNs NextFetchEnd() const {
    TimeNs next = kTimeNever;
    for (const auto& [ticket, fetch] : fetches) next = std::min(next, fetch.ends);
    return next;
  }

  struct Fetch {
    TimeNs ends = 0;
    Blocks blocks;
  };
  const ManualClock& clock_;
  std::set<std::uint64_t> ready;      // in the arena
  std::set<std::uint64_t> stored;     // in the sidecar's tiers
  std::set<std::uint64_t> published;  // in the engine's cache, as told
  Blocks removed;
  std::map<std::uint64_t, Fetch> fetches;
  std::uint64_t tickets = 0;
  std::vector<DurationNs> deadlines;
  std::vector<std::string> log;
  DurationNs fetch_takes = 100 * kMillisecond;
  bool connected = true;
  bool fetch_times_out = false;
  bool ring_full = false;
  bool wrong_bytes = false;
  int steps = 0;
};

class EngineModelTest : public testing::Test {
 protected:
  // 100 tokens/s: a block of 10 takes 100 ms. One token a second is decoded.
  EngineConfig config{.prefill_tokens_per_second = 100,
                      .decode_seconds_per_token = 1,
                      .sequences_max = 8,
                      .admitted_max = 1,
                      .cache_blocks = 100,
                      .demand_deadline = 60 * kSecond};
  ManualClock clock;
  ListSource source;
  ScriptPort port{clock};

  Status RunToEnd() {
    EngineModel model(config, source, port, 0);
    Status status = OkStatus();
    for (int i = 0; i < 100'000; ++i) {
      status = model.Advance(clock.Now());
      if (!status.ok() || model.done()) break;
      const TimeNs wake = std::min(model.NextWake(), port.NextFetchEnd());
      EXPECT_NE(wake, kTimeNever) << "waits for nothing";
      if (wake == kTimeNever) break;
      EXPECT_GT(wake, clock.Now());
      clock.Set(wake);
    }
    EXPECT_TRUE(!status.ok() || model.done());
    records = model.finished();
    counts = model.counts();
    std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
    for (const RequestRecord& r : records) {
      EXPECT_EQ(r.full_blocks, r.own_blocks + r.arena_blocks + r.demand_dram_blocks + r.demand_ssd_blocks +
                                   r.demand_joined_blocks + r.recomputed_blocks)
          << "request " << r.number;
    }
    return status;
  }

  std::vector<RequestRecord> records;
  EngineCounts counts;
};

constexpr TimeNs Ms(std::int64_t n) {
  return n * kMillisecond;
}

TEST_F(EngineModelTest, ComputesAColdPromptAfterTheFetchFoundNothing) {
  source.Add(1, {1, 2, 3}, 5, 3);
  ASSERT_TRUE(RunToEnd().ok());
  ASSERT_EQ(records.size(), 1u);
  const RequestRecord& r = records[0];
  EXPECT_EQ(r.arrival, Ms(1000));
  EXPECT_EQ(r.scheduled, Ms(1000));
  EXPECT_EQ(r.stall, Ms(100)) << "the fetch that found nothing";
  EXPECT_EQ(r.prefill_started, Ms(1100));
  EXPECT_EQ(r.first_token, Ms(1450)) << "35 tokens at 100/s";
  EXPECT_EQ(r.finished, Ms(3450)) << "two more tokens";
  EXPECT_EQ(r.recomputed_blocks, 3u);
  EXPECT_EQ(r.recomputed_stored_blocks, 0u);
  EXPECT_EQ(counts.stores, 3u);
  EXPECT_THAT(port.log, ElementsAre("0 queued", "0 scheduled", "0 first token", "0 finished"));
}

TEST_F(EngineModelTest, TakesOwnHitsThenTheArenaThenADemandFetchThenComputesTheRest) {
  port.stored = {3, 4};
  port.ready = {2};
  source.Add(0, {1}, 5);
  source.Add(10, {1, 2, 3, 4, 5});
  ASSERT_TRUE(RunToEnd().ok());
  const RequestRecord& r = records[1];
  EXPECT_EQ(r.own_blocks, 1u);
  EXPECT_EQ(r.arena_blocks, 1u);
  EXPECT_EQ(r.demand_ssd_blocks, 2u);
  EXPECT_EQ(r.recomputed_blocks, 1u);
  EXPECT_EQ(r.stall, Ms(100));
  EXPECT_EQ(r.first_token - r.prefill_started, Ms(150)) << "the fifth block and 5 tokens";
  EXPECT_EQ(port.deadlines.back(), Ms(300)) << "recomputing the three missing blocks takes 300 ms";
}

TEST_F(EngineModelTest, BoundsTheDeadlineByTheConfiguredOne) {
  config.demand_deadline = Ms(70);
  source.Add(0, {1, 2, 3});
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_THAT(port.deadlines, ElementsAre(Ms(70)));
}

TEST_F(EngineModelTest, NeverStallsWhenEverythingIsReady) {
  port.ready = {1, 2, 3};
  source.Add(0, {1, 2, 3});
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_EQ(records[0].arena_blocks, 3u);
  EXPECT_EQ(records[0].stall, 0);
  EXPECT_FALSE(records[0].fetched);
  EXPECT_EQ(records[0].first_token, Ms(50)) << "the partly filled block alone";
}

TEST_F(EngineModelTest, AlwaysComputesTheLastTokenOfAFullyCachedPrompt) {
  port.ready = {1, 2};
  source.Add(0, {1, 2}, 0);
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_EQ(records[0].arena_blocks, 1u);
  EXPECT_EQ(records[0].recomputed_blocks, 1u);
  EXPECT_EQ(records[0].first_token, Ms(100));
}

TEST_F(EngineModelTest, RecomputesWithoutWaitingWhenNobodyAnswers) {
  port.connected = false;
  source.Add(0, {1, 2});
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_EQ(records[0].stall, 0);
  EXPECT_TRUE(records[0].fetch_refused);
  EXPECT_EQ(records[0].first_token, Ms(250));
}

TEST_F(EngineModelTest, RecomputesWhatTimedOutAndSaysThatItWasThere) {
  config.cache_blocks = 3;  // the second request pushes the first one's blocks out
  source.Add(0, {1, 2}, 5);
  source.Add(10, {7, 8}, 5);
  source.Add(20, {1, 2}, 5);
  port.fetch_times_out = true;
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_TRUE(records[2].fetch_timed_out);
  EXPECT_EQ(records[2].recomputed_blocks, 2u);
  EXPECT_EQ(records[2].recomputed_stored_blocks, 2u);
  EXPECT_EQ(counts.fetches_timed_out, 3u);
}

TEST_F(EngineModelTest, ServesTheQueueInOrderOfArrivalWithOnePrefillServer) {
  source.Add(0, {1});
  source.Add(0, {2});
  source.Add(0, {3});
  port.connected = false;
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_EQ(records[0].first_token, Ms(150));
  EXPECT_EQ(records[1].scheduled, Ms(150));
  EXPECT_EQ(records[1].first_token, Ms(300));
  EXPECT_EQ(records[2].first_token, Ms(450));
}

TEST_F(EngineModelTest, ServesSmallerPrioritiesFirstWhenToldTo) {
  config.priority_queue = true;
  source.Add(0, {1});
  source.Add(0.01, {2}).priority = 5;
  source.Add(0.02, {3}).priority = 1;
  port.connected = false;
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_LT(records[2].first_token, records[1].first_token);
}

TEST_F(EngineModelTest, LoadsOfOneRequestOverlapThePrefillOfAnotherWhenTwoAreAdmitted) {
  source.Add(0, {1});
  source.Add(0, {2});
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_EQ(records[1].first_token, Ms(100 + 150 + 100 + 150)) << "synchronous: the server waits for each load";

  config.admitted_max = 2;
  ListSource again;
  again.Add(0, {1});
  again.Add(0, {2});
  ManualClock other_clock;
  ScriptPort other(other_clock);
  EngineModel model(config, again, other, 0);
  while (!model.done()) {
    ASSERT_TRUE(model.Advance(other_clock.Now()).ok());
    if (!model.done()) other_clock.Set(std::min(model.NextWake(), other.NextFetchEnd()));
  }
  EXPECT_EQ(model.finished()[1].first_token, Ms(100 + 150 + 150));
}

TEST_F(EngineModelTest, LimitsSequencesThatAreScheduledAndNotFinished) {
  config.sequences_max = 1;
  port.connected = false;
  source.Add(0, {1}, 5, 11);
  source.Add(0, {2});
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_EQ(records[1].scheduled, records[0].finished);
}

TEST_F(EngineModelTest, WaitsForPagesThatRunningRequestsHold) {
  config.cache_blocks = 6;
  port.connected = false;
  source.Add(0, {1, 2, 3}, 5, 21);  // 5 blocks with its output, for 20 s
  source.Add(1, {4, 5}, 5);
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_EQ(records[1].scheduled, records[0].finished);
}

TEST_F(EngineModelTest, DropsARequestThatTheCacheCouldNeverHold) {
  config.cache_blocks = 3;
  source.Add(0, {1, 2, 3, 4});
  source.Add(1, {1});
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_EQ(counts.too_large, 1u);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].number, 1u);
}

TEST_F(EngineModelTest, HoldsATurnBackUntilTheOneBeforeIsAnswered) {
  port.connected = false;
  for (int turn = 0; turn < 3; ++turn) {
    auto& request = source.Add(turn * 0.1, {1}, 5, 2);
    request.session = 7;
  }
  source.Add(0.05, {2}, 5, 2).session = 8;
  ASSERT_TRUE(RunToEnd().ok());
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[1].arrival, records[0].finished) << "its wait for the answer is not the engine's delay";
  EXPECT_EQ(records[2].arrival, records[1].finished);
  EXPECT_EQ(records[1].own_blocks, 1u);
}

TEST_F(EngineModelTest, StoresOutputBlocksAtTheEndAndHitsThemInTheNextTurn) {
  auto& first = source.Add(0, {1}, 0, 20);
  first.output_blocks = {2, 3};
  source.Add(100, {1, 2, 3}, 5);
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_EQ(records[1].own_blocks, 3u);
  EXPECT_EQ(counts.stores, 3u);
}

TEST_F(EngineModelTest, TellsEveryChangeOfItsCache) {
  config.cache_blocks = 5;
  for (int i = 0; i < 30; ++i) {
    const auto base = static_cast<std::uint64_t>(i % 4) * 10;
    source.Add(i * 5, {base, base + 1, base + 2});
  }
  ASSERT_TRUE(RunToEnd().ok());  // the port checks that nothing is announced twice or removed without being there
  EXPECT_LE(port.published.size(), 5u);
  EXPECT_FALSE(port.removed.empty());
}

TEST_F(EngineModelTest, CountsStoresThatFoundNoPlace) {
  port.ring_full = true;
  source.Add(0, {1, 2});
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_EQ(counts.stores_full, 2u);
  EXPECT_EQ(counts.stores, 0u);
}

TEST_F(EngineModelTest, StopsAtWrongBytes) {
  port.wrong_bytes = true;
  source.Add(0, {1, 2});
  EXPECT_EQ(RunToEnd().code(), StatusCode::kDataLoss);
}

TEST_F(EngineModelTest, DividesArrivalsBySpeedUp) {
  config.speed_up = 4;
  source.Add(8, {1});
  ASSERT_TRUE(RunToEnd().ok());
  EXPECT_EQ(records[0].arrival, Ms(2000));
}

}  // namespace
}  // namespace foreload::drive
