#include <gtest/gtest.h>

#include "prefetcher/core/session.h"
#include "prefetcher/core/tests/world.h"

namespace foreload::core {
namespace {

std::vector<std::uint32_t> BlocksOf(const std::vector<LoadToArena>& loads) {
  std::vector<std::uint32_t> ids;
  for (const LoadToArena& load : loads) ids.push_back(load.block.value);
  return ids;
}
std::vector<std::uint32_t> BlocksOf(const std::vector<LoadToDram>& loads) {
  std::vector<std::uint32_t> ids;
  for (const LoadToDram& load : loads) ids.push_back(load.block.value);
  return ids;
}

TEST(Admission, AQueuedRequestsPrefixIsLoadedInOrderInTheSameStep) {
  World w;
  w.EngineWith(8);
  w.InDram({1, 2, 3});
  w.Send(w.Queue(7, {1, 2, 3}));
  w.Step();
  EXPECT_EQ(BlocksOf(w.Last<LoadToArena>()), (std::vector<std::uint32_t>{1, 2, 3}));
  for (const LoadToArena& load : w.Last<LoadToArena>()) EXPECT_EQ(load.traffic, Traffic::kPrefetch);
}

TEST(Admission, BlocksOnSsdGoThroughDramIntoTheArena) {
  World w;
  w.EngineWith(8);
  w.OnSsd({1, 2});
  w.Send(w.Queue(7, {1, 2}));
  w.Step();
  EXPECT_EQ(BlocksOf(w.Last<LoadToDram>()), (std::vector<std::uint32_t>{1, 2}));
  EXPECT_TRUE(w.Last<LoadToArena>().empty());
  w.LastLoadsDone();
  w.Step();
  EXPECT_EQ(BlocksOf(w.Last<LoadToArena>()), (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(w.ended(Tier::kDram, Outcome::kUseful), 2u);
}

TEST(Admission, NothingAfterTheFirstAbsentBlockIsLoaded) {
  World w;
  w.EngineWith(8);
  w.OnSsd({1});
  w.Send(SsdRecovered{BlockId{3}, BlockId{2}, kBlockBytes});
  w.Step();
  w.Send(w.Queue(7, {1, 2, 3}));
  w.Settle();
  EXPECT_EQ(BlocksOf(w.Last<LoadToDram>()), (std::vector<std::uint32_t>{1}));
  EXPECT_EQ(BlocksOf(w.Last<LoadToArena>()), (std::vector<std::uint32_t>{1}));
}

TEST(Admission, WhatTheEngineHoldsItselfIsNotLoaded) {
  World w;
  w.EngineWith(8);
  w.InDram({1, 2});
  w.Send(KvStored{kEngine, BlockId{1}, BlockId{}, Tier::kHbm});
  w.Send(w.Queue(7, {1, 2}));
  w.Step();
  EXPECT_EQ(BlocksOf(w.Last<LoadToArena>()), (std::vector<std::uint32_t>{2}));
}

TEST(Admission, AnUnknownViewIsNotBelieved) {
  World w;
  w.EngineWith(8);
  w.InDram({1});
  w.Send(KvStored{kEngine, BlockId{1}, BlockId{}, Tier::kHbm});
  w.Send(KvUnknown{kEngine});
  w.Send(w.Queue(7, {1}));
  w.Step();
  EXPECT_EQ(w.Last<LoadToArena>().size(), 1u);
}

TEST(Admission, TheViewCountsOverlappingAnnouncements) {
  World w;
  w.EngineWith(8);
  w.InDram({1});
  w.Send(KvStored{kEngine, BlockId{1}, BlockId{}, Tier::kHbm});
  w.Send(KvStored{kEngine, BlockId{1}, BlockId{}, Tier::kHbm});
  w.Send(KvRemoved{kEngine, BlockId{1}, Tier::kHbm});
  w.Send(w.Queue(7, {1}));
  w.Step();
  EXPECT_TRUE(w.Last<LoadToArena>().empty());
  w.Send(KvRemoved{kEngine, BlockId{1}, Tier::kHbm});
  w.Step();
  EXPECT_EQ(w.Last<LoadToArena>().size(), 1u) << "the wanted block left the engine's cache";
}

TEST(Admission, ABlockThatTwoRequestsNeedIsLoadedOnce) {
  World w;
  w.EngineWith(8);
  w.InDram({1, 2, 3});
  w.Send(w.Queue(7, {1, 2}));
  w.Send(w.Queue(8, {1, 2, 3}));
  w.Step();
  EXPECT_EQ(BlocksOf(w.Last<LoadToArena>()), (std::vector<std::uint32_t>{1, 2, 3}));
}

TEST(Admission, SmallerPriorityIsServedFirstWhateverCameFirst) {
  CoreConfig config = SmallConfig();
  config.links[static_cast<std::size_t>(Link::kDramToHbm)].inflight_bytes_max = 2 * kBlockBytes;
  World w(config);
  w.EngineWith(8);
  w.InDram({1, 2});
  w.InDram({11, 12});
  w.Send(w.Queue(7, {1, 2}));
  RequestQueued urgent = w.Queue(8, {11, 12});
  urgent.priority = -5;
  w.Send(urgent);
  w.Step();
  EXPECT_EQ(BlocksOf(w.Last<LoadToArena>()), (std::vector<std::uint32_t>{11, 12}));
}

TEST(Admission, PrefetchInFlightStaysWithinTheLinksCap) {
  CoreConfig config = SmallConfig();
  config.links[static_cast<std::size_t>(Link::kSsdToDram)].inflight_bytes_max = 3 * kBlockBytes;
  World w(config);
  w.EngineWith(32);
  w.OnSsd(Iota(0, 16));
  w.Send(w.Queue(7, Iota(0, 16)));
  w.Step();
  EXPECT_EQ(w.Last<LoadToDram>().size(), 3u);
  w.Done(w.Last<LoadToDram>()[0].transfer);
  w.Step();
  EXPECT_EQ(w.Last<LoadToDram>().size(), 1u);
}

TEST(Admission, AnAbortCancelsWhatNobodyElseNeeds) {
  World w;
  w.EngineWith(8);
  w.InDram({1, 2});
  w.Send(w.Queue(7, {1, 2}));
  w.Send(w.Queue(8, {1}));
  w.Step();
  const auto loads = w.Last<LoadToArena>();
  ASSERT_EQ(loads.size(), 2u);
  w.Send(RequestAborted{RequestId{7}});
  w.Step();
  const auto cancels = w.Last<Cancel>();
  ASSERT_EQ(cancels.size(), 1u);
  EXPECT_EQ(cancels[0].transfer, loads[1].transfer);
  w.Done(loads[1].transfer, TransferStatus::kCancelled);
  w.Send(SlotFree{kEngine, loads[1].slot});
  w.Step();
  EXPECT_EQ(w.ended(Tier::kHbm, Outcome::kCancelled), 1u);
}

TEST(Admission, ALandedPrefetchThatIsUsedIsUseful) {
  World w;
  w.EngineWith(8);
  w.InDram({1});
  w.Send(w.Queue(7, {1}));
  w.Step();
  const LoadToArena load = w.Last<LoadToArena>().at(0);
  w.Done(load.transfer);
  w.Step(kMillisecond);
  w.Send(RequestScheduled{RequestId{7}});
  w.Send(SlotUsed{kEngine, load.slot});
  w.Step(kMillisecond);
  EXPECT_EQ(w.ended(Tier::kHbm, Outcome::kUseful), 1u);
  EXPECT_EQ(w.stats().needed_ready, 1u);
  EXPECT_EQ(w.stats().lead_count, 1u);
  EXPECT_NEAR(w.stats().lead_seconds_sum, 0.001, 1e-9);
}

TEST(Admission, AUseThatIsSeenBeforeTheCompletionIsUseful) {
  World w;
  w.EngineWith(8);
  w.InDram({1});
  w.Send(w.Queue(7, {1}));
  w.Step();
  const LoadToArena load = w.Last<LoadToArena>().at(0);
  w.Send(SlotUsed{kEngine, load.slot});
  w.Done(load.transfer);
  w.Step();
  EXPECT_EQ(w.ended(Tier::kHbm, Outcome::kUseful), 1u);
}

TEST(Admission, APrefetchInFlightAtSchedulingIsLateAndCountsOnce) {
  World w;
  w.EngineWith(8);
  w.InDram({1});
  w.Send(w.Queue(7, {1}));
  w.Step();
  const LoadToArena load = w.Last<LoadToArena>().at(0);
  w.Send(RequestScheduled{RequestId{7}});
  w.Step();
  EXPECT_EQ(w.ended(Tier::kHbm, Outcome::kLate), 1u);
  EXPECT_EQ(w.stats().needed_in_flight, 1u);
  w.Done(load.transfer);
  w.Send(SlotUsed{kEngine, load.slot});
  w.Step();
  EXPECT_EQ(w.ledger(Tier::kHbm).issued, 1u);
  EXPECT_EQ(w.ended(Tier::kHbm, Outcome::kUseful), 0u);
}

TEST(Admission, APrefetchForARequestThatNeverCameIsWastedAfterItsTime) {
  CoreConfig config = SmallConfig();
  config.prefetch_ttl_ns = 5 * kSecond;
  World w(config);
  w.EngineWith(8);
  w.InDram({1});
  RequestQueued announced = w.Queue(7, {1});
  announced.announced = true;
  announced.expected_start = w.now + kSecond;
  w.Send(announced);
  w.Step();
  ASSERT_EQ(w.Last<LoadToArena>().size(), 1u);
  w.LastLoadsDone();
  w.Step();
  w.Step(4 * kSecond);
  EXPECT_EQ(w.ledger(Tier::kHbm).live, 1u);
  for (int i = 0; i < 12; ++i) w.Step(kSecond);
  EXPECT_EQ(w.stats().requests_live, 0u);
  EXPECT_EQ(w.ended(Tier::kHbm, Outcome::kWasted), 1u);
}

TEST(Admission, AnAnnouncedRequestThatArrivesIsOneRequest) {
  World w;
  w.EngineWith(8);
  w.InDram({1});
  RequestQueued queued = w.Queue(7, {1});
  queued.announced = true;
  queued.expected_start = w.now + kSecond;
  w.Send(queued);
  w.Step();
  queued = w.Queue(7, {1});
  w.Send(queued);
  w.Step();
  EXPECT_EQ(w.stats().requests_live, 1u);
  EXPECT_EQ(w.ignored(IgnoredReason::kDuplicate), 0u);
  w.Send(w.Queue(7, {1}));
  w.Step();
  EXPECT_EQ(w.ignored(IgnoredReason::kDuplicate), 1u);
}

TEST(Admission, ADemandOnlyEngineIsNeverPrefetchedForAndItIsCounted) {
  World w;
  w.EngineWith(8, kEngine, EnginePolicy::kDemandOnly);
  w.InDram({1, 2});
  w.Send(w.Queue(7, {1, 2}));
  w.Settle();
  EXPECT_TRUE(w.Last<LoadToArena>().empty());
  EXPECT_EQ(w.suppressed(SuppressReason::kPolicy), 2u);
}

TEST(Admission, PolicyCanBeTurnedOffAndOn) {
  World w;
  w.EngineWith(8);
  w.InDram({1});
  w.Send(PolicyChanged{false});
  w.Send(w.Queue(7, {1}));
  w.Step();
  EXPECT_TRUE(w.Last<LoadToArena>().empty());
  w.Send(PolicyChanged{true});
  w.Step();
  EXPECT_EQ(w.Last<LoadToArena>().size(), 1u);
}

TEST(Admission, HeldOutSessionsAreNeverPrefetchedFor) {
  CoreConfig config = SmallConfig();
  config.hold_out_fraction = 1.0;
  World w(config);
  w.EngineWith(8);
  w.InDram({1});
  RequestQueued queued = w.Queue(7, {1});
  queued.session = SessionId{3};
  w.Send(queued);
  w.Settle();
  EXPECT_TRUE(w.Last<LoadToArena>().empty());
  EXPECT_EQ(w.suppressed(SuppressReason::kHoldOut), 1u);
}

TEST(Admission, HoldOutTakesItsShareOfSessions) {
  int held = 0;
  for (std::uint32_t i = 0; i < 10000; ++i) held += HeldOut(SessionKey(SessionId{i}), 0.05) ? 1 : 0;
  EXPECT_NEAR(held, 500, 100);
  EXPECT_FALSE(HeldOut(AnonymousKey(BlockId{5}), 1.0));
}

TEST(Admission, NothingIsLoadedThatRecomputingBeats) {
  World w;
  // One block takes 16 x 1 us = 16 us to compute and over 100 us to load.
  w.EngineWith(8, kEngine, EnginePolicy::kPredict, 1e-6);
  w.InDram({1, 2});
  RequestQueued queued = w.Queue(7, {1, 2});
  queued.expected_start = w.now;
  w.Send(queued);
  w.Settle();
  EXPECT_TRUE(w.Last<LoadToArena>().empty());
  EXPECT_EQ(w.suppressed(SuppressReason::kRecomputeFaster), 1u);
}

TEST(Admission, ASlowLoadThatIsHiddenBeforeTheStartIsMade) {
  World w;
  w.EngineWith(8, kEngine, EnginePolicy::kPredict, 1e-6);
  w.InDram({1, 2});
  RequestQueued queued = w.Queue(7, {1, 2});
  queued.expected_start = w.now + kSecond;
  w.Send(queued);
  w.Settle();
  EXPECT_EQ(w.Last<LoadToArena>().size(), 2u);
}

TEST(Admission, AGuessThatTheLinkCannotCarryInTimeIsNotMade) {
  World w;
  w.EngineWith(64);
  w.OnSsd(Iota(0, 32));
  RequestQueued announced = w.Queue(7, Iota(0, 32));
  announced.announced = true;
  announced.expected_start = w.now + 10 * kMillisecond;  // room for 0.8 x 10 blocks
  w.Send(announced);
  w.Step();
  EXPECT_EQ(w.Last<LoadToDram>().size(), 8u);
  EXPECT_EQ(w.suppressed(SuppressReason::kLinkBusy), 1u);
}

TEST(Admission, PrefetchLeavesAShareOfTheSlots) {
  CoreConfig config = SmallConfig();
  config.arena_prefetch_share_max = 0.5;
  World w(config);
  w.EngineWith(8);
  w.InDram(Iota(0, 8));
  w.Send(w.Queue(7, Iota(0, 8)));
  w.Settle();
  EXPECT_EQ(w.Last<LoadToArena>().size(), 4u);
}

TEST(Admission, FoundBlocksAddUp) {
  World w;
  w.EngineWith(2);
  w.InDram({1, 2, 3});
  w.OnSsd({4});
  w.Send(KvStored{kEngine, BlockId{1}, BlockId{}, Tier::kHbm});
  w.Send(w.Queue(7, {1, 2, 3, 4, 5}));
  w.Step();
  w.Send(RequestScheduled{RequestId{7}});
  w.Step();
  const CoreStats& s = w.stats();
  EXPECT_EQ(s.needed_blocks, 5u);
  EXPECT_EQ(s.needed_in_engine, 1u);
  EXPECT_EQ(s.needed_in_flight, 1u);
  EXPECT_EQ(s.needed_absent, 1u);
  EXPECT_EQ(s.needed_in_engine + s.needed_ready + s.needed_in_flight + s.needed_dram + s.needed_ssd + s.needed_absent,
            5u);
}

TEST(Admission, AFailedLoadIsNotPrefetchedAgainAtOnce) {
  World w;
  w.EngineWith(8);
  w.OnSsd({1});
  w.Send(w.Queue(7, {1}));
  w.Step();
  ASSERT_EQ(w.Last<LoadToDram>().size(), 1u);
  w.Done(w.Last<LoadToDram>()[0].transfer, TransferStatus::kIoError);
  w.Step(kMillisecond);
  EXPECT_TRUE(w.Last<LoadToDram>().empty());
  EXPECT_EQ(w.ended(Tier::kDram, Outcome::kFailed), 1u);
  w.Step(2 * kSecond);
  EXPECT_EQ(w.Last<LoadToDram>().size(), 1u) << "later it may be tried again";
}

TEST(Admission, APublisherThatIsNotRegisteredGetsNoLoads) {
  World w;
  w.EngineWith(8);
  w.InDram({1});
  w.Send(w.Queue(7, {1}, EngineId{5}));
  w.Settle();
  EXPECT_TRUE(w.Last<LoadToArena>().empty());
  EXPECT_EQ(w.stats().requests_live, 1u);
}

}  // namespace
}  // namespace foreload::core
