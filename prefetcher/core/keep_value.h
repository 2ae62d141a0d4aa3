// What a resident block is worth, in expected stall seconds saved per byte: K = P_ret(a, W) x reload_s / bytes
// (prediction.md 6.4). That a parent is worth at least what its children are is kept by evicting leaves only
// (eviction.h), not by arithmetic.
#pragma once

#include "base/ids.h"
#include "prefetcher/core/state.h"

namespace foreload::core {

// Probability that the block is needed within the window.
double NeedProbability(const State& state, const Block& block, DurationNs window);

// `window`: the time W within which a need counts.
double ArenaKeepValue(const State& state, const Engine& engine, const Copy& copy, DurationNs window);
double DramKeepValue(const State& state, const Block& block, DurationNs window);

// How long a block that is not used stays: capacity / insertion rate.
DurationNs ArenaResidency(const Engine& engine);
DurationNs DramResidency(const State& state);

// Seconds until the block would be in an arena if it had to come from what is left when `tier`'s copy is gone; the
// engine's recompute time where nothing is left or that is faster.
double ReloadSeconds(const State& state, const Block& block, Tier without, double recompute_seconds);

}  // namespace foreload::core
