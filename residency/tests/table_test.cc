#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <set>

#include "base/rng.h"
#include "proto/xxh3.h"
#include "residency/tests/table_fixture.h"

namespace foreload {
namespace {

using residency::Word;

TEST_F(TableTest, ALookUpPinsTheLongestReadyPrefix) {
  MakeTable(8);
  const auto reader = NewReader();
  Load(3, 100);
  const std::uint32_t generation = Load(5, 101);
  Load(6, 103);
  PinnedBlock pinned[4];
  ASSERT_EQ(reader->LookupPinPrefix(Digests({100, 101, 102, 103}).view(), pinned), 2u);
  EXPECT_EQ(pinned[0].slot, 3u);
  EXPECT_EQ(pinned[1].slot, 5u);
  EXPECT_EQ(pinned[1].generation, generation);
  EXPECT_EQ(pinned[1].ready_mask, kGroups);
  EXPECT_EQ(writer_->holders(SlotIndex{3}), 1u);
  EXPECT_EQ(writer_->holders(SlotIndex{6}), 0u) << "beyond the prefix";
  EXPECT_EQ(reader->pins(), 2);
  EXPECT_EQ(reader->CountPrefix(Digests({100, 101, 102}).view()), 2u);
  EXPECT_TRUE(reader->Unpin(3, pinned[0].generation, false));
  EXPECT_TRUE(reader->Unpin(5, pinned[1].generation, false));
  EXPECT_EQ(writer_->holders(SlotIndex{3}), 0u);
}

TEST_F(TableTest, ABlockInFlightIsMissedUntilEveryLayerGroupHasLanded) {
  MakeTable(4);
  const auto reader = NewReader();
  PinnedBlock pinned[1];
  ASSERT_TRUE(writer_->Reserve(SlotIndex{0}, KeyOf(1)).ok());
  EXPECT_EQ(reader->LookupPinPrefix(Digests({1}).view(), pinned), 0u);
  ASSERT_TRUE(writer_->StartLoad(SlotIndex{0}).ok());
  ASSERT_TRUE(writer_->Publish(SlotIndex{0}, 0b011).ok());
  EXPECT_EQ(reader->LookupPinPrefix(Digests({1}).view(), pinned), 0u);
  EXPECT_EQ(reader->CountPrefix(Digests({1}).view()), 0u);
  EXPECT_EQ(writer_->holders(SlotIndex{0}), 0u) << "a miss leaves no pin";
  ASSERT_TRUE(writer_->Publish(SlotIndex{0}, 0b100).ok());
  EXPECT_EQ(reader->LookupPinPrefix(Digests({1}).view(), pinned), 1u);
}

TEST_F(TableTest, AHeldSlotIsRetiredButNotFreed) {
  MakeTable(2);
  const auto reader = NewReader();
  const auto other = NewReader();
  Load(0, 1);
  PinnedBlock a[1];
  PinnedBlock b[1];
  PinnedBlock c[1];
  ASSERT_EQ(reader->LookupPinPrefix(Digests({1}).view(), a), 1u);
  ASSERT_EQ(reader->LookupPinPrefix(Digests({1}).view(), b), 1u) << "pins nest";
  ASSERT_EQ(other->LookupPinPrefix(Digests({1}).view(), c), 1u);
  ASSERT_TRUE(writer_->Retire(SlotIndex{0}).ok());
  EXPECT_EQ(reader->LookupPinPrefix(Digests({1}).view(), b), 0u) << "retired is found no more";
  EXPECT_TRUE(reader->StillValid(0, a[0].generation));
  EXPECT_FALSE(Free(0));
  EXPECT_TRUE(reader->Unpin(0, a[0].generation, false));
  EXPECT_TRUE(reader->Unpin(0, a[0].generation, false));
  EXPECT_FALSE(reader->Unpin(0, a[0].generation, false)) << "more unpins than pins";
  EXPECT_FALSE(Free(0));
  EXPECT_TRUE(other->Unpin(0, c[0].generation, false));
  EXPECT_TRUE(Free(0));
  EXPECT_FALSE(reader->StillValid(0, a[0].generation));
  EXPECT_EQ(Load(0, 2), a[0].generation + 1);
  EXPECT_FALSE(reader->StillValid(0, a[0].generation));
}

TEST_F(TableTest, UseIsReportedOnceForEachGeneration) {
  MakeTable(2);
  const auto reader = NewReader();
  std::vector<std::pair<std::uint32_t, std::uint32_t>> used;
  const auto note = [&](SlotIndex slot, std::uint32_t generation) { used.emplace_back(slot.value, generation); };
  const std::uint32_t first = Load(1, 1);
  PinnedBlock pinned[1];
  ASSERT_EQ(reader->LookupPinPrefix(Digests({1}).view(), pinned), 1u);
  ASSERT_TRUE(reader->Unpin(1, first, false));
  ASSERT_TRUE(writer_->CollectUsed(16, note).ok());
  EXPECT_TRUE(used.empty()) << "pinned without use";
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(reader->LookupPinPrefix(Digests({1}).view(), pinned), 1u);
    ASSERT_TRUE(reader->Unpin(1, first, true));
    ASSERT_TRUE(writer_->CollectUsed(16, note).ok());
  }
  ASSERT_EQ(used.size(), 1u);
  EXPECT_EQ(used[0], std::make_pair(1u, first));

  ASSERT_TRUE(writer_->Retire(SlotIndex{1}).ok());
  ASSERT_TRUE(Free(1));
  const std::uint32_t second = Load(1, 2);
  ASSERT_EQ(reader->LookupPinPrefix(Digests({2}).view(), pinned), 1u);
  ASSERT_TRUE(reader->Unpin(1, second, true));
  ASSERT_TRUE(writer_->Retire(SlotIndex{1}).ok());
  const auto freed = writer_->TryFree(SlotIndex{1});
  ASSERT_TRUE(freed.ok());
  EXPECT_TRUE(freed.value().newly_used) << "the last chance to see it";
}

TEST_F(TableTest, ADeadReaderLosesItsPinsAndItsBit) {
  MakeTable(2);
  const auto dead = NewReader();
  const auto alive = NewReader();
  const std::uint32_t generation = Load(0, 1);
  PinnedBlock pinned[1];
  ASSERT_EQ(dead->LookupPinPrefix(Digests({1}).view(), pinned), 1u);
  ASSERT_EQ(alive->LookupPinPrefix(Digests({1}).view(), pinned), 1u);
  ASSERT_TRUE(writer_->ClearReader(0).ok());
  EXPECT_EQ(writer_->holders(SlotIndex{0}), 0b10u);
  ASSERT_TRUE(alive->Unpin(0, generation, false));
  ASSERT_TRUE(writer_->Retire(SlotIndex{0}).ok());
  EXPECT_TRUE(Free(0));
  EXPECT_EQ(writer_->AddReader().value(), 0u);
}

TEST_F(TableTest, ReaderBitsRunOut) {
  MakeTable(1);
  for (std::uint32_t i = 0; i < FL_READERS_MAX; ++i) EXPECT_EQ(writer_->AddReader().value(), i);
  EXPECT_EQ(writer_->AddReader().status().code(), StatusCode::kResourceExhausted);
}

TEST_F(TableTest, CountersAreSummedAndImpossibleStepsLeftOut) {
  MakeTable(2);
  const auto reader = NewReader();
  Load(0, 1);
  PinnedBlock pinned[2];
  reader->LookupPinPrefix(Digests({1, 2}).view(), pinned);
  ReaderCounters counters = writer_->CollectCounters();
  EXPECT_EQ(counters.lookups, 1u);
  EXPECT_EQ(counters.hit_blocks, 1u);
  EXPECT_EQ(counters.miss_blocks, 1u);
  RawTable raw(writer_->fd());
  raw.reader(0).lookups = 0;
  raw.reader(0).hit_blocks = UINT64_MAX;
  counters = writer_->CollectCounters();
  EXPECT_EQ(counters.lookups, 1u);
  EXPECT_EQ(counters.hit_blocks, 1u);
  EXPECT_EQ(writer_->hostile_values(), 2u);
}

TEST_F(TableTest, AClosedTableMissesEverything) {
  MakeTable(2);
  const auto reader = NewReader();
  const std::uint32_t generation = Load(0, 1);
  PinnedBlock pinned[1];
  ASSERT_EQ(reader->LookupPinPrefix(Digests({1}).view(), pinned), 1u);
  writer_->Close();
  PinnedBlock again[1];
  EXPECT_FALSE(reader->open());
  EXPECT_EQ(reader->LookupPinPrefix(Digests({1}).view(), again), 0u);
  EXPECT_EQ(reader->CountPrefix(Digests({1}).view()), 0u);
  EXPECT_TRUE(reader->Unpin(0, generation, true)) << "old pins can still be dropped";
  EXPECT_TRUE(writer_->CheckIntegrity(8).ok());
}

// The index against a map, through many insertions and removals at its fullest.
TEST_F(TableTest, TheIndexFindsExactlyWhatIsReady) {
  constexpr std::uint32_t kIndexSlots = 300;
  const std::uint64_t seed = 20260731;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  MakeTable(kIndexSlots);
  const auto reader = NewReader();
  std::map<std::uint32_t, std::uint64_t> model;  // slot -> number
  std::uint64_t next_number = 1;
  PinnedBlock pinned[1];
  for (int step = 0; step < 20000; ++step) {
    const auto slot = static_cast<std::uint32_t>(rng.Below(kIndexSlots));
    const auto it = model.find(slot);
    if (it == model.end()) {
      Load(slot, next_number);
      model.emplace(slot, next_number++);
    } else {
      ASSERT_EQ(reader->LookupPinPrefix(Digests({it->second}).view(), pinned), 1u);
      ASSERT_EQ(pinned[0].slot, slot);
      ASSERT_TRUE(reader->Unpin(slot, pinned[0].generation, false));
      if (rng.Below(4) != 0) continue;  // stays nearly full
      ASSERT_TRUE(writer_->Retire(SlotIndex{slot}).ok());
      ASSERT_TRUE(Free(slot));
      ASSERT_EQ(reader->LookupPinPrefix(Digests({it->second}).view(), pinned), 0u);
      model.erase(it);
    }
  }
  for (const auto& [slot, number] : model) EXPECT_EQ(reader->CountPrefix(Digests({number}).view()), 1u);
  EXPECT_EQ(writer_->index_overflows(), 0u);
}

// --- hostile readers
// ---------------------------------------------------------------------------------------------------

TEST_F(TableTest, AChangedStateOrGenerationIsDataLoss) {
  for (const std::uint64_t flip : {std::uint64_t{1} << 28, std::uint64_t{1} << 32, std::uint64_t{1} << 63}) {
    MakeTable(2);
    Load(0, 1);
    RawTable raw(writer_->fd());
    raw.slot(0).word ^= flip;
    EXPECT_EQ(writer_->CheckIntegrity(2).code(), StatusCode::kDataLoss);
    EXPECT_EQ(writer_->Retire(SlotIndex{0}).code(), StatusCode::kDataLoss);
    EXPECT_EQ(writer_->TryFree(SlotIndex{0}).status().code(), StatusCode::kDataLoss);
  }
}

TEST_F(TableTest, HolderBitsOfNobodyOrOfAFreeSlotAreDataLoss) {
  MakeTable(2);
  const auto reader = NewReader();
  RawTable raw(writer_->fd());
  raw.slot(0).word |= 1;  // a registered reader, but nothing was ever there to pin
  EXPECT_EQ(writer_->CheckIntegrity(2).code(), StatusCode::kDataLoss);
  EXPECT_EQ(writer_->Reserve(SlotIndex{0}, KeyOf(1)).status().code(), StatusCode::kDataLoss);
  MakeTable(2);
  Load(0, 1);
  RawTable other(writer_->fd());
  other.slot(0).word |= 1u << 27;  // a reader that does not exist
  EXPECT_EQ(writer_->CheckIntegrity(2).code(), StatusCode::kDataLoss);
}

TEST_F(TableTest, ImpossibleUsedWordsAreCountedAndIgnored) {
  MakeTable(2);
  Load(0, 1);
  RawTable raw(writer_->fd());
  raw.slot(0).used = UINT64_MAX;
  int reported = 0;
  ASSERT_TRUE(writer_->CollectUsed(2, [&](SlotIndex, std::uint32_t) { ++reported; }).ok());
  EXPECT_EQ(reported, 0);
  EXPECT_EQ(writer_->hostile_values(), 1u);
}

TEST_F(TableTest, AnOverwrittenHeaderIsDataLoss) {
  MakeTable(2);
  RawTable raw(writer_->fd());
  raw.header().slot_count = 1u << 30;
  EXPECT_EQ(writer_->CheckIntegrity(0).code(), StatusCode::kDataLoss);
}

// Garbage everywhere: neither side crashes or leaves its memory (the sanitizer builds see to that).
TEST_F(TableTest, GarbageInTheWholeMappingHarmsNobody) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    MakeTable(64);
    const auto reader = NewReader();
    RawTable raw(writer_->fd());
    const std::span<std::uint64_t> words = raw.words();
    bool sound = true;
    for (std::uint32_t slot = 0; slot < 64 && sound; ++slot) {
      for (int i = 0; i < 40; ++i) {
        const std::uint64_t at = 16 + rng.Below(words.size() - 16);  // the header's own check has its own test
        words[at] = rng.Below(2) ? rng.Next() : rng.Below(256);
      }
      PinnedBlock pinned[2];
      const std::uint32_t hits = reader->LookupPinPrefix(Digests({slot, slot + 1}).view(), pinned);
      for (std::uint32_t i = 0; i < hits; ++i) (void)reader->Unpin(pinned[i].slot, pinned[i].generation, true);
      sound = writer_->Reserve(SlotIndex{slot}, KeyOf(slot)).ok() && writer_->StartLoad(SlotIndex{slot}).ok() &&
              writer_->Publish(SlotIndex{slot}, kGroups).ok() && writer_->MarkReady(SlotIndex{slot}).ok();
      if (sound && rng.Below(2)) {
        sound = writer_->Retire(SlotIndex{slot}).ok() && writer_->TryFree(SlotIndex{slot}).ok();
      }
      sound = sound && writer_->CollectUsed(64, [](SlotIndex, std::uint32_t) {}).ok();
      writer_->CollectCounters();
    }
    EXPECT_EQ(writer_->CheckIntegrity(64).code(), StatusCode::kDataLoss);
  }
}

// --- opening
// -----------------------------------------------------------------------------------------------------------

// A copy of a good table with one header field changed and, unless `stale`, the checksum made right again.
UniqueFd ForgedTable(const TableWriter& writer, const std::function<void(fl_table_header&)>& change, bool stale,
                     bool sealed = true) {
  UniqueFd fd(::memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(writer.bytes())), 0);
  fl_table_header header;
  EXPECT_EQ(::pread(writer.fd(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  change(header);
  if (!stale) header.checksum = Xxh3(&header, offsetof(fl_table_header, checksum));
  EXPECT_EQ(::pwrite(fd.get(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, sealed ? F_SEAL_SHRINK : F_SEAL_GROW), 0);
  return fd;
}

TEST_F(TableTest, AForgedHeaderIsRefused) {
  MakeTable(16);
  const auto refused = [&](const std::function<void(fl_table_header&)>& change, bool stale = false,
                           bool sealed = true) {
    return TableReader::Open(ForgedTable(*writer_, change, stale, sealed), kBootToken, 0).status().code() ==
           StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(TableReader::Open(ForgedTable(
                                    *writer_, [](fl_table_header&) {}, false),
                                kBootToken, 0)
                  .ok());
  EXPECT_TRUE(refused([](fl_table_header&) {}, false, false)) << "not sealed against shrinking";
  EXPECT_TRUE(refused([](fl_table_header& h) { h.engine_id = 9; }, true)) << "checksum";
  EXPECT_TRUE(refused([](fl_table_header& h) { h.magic ^= 1; }));
  EXPECT_TRUE(refused([](fl_table_header& h) { h.version = 2; }));
  EXPECT_TRUE(refused([](fl_table_header& h) { h.boot_token ^= 1; }));
  EXPECT_TRUE(refused([](fl_table_header& h) { h.total_bytes += 1; }));
  EXPECT_TRUE(refused([](fl_table_header& h) { h.slot_count = 1u << 24; }));
  EXPECT_TRUE(refused([](fl_table_header& h) { h.slot_count = 0; }));
  EXPECT_TRUE(refused([](fl_table_header& h) { h.bucket_count = 63; }));
  EXPECT_TRUE(refused([](fl_table_header& h) { h.bucket_count = std::uint64_t{1} << 61; })) << "count x size overflows";
  EXPECT_TRUE(refused([](fl_table_header& h) { h.slots_offset = UINT64_MAX - 63; }));
  EXPECT_TRUE(refused([](fl_table_header& h) { h.slots_offset += 8; })) << "alignment";
  EXPECT_TRUE(refused([](fl_table_header& h) { h.readers_offset = h.total_bytes - 64; }));
  EXPECT_TRUE(refused([](fl_table_header& h) { h.layer_group_mask = 0; }));
  EXPECT_EQ(TableReader::Open(ForgedTable(
                                  *writer_, [](fl_table_header&) {}, false),
                              kBootToken, 28)
                .status()
                .code(),
            StatusCode::kInvalidArgument);
}

TEST(TableOptions, OutOfRangeIsRefused) {
  EXPECT_FALSE(TableWriter::Create({.slot_count = 0, .layer_group_mask = 1}).ok());
  EXPECT_FALSE(TableWriter::Create({.slot_count = (1u << 24) + 1, .layer_group_mask = 1}).ok());
  EXPECT_FALSE(TableWriter::Create({.slot_count = 1, .layer_group_mask = 0}).ok());
}

}  // namespace
}  // namespace foreload
