#include "base/bounded_queue.h"

#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"

namespace foreload {
namespace {

// Long enough for any machine: reaching it means that a wake-up was lost.
TimeNs FarDeadline() {
  return MonotonicNow() + 60 * kSecond;
}

TEST(BoundedQueue, GivesBackItemsInOrder) {
  BoundedQueue<int> queue(8);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(queue.Push(int{i}));
  std::vector<int> out{99};
  ASSERT_TRUE(queue.WaitDrain(out, FarDeadline()));
  EXPECT_EQ(out, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(queue.size(), 0u);
}

TEST(BoundedQueue, RefusesWhenFullAndLeavesTheItemWithTheCaller) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  ASSERT_TRUE(queue.Push(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.Push(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(*second, 2);
  EXPECT_EQ(queue.size(), queue.capacity());
}

TEST(BoundedQueue, TakesAsMuchOfABatchAsFitsAndLeavesTheRest) {
  BoundedQueue<int> queue(3);
  std::vector<int> batch{1, 2, 3, 4, 5};
  EXPECT_EQ(queue.PushBatch(batch), 3u);
  EXPECT_EQ(batch, (std::vector<int>{4, 5}));
  EXPECT_EQ(queue.PushBatch(batch), 0u);
  EXPECT_EQ(batch, (std::vector<int>{4, 5}));
  std::vector<int> out;
  ASSERT_TRUE(queue.WaitDrain(out, FarDeadline()));
  EXPECT_EQ(out, (std::vector<int>{1, 2, 3}));
}

TEST(BoundedQueue, ReturnsEmptyAtThePassedDeadline) {
  BoundedQueue<int> queue(1);
  std::vector<int> out;
  EXPECT_TRUE(queue.WaitDrain(out, MonotonicNow() - kSecond));
  EXPECT_TRUE(out.empty());
}

TEST(BoundedQueue, AClosedQueueCanBeEmptiedButNotFilled) {
  BoundedQueue<int> queue(4);
  ASSERT_TRUE(queue.Push(1));
  queue.Close();
  EXPECT_FALSE(queue.Push(2));
  std::vector<int> batch{3};
  EXPECT_EQ(queue.PushBatch(batch), 0u);
  EXPECT_EQ(batch.size(), 1u);
  std::vector<int> out;
  EXPECT_TRUE(queue.WaitDrain(out, FarDeadline()));
  EXPECT_EQ(out, std::vector<int>{1});
  EXPECT_FALSE(queue.WaitDrain(out, FarDeadline()));
}

TEST(BoundedQueue, CloseWakesAConsumerThatWaitsForever) {
  BoundedQueue<int> queue(4);
  bool more = true;
  std::thread consumer([&] {
    std::vector<int> out;
    more = queue.WaitDrain(out, kTimeNever);
  });
  queue.Close();
  consumer.join();
  EXPECT_FALSE(more);
}

TEST(BoundedQueue, PushWakesAWaitingConsumer) {
  BoundedQueue<int> queue(4);
  std::vector<int> out;
  std::thread consumer([&] {
    while (queue.WaitDrain(out, FarDeadline()) && out.empty()) {
    }
  });
  ASSERT_TRUE(queue.Push(7));
  consumer.join();
  EXPECT_EQ(out, std::vector<int>{7});
}

TEST(BoundedQueue, FourProducersLoseNothingAndEachKeepsItsOrder) {
  constexpr int kProducers = 4;
  constexpr int kItems = 20'000;
  struct Item {
    int producer;
    int number;
  };
  BoundedQueue<Item> queue(64);
  std::vector<std::thread> producers;
  for (int producer = 0; producer < kProducers; ++producer) {
    producers.emplace_back([&queue, producer] {
      std::vector<Item> batch;
      for (int i = 0; i < kItems;) {
        if (i % 3 == 0) {  // alternate between the two ways in
          if (queue.Push({producer, i})) ++i;
          continue;
        }
        batch.assign(1, {producer, i});
        if (queue.PushBatch(batch) == 1) ++i;
      }
    });
  }
  std::vector<int> next(kProducers, 0);
  std::vector<Item> out;
  for (int received = 0; received < kProducers * kItems;) {
    ASSERT_TRUE(queue.WaitDrain(out, FarDeadline()));
    ASSERT_LE(out.size(), queue.capacity());
    ASSERT_FALSE(out.empty()) << "nothing came before the deadline";
    for (const Item& item : out) ASSERT_EQ(item.number, next[static_cast<std::size_t>(item.producer)]++);
    received += static_cast<int>(out.size());
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(queue.size(), 0u);
}

}  // namespace
}  // namespace foreload
