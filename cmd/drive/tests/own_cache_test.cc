#include "cmd/drive/own_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreload::drive {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Blocks = std::vector<std::uint64_t>;

// Runs a request through the cache: all its blocks are computed, then it ends.
Blocks RunThrough(OwnCache& cache, const Blocks& blocks) {
  OwnCache::Lease lease;
  Blocks evicted;
  const std::size_t matched = cache.Match(blocks);
  EXPECT_TRUE(cache.Acquire(blocks, matched, blocks.size(), lease, evicted));
  for (std::size_t i = matched; i < blocks.size(); ++i) EXPECT_TRUE(cache.Name(lease, blocks[i]));
  cache.Release(lease);
  return evicted;
}

TEST(OwnCache, MatchesTheLongestPrefixAndNothingBehindAHole) {
  OwnCache cache(10);
  RunThrough(cache, {1, 2, 3});
  EXPECT_EQ(cache.Match(Blocks{1, 2, 3, 4}), 3u);
  EXPECT_EQ(cache.Match(Blocks{1, 9, 3}), 1u);
  EXPECT_EQ(cache.Match(Blocks{2, 3}), 2u) << "the caller's prefix decides; ids name whole prefixes";
  EXPECT_EQ(cache.used_pages(), 3u);
}

TEST(OwnCache, EvictsTheLeastRecentRequestTailFirst) {
  OwnCache cache(6);
  RunThrough(cache, {1, 2, 3});
  RunThrough(cache, {4, 5, 6});
  EXPECT_THAT(RunThrough(cache, {1, 2}), IsEmpty()) << "a hit evicts nothing and makes its blocks recent";
  EXPECT_THAT(RunThrough(cache, {7, 8, 9}), ElementsAre(3, 6, 5));
  EXPECT_EQ(cache.Match(Blocks{1, 2, 3}), 2u);
  EXPECT_EQ(cache.Match(Blocks{4, 5}), 1u);
}

TEST(OwnCache, NeverEvictsWhatARequestHolds) {
  OwnCache cache(4);
  OwnCache::Lease held;
  Blocks evicted;
  ASSERT_TRUE(cache.Acquire(Blocks{1, 2}, 0, 3, held, evicted));
  ASSERT_TRUE(cache.Name(held, 1));
  OwnCache::Lease other;
  EXPECT_FALSE(cache.Acquire(Blocks{8, 9}, 0, 2, other, evicted));
  EXPECT_EQ(cache.used_pages(), 3u) << "a refused request has taken nothing";
  EXPECT_TRUE(cache.Acquire(Blocks{8}, 0, 1, other, evicted));
  EXPECT_THAT(evicted, IsEmpty());
  cache.Release(held);
  cache.Release(other);
  EXPECT_EQ(cache.used_pages(), 1u) << "only block 1 got a name";
}

TEST(OwnCache, CountsMatchedBlocksThatAreFreeOnce) {
  OwnCache cache(3);
  RunThrough(cache, {1, 2, 3});
  OwnCache::Lease lease;
  Blocks evicted;
  // 1 and 2 are matched, 3 is the only page that can be freed: four pages are one too many.
  EXPECT_FALSE(cache.Acquire(Blocks{1, 2}, 2, 4, lease, evicted));
  EXPECT_TRUE(cache.Acquire(Blocks{1, 2}, 2, 3, lease, evicted));
  EXPECT_THAT(evicted, ElementsAre(3));
}

TEST(OwnCache, KeepsASecondCopyWithoutAName) {
  OwnCache cache(4);
  OwnCache::Lease a;
  OwnCache::Lease b;
  Blocks evicted;
  ASSERT_TRUE(cache.Acquire(Blocks{1}, 0, 2, a, evicted));
  ASSERT_TRUE(cache.Acquire(Blocks{1}, 0, 2, b, evicted));
  EXPECT_TRUE(cache.Name(a, 1));
  EXPECT_FALSE(cache.Name(b, 1));
  EXPECT_EQ(cache.used_pages(), 4u);
  cache.Release(b);
  EXPECT_EQ(cache.used_pages(), 2u);
  cache.Release(a);
  EXPECT_EQ(cache.used_pages(), 1u);
}

}  // namespace
}  // namespace foreload::drive
