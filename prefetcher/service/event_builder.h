// Collects core events between steps and cuts them into batches that a step takes.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "prefetcher/core/core.h"

namespace foreload::service {

class EventBuilder {
 public:
  void Add(const core::Event& event) { Batch().events.push_back(event); }

  // `event.blocks` is set to a copy of `blocks` in the batch's pool.
  template <typename EventType>
  void Add(EventType event, std::span<const BlockId> blocks) {
    core::EventBatch& batch = Batch();
    event.blocks = {static_cast<std::uint32_t>(batch.blocks.size()), static_cast<std::uint32_t>(blocks.size())};
    batch.blocks.insert(batch.blocks.end(), blocks.begin(), blocks.end());
    batch.events.push_back(event);
  }

  bool empty() const { return used_ == 0; }

  // Calls `step` with each batch in order, then is empty. `step` must not add events.
  template <typename Step>
  void Flush(Step&& step) {
    const std::size_t count = std::exchange(used_, 0);
    for (std::size_t i = 0; i < count; ++i) {
      step(batches_[i]);
      batches_[i].Clear();
    }
  }

 private:
  core::EventBatch& Batch() {
    if (used_ == 0 || batches_[used_ - 1].events.size() >= core::kStepEventsMax) {
      if (used_ == batches_.size()) batches_.emplace_back();
      ++used_;
    }
    return batches_[used_ - 1];
  }

  std::vector<core::EventBatch> batches_;  // reused; the first used_ hold events
  std::size_t used_ = 0;
};

}  // namespace foreload::service
