#include "telemetry/staging_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

namespace foreload::telemetry {
namespace {

KvEventBatch Kv(std::size_t hashes) {
  BlockRemoved removed;
  removed.hashes.resize(hashes);
  KvEventBatch batch;
  batch.events.emplace_back(std::move(removed));
  return batch;
}

std::unique_ptr<AccessBatch> Access(int requests, int steps, int sketches) {
  auto batch = std::make_unique<AccessBatch>();
  for (int i = 0; i < steps; ++i) batch->add_events()->mutable_step_access()->set_step(static_cast<std::uint64_t>(i));
  for (int i = 0; i < requests; ++i) batch->add_events()->mutable_request()->set_request_id("r");
  for (int i = 0; i < sketches; ++i) batch->add_events()->mutable_block_sketch()->set_norm(1);
  return batch;
}

class StagingQueueTest : public ::testing::Test {
 protected:
  std::uint64_t Dropped(DropReason reason) const { return metrics_.dropped[static_cast<std::size_t>(reason)]->value(); }
  // R, K, U for view states, k for KV batches, a for access batches, with the source before each.
  std::string Drained(StagingQueue& queue) {
    std::vector<StagedItem> items;
    queue.Drain(items);
    std::string out;
    for (const StagedItem& item : items) {
      out += std::to_string(item.source);
      if (const auto* view = std::get_if<ViewState>(&item.content)) {
        out += *view == ViewState::kRestarted ? 'R' : *view == ViewState::kKnown ? 'K' : 'U';
      } else {
        out += std::holds_alternative<KvEventBatch>(item.content) ? 'k' : 'a';
      }
    }
    return out;
  }

  MetricRegistry registry_;
  TelemetryMetrics metrics_{registry_};
  int woken_ = 0;
};

TEST_F(StagingQueueTest, KeepsOrderAndWakesOnceForEachFilling) {
  StagingQueue queue({}, metrics_, [this] { ++woken_; });
  queue.OnViewState(0, 1, ViewState::kKnown);
  EXPECT_TRUE(queue.OnKvBatch(0, 2, Kv(1)));
  EXPECT_TRUE(queue.OnAccessBatch(1, 3, Access(1, 1, 1)));
  EXPECT_EQ(woken_, 1);
  EXPECT_EQ(Drained(queue), "0K0k1a");
  EXPECT_EQ(queue.items(), 0u);
  EXPECT_EQ(queue.bytes(), 0u);
  EXPECT_TRUE(queue.OnKvBatch(0, 2, Kv(1)));
  EXPECT_EQ(woken_, 2);
}

TEST_F(StagingQueueTest, RefusedKvBatchIsLeftAsItWas) {
  StagingQueue queue({.items_max = 4, .reserve_ratio = 0.5}, metrics_, [] {});
  EXPECT_TRUE(queue.OnKvBatch(0, 0, Kv(1)));
  EXPECT_TRUE(queue.OnKvBatch(0, 0, Kv(1)));
  KvEventBatch batch = Kv(3);
  EXPECT_FALSE(queue.OnKvBatch(0, 0, std::move(batch)));
  ASSERT_EQ(batch.events.size(), 1u);
  EXPECT_EQ(std::get<BlockRemoved>(batch.events[0]).hashes.size(), 3u);
  EXPECT_EQ(Dropped(DropReason::kStagingFull), 1u);
}

TEST_F(StagingQueueTest, SampledRecordsAreShedBeforeRequestEventsAreLost) {
  StagingQueue queue({.items_max = 4, .reserve_ratio = 0.5}, metrics_, [] {});
  EXPECT_TRUE(queue.OnAccessBatch(0, 0, Access(1, 1, 1)));
  EXPECT_TRUE(queue.OnAccessBatch(0, 0, Access(1, 1, 1)));
  EXPECT_TRUE(queue.OnAccessBatch(0, 0, Access(2, 3, 4))) << "into the reserve";
  EXPECT_TRUE(queue.OnAccessBatch(0, 0, Access(2, 0, 0)));
  EXPECT_FALSE(queue.OnAccessBatch(0, 0, Access(1, 0, 0)));
  EXPECT_EQ(Dropped(DropReason::kStepAccessShed), 3u);
  EXPECT_EQ(Dropped(DropReason::kBlockSketchShed), 4u);
  EXPECT_EQ(Dropped(DropReason::kAccessFull), 1u);
  std::vector<StagedItem> items;
  ASSERT_EQ(queue.Drain(items), 4u);
  const auto& kept = *std::get<std::unique_ptr<AccessBatch>>(items[2].content);
  ASSERT_EQ(kept.events_size(), 2);
  EXPECT_TRUE(kept.events(0).has_request() && kept.events(1).has_request());
}

TEST_F(StagingQueueTest, BytesAreBoundedButAnEmptyQueueTakesAnyBatch) {
  StagingQueue queue({.bytes_max = 100'000, .reserve_ratio = 0.5}, metrics_, [] {});
  EXPECT_TRUE(queue.OnKvBatch(0, 0, Kv(100'000)));
  EXPECT_FALSE(queue.OnKvBatch(0, 0, Kv(1)));
  EXPECT_FALSE(queue.OnAccessBatch(0, 0, Access(1, 0, 0)));
  EXPECT_EQ(Drained(queue), "0k");
  EXPECT_TRUE(queue.OnKvBatch(0, 0, Kv(100)));
  EXPECT_TRUE(queue.OnKvBatch(0, 0, Kv(100)));
}

TEST_F(StagingQueueTest, ViewStatesAreNeverRefusedAndMerge) {
  StagingQueue queue({.items_max = 4, .reserve_ratio = 0.5}, metrics_, [] {});
  for (int i = 0; i < 1000; ++i) {
    queue.OnViewState(0, 0, ViewState::kRestarted);
    queue.OnViewState(0, 0, ViewState::kKnown);
    queue.OnViewState(1, 0, ViewState::kKnown);
    queue.OnViewState(0, 0, ViewState::kUnknown);
  }
  EXPECT_EQ(Drained(queue), "0R0U1K");
  queue.OnViewState(0, 0, ViewState::kUnknown);
  queue.OnViewState(0, 0, ViewState::kRestarted);
  queue.OnViewState(0, 0, ViewState::kKnown);
  queue.OnKvBatch(0, 0, Kv(1));
  queue.OnViewState(0, 0, ViewState::kUnknown);
  EXPECT_EQ(Drained(queue), "0R0K0k0U") << "states before and after a batch stay apart";
}

TEST_F(StagingQueueTest, NothingIsLostBetweenThreads) {
  std::atomic<int> wakes = 0;
  StagingQueue queue({.items_max = 64, .reserve_ratio = 0}, metrics_, [&] { ++wakes; });
  constexpr int kBatches = 2000;
  constexpr SourceIndex kProducers = 3;
  std::vector<std::jthread> producers;
  for (SourceIndex source = 0; source < kProducers; ++source) {
    producers.emplace_back([&queue, source] {
      for (int i = 0; i < kBatches; ++i) {
        KvEventBatch batch = Kv(1);
        batch.wall_time_seconds = i;
        while (!queue.OnKvBatch(source, 0, std::move(batch))) std::this_thread::yield();
      }
    });
  }
  std::vector<int> next(kProducers, 0);
  std::vector<StagedItem> items;
  for (int seen = 0; seen < kBatches * static_cast<int>(kProducers);) {
    seen += static_cast<int>(queue.Drain(items));
    for (const StagedItem& item : items) {
      ASSERT_EQ(std::get<KvEventBatch>(item.content).wall_time_seconds, next[item.source]++);
    }
    if (items.empty()) std::this_thread::yield();
  }
  EXPECT_GT(wakes, 0);
}

}  // namespace
}  // namespace foreload::telemetry
