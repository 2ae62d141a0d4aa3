// One engine's slots as the core sees them: free -> loading -> ready -> retiring -> free (command.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "prefetcher/core/containers.h"
#include "prefetcher/core/ledger.h"

namespace foreload::core {

enum class SlotState : std::uint8_t { kFree, kLoading, kReady, kRetiring };

struct Slot {
  SlotState state = SlotState::kFree;
  bool speculative = false;        // loading or ready for a need that has not come: counts against the prefetch share
  bool used_early = false;         // SlotUsed came before TransferDone
  std::uint32_t transfer = kNone;  // while loading
  BlockId block;                   // while not free
  PrefetchMark mark;               // landed by prefetch, not used yet; stays through retiring: a late SlotUsed counts
  ListLink link;                   // ready list, cold to hot
};

// Counters and lists only; the catalog's side (Copy::slot) is kept by transfers.h and eviction.h.
class Arena {
 public:
  // Replaces whatever was there: every slot is free under a new epoch.
  void Grant(std::uint32_t slot_count) {
    ++epoch_;
    slots_.assign(slot_count, Slot{});
    free_.clear();
    for (std::uint32_t i = slot_count; i > 0; --i) free_.push_back(i - 1);
    ready_ = {};
    retiring_ = loading_ = speculative_ = claims_ = 0;
  }

  std::uint32_t TakeFree() {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void BeginLoad(std::uint32_t i, BlockId block, std::uint32_t transfer, bool speculative) {
    Slot& slot = slots_[i];  // as Freed has left it: new
    slot.state = SlotState::kLoading;
    slot.speculative = speculative;
    slot.transfer = transfer;
    slot.block = block;
    ++loading_;
    if (speculative) ++speculative_;
  }
  void Landed(std::uint32_t i) {
    slots_[i].state = SlotState::kReady;
    slots_[i].transfer = kNone;
    --loading_;
    ready_.PushBack(slots_, i);
  }
  // From loading (the load failed: the executor retires it) or ready.
  void Retire(std::uint32_t i) {
    if (slots_[i].state == SlotState::kReady) {
      ready_.Remove(slots_, i);
    } else {
      --loading_;
    }
    NotSpeculative(i);
    slots_[i].state = SlotState::kRetiring;
    slots_[i].transfer = kNone;
    ++retiring_;
  }
  void Freed(std::uint32_t i) {
    slots_[i] = Slot{};
    --retiring_;
    free_.push_back(i);
  }
  void NotSpeculative(std::uint32_t i) {
    if (slots_[i].speculative) --speculative_;
    slots_[i].speculative = false;
  }
  void Touch(std::uint32_t i) {
    if (slots_[i].state == SlotState::kReady) ready_.MoveToBack(slots_, i);
  }

  Slot& operator[](std::uint32_t i) { return slots_[i]; }
  const Slot& operator[](std::uint32_t i) const { return slots_[i]; }
  std::vector<Slot>& slots() { return slots_; }
  const std::vector<Slot>& slots() const { return slots_; }
  IndexList<&Slot::link>& ready() { return ready_; }
  const IndexList<&Slot::link>& ready() const { return ready_; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(slots_.size()); }
  std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t retiring() const { return retiring_; }
  std::uint32_t loading() const { return loading_; }
  std::uint32_t speculative() const { return speculative_; }
  std::uint32_t epoch() const { return epoch_; }

  // Retiring slots that someone of this step waits for: nobody retires another one while an unclaimed one is coming.
  void ResetClaims() { claims_ = 0; }
  bool Claim() {
    if (claims_ >= retiring_) return false;
    ++claims_;
    return true;
  }

 private:
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  IndexList<&Slot::link> ready_;
  std::uint32_t retiring_ = 0;
  std::uint32_t loading_ = 0;
  std::uint32_t speculative_ = 0;
  std::uint32_t claims_ = 0;
  std::uint32_t epoch_ = 0;
};

}  // namespace foreload::core
