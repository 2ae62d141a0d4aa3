// What the parts of the core share: the tables, the time of this step, and where commands go. The parts are in files of
// their own (transfers, eviction, admission, demand, planner, store_path, purge, hints); each holds a State& and keeps
// no time of its own.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "prefetcher/core/catalog.h"
#include "prefetcher/core/command.h"
#include "prefetcher/core/config.h"
#include "prefetcher/core/dram_tier.h"
#include "prefetcher/core/engine.h"
#include "prefetcher/core/ledger.h"
#include "prefetcher/core/link_model.h"
#include "prefetcher/core/session.h"
#include "prefetcher/core/stats.h"

namespace foreload::core {

// Times from outside are cut here, so that sums of a few of them stay within 64 bits.
inline constexpr TimeNs kTimeMax = INT64_MAX / 8;
inline TimeNs Later(TimeNs time, DurationNs by) {
  if (time == kTimeNever) return kTimeNever;
  return std::clamp<TimeNs>(time, 0, kTimeMax) + std::clamp<DurationNs>(by, 0, kTimeMax);
}

struct State {
  explicit State(const CoreConfig& c)
      : config(c),
        ledger(stats),
        catalog(c.blocks_max, c.request_blocks_max),
        dram(catalog, stats, c.dram_bytes),
        sessions(c.sessions_max, stats),
        prefetch_enabled(c.prefetch) {
    for (std::size_t i = 0; i < kLinkCount; ++i) links[i].Configure(c.links[i]);
  }

  const CoreConfig config;
  CoreStats stats;
  Ledger ledger;
  Catalog catalog;
  DramTier dram;
  SessionTable sessions;
  std::array<LinkModel, kLinkCount> links;
  std::vector<std::unique_ptr<Engine>> engines;  // by id; null where never heard of
  IndexList<&Copy::view_link> stale_views;       // copies of cleared views, swept a few each step

  TimeNs now = 0;
  std::vector<Command>* out = nullptr;  // of this step
  bool prefetch_enabled = true;
  std::vector<std::uint32_t> idle_sessions;  // became idle or entered a bin in this step: for the planner
  bool dram_pressure = false;                // DRAM is full of what cannot be evicted: dirty blocks go out at once
  bool plan_due = false;                     // something has changed that planning could use
  // Grows when a block that a live request wants has lost its place, failed to get one, or become visible: every
  // request's plan starts again from its first block.
  std::uint64_t plan_epoch = 1;
  double recompute_block_seconds_max = 0;  // over the engines that are up; 0: unknown
  double dram_insert_bytes_per_ns = 0;     // moving average, for the residency W of the DRAM tier
  TimeNs dram_last_insert = 0;

  LinkModel& link(Link l) { return links[static_cast<std::size_t>(l)]; }
  const LinkModel& link(Link l) const { return links[static_cast<std::size_t>(l)]; }
  void Emit(const Command& command) { out->push_back(command); }
  void Ignore(IgnoredReason reason) { ++stats.ignored[static_cast<std::size_t>(reason)]; }

  // Null when never heard of.
  Engine* FindEngine(EngineId id) { return id.value < engines.size() ? engines[id.value].get() : nullptr; }
  // Makes a publisher's record; null when the id is out of range.
  Engine* ObtainEngine(EngineId id) {
    if (id.value >= config.engines_max) return nullptr;
    if (id.value >= engines.size()) engines.resize(id.value + 1);
    if (engines[id.value] == nullptr) {
      engines[id.value] = std::make_unique<Engine>();
      engines[id.value]->id = id;
    }
    return engines[id.value].get();
  }
  Engine& EngineAt(EngineId id) { return *engines[id.value]; }
  const Engine& EngineAt(EngineId id) const { return *engines[id.value]; }
  void ForEachEngine(auto&& visit) {
    for (const auto& engine : engines) {
      if (engine != nullptr) visit(*engine);
    }
  }

  void Replan() {
    ++plan_epoch;
    plan_due = true;
  }
};

}  // namespace foreload::core
