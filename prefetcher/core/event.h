// What the core is told. Plain data: ids are interned before the core, key lists lie in the batch's pool, times come in
// through Step's `now`. An event that names something unknown is counted and ignored, never a crash.
#pragma once

#include <cstdint>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "prefetcher/core/config.h"

namespace foreload::core {

// A run in EventBatch::blocks.
struct BlockRange {
  std::uint32_t begin = 0;
  std::uint32_t count = 0;
};

enum class RequestKind : std::uint8_t { kUnknown, kHuman, kTool, kWorkflow };
inline constexpr std::size_t kRequestKindCount = 4;

enum class EnginePolicy : std::uint8_t { kPredict, kDemandOnly };

struct EngineUp {
  EngineId engine;
  std::uint32_t block_tokens = 0;
  std::uint64_t block_bytes = 0;           // all ranks' shares, as stored and moved
  double recompute_seconds_per_token = 0;  // 0: unknown; then no load is refused for being slower than recomputing
  EnginePolicy policy = EnginePolicy::kPredict;
};
struct EngineDown {  // all slots are gone with it, without SlotFree; its transfers still end with TransferDone
  EngineId engine;
};
struct ArenaGranted {  // also replaces an earlier grant (after ArenaRevoked)
  EngineId engine;
  std::uint32_t slot_count = 0;
};
struct ArenaRevoked {  // as EngineDown for the slots alone
  EngineId engine;
};

// Engine's own cache, from its KV events. Reference-counted per (engine, block): overlapping chunks announce twice.
struct KvStored {
  EngineId engine;
  BlockId block;
  BlockId parent;  // invalid: root or unknown
  Tier tier = Tier::kHbm;
};
struct KvRemoved {
  EngineId engine;
  BlockId block;
  Tier tier = Tier::kHbm;
};
struct KvCleared {  // one engine's HBM view is empty
  EngineId engine;
};
struct KvUnknown {  // a gap that cannot be replayed: nothing is known of the engine's cache until KvCleared
  EngineId engine;
};

struct RequestQueued {
  EngineId engine;
  RequestId request;
  SessionId session;  // invalid: none
  RequestKind kind = RequestKind::kUnknown;
  std::int32_t priority = 0;  // smaller first
  std::uint32_t turn = 0;     // 0: unknown
  std::uint32_t prompt_tokens = 0;
  TimeNs expected_start = kTimeNever;  // kTimeNever: unknown, predicted from the queue
  bool announced = false;              // a router's hint before arrival: not yet in the engine's queue
  BlockRange blocks;                   // prefix order; the parent of each is the one before it
};
struct RequestScheduled {
  RequestId request;
};
struct RequestFirstToken {
  RequestId request;
};
struct RequestFinished {
  RequestId request;
  BlockRange blocks;  // prompt and output; empty: as queued
};
struct RequestAborted {
  RequestId request;
};

enum class HintAction : std::uint8_t { kExpect, kPrefetch, kRetain, kDemote, kPin };
struct HintGiven {
  EngineId engine;
  HintAction action = HintAction::kExpect;
  SessionId session;  // invalid: the blocks
  DurationNs eta_ns = 0;
  DurationNs sigma_ns = 0;
  DurationNs ttl_ns = 0;  // 0: until used once
  BlockRange blocks;
};

// An engine has committed a block; its bytes wait in the store ring. Answered by AcceptStore or RejectStore.
struct StoreOffered {
  std::uint64_t store = 0;
  EngineId engine;
  BlockId block;
  BlockId parent;
  std::uint64_t bytes = 0;
};
// Recovery found a durable block (start-up).
struct SsdRecovered {
  BlockId block;
  BlockId parent;  // invalid: unknown
  std::uint64_t bytes = 0;
};
// The SSD store has dropped a block by itself: reclaim, corruption, device failure.
struct SsdDropped {
  BlockId block;
};

// A request waits. Answered by exactly one DemandDone.
struct DemandAsked {
  std::uint64_t demand = 0;
  EngineId engine;
  RequestId request;  // invalid: unknown
  TimeNs deadline = kTimeNever;
  BlockRange blocks;  // prefix order
};
// Reader's death or its own deadline: nobody waits any more. No answer.
struct DemandDropped {
  std::uint64_t demand = 0;
};

enum class TransferStatus : std::uint8_t {
  kOk,
  kCancelled,
  kIoError,
  kCorrupt,
  kNoSpace,
  kStaleGeneration,
  kGone,
  kTimeout
};
struct TransferDone {
  TransferId transfer;
  TransferStatus status = TransferStatus::kOk;
  std::uint64_t bytes = 0;
  DurationNs service_ns = 0;  // from submission to the device until its terminal event; 0: never submitted
};

// Observed in shared memory.
struct SlotUsed {  // a reader has used the slot's content
  EngineId engine;
  SlotIndex slot;
};
struct SlotFree {  // a retired slot has no holder and no transfer any more
  EngineId engine;
  SlotIndex slot;
};

struct NamespacePurged {  // followed by the blocks; each is dropped in every tier and in flight
  std::uint64_t purge = 0;
  BlockRange blocks;
};
struct FlushAsked {  // answered by FlushDone when all that is dirty now is durable (or failed)
  std::uint64_t flush = 0;
};
struct PolicyChanged {  // SIGHUP or level control
  bool prefetch = true;
};

using Event = std::variant<EngineUp, EngineDown, ArenaGranted, ArenaRevoked, KvStored, KvRemoved, KvCleared, KvUnknown,
                           RequestQueued, RequestScheduled, RequestFirstToken, RequestFinished, RequestAborted,
                           HintGiven, StoreOffered, SsdRecovered, SsdDropped, DemandAsked, DemandDropped, TransferDone,
                           SlotUsed, SlotFree, NamespacePurged, FlushAsked, PolicyChanged>;
static_assert(std::is_trivially_copyable_v<Event>);

struct EventBatch {
  std::vector<Event> events;
  std::vector<BlockId> blocks;  // pool that BlockRange points into

  void Clear() {
    events.clear();
    blocks.clear();
  }
};

}  // namespace foreload::core
