#include "transport/dram/dram_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "base/units.h"

namespace foreload {
namespace {

std::unique_ptr<DramStore> Make(std::uint64_t bytes, std::uint64_t slab_bytes) {
  auto store = DramStore::Create({.bytes = bytes, .lock_memory = false, .slab_bytes = slab_bytes});
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return std::move(store).value();
}

TEST(DramStoreTest, GivesAlignedDistinctSlotsUntilItIsFull) {
  const auto store = Make(2 * kMiB, 256 * kKiB);
  std::set<std::uint64_t> offsets;
  std::vector<DramBlock> blocks;
  while (true) {
    auto block = store->Allocate(60 * kKiB);  // four to a slab, 16 KiB of tail
    if (!block.ok()) {
      EXPECT_EQ(block.status().code(), StatusCode::kResourceExhausted);
      break;
    }
    EXPECT_EQ(block->offset % kDramAlignment, 0u);
    EXPECT_TRUE(offsets.insert(block->offset).second);
    std::memset(store->Data(*block), static_cast<int>(blocks.size()), block->bytes);
    blocks.push_back(*block);
  }
  EXPECT_EQ(blocks.size(), 32u);
  EXPECT_EQ(blocks.size(), store->BlocksThatFit(60 * kKiB));
  EXPECT_EQ(store->bytes_used(), 32 * 60 * kKiB);
  for (std::size_t i = 0; i < blocks.size(); ++i)
    EXPECT_EQ(store->Data(blocks[i])[blocks[i].bytes - 1], static_cast<std::uint8_t>(i));
  for (const DramBlock& block : blocks) store->Free(block);
  EXPECT_EQ(store->bytes_used(), 0u);
  EXPECT_EQ(store->free_slabs(), 8u);
}

TEST(DramStoreTest, ASlabServesAnotherSizeOnceItIsEmpty) {
  const auto store = Make(512 * kKiB, 256 * kKiB);
  std::vector<DramBlock> small;
  for (int i = 0; i < 128; ++i) small.push_back(store->Allocate(4 * kKiB).value());
  EXPECT_FALSE(store->Allocate(256 * kKiB).ok());
  for (int i = 0; i < 63; ++i) store->Free(small[static_cast<std::size_t>(i)]);
  EXPECT_FALSE(store->Allocate(256 * kKiB).ok()) << "one small block still holds the first slab";
  store->Free(small[63]);
  const auto large = store->Allocate(256 * kKiB);
  ASSERT_TRUE(large.ok());
  EXPECT_EQ(large->offset, 0u);
}

TEST(DramStoreTest, ABlockLargerThanASlabTakesAdjacentSlabs) {
  const auto store = Make(2 * kMiB, 256 * kKiB);
  const auto a = store->Allocate(600 * kKiB);
  const auto hole = store->Allocate(4 * kKiB);
  const auto b = store->Allocate(600 * kKiB);
  ASSERT_TRUE(a.ok() && hole.ok() && b.ok());
  EXPECT_EQ(b->offset, 4 * 256 * kKiB);
  EXPECT_FALSE(store->Allocate(600 * kKiB).ok()) << "only one slab is left";
  store->Free(*a);
  const auto c = store->Allocate(600 * kKiB);
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->offset, 0u);
  EXPECT_EQ(store->BlocksThatFit(600 * kKiB), 2u);
}

TEST(DramStoreTest, RefusesWhatCannotBe) {
  EXPECT_EQ(DramStore::Create({.bytes = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(DramStore::Create({.bytes = kMiB, .slab_bytes = 5000}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(DramStore::Create({.bytes = UINT64_MAX}).status().code(), StatusCode::kInvalidArgument);
  const auto store = Make(kMiB, 256 * kKiB);
  EXPECT_EQ(store->Allocate(0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store->Allocate(UINT64_MAX).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(store->Allocate(kMiB + 1).status().code(), StatusCode::kResourceExhausted);
}

TEST(DramStoreTest, SaysInWordsWhatItGot) {
  for (const bool wanted : {true, false}) {
    auto store = DramStore::Create({.bytes = 4 * kMiB, .huge_pages = wanted, .lock_memory = wanted});
    ASSERT_TRUE(store.ok());
    const std::string& words = (*store)->Summary();
    EXPECT_NE(words.find("4 MiB"), std::string::npos) << words;
    EXPECT_NE(words.find("pages"), std::string::npos) << words;
    EXPECT_NE(words.find("locked"), std::string::npos) << words;
    EXPECT_NE(words.find("NUMA"), std::string::npos) << words;
    (*store)->base()[(*store)->bytes() - 1] = 1;
  }
}

using DramStoreDeathTest = ::testing::Test;

TEST(DramStoreDeathTest, MisuseStopsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto store = Make(kMiB, 256 * kKiB);
  const DramBlock block = store->Allocate(8 * kKiB).value();
  const DramBlock keeps_slab = store->Allocate(8 * kKiB).value();
  EXPECT_DEATH(store->Free({.offset = block.offset, .bytes = 64 * kKiB}), "size");
  EXPECT_DEATH(store->Free({.offset = block.offset + 4096, .bytes = 8 * kKiB}), "slot begins");
  EXPECT_DEATH(store->Free({.offset = 512 * kKiB, .bytes = 8 * kKiB}), "in use");
  store->Free(block);
  EXPECT_DEATH(store->Free(block), "once");
  store->Free(keeps_slab);
}

// A model check: a plain map of what is allocated must agree, nothing may overlap, nothing may be lost.
TEST(DramStoreTest, NothingOverlapsOrIsLostUnderASeededMix) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const auto store = Make(4 * kMiB, 64 * kKiB);
    std::map<std::uint64_t, DramBlock> live;  // by offset
    std::uint64_t used = 0;
    for (int step = 0; step < 4000; ++step) {
      if (rng.Below(2) == 0 || live.empty()) {
        const std::uint64_t bytes =
            rng.Below(10) == 0 ? 1 + rng.Below(300 * kKiB) : 4096 * (1 + rng.Below(4)) - rng.Below(2);
        const auto block = store->Allocate(bytes);
        if (!block.ok()) continue;
        const auto next = live.lower_bound(block->offset);
        if (next != live.end()) {
          ASSERT_LE(block->offset + bytes, next->first);
        }
        if (next != live.begin()) {
          ASSERT_LE(std::prev(next)->first + std::prev(next)->second.bytes, block->offset);
        }
        ASSERT_LE(block->offset + bytes, store->bytes());
        live[block->offset] = *block;
        used += (bytes + 4095) / 4096 * 4096;
      } else {
        auto victim = live.begin();
        std::advance(victim, static_cast<std::ptrdiff_t>(rng.Below(live.size())));
        used -= (victim->second.bytes + 4095) / 4096 * 4096;
        store->Free(victim->second);
        live.erase(victim);
      }
      ASSERT_EQ(store->bytes_used(), used);
    }
    for (const auto& [offset, block] : live) store->Free(block);
    EXPECT_EQ(store->free_slabs(), store->bytes() / store->slab_bytes());
  }
}

}  // namespace
}  // namespace foreload
