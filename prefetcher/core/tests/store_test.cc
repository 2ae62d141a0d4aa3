#include <gtest/gtest.h>

#include "prefetcher/core/tests/world.h"

namespace foreload::core {
namespace {

StoreOffered Offer(std::uint64_t store, std::uint32_t block, BlockId parent = {}) {
  return {store, kEngine, BlockId{block}, parent, kBlockBytes};
}

TEST(Store, ABlockIsVisibleOnlyWhenItsCopyHasEnded) {
  World w;
  w.EngineWith(4);
  w.Send(Offer(1, 5));
  w.Step();
  const auto accepted = w.Last<AcceptStore>();
  ASSERT_EQ(accepted.size(), 1u);
  w.Send(Ask(w, 1, {5}));
  w.Step();
  EXPECT_EQ(w.Last<DemandDone>().at(0).absent_blocks, 1u);
  w.Done(accepted[0].transfer);
  w.Step();
  w.Send(Ask(w, 2, {5}));
  w.Settle();
  EXPECT_EQ(w.Last<DemandDone>().at(0).ready_blocks, 1u);
}

TEST(Store, TheFirstVersionStays) {
  World w;
  w.EngineWith(4);
  w.Send(Offer(1, 5));
  w.Send(Offer(2, 5));
  w.Step();
  ASSERT_EQ(w.Last<RejectStore>().size(), 1u);
  EXPECT_EQ(w.Last<RejectStore>()[0].store, 2u);
  EXPECT_EQ(w.Last<RejectStore>()[0].reason, StoreRefusal::kExists);
}

TEST(Store, AFailedCopyLeavesNothing) {
  World w;
  w.EngineWith(4);
  w.Send(Offer(1, 5));
  w.Step();
  w.Done(w.Last<AcceptStore>().at(0).transfer, TransferStatus::kCorrupt);
  w.Step();
  EXPECT_EQ(w.stats().dram_bytes_used, 0u);
  w.Send(Offer(2, 5));
  w.Step();
  EXPECT_EQ(w.Last<AcceptStore>().size(), 1u);
}

TEST(Store, RefusalsSayWhy) {
  CoreConfig config = SmallConfig();
  config.dram_bytes = kBlockBytes / 2;
  World w(config);
  w.Send(Offer(1, 5));
  w.Step();
  EXPECT_EQ(w.refused(StoreRefusal::kUnknownEngine), 1u);
  w.EngineWith(4);
  w.Send(Offer(2, 5));
  w.Step();
  EXPECT_EQ(w.refused(StoreRefusal::kNoSpace), 1u);
}

TEST(Store, MakesRoomFromTheColdEndLeafFirst) {
  CoreConfig config = SmallConfig();
  config.dram_bytes = 4 * kBlockBytes;
  config.ssd_bytes = 0;  // nothing is ever dirty
  World w(config);
  w.EngineWith(4);
  w.InDram({1, 2, 3, 4});
  std::vector<std::uint32_t> gone;
  for (std::uint32_t i = 0; i < 3; ++i) {
    w.Send(Offer(100 + i, 50 + i));
    w.Step(kSecond);
    for (const EvictDram& c : w.Last<EvictDram>()) gone.push_back(c.block.value);
    w.Done(w.Last<AcceptStore>().at(0).transfer);
    w.Step();
  }
  EXPECT_EQ(gone, (std::vector<std::uint32_t>{4, 3, 2}));
}

TEST(Store, DirtyBlocksAreWrittenAtTheirAgeAndBecomeDurable) {
  World w;
  w.EngineWith(4);
  w.InDram({1, 2});
  EXPECT_EQ(w.stats().dram_bytes_dirty, 2 * kBlockBytes);
  EXPECT_TRUE(w.Of<Spill>(w.all).empty());
  w.Step(w.config.dirty_age_max_ns);
  const auto spills = w.Last<Spill>();
  ASSERT_EQ(spills.size(), 2u);
  w.Done(spills[0].transfer);
  w.Done(spills[1].transfer, TransferStatus::kNoSpace);
  w.Step();
  EXPECT_EQ(w.stats().spills_durable, 1u);
  EXPECT_EQ(w.stats().spills_failed, 1u);
  EXPECT_EQ(w.stats().ssd_bytes_used, kBlockBytes);
  EXPECT_EQ(w.stats().dram_bytes_dirty, 0u);
}

TEST(Store, DirtyBytesAreBounded) {
  CoreConfig config = SmallConfig();
  config.dirty_bytes_max = 3 * kBlockBytes;
  World w(config);
  w.EngineWith(4);
  w.InDram({1, 2, 3, 4, 5});
  EXPECT_EQ(w.Of<Spill>(w.all).size(), 2u) << "five dirty blocks, three may wait";
}

TEST(Store, ADirtyBlockIsNotEvictedBeforeItIsDurable) {
  CoreConfig config = SmallConfig();
  config.dram_bytes = 2 * kBlockBytes;
  World w(config);
  w.EngineWith(4);
  w.InDram({1, 2});
  w.Send(Offer(10, 3));
  w.Step();
  EXPECT_EQ(w.refused(StoreRefusal::kNoSpace), 1u);
  EXPECT_TRUE(w.Last<EvictDram>().empty());
  const auto spills = w.Last<Spill>();
  ASSERT_EQ(spills.size(), 2u) << "pressure writes them out at once";
  for (const Spill& spill : spills) w.Done(spill.transfer);
  w.Step();
  w.Send(Offer(11, 3));
  w.Step();
  EXPECT_EQ(w.Last<EvictDram>().size(), 1u);
  EXPECT_EQ(w.Last<AcceptStore>().size(), 1u);
}

TEST(Store, AFlushCoversStoresThatAreStillBeingCopied) {
  World w;
  w.EngineWith(4);
  w.Send(Offer(1, 5));
  w.Send(FlushAsked{9});
  w.Step();
  EXPECT_TRUE(w.Last<FlushDone>().empty());
  w.Done(w.Last<AcceptStore>().at(0).transfer);
  w.Step();
  const auto spills = w.Last<Spill>();
  ASSERT_EQ(spills.size(), 1u);
  w.Done(spills[0].transfer);
  w.Step();
  ASSERT_EQ(w.Last<FlushDone>().size(), 1u);
  EXPECT_EQ(w.Last<FlushDone>()[0].flush, 9u);
  EXPECT_EQ(w.Last<FlushDone>()[0].durable_blocks, 1u);
}

TEST(Store, AFlushOfNothingIsDoneAtOnce) {
  World w;
  w.Send(FlushAsked{9});
  w.Step();
  EXPECT_EQ(w.Last<FlushDone>().size(), 1u);
}

TEST(Store, TheWriteBudgetIsKept) {
  CoreConfig config = SmallConfig();
  config.ssd_write_bytes_per_day = 48 * kBlockBytes;  // two blocks an hour
  World w(config);
  w.EngineWith(4);
  w.InDram(Iota(0, 5));
  w.Step(2 * kSecond);
  EXPECT_EQ(w.Last<Spill>().size(), 2u);
  EXPECT_EQ(w.stats().dram_bytes_dirty, 2 * kBlockBytes) << "the rest stays in memory only";
}

TEST(Store, SecondUseAdmissionWritesOnlyWhatWasUsedAgain) {
  CoreConfig config = SmallConfig();
  config.ssd_second_use_admission = true;
  World w(config);
  w.EngineWith(4);
  w.InDram({1, 2});
  w.Step(10 * kSecond);
  EXPECT_TRUE(w.Last<Spill>().empty());
  for (std::uint32_t request = 0; request < 2; ++request) {
    w.Send(w.Queue(request, {1}));
    w.Send(RequestScheduled{RequestId{request}});
    w.Send(RequestFinished{RequestId{request}, {}});
  }
  w.Settle();
  w.Step(2 * kSecond);
  const auto spills = w.Last<Spill>();
  ASSERT_EQ(spills.size(), 1u);
  EXPECT_EQ(spills[0].block, BlockId{1});
}

TEST(Store, ARecordThatTheStoreDroppedIsForgotten) {
  World w;
  w.EngineWith(4);
  w.OnSsd({1});
  w.Send(SsdDropped{BlockId{1}});
  w.Step();
  EXPECT_EQ(w.stats().ssd_bytes_used, 0u);
  w.Send(SsdDropped{BlockId{1}});
  w.Send(SsdDropped{BlockId{900}});
  w.Step();
  w.Send(Ask(w, 1, {1}));
  w.Step();
  EXPECT_EQ(w.Last<DemandDone>().at(0).absent_blocks, 1u);
}

TEST(Purge, ReachesEveryTierAndEndsWhenNothingCanBeRead) {
  World w;
  w.EngineWith(4);
  w.InDram({1, 2});
  w.OnSsd({3});
  w.Send(Ask(w, 1, {1}));
  w.Settle();
  w.Send(w.Queue(7, {1, 2}));
  w.Step();
  const auto loading = w.Last<LoadToArena>();
  ASSERT_EQ(loading.size(), 1u);
  w.Send(NamespacePurged{5, w.Range({1, 2, 3, 700})});
  w.Step();
  EXPECT_TRUE(w.Last<PurgeDone>().empty());
  EXPECT_EQ(w.Last<DropSsd>().size(), 1u);
  const auto retired = w.Last<RetireSlot>();
  ASSERT_EQ(retired.size(), 1u);
  ASSERT_EQ(w.Last<Cancel>().size(), 1u);
  w.Send(Offer(50, 1));
  w.Send(SlotFree{kEngine, retired[0].slot});
  w.Step();
  EXPECT_EQ(w.refused(StoreRefusal::kPurged), 1u);
  EXPECT_TRUE(w.Last<PurgeDone>().empty()) << "a load into a slot still runs";
  w.Done(loading[0].transfer);
  w.Step();
  const auto late = w.Last<RetireSlot>();
  ASSERT_EQ(late.size(), 1u) << "it landed after all: retired at once";
  w.Send(SlotFree{kEngine, late[0].slot});
  w.Step();
  ASSERT_EQ(w.Last<PurgeDone>().size(), 1u);
  EXPECT_EQ(w.Last<PurgeDone>()[0].blocks, 3u);
  EXPECT_EQ(w.stats().dram_bytes_used, 0u);
  EXPECT_EQ(w.stats().ssd_bytes_used, 0u);
}

TEST(Purge, CatchesASpillInFlight) {
  World w;
  w.EngineWith(4);
  w.InDram({1});
  w.Step(2 * kSecond);
  const auto spill = w.Last<Spill>();
  ASSERT_EQ(spill.size(), 1u);
  w.Send(NamespacePurged{5, w.Range({1})});
  w.Step();
  EXPECT_TRUE(w.Last<EvictDram>().empty()) << "the spill reads the copy";
  w.Done(spill[0].transfer);
  w.Step();
  EXPECT_EQ(w.Last<EvictDram>().size(), 1u);
  EXPECT_EQ(w.Last<DropSsd>().size(), 1u);
  EXPECT_EQ(w.Last<PurgeDone>().size(), 1u);
  EXPECT_EQ(w.Last<ForgetBlock>().size(), 1u);
}

TEST(Catalog, ImpossibleParentsAreRefusedAndCountedAndNothingHangs) {
  World w;
  w.EngineWith(4);
  // W2: 7 under itself; 5 -> 6, then 5 again under 6.
  w.Send(KvStored{kEngine, BlockId{7}, BlockId{7}, Tier::kHbm});
  w.Send(KvStored{kEngine, BlockId{5}, BlockId{}, Tier::kHbm});
  w.Send(KvStored{kEngine, BlockId{6}, BlockId{5}, Tier::kHbm});
  w.Send(KvStored{kEngine, BlockId{5}, BlockId{6}, Tier::kHbm});
  w.Send(KvStored{kEngine, BlockId{6}, BlockId{7}, Tier::kHbm});
  w.Step();
  EXPECT_EQ(w.ignored(IgnoredReason::kSelfParent), 1u);
  EXPECT_EQ(w.ignored(IgnoredReason::kParentCycle), 1u);
  EXPECT_EQ(w.ignored(IgnoredReason::kParentConflict), 1u);
  w.Send(w.Queue(1, {5, 6, 7}));
  w.Send(RequestScheduled{RequestId{1}});
  w.Step();
  EXPECT_EQ(w.stats().needed_in_engine, 3u);
}

TEST(Catalog, ForgetsTheLeastUsefulAtItsBound) {
  CoreConfig config = SmallConfig();
  config.blocks_max = 8;
  World w(config);
  w.EngineWith(4);
  w.OnSsd({0, 1});
  for (std::uint32_t i = 0; i < 20; ++i) {
    w.Send(w.Queue(i, {100 + i}));
    w.Send(RequestAborted{RequestId{i}});
    w.Step();
    EXPECT_LE(w.stats().blocks, 8u);
  }
  const auto forgotten = w.Of<ForgetBlock>(w.all);
  ASSERT_EQ(forgotten.size(), 14u);
  EXPECT_EQ(forgotten[0].block, BlockId{100});
  EXPECT_EQ(w.stats().ssd_bytes_used, 2 * kBlockBytes) << "never one that lies somewhere";
}

TEST(Catalog, RefusesWhenNothingCanBeForgotten) {
  CoreConfig config = SmallConfig();
  config.blocks_max = 4;
  World w(config);
  w.EngineWith(4);
  w.OnSsd({0, 1, 2, 3});
  w.Send(SsdRecovered{BlockId{4}, BlockId{}, kBlockBytes});
  w.Send(SsdRecovered{BlockId{4'000'000'000u}, BlockId{}, kBlockBytes});
  w.Step();
  EXPECT_EQ(w.ignored(IgnoredReason::kTooManyBlocks), 1u);
  EXPECT_EQ(w.ignored(IgnoredReason::kUnknownBlock), 1u);
}

TEST(Core, UnknownThingsAreCountedAndIgnored) {
  World w;
  w.EngineWith(2);
  w.Send(RequestScheduled{RequestId{5}});
  w.Send(RequestFinished{RequestId{5}, BlockRange{0, 100}});
  w.Send(TransferDone{TransferId{77}, TransferStatus::kOk, 1, 1});
  w.Send(SlotFree{kEngine, SlotIndex{0}});
  w.Send(SlotFree{kEngine, SlotIndex{99}});
  w.Send(SlotUsed{EngineId{9}, SlotIndex{0}});
  w.Send(KvRemoved{kEngine, BlockId{5}, Tier::kHbm});
  w.Send(EngineUp{EngineId{1'000'000}, 16, kBlockBytes, 0, EnginePolicy::kPredict});
  w.Step();
  EXPECT_EQ(w.ignored(IgnoredReason::kUnknownRequest), 1u);
  EXPECT_EQ(w.ignored(IgnoredReason::kBadRange), 1u);
  EXPECT_EQ(w.ignored(IgnoredReason::kUnknownTransfer), 1u);
  EXPECT_EQ(w.ignored(IgnoredReason::kBadSlot), 2u);
  EXPECT_EQ(w.ignored(IgnoredReason::kUnknownEngine), 2u);
  EXPECT_EQ(w.ignored(IgnoredReason::kUnknownBlock), 1u);
}

TEST(Core, TimeThatGoesBackIsTakenAsTheLast) {
  World w;
  w.EngineWith(2);
  w.InDram({1});
  w.now -= kSecond;
  w.Send(w.Queue(1, {1}));
  w.Step();
  EXPECT_EQ(w.Last<LoadToArena>().size(), 1u);
}

TEST(Core, ExplainsABlockInWords) {
  World w;
  w.EngineWith(2);
  w.InDram({1});
  EXPECT_EQ(w.core.Explain(BlockId{99}), "unknown block");
  EXPECT_NE(w.core.Explain(BlockId{1}).find("not durable yet"), std::string::npos);
}

}  // namespace
}  // namespace foreload::core
