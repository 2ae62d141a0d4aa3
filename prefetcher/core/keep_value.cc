#include "prefetcher/core/keep_value.h"

#include <algorithm>

namespace foreload::core {
namespace {

// A block that the engine holds in its own cache too is needed here only after the engine has dropped it.
constexpr double kHeldByEngineFactor = 0.25;
// With an unknown recompute time, a block that is stored nowhere else is taken to cost this many slow loads.
constexpr double kUnknownRecomputeLoads = 10.0;
constexpr DurationNs kResidencyMin = 1 * kSecond;
constexpr DurationNs kResidencyMax = 24 * 3600 * kSecond;

}  // namespace

double NeedProbability(const State& state, const Block& block, DurationNs window) {
  if (block.wanted > 0 || block.demand_refs > 0) return 1.0;
  if (block.retain_until_used || block.retain_until > state.now || block.pin_until > state.now) return 1.0;
  if (block.demoted) return 0.0;
  const std::uint32_t session = state.sessions.Find(block.session);
  if (session != kNone && state.sessions[session].expect_sigma > 0) {
    return state.sessions.ReturnProbability(state.sessions[session], state.now, window);
  }
  // While its request runs it counts as just used: the next need of it is the session's return.
  const DurationNs idle = block.request_refs > 0 ? 0 : state.now - block.last_use;
  return state.sessions.returns().ReturnProbability(block.return_class, idle, window);
}

double ReloadSeconds(const State& state, const Block& block, Tier without, double recompute_seconds) {
  double seconds = state.link(Link::kDramToHbm).Seconds(block.bytes);
  const bool from_dram = without != Tier::kDram && block.DramReadable();
  if (!from_dram) {
    const double slow = seconds + state.link(Link::kSsdToDram).Seconds(block.bytes);
    seconds = block.SsdReadable() ? slow : recompute_seconds > 0 ? recompute_seconds : slow * kUnknownRecomputeLoads;
  }
  return recompute_seconds > 0 ? std::min(seconds, recompute_seconds) : seconds;
}

DurationNs ArenaResidency(const Engine& engine) {
  const double ns = static_cast<double>(engine.arena.size()) * engine.insert_interval_ns;
  return static_cast<DurationNs>(
      std::clamp(ns, static_cast<double>(kResidencyMin), static_cast<double>(kResidencyMax)));
}

DurationNs DramResidency(const State& state) {
  if (state.dram_insert_bytes_per_ns <= 0) return kResidencyMax;
  const double ns = static_cast<double>(state.config.dram_bytes) / state.dram_insert_bytes_per_ns;
  return static_cast<DurationNs>(
      std::clamp(ns, static_cast<double>(kResidencyMin), static_cast<double>(kResidencyMax)));
}

double ArenaKeepValue(const State& state, const Engine& engine, const Copy& copy, DurationNs window) {
  const Block& block = state.catalog.At(copy.block);
  const double reload = ReloadSeconds(state, block, Tier::kHbm, engine.recompute_block_seconds());
  double value = NeedProbability(state, block, window) * reload / static_cast<double>(block.bytes);
  if (engine.Holds(copy) && (block.DramReadable() || block.SsdReadable())) value *= kHeldByEngineFactor;
  return value;
}

double DramKeepValue(const State& state, const Block& block, DurationNs window) {
  const double reload = ReloadSeconds(state, block, Tier::kDram, state.recompute_block_seconds_max);
  return NeedProbability(state, block, window) * reload / static_cast<double>(block.bytes);
}

}  // namespace foreload::core
