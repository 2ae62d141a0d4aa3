// Loads that a request waits for. A demand wants the longest prefix of its range that is stored here and fits; it joins
// what is in flight, takes over what waits, and submits the rest at once and in order. It is answered exactly once:
// when every block of that prefix has come or failed, or at its deadline; never after its engine's death or
// DemandDropped.
//
// Slots and DRAM copies that a live demand waits for are evicted for nobody. Where several demands fill an arena, the
// one that finds nothing left that could be evicted is cut there: none waits for another for ever.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "prefetcher/core/event.h"
#include "prefetcher/core/eviction.h"
#include "prefetcher/core/state.h"
#include "prefetcher/core/transfers.h"

namespace foreload::core {

enum class Wait : std::uint8_t {
  kReady,
  kArena,  // the load into the arena is under way
  kDram,   // the load into DRAM is under way
  kPlace,  // waits for a slot, or for a place in DRAM
  kFailed
};

struct Demand {
  std::uint64_t id = 0;
  EngineId engine;
  TimeNs deadline = kTimeNever;
  std::uint32_t asked = 0;        // blocks of the range
  std::uint32_t usable = 0;       // blocks before the first one that is stored nowhere
  std::uint32_t limit = 0;        // blocks before the first that has failed; only these are worked for
  std::uint32_t open = 0;         // of those before `limit`, not ready yet
  std::uint32_t first_place = 0;  // no block before it waits for a place
  std::uint32_t places = 0;       // blocks before `limit` in Wait::kPlace
  std::vector<BlockId> blocks;    // the usable ones
  std::vector<Wait> waits;
  std::vector<std::uint8_t> counted;   // 1: the block's bytes are in the result
  std::vector<std::uint32_t> waiters;  // the demand's node in each block's list
  DemandDone result;

  void Clear() {
    std::vector<BlockId> b = std::move(blocks);
    std::vector<Wait> w = std::move(waits);
    std::vector<std::uint8_t> c = std::move(counted);
    std::vector<std::uint32_t> n = std::move(waiters);
    b.clear();
    w.clear();
    c.clear();
    n.clear();
    *this = Demand{};
    blocks = std::move(b);
    waits = std::move(w);
    counted = std::move(c);
    waiters = std::move(n);
  }
};

class DemandTable {
 public:
  DemandTable(State& state, Transfers& transfers, Eviction& eviction)
      : state_(state), transfers_(transfers), eviction_(eviction) {}

  void Asked(const DemandAsked& event, std::span<const BlockId> blocks);
  void Dropped(std::uint64_t demand);
  void EngineGone(Engine& engine);  // its demands end without an answer
  void ArenaGone(Engine& engine);   // its demands are answered with what had failed

  // After the end of a load.
  void Wake(const Transfers::Ended& ended);
  // Gives places to those that wait for them, in the order of arrival. Once a step, before planning.
  void Pump();
  // Those whose deadline has passed.
  void Expire();
  TimeNs NextExpiry() const { return deadlines_.empty() ? kTimeNever : deadlines_.begin()->first; }

  const Slab<Demand>& all() const { return demands_; }
  const auto& waiters() const { return waiters_; }

 private:
  struct Waiter {
    std::uint32_t demand = kNone;
    std::uint32_t position = 0;
    std::uint32_t next = kNone;
    void Clear() { *this = Waiter{}; }
  };
  void Start(std::uint32_t i, const DemandAsked& event, std::span<const BlockId> blocks);
  std::uint32_t UsablePrefix(const Engine& engine, std::span<const BlockId> blocks) const;
  // Does the next thing for this position; what it has become.
  Wait Advance(Demand& demand, Engine& engine, std::uint32_t position);
  void Move(Demand& demand, std::uint32_t position, Wait to);
  void CutAt(Demand& demand, std::uint32_t position);
  void WakeCopy(std::uint32_t copy, const Transfers::Ended& ended);
  void PumpEngine(Engine& engine);
  bool ArenaFullOfDemands(const Engine& engine) const;
  void AnswerIfDone(std::uint32_t i);
  void Answer(std::uint32_t i);
  void Release(std::uint32_t i);

  State& state_;
  Transfers& transfers_;
  Eviction& eviction_;
  Slab<Demand> demands_;
  Slab<Waiter> waiters_;
  FlatMap index_;
  std::set<std::pair<TimeNs, std::uint32_t>> deadlines_;
  std::vector<std::uint32_t> woken_;
};

}  // namespace foreload::core
