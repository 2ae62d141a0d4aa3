#include "client/store_lanes.h"

#include <algorithm>
#include <utility>

namespace foreload::client {

bool StoreLanes::Open(StoreRingClient ring) {
  const std::lock_guard lock(mutex_);
  RetireLocked();
  if (old_.size() >= kOldRingsMax) return false;
  current_.emplace(Lane{next_epoch_++, std::move(ring)});
  return true;
}

void StoreLanes::Retire() {
  const std::lock_guard lock(mutex_);
  RetireLocked();
}

void StoreLanes::RetireLocked() {
  if (current_) old_.push_back(std::move(*current_));
  current_.reset();
  DropUnused();
}

void StoreLanes::DropUnused() {
  old_.erase(std::remove_if(old_.begin(), old_.end(), [](const Lane& lane) { return lane.ring.taken_count() == 0; }),
             old_.end());
}

int StoreLanes::Begin(fl_store* store) {
  const std::lock_guard lock(mutex_);
  if (!current_) return FL_EUNAVAIL;
  const auto slot = current_->ring.Begin();
  if (!slot) {
    ++counts_.full;
    return FL_EFULL;
  }
  ++counts_.begun;
  const auto data = current_->ring.data(*slot);
  *store = {.data = data.data(), .bytes = data.size(), .token = std::uint64_t{current_->epoch} << 32 | *slot};
  return FL_OK;
}

StoreLanes::Lane* StoreLanes::Find(const fl_store& store, std::uint32_t* slot) {
  const auto epoch = static_cast<std::uint32_t>(store.token >> 32);
  *slot = static_cast<std::uint32_t>(store.token);
  if (current_ && current_->epoch == epoch) return current_->ring.taken(*slot) ? &*current_ : nullptr;
  for (Lane& lane : old_) {
    if (lane.epoch == epoch) return lane.ring.taken(*slot) ? &lane : nullptr;
  }
  return nullptr;
}

int StoreLanes::Commit(const fl_store& store, const BlockKey& key, const BlockKey* parent) {
  const std::lock_guard lock(mutex_);
  std::uint32_t slot = 0;
  Lane* const lane = Find(store, &slot);
  if (lane == nullptr || store.bytes == 0 || store.bytes > lane->ring.slot_bytes()) return FL_EINVAL;
  if (!current_ || lane != &*current_) {
    lane->ring.Abort(slot);
    DropUnused();
    return FL_EUNAVAIL;
  }
  lane->ring.Commit(slot, key, parent, store.bytes, store.token);
  ++counts_.committed;
  return FL_OK;
}

int StoreLanes::Abort(const fl_store& store) {
  const std::lock_guard lock(mutex_);
  std::uint32_t slot = 0;
  Lane* const lane = Find(store, &slot);
  if (lane == nullptr) return FL_EINVAL;
  lane->ring.Abort(slot);
  DropUnused();
  return FL_OK;
}

StoreLanes::Counts StoreLanes::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace foreload::client
