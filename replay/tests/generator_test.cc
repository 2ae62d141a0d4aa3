#include "replay/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_set>
#include <vector>

#include "replay/workload_profile.h"

namespace foreload::replay {
namespace {

std::vector<TraceRequest> Generate(const GeneratorConfig& config) {
  auto source = MakeGenerator(config);
  EXPECT_TRUE(source.ok());
  std::vector<TraceRequest> requests;
  TraceRequest request;
  while (*(*source)->Next(request)) requests.push_back(request);
  return requests;
}

// 40,000 requests; the last sessions are cut off by the end, so statistics of returns look at sessions that started in
// the first half.
GeneratorConfig Large() {
  GeneratorConfig config;
  config.seed = 42;
  config.requests = 40'000;
  config.sessions_per_second = 4;
  return config;
}

TEST(Generator, GivesTheSameRequestsEachTimeAndOthersForAnotherSeed) {
  GeneratorConfig config;
  config.requests = 500;
  const auto a = Generate(config);
  const auto b = Generate(config);
  ASSERT_EQ(a.size(), 500u);
  ASSERT_EQ(b.size(), 500u);
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].arrival, b[i].arrival);
    ASSERT_EQ(a[i].blocks, b[i].blocks);
    ASSERT_EQ(a[i].output_blocks, b[i].output_blocks);
    ASSERT_EQ(a[i].output_tokens, b[i].output_tokens);
    if (i > 0) {
      ASSERT_GE(a[i].arrival, a[i - 1].arrival);
    }
  }
  config.seed = 2;
  EXPECT_NE(Generate(config)[7].arrival, a[7].arrival);
}

TEST(Generator, ContinuesSessionsWithThePublishedProbabilities) {
  const auto requests = Generate(Large());
  const TimeNs half = requests.back().arrival / 2;
  std::map<std::uint64_t, std::uint32_t> turns;
  std::unordered_set<std::uint64_t> early;
  for (const TraceRequest& request : requests) {
    if (request.turn == 1 && request.arrival < half) early.insert(request.session);
    if (early.contains(request.session)) turns[request.session] = request.turn;
  }
  std::map<std::uint32_t, double> reached;
  for (const auto& [session, last] : turns) {
    for (std::uint32_t t = 1; t <= last; ++t) ++reached[t];
  }
  for (std::uint32_t turn = 1; turn <= 6; ++turn) {
    const double n = reached[turn];
    const double p = NextTurnProbability(turn);
    // Four standard errors, and half a per cent for sessions that outlive the trace.
    EXPECT_NEAR(reached[turn + 1] / n, p, 4 * std::sqrt(p * (1 - p) / n) + 0.005) << "turn " << turn;
  }
  EXPECT_DOUBLE_EQ(NextTurnProbability(1), .34);
  EXPECT_DOUBLE_EQ(NextTurnProbability(8), .82);
  EXPECT_DOUBLE_EQ(NextTurnProbability(100), .82);
}

TEST(Generator, SpacesTurnsByThePublishedQuantiles) {
  const auto requests = Generate(Large());
  const TimeNs half = requests.back().arrival / 2;
  std::map<std::uint64_t, TimeNs> last;
  std::vector<double> gaps;
  for (const TraceRequest& request : requests) {
    const auto it = last.find(request.session);
    if (it != last.end() && it->second < half) gaps.push_back(static_cast<double>(request.arrival - it->second) / 1e9);
    last[request.session] = request.arrival;
  }
  ASSERT_GT(gaps.size(), 5000u);
  std::sort(gaps.begin(), gaps.end());
  const auto quantile = [&](double q) { return gaps[static_cast<std::size_t>(q * static_cast<double>(gaps.size()))]; };
  EXPECT_NEAR(quantile(.1), 42, 3);
  EXPECT_NEAR(quantile(.5), 123, 6);
  EXPECT_NEAR(quantile(.9), 483, 35);
}

TEST(Generator, MakesPromptsAndOutputsOfThePublishedLengths) {
  const auto requests = Generate(Large());
  double input = 0;
  double output = 0;
  for (const TraceRequest& request : requests) {
    input += request.input_tokens;
    output += request.output_tokens;
    ASSERT_EQ(request.full_blocks(), request.blocks.size());
  }
  const auto n = static_cast<double>(requests.size());
  EXPECT_NEAR(input / n, 12'035, 12'035 * 0.05);
  EXPECT_NEAR(output / n, 343, 343 * 0.05);
}

TEST(Generator, RepeatsASessionsHistoryAndSharesSystemPrompts) {
  GeneratorConfig config;
  config.requests = 2000;
  config.sessions_per_second = 0.2;
  const auto requests = Generate(config);
  std::map<std::uint64_t, std::vector<std::uint64_t>> history;
  std::size_t later_turns = 0;
  for (const TraceRequest& request : requests) {
    const auto& before = history[request.session];
    ASSERT_LE(before.size(), request.blocks.size());
    ASSERT_TRUE(std::equal(before.begin(), before.end(), request.blocks.begin()));
    later_turns += before.empty() ? 0 : 1;
    history[request.session] = request.blocks;
    history[request.session].insert(history[request.session].end(), request.output_blocks.begin(),
                                    request.output_blocks.end());
  }
  EXPECT_GT(later_turns, 500u);
  std::unordered_set<std::uint64_t> system;
  for (const auto& [session, blocks] : history) system.insert(blocks.front());
  EXPECT_EQ(system.size(), config.system_prompts);
}

TEST(Generator, HasLaterTurnsFromTheStartWhenItIsWarm) {
  GeneratorConfig config;
  config.requests = 300;
  config.warm_start_seconds = 2000;
  config.sessions_per_second = 1;
  const auto requests = Generate(config);
  ASSERT_EQ(requests.size(), 300u);
  EXPECT_GE(requests.front().arrival, 0);
  const auto later = std::count_if(requests.begin(), requests.end(), [](const auto& r) { return r.turn > 1; });
  EXPECT_GT(later, 300 * 0.35) << "45 % of all requests are later turns once they have built up";
}

TEST(Generator, RefusesImpossibleConfigurations) {
  EXPECT_FALSE(MakeGenerator({.sessions_per_second = 0}).ok());
  EXPECT_FALSE(MakeGenerator({.block_tokens = 0}).ok());
  EXPECT_FALSE(MakeGenerator({.length_scale = 0}).ok());
}

TEST(WorkloadProfile, CountsFootprintSharingAndOfferedLoad) {
  class Fixed final : public TraceSource {
   public:
    Result<bool> Next(TraceRequest& request) override {
      if (n_ == 2) return false;
      request = {};
      request.arrival = static_cast<TimeNs>(n_) * 10 * kSecond;
      request.block_tokens = 10;
      request.input_tokens = 35;
      request.output_tokens = 10;
      request.blocks = n_ == 0 ? std::vector<std::uint64_t>{1, 2, 3, 4} : std::vector<std::uint64_t>{1, 2, 9, 10};
      ++n_;
      return true;
    }
    const TraceStats& stats() const override { return stats_; }

   private:
    int n_ = 0;
    TraceStats stats_;
  } source;
  auto profile = ProfileWorkload(
      source, {.prefill_tokens_per_second = 10, .decode_seconds_per_token = 0.4, .sequences_max = 4, .speed_up = 2});
  ASSERT_TRUE(profile.ok());
  EXPECT_EQ(profile->blocks, 6u);
  EXPECT_EQ(profile->unique_blocks, 4u) << "the partly filled fourth block is no block";
  EXPECT_EQ(profile->shared_blocks, 2u);
  EXPECT_EQ(profile->largest_blocks, 5u);
  EXPECT_DOUBLE_EQ(profile->span_seconds, 5);
  EXPECT_DOUBLE_EQ(profile->service_seconds, 3.5 + 1.5 + 2 * 1.0);
  EXPECT_DOUBLE_EQ(profile->offered_load(), 7.0 / 5);
}

}  // namespace
}  // namespace foreload::replay
