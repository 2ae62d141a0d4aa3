// The one pure step function: events in, commands out. No clock, socket, global, lock or random number inside; the same
// (configuration, steps) gives the same commands on any x86-64 machine.
//
// Thread: one (the core thread, a simulation, a replay). A step takes at most kStepEventsMax events; the caller cuts
// longer input. Work per step is bounded by counts in CoreConfig, never by time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "prefetcher/core/command.h"
#include "prefetcher/core/config.h"
#include "prefetcher/core/event.h"
#include "prefetcher/core/stats.h"

namespace foreload::core {

inline constexpr std::size_t kStepEventsMax = 256;

// Where one block is, as one engine could use it.
struct BlockView {
  bool in_engine = false;   // in the engine's own cache, as far as its KV events say
  SlotIndex slot;           // in its arena; invalid: none
  bool slot_ready = false;  // else loading
  bool in_dram = false;     // wholly
  bool on_ssd = false;
};

class Core {
 public:
  explicit Core(const CoreConfig& config);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Applies `batch` in order, then plans; appends to `commands`. `now` never goes back (an earlier one is taken as the
  // last one). Call it with an empty batch as a tick: at least every 10 ms while anything is live, else at NextWake.
  void Step(TimeNs now, const EventBatch& batch, std::vector<Command>& commands);

  // When the next tick is needed for deadlines, ages and time-to-live; kTimeNever when nothing waits.
  TimeNs NextWake() const;

  const CoreStats& stats() const;

  // Stops the process when an invariant does not hold (ledger, budgets, slots, chains). Work in proportion to the whole
  // state: for tests and debugging.
  void Verify() const;

  // For observe mode and status; unknown ids give an empty view.
  BlockView View(EngineId engine, BlockId block) const;

  // Why a block is where it is, in words, for /statusz and debugging. Never on the hot path.
  std::string Explain(BlockId block) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace foreload::core
