#include "telemetry/staging_queue.h"

#include <utility>

namespace foreload::telemetry {
namespace {

std::size_t SizeOf(const KvEventBatch& batch) {
  std::size_t bytes = sizeof(StagedItem) + batch.events.size() * sizeof(KvEvent);
  for (const KvEvent& event : batch.events) {
    if (const auto* stored = std::get_if<BlockStored>(&event)) bytes += stored->hashes.size() * sizeof(BlockHash);
    if (const auto* removed = std::get_if<BlockRemoved>(&event)) bytes += removed->hashes.size() * sizeof(BlockHash);
  }
  return bytes;
}

// Encoded bytes, and about what protobuf keeps for each event beside them.
std::size_t SizeOf(const AccessBatch& batch) {
  constexpr std::size_t kEventOverhead = 256;
  return sizeof(StagedItem) + batch.ByteSizeLong() + static_cast<std::size_t>(batch.events_size()) * kEventOverhead;
}

struct Shed {
  std::size_t step_access = 0;
  std::size_t block_sketch = 0;
};

Shed ShedSampled(AccessBatch& batch) {
  Shed shed;
  auto& events = *batch.mutable_events();
  int kept = 0;
  for (int i = 0; i < events.size(); ++i) {
    if (events.Get(i).has_step_access()) {
      ++shed.step_access;
    } else if (events.Get(i).has_block_sketch()) {
      ++shed.block_sketch;
    } else {
      events.SwapElements(kept++, i);
    }
  }
  events.DeleteSubrange(kept, events.size() - kept);
  return shed;
}

}  // namespace

StagingQueue::StagingQueue(const Options& options, TelemetryMetrics& metrics, std::function<void()> wake)
    : options_(options), metrics_(metrics), wake_(std::move(wake)) {}

bool StagingQueue::Fits(std::size_t bytes, double ratio) const {
  return static_cast<double>(batches_ + 1) <= static_cast<double>(options_.items_max) * ratio &&
         static_cast<double>(bytes_ + bytes) <= static_cast<double>(options_.bytes_max) * ratio;
}

template <typename Content>
void StagingQueue::Push(SourceIndex source, TimeNs received, Content&& content, std::size_t bytes) {
  items_.push_back({source, received, std::forward<Content>(content)});
  ++batches_;
  bytes_ += bytes;
  tails_.erase(source);
}

bool StagingQueue::OnKvBatch(SourceIndex source, TimeNs received, KvEventBatch&& batch) {
  const std::size_t bytes = SizeOf(batch);
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    // A batch that alone exceeds the common part is taken by an empty queue: refusing it would never end.
    if (!Fits(bytes, 1 - options_.reserve_ratio) && batches_ > 0) {
      metrics_.Drop(DropReason::kStagingFull);
      return false;
    }
    was_empty = items_.empty();
    Push(source, received, std::move(batch), bytes);
  }
  if (was_empty) wake_();
  return true;
}

bool StagingQueue::OnAccessBatch(SourceIndex source, TimeNs received, std::unique_ptr<AccessBatch> batch) {
  std::size_t bytes = SizeOf(*batch);
  Shed shed;
  bool was_empty = false;
  bool taken = false;
  {
    const std::lock_guard lock(mutex_);
    taken = Fits(bytes, 1 - options_.reserve_ratio);
    if (!taken) {
      shed = ShedSampled(*batch);
      bytes = SizeOf(*batch);
      taken = Fits(bytes, 1);
    }
    was_empty = items_.empty();
    if (taken) Push(source, received, std::move(batch), bytes);
  }
  metrics_.Drop(DropReason::kStepAccessShed, shed.step_access);
  metrics_.Drop(DropReason::kBlockSketchShed, shed.block_sketch);
  if (!taken) metrics_.Drop(DropReason::kAccessFull);
  if (taken && was_empty) wake_();
  return taken;
}

void StagingQueue::OnViewState(SourceIndex source, TimeNs received, ViewState state) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = items_.empty();
    Tail& tail = tails_[source];
    std::size_t& slot = state == ViewState::kRestarted ? tail.restarted : tail.view;
    if (slot != Tail::kNone) {
      items_[slot].content = state;  // the last word counts; one restart is as good as two
    } else {
      // A restart after a view state without a batch between: the restart comes first, and what follows speaks anew.
      if (state == ViewState::kRestarted && tail.view != Tail::kNone) {
        items_[tail.view].content = state;
        tail.restarted = std::exchange(tail.view, Tail::kNone);
      } else {
        slot = items_.size();
        items_.push_back({source, received, state});
      }
    }
  }
  if (was_empty) wake_();
}

std::size_t StagingQueue::Drain(std::vector<StagedItem>& out) {
  out.clear();
  const std::lock_guard lock(mutex_);
  items_.swap(out);
  batches_ = 0;
  bytes_ = 0;
  tails_.clear();
  return out.size();
}

std::size_t StagingQueue::items() const {
  const std::lock_guard lock(mutex_);
  return items_.size();
}

std::size_t StagingQueue::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace foreload::telemetry
