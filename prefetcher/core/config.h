// Everything that the core can be told. Part of a recording: a replay needs nothing else.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "base/status.h"

namespace foreload::core {

enum class Tier : std::uint8_t { kHbm, kDram, kSsd, kRemote };
inline constexpr std::size_t kTierCount = 4;

// A directed resource with bandwidth and latency. Work on one link is served in the order of its deadlines.
enum class Link : std::uint8_t { kSsdToDram, kDramToHbm, kDramToSsd };
inline constexpr std::size_t kLinkCount = 3;

struct LinkConfig {
  double bytes_per_second = 1e9;                   // first guess; learned from completions afterwards
  DurationNs latency_ns = 100'000;                 // first guess; learned
  std::uint64_t inflight_bytes_max = 64ull << 20;  // of loads that the core has issued and not heard of
};

struct CoreConfig {
  std::uint64_t dram_bytes = 0;  // budget of the DRAM tier
  std::uint64_t ssd_bytes = 0;   // 0: no SSD tier
  std::array<LinkConfig, kLinkCount> links{};
  bool prefetch = true;                 // false: demand-only for every engine
  std::uint32_t blocks_max = 4u << 20;  // catalog entries; beyond it the least useful non-resident one is forgotten
  std::uint32_t requests_max = 65536;   // live requests; beyond it new ones are counted and not tracked
  std::uint32_t request_blocks_max = 1u << 16;  // blocks of one request that are looked at
  std::uint32_t sessions_max = 1u << 20;
  std::uint32_t plan_blocks_max = 4096;       // blocks that one step's planning may look at
  std::uint32_t plan_loads_max = 256;         // loads that one step may issue
  double admission_margin = 0.1;              // load only if gain > (1 + margin) x keep-value of the victim (m in 6.5)
  double link_utilisation_max = 0.8;          // eta in the EDF test
  double arena_prefetch_share_max = 0.9;      // of the slots, for blocks that nobody has asked for yet
  DurationNs prefetch_ttl_ns = 60 * kSecond;  // a landed prefetch for a request that never came is wasted after this
  DurationNs session_promote_horizon_ns = 30 * kSecond;  // W of ssd -> dram promotion for returning sessions
  double session_promote_probability_min = 0.3;
  DurationNs dirty_age_max_ns = 1 * kSecond;  // a stored block is handed to the SSD at this age at the latest
  std::uint64_t dirty_bytes_max = 256ull << 20;
  std::uint64_t ssd_write_bytes_per_day = 0;  // 0: no budget
  bool ssd_second_use_admission = false;      // write only blocks that were used again; else every stored block
  double hold_out_fraction = 0.0;             // of sessions, never prefetched for; by a hash of the session id
  std::uint32_t engines_max = 256;            // engine ids are below this
  std::uint32_t slots_max = 1u << 20;         // of one engine's arena; a larger grant is used up to here
  std::uint32_t demands_max = 16384;          // live demands; beyond it one is answered at once as failed
  std::uint32_t purges_max = 1024;            // purges, and flushes, under way; beyond it one is answered at once
};

// Ok, or which field is outside what the core accepts. The core's constructor requires ok.
Status Validate(const CoreConfig& config);

}  // namespace foreload::core
