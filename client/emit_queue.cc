#include "client/emit_queue.h"

#include <unistd.h>

#include <utility>

#include "proto/limits.h"
#include "proto/telemetry.pb.h"

namespace foreload::client {

EmitQueue::EmitQueue(const Limits& limits, UniqueFd wake) : limits_(limits), wake_(std::move(wake)) {}

EmitQueue::~EmitQueue() = default;

void EmitQueue::Ring() {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void EmitQueue::RingIfAsleep() {
  if (!asleep_) return;
  asleep_ = false;
  Ring();
}

bool EmitQueue::AddRequest(std::unique_ptr<telemetry::AccessEvent> event) {
  const std::size_t bytes = event->ByteSizeLong();
  const std::lock_guard lock(mutex_);
  if (requests_.size() >= limits_.requests || request_bytes_ + bytes > limits_.request_bytes ||
      bytes > kAccessBatchBytesMax) {
    ++dropped_requests_;
    return false;
  }
  request_bytes_ += bytes;
  requests_.push_back({std::move(event), bytes});
  RingIfAsleep();
  return true;
}

void EmitQueue::AddStep(std::unique_ptr<telemetry::AccessEvent> event) {
  const std::size_t bytes = event->ByteSizeLong();
  const std::lock_guard lock(mutex_);
  if (steps_.size() >= limits_.steps) {
    steps_.pop_front();
    ++dropped_steps_;
  }
  steps_.push_back({std::move(event), bytes});
  RingIfAsleep();
}

std::vector<std::unique_ptr<telemetry::AccessEvent>> EmitQueue::Take(std::size_t events_max, std::size_t bytes_max) {
  std::vector<std::unique_ptr<telemetry::AccessEvent>> taken;
  std::size_t bytes = 0;
  const std::lock_guard lock(mutex_);
  for (std::deque<Entry>* queue : {&requests_, &steps_}) {
    while (!queue->empty() && taken.size() < events_max &&
           (taken.empty() || bytes + queue->front().bytes <= bytes_max)) {
      bytes += queue->front().bytes;
      if (queue == &requests_) request_bytes_ -= queue->front().bytes;
      taken.push_back(std::move(queue->front().event));
      queue->pop_front();
    }
  }
  asleep_ = taken.empty();
  return taken;
}

void EmitQueue::Awake() {
  std::uint64_t rings = 0;
  (void)!::read(wake_.get(), &rings, sizeof rings);
  const std::lock_guard lock(mutex_);
  asleep_ = false;
}

std::uint64_t EmitQueue::dropped_steps() const {
  const std::lock_guard lock(mutex_);
  return dropped_steps_;
}

std::uint64_t EmitQueue::dropped_requests() const {
  const std::lock_guard lock(mutex_);
  return dropped_requests_;
}

}  // namespace foreload::client
