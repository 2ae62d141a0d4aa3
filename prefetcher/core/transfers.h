// Loads, spills and stores under way: issuing them, joining them, and what their end does to tiers, links and ledger.
//
// A transfer keeps its block known and its DRAM copy in place until TransferDone. One that an engine's death or a
// revoked grant has outlived (its arena epoch is old) touches no slot when it ends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/ids.h"
#include "prefetcher/core/event.h"
#include "prefetcher/core/eviction.h"
#include "prefetcher/core/state.h"

namespace foreload::core {

enum class TransferKind : std::uint8_t { kLoadToDram, kLoadToArena, kSpill, kStore };

struct Transfer {
  TransferId id;
  TransferKind kind = TransferKind::kLoadToDram;
  Traffic traffic = Traffic::kPrefetch;
  BlockId block;
  EngineId engine;                // kLoadToArena, kStore
  std::uint32_t slot = kNone;     // kLoadToArena
  std::uint32_t arena_epoch = 0;  // kLoadToArena
  std::uint64_t bytes = 0;
  std::uint64_t tag = 0;  // kStore: the store's id; kSpill: the block's place in the dirty queue
  TimeNs predicted = 0;
  TimeNs deadline = kTimeNever;
  PrefetchMark mark;
  bool alone = false;        // the link was idle when it was issued
  bool speculative = false;  // counts against the link's cap for prefetch
  bool cancelled = false;    // Cancel was sent

  void Clear() { *this = Transfer{}; }
};

// A prefetch is handed over with this much after its predicted need: the mover orders by deadline and drops what is
// past it, and a prediction is rarely exact. One constant for all keeps the order.
inline constexpr DurationNs kPrefetchGraceNs = 2 * kSecond;

class Transfers {
 public:
  Transfers(State& state, Eviction& eviction) : state_(state), eviction_(eviction) {}

  // The DRAM place must fit. `need`: when the block is needed; a demand's own deadline.
  void LoadDram(BlockId block, Traffic traffic, TimeNs need);
  // A slot must be free and the DRAM copy readable.
  void LoadArena(BlockId block, Engine& engine, Traffic traffic, TimeNs need);
  void Spill(BlockId block);
  void Store(BlockId block, EngineId engine, std::uint64_t store);

  // A request asks for what is in flight: a prefetch on it is late; a demand also promotes it.
  void Late(std::uint32_t transfer);
  void Join(std::uint32_t transfer, TimeNs deadline);
  // The need came earlier than thought: kept for later decisions. What was handed over keeps its place in the mover.
  void Tighten(std::uint32_t transfer, TimeNs need) {
    transfers_[transfer].deadline = std::min(transfers_[transfer].deadline, need);
  }
  // Cancels the loads of this block (into this engine's arena, and into DRAM) for which nobody waits any more.
  void CancelUnneeded(BlockId block, EngineId engine);
  void Cancel(std::uint32_t transfer);
  bool In(std::uint32_t transfer, const std::vector<TransferId>& ids) const {
    return std::find(ids.begin(), ids.end(), transfers_[transfer].id) != ids.end();
  }

  // The engine's arena is being dropped: takes what this step has asked of it back out of the commands, so that nothing
  // that was meant for an old grant reaches a new one of the same step. Gives back the loads; end them afterwards.
  std::vector<TransferId> Withdraw(EngineId engine);

  struct Ended {
    Transfer transfer;
    TransferStatus status = TransferStatus::kOk;
    bool known = false;
    bool stale = false;  // its arena is gone
  };
  Ended End(const TransferDone& done);

  // Landed prefetches for needs that never came: at most `limit` a step. True when more wait.
  bool Expire(std::uint32_t limit);
  TimeNs NextExpiry() const { return expiries_.empty() ? kTimeNever : expiries_.front().at; }

  Transfer& operator[](std::uint32_t i) { return transfers_[i]; }
  const Slab<Transfer>& all() const { return transfers_; }

 private:
  struct Expiry {
    TimeNs at = 0;
    std::uint64_t serial = 0;
    BlockId block;
    EngineId engine;  // invalid: the DRAM copy
  };
  std::uint32_t Begin(TransferKind kind, BlockId block, Link link, Traffic traffic, TimeNs need);
  void EndDramLoad(const Transfer& transfer, TransferStatus status, PrefetchMark mark);
  void EndArenaLoad(const Transfer& transfer, TransferStatus status, PrefetchMark mark);
  void EndSpill(const Transfer& transfer, TransferStatus status);
  void EndStore(const Transfer& transfer, TransferStatus status);
  void CountFailure(BlockId block);
  PrefetchMark* FindLanded(const Expiry& expiry, bool& wanted, Engine*& engine, std::uint32_t& slot);

  State& state_;
  Eviction& eviction_;
  Slab<Transfer> transfers_;
  FlatMap index_;
  std::uint64_t next_id_ = 0;
  std::deque<Expiry> expiries_;  // by time: the time to live is one constant
};

}  // namespace foreload::core
