// The owner's thread against the store's: writes, reads and drops while syncs, seals and reclaim run.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "transport/ssd/tests/test_support.h"

namespace foreload::ssd::testing {
namespace {

TEST(SsdConcurrencyTest, OwnerAndStoreThreadsAgree) {
  TempDir dir;
  StoreBench bench(dir.path());
  bench.options.capacity_bytes = 4 << 20;
  bench.options.sync_interval_ns = 100 * kMicrosecond;
  ASSERT_TRUE(bench.Open().ok());
  std::atomic<bool> stop{false};
  std::thread watcher([&] {  // what is marked "any thread"
    std::uint64_t last = 0;
    while (!stop) {
      const std::uint64_t now = bench.store->durable_sequence();
      EXPECT_GE(now, last) << "the watermark went back";
      last = now;
      EXPECT_LE(bench.store->stats().used_bytes, 4u << 20);
      bench.store->RequestFlush();
      std::this_thread::yield();
    }
  });
  Rng rng(5);
  std::uint64_t finished = 0;
  for (std::uint64_t id = 0; id < 600; ++id) {
    const ExtentSizes sizes = {4096 + rng.Below(60000)};
    ASSERT_TRUE(bench.Write(id, sizes).ok());
    ++finished;
    const Status read = bench.Read(id, sizes);
    ASSERT_TRUE(read.ok() || read.code() == StatusCode::kNotFound) << read.ToString();
    if (rng.Below(10) == 0) (void)bench.store->Drop(KeyOf(rng.Below(id + 1)));
  }
  ASSERT_TRUE(bench.store->Flush().ok());
  stop = true;
  watcher.join();
  EXPECT_EQ(bench.Durable().size() + bench.Failed().size(), finished);  // each exactly once
  EXPECT_EQ(bench.store->durable_sequence(), finished);
}

}  // namespace
}  // namespace foreload::ssd::testing
