// Who makes room, in the arena and in DRAM. Leaves first, from the cold end of a list, the least keep-value among a
// few; for a guess only what is worth less than the guess (admission test, prediction.md 6.5); for a demand anything
// that no live demand waits for.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "prefetcher/core/state.h"

namespace foreload::core {

enum class Purpose : std::uint8_t { kDemand, kStore, kPrefetch };

// What a prefetch offers for a place.
struct Bid {
  double gain = 0;  // stall seconds saved per byte
  // Needs of the victim within this time count against it. For a guess, the residency of the tier. For a certain need,
  // the time until that need: at the latest then, demand takes the place anyway.
  DurationNs window = 0;
};

class Eviction {
 public:
  explicit Eviction(State& state) : state_(state) {}

  enum class Room : std::uint8_t {
    kReady,
    kComing,  // a slot is being retired; ask again after SlotFree
    kWarmer,  // every candidate is worth more than `gain` allows
    kNothing  // nothing can be evicted
  };

  // `gain` in stall seconds saved per byte; used for kPrefetch alone.
  Room MakeSlot(Engine& engine, Purpose purpose, const Bid& bid = {});
  Room MakeDram(std::uint64_t bytes, Purpose purpose, const Bid& bid = {});

  // READY -> retiring. The mark stays in the slot until SlotFree.
  void RetireReady(Engine& engine, std::uint32_t slot);
  // The slot holds no copy of its block any more (its state is the caller's business).
  void Detach(Engine& engine, std::uint32_t slot);
  // Frees a readable DRAM copy on which no transfer runs.
  void DropDram(BlockId id);
  // Frees it if it is doomed and its last transfer has ended.
  void DropIfDoomed(BlockId id);

 private:
  bool Beats(double gain, double victim) const { return gain > (1.0 + state_.config.admission_margin) * victim; }
  std::uint32_t PickSlot(Engine& engine, Purpose purpose, bool last_resort);
  std::uint32_t PickDram(Purpose purpose, bool last_resort);

  State& state_;
};

}  // namespace foreload::core
