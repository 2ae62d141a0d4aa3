// A bounded queue between threads: many producers, one consumer, batches on both sides.
//
// Capacity is fixed at construction. A full queue refuses the new item and says so; the caller counts the drop under
// its own policy. One short lock per batch (not per event): the consumer swaps the whole content out. `WaitDrain`
// sleeps until something arrives, the deadline passes, or `Close`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace foreload {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {
    items_.reserve(capacity < 4096 ? capacity : 4096);
  }

  // False when full or closed; then `item` is untouched.
  bool Push(T&& item) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    arrived_.notify_one();
    return true;
  }

  // Moves items in order until full; returns how many were taken. The rest stay in `batch`.
  std::size_t PushBatch(std::vector<T>& batch) {
    std::size_t taken = 0;
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return 0;
      while (taken < batch.size() && items_.size() < capacity_) items_.push_back(std::move(batch[taken++]));
    }
    batch.erase(batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(taken));
    if (taken > 0) arrived_.notify_one();
    return taken;
  }

  // Replaces the content of `out` by everything queued, waiting until `deadline` for the first item.
  // False when closed and empty.
  bool WaitDrain(std::vector<T>& out, TimeNs deadline) {
    out.clear();
    std::unique_lock lock(mutex_);
    const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline)};
    if (deadline == kTimeNever) {
      arrived_.wait(lock, [this] { return closed_ || !items_.empty(); });
    } else {
      arrived_.wait_until(lock, until, [this] { return closed_ || !items_.empty(); });
    }
    items_.swap(out);
    return !(closed_ && out.empty());
  }

  // Refuses further items and wakes the consumer; what is queued can still be drained.
  void Close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    arrived_.notify_all();
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }
  std::size_t capacity() const { return capacity_; }

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<T> items_;
  bool closed_ = false;
};

}  // namespace foreload
