// One engine (or one publisher of KV events): registration, its own cache's view, its arena, its queue.
#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <vector>

#include "base/clock.h"
#include "prefetcher/core/arena.h"
#include "prefetcher/core/catalog.h"
#include "prefetcher/core/event.h"

namespace foreload::core {

// The engine's own order: smaller priority first, then arrival.
struct QueueKey {
  std::int32_t priority = 0;
  std::uint64_t serial = 0;
  std::uint32_t request = kNone;
  friend constexpr auto operator<=>(const QueueKey&, const QueueKey&) = default;
};

struct Engine {
  EngineId id;
  bool up = false;           // registered; a mere publisher has a view and a queue, and nothing is loaded for it
  bool view_known = true;    // false after a gap, until KvCleared
  bool needs_slots = false;  // a demand waits for a slot or a DRAM place
  EngineUp info;

  std::uint32_t view_epoch = 1;      // copies of an older epoch are stale
  IndexList<&Copy::view_link> view;  // copies with view_refs > 0 in this epoch

  Arena arena;
  std::set<QueueKey> queue;            // requests that wait to be scheduled, announced ones included
  std::vector<std::uint32_t> demands;  // live, by arrival

  // Service time, learned: how long the queue's head has waited as such when it was scheduled.
  double schedule_interval_ns = 50e6;
  TimeNs head_since = 0;  // last scheduling, or later arrival into an empty queue

  // Rate at which slots are filled, for the residency W = capacity / insertion rate (prediction.md 6.4).
  double insert_interval_ns = 1e9;
  TimeNs last_insert = 0;

  double recompute_block_seconds() const {
    return info.recompute_seconds_per_token * static_cast<double>(info.block_tokens);
  }
  bool Holds(const Copy& copy) const { return view_known && copy.view_epoch == view_epoch && copy.view_refs > 0; }
};

}  // namespace foreload::core
