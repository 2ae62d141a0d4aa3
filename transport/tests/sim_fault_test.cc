// The two backends that exist for tests: what they promise beyond the contract.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "transport/fault/fault_backend.h"
#include "transport/host/host_backend.h"
#include "transport/sim/sim_backend.h"

namespace foreload {
namespace {

Transfer Of(RegionId from, RegionId to, std::uint64_t token, std::uint64_t bytes) {
  return {.token = token, .source = from, .destination = to, .bytes = bytes};
}

TEST(SimBackendTest, TransfersQueueForTheLinkAndPayTheLatencyOnce) {
  ManualClock clock;
  SimBackend sim(clock, {.bytes_per_second = 1e9, .latency_ns = 500});
  // A terabyte that exists only in the model.
  const RegionId from = sim.Register({.bytes = std::uint64_t{1} << 40}).value();
  const RegionId to = sim.Register({.bytes = std::uint64_t{1} << 40}).value();
  const std::array<Transfer, 2> two{Of(from, to, 1, 1000), Of(from, to, 2, 2000)};
  ASSERT_EQ(sim.Submit(two), 2u);
  std::array<Completion, 4> done;
  EXPECT_EQ(sim.next_completion_at(), 1500);
  clock.Set(1499);
  EXPECT_EQ(sim.Poll(done), 0u);
  clock.Set(1500);
  ASSERT_EQ(sim.Poll(done), 1u);
  EXPECT_EQ(done[0].token, 1u);
  EXPECT_EQ(sim.next_completion_at(), 3500);
  clock.Set(10'000);
  ASSERT_EQ(sim.Poll(done), 1u);
  EXPECT_EQ(done[0].bytes, 2000u);
  EXPECT_EQ(sim.next_completion_at(), kTimeNever);
  const Transfer later = Of(from, to, 3, 1000);
  ASSERT_EQ(sim.Submit({&later, 1}), 1u);
  EXPECT_EQ(sim.next_completion_at(), 11'500) << "an idle link starts at once";
  clock.Set(11'500);
  EXPECT_EQ(sim.Poll(done), 1u);
}

struct Rig {
  explicit Rig(FaultOptions options) : fault(std::make_unique<HostBackend>(), options) {
    from = fault.Register({.base = source.data(), .bytes = source.size()}).value();
    to = fault.Register({.base = destination.data(), .bytes = destination.size()}).value();
  }
  // The transfer's completion and how many polls it took.
  std::pair<Completion, int> Run(std::uint64_t bytes) {
    const Transfer transfer = Of(from, to, 9, bytes);
    while (fault.Submit({&transfer, 1}) == 0) ++refusals;
    Completion completion;
    int polls = 1;
    while (fault.Poll({&completion, 1}) == 0) ++polls;
    return {completion, polls};
  }
  std::vector<std::uint8_t> source = std::vector<std::uint8_t>(1000, 7);
  std::vector<std::uint8_t> destination = std::vector<std::uint8_t>(1000, 0);
  FaultBackend fault;
  RegionId from;
  RegionId to;
  int refusals = 0;
};

TEST(FaultBackendTest, ScriptsActOnTheNextTransfersAndAreThenUsedUp) {
  Rig rig({});
  rig.fault.FailNext(TransferError::kIo, EIO);
  rig.fault.ShortenNext();
  rig.fault.DelayNext(3);
  rig.fault.RefuseNextSubmits(2);
  const auto [failed, failed_polls] = rig.Run(100);
  EXPECT_EQ(rig.refusals, 2);
  EXPECT_EQ(failed.error, TransferError::kIo);
  EXPECT_EQ(failed.errnum, EIO);
  EXPECT_EQ(failed.token, 9u);
  EXPECT_EQ(rig.destination[0], 0) << "failed at once: not performed";
  const auto [shortened, short_polls] = rig.Run(100);
  EXPECT_EQ(shortened.error, TransferError::kShort);
  EXPECT_EQ(shortened.bytes, 99u);
  EXPECT_EQ(rig.destination[98], 7);
  EXPECT_EQ(rig.destination[99], 0);
  const auto [delayed, delayed_polls] = rig.Run(100);
  EXPECT_EQ(delayed.error, TransferError::kNone);
  EXPECT_EQ(delayed_polls, 4);
  const auto [ordinary, ordinary_polls] = rig.Run(100);
  EXPECT_EQ(ordinary.error, TransferError::kNone);
  EXPECT_EQ(ordinary_polls, 1);
}

TEST(FaultBackendTest, OneSeedGivesOneSequence) {
  const auto story = [](std::uint64_t seed) {
    Rig rig({.seed = seed,
             .fail_probability = 0.3,
             .short_probability = 0.3,
             .delay_probability = 0.3,
             .refuse_probability = 0.3});
    std::string text;
    for (int i = 0; i < 50; ++i) {
      const auto [completion, polls] = rig.Run(100);
      text += std::to_string(static_cast<int>(completion.error)) + "," + std::to_string(polls) + "," +
              std::to_string(rig.refusals) + ";";
    }
    return text;
  };
  EXPECT_EQ(story(1), story(1));
  EXPECT_NE(story(1), story(2));
  EXPECT_NE(story(1).find("3,"), std::string::npos) << "some fail with kIo";
  EXPECT_NE(story(1).find("2,"), std::string::npos) << "some are short";
}

TEST(FaultBackendTest, WhatIsHeldStillPinsItsRegions) {
  Rig rig({});
  rig.fault.Hold();
  const Transfer transfer = Of(rig.from, rig.to, 1, 10);
  ASSERT_EQ(rig.fault.Submit({&transfer, 1}), 1u);
  Completion completion;
  EXPECT_EQ(rig.fault.Poll({&completion, 1}), 0u);
  EXPECT_EQ(rig.fault.Unregister(rig.to).code(), StatusCode::kFailedPrecondition);
  rig.fault.Release();
  EXPECT_EQ(rig.fault.Poll({&completion, 1}), 1u);
  EXPECT_TRUE(rig.fault.Unregister(rig.to).ok());
}

}  // namespace
}  // namespace foreload
