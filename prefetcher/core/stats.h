// Counts that the core keeps as plain integers; the service copies them into metrics after a step.
#pragma once

#include <array>
#include <cstdint>

#include "prefetcher/core/command.h"
#include "prefetcher/core/config.h"

namespace foreload::core {

// Each issued prefetch ends as exactly one of these.
enum class Outcome : std::uint8_t { kUseful, kLate, kWasted, kCancelled, kFailed };
inline constexpr std::size_t kOutcomeCount = 5;

enum class SuppressReason : std::uint8_t {
  kRecomputeFaster,  // loading would take longer than computing the block again
  kTooLate,          // would land after its deadline plus recompute time
  kNoSlot,           // every slot is pinned, loading or warmer
  kVictimWarmer,     // admission test against the victim
  kLinkBusy,         // EDF: the link cannot carry it in time
  kNoDram,           // no DRAM place that is worth less
  kHoldOut,
  kPolicy  // prefetch is off
};
inline constexpr std::size_t kSuppressReasonCount = 8;

enum class IgnoredReason : std::uint8_t {
  kUnknownEngine,
  kUnknownRequest,
  kUnknownTransfer,
  kUnknownBlock,
  kSelfParent,      // a block that is its own parent
  kParentCycle,     // a link that would close a cycle
  kParentConflict,  // a second, different parent: the first stays
  kTooManyRequests,
  kTooManyBlocks,  // the catalog is full of blocks that cannot be forgotten, or a list was cut at request_blocks_max
  kBadSlot,        // outside the grant, or not in a state that the event could follow
  kUnknownDemand,  // also one that was answered already
  kDuplicate,      // an id that is live already
  kBadRange        // a BlockRange outside the batch's pool
};
inline constexpr std::size_t kIgnoredReasonCount = 13;

struct PrefetchLedger {  // per destination tier
  std::uint64_t issued = 0;
  std::array<std::uint64_t, kOutcomeCount> ended{};
  std::uint64_t live = 0;  // issued == sum(ended) + live, always
  std::uint64_t issued_bytes = 0;
  std::array<std::uint64_t, kOutcomeCount> ended_bytes{};
  std::uint64_t live_bytes = 0;
};

struct CoreStats {
  std::array<PrefetchLedger, kTierCount> prefetch{};  // indexed by destination Tier (kHbm, kDram)
  std::array<std::uint64_t, kSuppressReasonCount> suppressed{};
  std::array<std::uint64_t, kIgnoredReasonCount> ignored{};
  std::array<std::uint64_t, kStoreRefusalCount> store_refused{};
  std::uint64_t stores_accepted = 0;
  std::uint64_t demand_requests = 0;
  std::uint64_t demand_blocks_ready = 0;
  std::uint64_t demand_blocks_absent = 0;
  std::uint64_t demand_blocks_failed = 0;
  std::uint64_t demand_blocks_joined = 0;
  std::uint64_t demand_bytes_dram = 0;
  std::uint64_t demand_bytes_ssd = 0;
  // Blocks that scheduled requests needed, by where they were found at that moment; sums to needed_blocks.
  std::uint64_t needed_blocks = 0;
  std::uint64_t needed_in_engine = 0;
  std::uint64_t needed_ready = 0;      // in the arena, READY
  std::uint64_t needed_in_flight = 0;  // on the way into the arena
  std::uint64_t needed_dram = 0;
  std::uint64_t needed_ssd = 0;
  std::uint64_t needed_absent = 0;
  std::uint64_t dram_bytes_used = 0;
  std::uint64_t dram_bytes_dirty = 0;
  std::uint64_t ssd_bytes_used = 0;
  std::uint64_t blocks = 0;  // catalog entries
  std::uint64_t requests_live = 0;
  std::uint64_t sessions = 0;
  std::uint64_t spills_issued = 0;
  std::uint64_t spills_durable = 0;
  std::uint64_t spills_failed = 0;
  std::array<double, kLinkCount> link_bytes_per_second{};  // learned
  std::array<DurationNs, kLinkCount> link_latency_ns{};
  std::uint64_t lead_count = 0;  // landed prefetches that were used
  double lead_seconds_sum = 0;   // READY until first use
};

}  // namespace foreload::core
