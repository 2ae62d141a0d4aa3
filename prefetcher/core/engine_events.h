// What happens to engines: registration and death, grants, slots, and the view of their own caches from KV events.
//
// A view is reference-counted per (engine, block). Clearing one costs nothing at once: its copies become stale and are
// swept a few each step.
#pragma once

#include <cstdint>

#include "prefetcher/core/admission.h"
#include "prefetcher/core/demand.h"
#include "prefetcher/core/event.h"
#include "prefetcher/core/eviction.h"
#include "prefetcher/core/state.h"
#include "prefetcher/core/transfers.h"

namespace foreload::core {

class EngineEvents {
 public:
  EngineEvents(State& state, Admission& admission, DemandTable& demands, Transfers& transfers, Eviction& eviction)
      : state_(state), admission_(admission), demands_(demands), transfers_(transfers), eviction_(eviction) {}

  void Up(const EngineUp& event);
  void Down(EngineId id);
  void Granted(EngineId id, std::uint32_t slot_count);
  void Revoked(EngineId id);
  void Used(EngineId id, SlotIndex slot);
  void Freed(EngineId id, SlotIndex slot);

  void Stored(const KvStored& event);
  void Removed(const KvRemoved& event);
  // `known`: KvCleared; else KvUnknown.
  void ViewLost(EngineId id, bool known);
  // True when more wait.
  bool SweepStaleViews(std::uint32_t limit);

 private:
  Engine* FindUp(EngineId id);
  Slot* FindSlot(EngineId id, SlotIndex slot);
  void DropArena(Engine& engine);
  void DropView(Engine& engine);

  State& state_;
  Admission& admission_;
  DemandTable& demands_;
  Transfers& transfers_;
  Eviction& eviction_;
};

}  // namespace foreload::core
