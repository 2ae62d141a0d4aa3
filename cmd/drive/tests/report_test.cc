#include "cmd/drive/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "replay/trace_json.h"

namespace foreload::drive {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Quantile, IsTheNearestRank) {
  EXPECT_EQ(Quantile({}, 0.5), 0);
  EXPECT_EQ(Quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(Quantile({4, 3, 1, 2}, 0.5), 2);
  std::vector<double> hundred;
  for (int i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_EQ(Quantile(hundred, 0.99), 99);
  EXPECT_EQ(Quantile(hundred, 1), 100);
  EXPECT_EQ(Quantile(hundred, 0), 1);
}

PhaseRun Run(Phase phase, DurationNs stall, std::uint64_t mismatches = 0) {
  PhaseRun run;
  run.phase = phase;
  for (int i = 0; i < 10; ++i) {
    RequestRecord record;
    record.scheduled = 5 * kMillisecond;
    record.first_token = 50 * kMillisecond;
    record.stall = stall;
    record.full_blocks = 10;
    record.arena_blocks = 4;
    record.recomputed_blocks = 6;
    run.records.push_back(record);
  }
  run.live.loaded_fetch_seconds = {0.01};
  run.live.mismatches = mismatches;
  run.live.verified_bytes = 5u << 20;
  for (const char* tier : {"hbm", "dram"}) {
    const std::string prefix = std::string("prefetch.") + tier + ".";
    run.status[prefix + "issued"] = 10;
    run.status[prefix + "useful"] = 6;
    run.status[prefix + "late"] = 1;
    run.status[prefix + "wasted"] = 1;
    run.status[prefix + "cancelled"] = 0;
    run.status[prefix + "failed"] = 0;
    run.status[prefix + "live"] = 2;
  }
  return run;
}

Report Example(std::uint64_t mismatches = 0) {
  Report report;
  report.scenario.name = "x";
  report.scenario.block_bytes = 65536;
  report.workload = "generator";
  report.profile.requests = 10;
  report.profile.unique_blocks = 100;
  report.profile.block_tokens = 16;
  report.runs.push_back(Run(Phase::kDemand, 20 * kMillisecond));
  report.runs.push_back(Run(Phase::kPrefetch, 5 * kMillisecond, mismatches));
  report.runs.push_back(Run(Phase::kDemand, 20 * kMillisecond));
  return report;
}

TEST(Report, PoolsRunsOfAPhaseAndComparesStalls) {
  const Report report = Example();
  const PhaseSummary demand = Summarise({&report.runs[0], &report.runs[2]});
  EXPECT_EQ(demand.runs, 2u);
  EXPECT_EQ(demand.requests, 20u);
  EXPECT_NEAR(demand.stall_total, 0.2, 1e-9) << "of one run";
  EXPECT_NEAR(demand.arena, 0.4, 1e-9);
  EXPECT_NEAR(demand.ttft_p50, 0.05, 1e-9);
  EXPECT_NEAR(demand.hbm.accuracy(), 12.0 / 16, 1e-9);
  const std::string text = ReportText(report);
  EXPECT_THAT(text, HasSubstr("Stall with prefetch: 0.25 x demand-only"));
  EXPECT_THAT(text, HasSubstr("offered load"));
  EXPECT_THAT(text, Not(HasSubstr("WRONG BYTES")));
}

TEST(Report, ShoutsAtWrongBytes) {
  const Report report = Example(3);
  EXPECT_EQ(Mismatches(report), 3u);
  EXPECT_THAT(ReportText(report), HasSubstr("WRONG BYTES: 3 mismatches"));
}

TEST(Report, IsJsonWithTheSameFigures) {
  auto numbers = replay::FlattenJsonNumbers(ReportJson(Example()));
  ASSERT_TRUE(numbers.ok()) << numbers.status().ToString();
  EXPECT_NEAR((*numbers)["stall_ratio"], 0.25, 1e-9);
  EXPECT_EQ((*numbers)["mismatches"], 0);
  EXPECT_EQ((*numbers)["phases.0.prefetch_hbm.useful"], 12);
  EXPECT_NEAR((*numbers)["phases.1.block_shares.arena_ready"], 0.4, 1e-9);
  EXPECT_EQ((*numbers).count("runs.2.requests"), 1u);
}

TEST(Report, SaysThatASilentSidecarSaidNothing) {
  Report report = Example();
  for (PhaseRun& run : report.runs) run.status.clear();
  EXPECT_EQ(Summarise({&report.runs[0]}).hbm.useful, -1);
  EXPECT_THAT(ReportText(report), HasSubstr(" -"));
}

}  // namespace
}  // namespace foreload::drive
