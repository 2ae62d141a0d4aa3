// The core thread's mailbox: what other threads have to tell it, in order of arrival.
//
// Every item is the answer to something that was started earlier (a transfer, a control frame of a bounded number of
// connections), so the length is bounded by what is outstanding and nothing is ever refused. Telemetry does not come
// through here but through the staging queue, which may drop; its wake callback is `Wake`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "prefetcher/service/control_server.h"
#include "transport/mover.h"

namespace foreload::service {

struct SsdDurable {  // a spill reached its watermark, or failed to
  std::uint64_t token = 0;
  Status status;
};

using InboxItem = std::variant<ControlEvent, MoveResult, SsdDurable>;

class Inbox {
 public:
  void Push(InboxItem item) {
    {
      const std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
      awake_ = true;
    }
    arrived_.notify_one();
  }

  // Something to look at elsewhere (staging queue, store ring, reload, stop).
  void Wake() {
    {
      const std::lock_guard lock(mutex_);
      awake_ = true;
    }
    arrived_.notify_one();
  }

  // Replaces `out` by all items, waiting until `deadline` for an item or a wake.
  void WaitDrain(std::vector<InboxItem>& out, TimeNs deadline) {
    out.clear();
    std::unique_lock lock(mutex_);
    const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline)};
    arrived_.wait_until(lock, until, [this] { return awake_; });
    awake_ = false;
    items_.swap(out);
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<InboxItem> items_;
  bool awake_ = false;
};

}  // namespace foreload::service
