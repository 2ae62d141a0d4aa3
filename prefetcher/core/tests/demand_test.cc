#include <gtest/gtest.h>

#include "prefetcher/core/tests/world.h"

namespace foreload::core {
namespace {

TEST(Demand, AllMissesAreSubmittedAtOnceAndInOrderAsDemand) {
  World w;
  w.EngineWith(8);
  w.InDram({1, 2});
  w.Send(SsdRecovered{BlockId{3}, BlockId{2}, kBlockBytes});
  w.Step();
  w.Send(Ask(w, 1, {1, 2, 3}));
  w.Step();
  const auto arena = w.Last<LoadToArena>();
  ASSERT_EQ(arena.size(), 2u);
  EXPECT_EQ(arena[0].block, BlockId{1});
  EXPECT_EQ(arena[1].block, BlockId{2});
  EXPECT_EQ(arena[0].traffic, Traffic::kDemand);
  ASSERT_EQ(w.Last<LoadToDram>().size(), 1u);
  EXPECT_EQ(w.Last<LoadToDram>()[0].traffic, Traffic::kDemand);
  w.Settle();
}

TEST(Demand, IsAnsweredOnceWithCountsThatAddUp) {
  World w;
  w.EngineWith(8);
  w.InDram({1, 2});
  w.Send(SsdRecovered{BlockId{3}, BlockId{2}, kBlockBytes});
  w.Step();
  w.Send(Ask(w, 1, {1, 2, 3, 4, 5}));
  w.Settle();
  const auto done = w.Last<DemandDone>();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].ready_blocks, 3u);
  EXPECT_EQ(done[0].absent_blocks, 2u);
  EXPECT_EQ(done[0].failed_blocks, 0u);
  EXPECT_EQ(done[0].bytes_from_dram, 2 * kBlockBytes);
  EXPECT_EQ(done[0].bytes_from_ssd, kBlockBytes);
  EXPECT_EQ(w.ledger(Tier::kHbm).issued, 0u) << "a demand is not a prefetch";
}

TEST(Demand, JoinsPrefetchesInFlightAndPromotesThem) {
  World w;
  w.EngineWith(8);
  w.InDram({1, 2});
  w.Send(w.Queue(7, {1, 2}));
  w.Step();
  const auto loads = w.Last<LoadToArena>();
  ASSERT_EQ(loads.size(), 2u);
  w.Done(loads[0].transfer);
  w.Send(Ask(w, 1, {1, 2}, w.now + kSecond));
  w.Step();
  const auto promoted = w.Last<Promote>();
  ASSERT_EQ(promoted.size(), 1u);
  EXPECT_EQ(promoted[0].transfer, loads[1].transfer);
  EXPECT_EQ(w.ended(Tier::kHbm, Outcome::kLate), 1u);
  w.Done(loads[1].transfer);
  w.Step();
  const auto done = w.Last<DemandDone>();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].ready_blocks, 2u);
  EXPECT_EQ(done[0].already_ready_blocks, 1u);
  EXPECT_EQ(done[0].joined_blocks, 1u);
  EXPECT_EQ(done[0].bytes_from_dram, 0u);
}

TEST(Demand, WorksForAnEngineThatIsNeverPrefetchedForAndItsArenaCaches) {
  World w;
  w.EngineWith(8, kEngine, EnginePolicy::kDemandOnly);
  w.InDram({1});
  w.Send(Ask(w, 1, {1}));
  w.Settle();
  w.Send(Ask(w, 2, {1}));
  w.Settle();
  ASSERT_EQ(w.Last<DemandDone>().size(), 1u);
  EXPECT_EQ(w.Last<DemandDone>()[0].already_ready_blocks, 1u);
}

TEST(Demand, EvictsColderSlotsThatNobodyNeeds) {
  World w;
  w.EngineWith(2);
  w.InDram({1, 2});
  w.InDram({11, 12});
  w.Send(Ask(w, 1, {1, 2}));
  w.Settle();
  w.Send(Ask(w, 2, {11, 12}));
  w.Step();
  EXPECT_EQ(w.Last<RetireSlot>().size(), 2u);
  for (const RetireSlot& c : w.Last<RetireSlot>()) w.Send(SlotFree{c.engine, c.slot});
  w.Settle();
  ASSERT_EQ(w.Last<DemandDone>().size(), 1u);
  EXPECT_EQ(w.Last<DemandDone>()[0].ready_blocks, 2u);
}

TEST(Demand, LargerThanTheArenaServesTheLongestPrefixThatFits) {
  World w;
  w.EngineWith(4);
  w.InDram(Iota(0, 10));
  w.Send(Ask(w, 1, Iota(0, 10)));
  w.Settle();
  const auto done = w.Last<DemandDone>();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].ready_blocks, 4u);
  EXPECT_EQ(done[0].failed_blocks, 6u);
}

TEST(Demand, LargerThanDramStreamsThroughIt) {
  CoreConfig config = SmallConfig();
  config.dram_bytes = 2 * kBlockBytes;
  World w(config);
  w.EngineWith(16);
  w.OnSsd(Iota(0, 10));
  w.Send(Ask(w, 1, Iota(0, 10)));
  w.Settle();
  const auto done = w.Last<DemandDone>();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].ready_blocks, 10u);
}

TEST(Demand, TakesTheSlotsOfWantedBlocksBeforeItFails) {
  World w;
  w.EngineWith(4);
  w.InDram(Iota(0, 3));
  w.InDram(Iota(10, 4));
  w.Send(w.Queue(7, Iota(0, 3)));
  w.Settle();
  ASSERT_EQ(w.ledger(Tier::kHbm).issued, 3u);
  w.Send(Ask(w, 1, Iota(10, 4)));
  w.Settle();
  ASSERT_EQ(w.Last<DemandDone>().size(), 1u);
  EXPECT_EQ(w.Last<DemandDone>()[0].ready_blocks, 4u);
}

TEST(Demand, EndsAtItsDeadlineWithWhatIsThere) {
  World w;
  w.EngineWith(8);
  w.InDram({1, 2});
  w.Send(Ask(w, 1, {1, 2}, w.now + kMillisecond));
  w.Step();
  const auto loads = w.Last<LoadToArena>();
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(w.core.NextWake(), w.now + kMillisecond);
  w.Done(loads[0].transfer);
  w.Step();
  w.Step(2 * kMillisecond);
  ASSERT_EQ(w.Last<DemandDone>().size(), 1u);
  EXPECT_EQ(w.Last<DemandDone>()[0].ready_blocks, 1u);
  EXPECT_EQ(w.Last<DemandDone>()[0].failed_blocks, 1u);
  EXPECT_EQ(w.Last<Cancel>().size(), 1u) << "nobody else wants it";
  w.Done(loads[1].transfer);
  w.Step();
  EXPECT_TRUE(w.Last<DemandDone>().empty());
}

TEST(Demand, ThatIsDroppedHasNoAnswerAndLeavesWhatOthersWant) {
  World w;
  w.EngineWith(8);
  w.InDram({1, 2});
  w.Send(w.Queue(7, {1}));
  w.Send(Ask(w, 1, {1, 2}));
  w.Step();
  const auto loads = w.Last<LoadToArena>();
  w.Send(DemandDropped{1});
  w.Step();
  EXPECT_TRUE(w.Last<DemandDone>().empty());
  const auto cancels = w.Last<Cancel>();
  ASSERT_EQ(cancels.size(), 1u);
  EXPECT_EQ(cancels[0].transfer, loads[1].transfer);
  w.Send(DemandDropped{1});
  w.Step();
  EXPECT_EQ(w.ignored(IgnoredReason::kUnknownDemand), 1u);
}

TEST(Demand, AFailureCutsThePrefix) {
  World w;
  w.EngineWith(8);
  w.InDram({1, 2, 3});
  w.Send(Ask(w, 1, {1, 2, 3}));
  w.Step();
  const auto loads = w.Last<LoadToArena>();
  w.Done(loads[0].transfer);
  w.Done(loads[1].transfer, TransferStatus::kIoError);
  w.Step();
  const auto done = w.Last<DemandDone>();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].ready_blocks, 1u);
  EXPECT_EQ(done[0].failed_blocks, 2u);
}

TEST(Demand, ABadDramCopyIsDroppedAndTheBlockComesFromSsd) {
  World w;
  w.EngineWith(8);
  w.OnSsd({1});
  w.Send(Ask(w, 1, {1}));
  w.Step();
  w.LastLoadsDone();
  w.Step();
  const auto arena = w.Last<LoadToArena>();
  ASSERT_EQ(arena.size(), 1u);
  w.Done(arena[0].transfer, TransferStatus::kCorrupt);
  w.Send(SlotFree{kEngine, arena[0].slot});
  w.Step();
  EXPECT_EQ(w.Last<EvictDram>().size(), 1u);
  ASSERT_EQ(w.Last<LoadToDram>().size(), 1u);
  w.LastLoadsDone();
  w.Settle();
  ASSERT_EQ(w.Last<DemandDone>().size(), 1u);
  EXPECT_EQ(w.Last<DemandDone>()[0].ready_blocks, 1u);
}

TEST(Demand, ACorruptRecordIsForgottenAndTheDemandFails) {
  World w;
  w.EngineWith(8);
  w.OnSsd({1});
  w.Send(Ask(w, 1, {1}));
  w.Step();
  w.Done(w.Last<LoadToDram>().at(0).transfer, TransferStatus::kCorrupt);
  w.Step();
  EXPECT_EQ(w.Last<DropSsd>().size(), 1u);
  ASSERT_EQ(w.Last<DemandDone>().size(), 1u);
  EXPECT_EQ(w.Last<DemandDone>()[0].failed_blocks, 1u);
  w.Send(Ask(w, 2, {1}));
  w.Step();
  EXPECT_EQ(w.Last<DemandDone>().at(0).absent_blocks, 1u);
}

TEST(Demand, OfADeadEngineHasNoAnswerAndItsTransfersStillEnd) {
  World w;
  w.EngineWith(8);
  w.InDram({1, 2});
  w.Send(w.Queue(7, {1}));
  w.Step();
  const auto prefetch = w.Last<LoadToArena>();
  w.Send(Ask(w, 1, {2}));
  w.Step();
  const auto demand = w.Last<LoadToArena>();
  w.Send(EngineDown{kEngine});
  w.Step();
  EXPECT_TRUE(w.Last<DemandDone>().empty());
  EXPECT_EQ(w.ledger(Tier::kHbm).live, 1u);
  w.Done(prefetch.at(0).transfer);
  w.Done(demand.at(0).transfer, TransferStatus::kGone);
  w.Step();
  EXPECT_EQ(w.ledger(Tier::kHbm).live, 0u);
  EXPECT_EQ(w.ended(Tier::kHbm, Outcome::kWasted), 1u);
  w.EngineWith(8);
  w.Send(Ask(w, 2, {1, 2}));
  w.Settle();
  EXPECT_EQ(w.Last<DemandDone>().at(0).ready_blocks, 2u) << "DRAM copies outlive the engine";
}

TEST(Demand, OfARevokedArenaIsAnsweredAsFailed) {
  World w;
  w.EngineWith(8);
  w.InDram({1});
  w.Send(Ask(w, 1, {1}));
  w.Step();
  const auto load = w.Last<LoadToArena>();
  w.Send(ArenaRevoked{kEngine});
  w.Step();
  ASSERT_EQ(w.Last<DemandDone>().size(), 1u);
  EXPECT_EQ(w.Last<DemandDone>()[0].failed_blocks, 1u);
  w.Send(ArenaGranted{kEngine, 0});
  w.Done(load.at(0).transfer);
  w.Step();
  w.Send(Ask(w, 2, {1}));
  w.Step();
  EXPECT_EQ(w.Last<DemandDone>().at(0).failed_blocks, 1u) << "an arena of nothing";
}

TEST(Demand, OfAnUnknownEngineIsAnswered) {
  World w;
  w.Send(Ask(w, 1, {1, 2}));
  w.Step();
  EXPECT_EQ(w.Last<DemandDone>().at(0).failed_blocks, 2u);
  EXPECT_EQ(w.ignored(IgnoredReason::kUnknownEngine), 1u);
}

TEST(Demand, WaitsForTheReaderThatStillHoldsTheLastSlot) {
  World w;
  w.EngineWith(1);
  w.InDram({1});
  w.InDram({2});
  w.Send(Ask(w, 1, {1}));
  w.Settle();
  w.Send(Ask(w, 2, {2}));
  w.Step();
  ASSERT_EQ(w.Last<RetireSlot>().size(), 1u);
  w.Step(kMillisecond);
  EXPECT_TRUE(w.Last<DemandDone>().empty());
  w.Send(SlotFree{kEngine, SlotIndex{0}});
  w.Step();
  EXPECT_EQ(w.Last<LoadToArena>().size(), 1u);
  w.LastLoadsDone();
  w.Step();
  EXPECT_EQ(w.Last<DemandDone>().at(0).ready_blocks, 1u);
}

TEST(Demand, TwoThatTogetherOverfillTheArenaBothEnd) {
  World w;
  w.EngineWith(4);
  w.InDram(Iota(0, 3));
  w.InDram(Iota(10, 3));
  w.Send(Ask(w, 1, Iota(0, 3)));
  w.Send(Ask(w, 2, Iota(10, 3)));
  w.Settle();
  const auto done = w.Last<DemandDone>();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].ready_blocks + done[1].ready_blocks, 4u);
}

}  // namespace
}  // namespace foreload::core
