// What waits to be published. Step accesses are sampled under load: a full queue drops the oldest. Request events and
// hints are not: they have a larger bound of their own and are refused beyond it. Any thread adds, one takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "proto/unique_fd.h"

namespace foreload::telemetry {
class AccessEvent;
}

namespace foreload::client {

class EmitQueue {
 public:
  struct Limits {
    std::size_t steps = 16384;
    std::size_t requests = 65536;
    std::size_t request_bytes = 256u << 20;  // key lists of a million-token prompt are 2 MiB
  };

  // `wake`: an eventfd that is written when something is added while the taker sleeps.
  EmitQueue(const Limits& limits, UniqueFd wake);
  ~EmitQueue();

  // False: refused and counted.
  bool AddRequest(std::unique_ptr<telemetry::AccessEvent> event);
  void AddStep(std::unique_ptr<telemetry::AccessEvent> event);

  // Up to `events_max` events of about `bytes_max` bytes (at least one), requests first. Empty: the queue is, and the
  // taker is now taken for asleep until it calls Awake.
  std::vector<std::unique_ptr<telemetry::AccessEvent>> Take(std::size_t events_max, std::size_t bytes_max);
  void Awake();
  void Ring();
  int wake_fd() const { return wake_.get(); }

  std::uint64_t dropped_steps() const;
  std::uint64_t dropped_requests() const;

 private:
  struct Entry {
    std::unique_ptr<telemetry::AccessEvent> event;
    std::size_t bytes = 0;
  };
  void RingIfAsleep();

  const Limits limits_;
  const UniqueFd wake_;
  mutable std::mutex mutex_;
  std::deque<Entry> requests_;
  std::deque<Entry> steps_;
  std::size_t request_bytes_ = 0;
  bool asleep_ = false;
  std::uint64_t dropped_steps_ = 0;
  std::uint64_t dropped_requests_ = 0;
};

}  // namespace foreload::client
