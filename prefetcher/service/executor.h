// Carries the core's commands out and reports what became of them: the only place where decisions meet memory, disks and
// engines. It decides nothing.
//
// Order that keeps bytes right: a slot's key is written while RESERVED; bytes land while IN_FLIGHT; READY is published
// after the last terminal event of every rank's transfer; a slot is reused only when it is FREE, that is, when no reader
// holds it and no transfer can touch it. A block is visible in DRAM only when its copy out of the store ring has ended,
// and leaves the SSD only after every extent's checksum agreed.
//
// Thread: the core thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/metric.h"
#include "prefetcher/core/command.h"
#include "prefetcher/service/engine_registry.h"
#include "prefetcher/service/event_builder.h"
#include "prefetcher/service/intake.h"
#include "prefetcher/service/interner.h"
#include "transport/dram/dram_store.h"
#include "transport/mover.h"
#include "transport/region_map.h"
#include "transport/ssd/ssd_store.h"

namespace foreload::service {

struct ExecutorMetrics {
  explicit ExecutorMetrics(MetricRegistry& registry);
  Counter& checksum_failures;      // SSD bytes that were not what was stored
  Counter& store_bytes;
  Counter& store_bad_size;         // committed with another size than the registered extents
  Counter& store_incomplete;       // some rank never committed its share
  Counter& store_key_mismatch;     // ranks disagreed on what they stored
  Counter& slots_retired;
  Histogram& demand_seconds;       // from the frame to the reply
};

// One block's place in DRAM.
struct ResidentBlock {
  DramBlock place;
  std::shared_ptr<const BlockImage> image;
};

class Executor {
 public:
  // A share of a store that waits longer than this for the other ranks is dropped.
  static constexpr DurationNs kStoreAssemblyMax = 10 * kSecond;

  struct Parts {
    Mover& host;                  // memory to memory
    Mover* file = nullptr;        // disk; null: no SSD tier
    DramStore& dram;
    const RegionMap& dram_host;   // the DRAM slab as the host backend knows it
    const RegionMap* dram_file = nullptr;
    SsdStore* ssd = nullptr;
    EngineRegistry& engines;
    BlockInterner& interner;
    Intake& intake;
    EventBuilder& events;
    const Clock& clock;
  };

  Executor(const Parts& parts, MetricRegistry& metrics);
  ~Executor();

  void set_control(ControlServer* control) { control_ = control; }

  void Execute(const core::Command& command);

  // Answers of movers and stores.
  void OnMove(const MoveResult& result);
  void OnSsdDurable(std::uint64_t token, const Status& status);
  void OnSsdDropped(const BlockKey& key, const LayoutFingerprint& layout);

  // Blocks that recovery found become known to the core; call once before the first step.
  void AnnounceRecovered();

  // Frames that concern bytes: demand, purge, flush; false: not one of those.
  bool Handle(const ControlFrame& frame, TimeNs now);
  void Closed(ConnectionId connection);

  // Takes what engines committed to their store rings.
  void PollStores(TimeNs now);
  // Arms the doorbells; false: something was committed meanwhile, poll again.
  bool PrepareSleep();
  void OnDoorbell(ConnectionId connection);
  // Used words, retiring slots, shares that wait too long. Call every few milliseconds while arenas are in force.
  void Observe(TimeNs now);

  std::size_t outstanding() const { return transfers_.size(); }
  // Memory that recovered or stored blocks of this layout need.
  bool idle() const { return transfers_.empty() && stores_.empty(); }

 private:
  enum class Kind : std::uint8_t { kLoadToDram, kLoadToArena, kSpill, kStore };
  struct TransferContext {
    Kind kind;
    BlockId block;
    EngineId engine;
    SlotIndex slot;
    std::uint64_t store = 0;
    std::shared_ptr<ArenaGrant> grant;
    std::shared_ptr<const BlockImage> image;
    std::optional<DramBlock> place;
    std::optional<SsdStore::ReadPlan> read;
    std::optional<SsdStore::WritePlan> write;
    std::uint64_t bytes = 0;
    DurationNs service_ns = 0;
  };
  struct Share {
    std::shared_ptr<StoreLane> lane;
    std::uint32_t ring_slot = 0;
  };
  struct PendingStore {
    EngineId engine;
    BlockKey key;
    std::optional<BlockKey> parent;
    std::shared_ptr<const BlockImage> image;
    std::vector<std::optional<Share>> shares;  // by rank
    std::uint32_t missing = 0;
    TimeNs since = 0;
  };
  struct Waiter {
    ConnectionId connection;
    std::uint64_t request = 0;
    TimeNs since = 0;
  };

  void Do(const core::LoadToDram& command);
  void Do(const core::LoadToArena& command);
  void Do(const core::Spill& command);
  void Do(const core::Promote& command);
  void Do(const core::Cancel& command);
  void Do(const core::RetireSlot& command);
  void Do(const core::EvictDram& command);
  void Do(const core::DropSsd& command);
  void Do(const core::AcceptStore& command);
  void Do(const core::RejectStore& command);
  void Do(const core::DemandDone& command);
  void Do(const core::PurgeDone& command);
  void Do(const core::FlushDone& command);
  void Do(const core::ForgetBlock& command);

  void Start(Mover& mover, TransferId id, MoveClass move_class, TimeNs deadline, std::vector<MovePart> parts,
             TransferContext context);
  void Finish(TransferId id, core::TransferStatus status, std::uint64_t bytes, DurationNs service_ns);
  void FinishArenaLoad(TransferContext& context, bool ok);
  void AddDramParts(const RegionMap& map, const ResidentBlock& block, const BlockImage::Extent& extent, RegionId other,
                    std::uint64_t other_offset, bool to_dram, std::vector<MovePart>& parts) const;
  ResidentBlock* Resident(BlockId block);
  void FreeSlotLater(EngineId engine, ArenaGrant& grant, SlotIndex slot);
  void TryFreeSlots(EngineInstance& engine);
  void Collect(EngineInstance& engine, StoreLane& lane, const StoreCommit& commit, TimeNs now);
  void ReleaseShares(PendingStore& store);
  MoveClass ClassOf(core::Traffic traffic) const;

  Parts parts_;
  ExecutorMetrics metrics_;
  ControlServer* control_ = nullptr;
  std::vector<std::optional<ResidentBlock>> resident_;          // by BlockId
  std::unordered_map<TransferId, TransferContext> transfers_;
  std::unordered_map<std::uint64_t, PendingStore> stores_;      // by store id
  std::unordered_map<BlockKey, std::uint64_t> assembling_;      // stores that still miss shares
  std::unordered_map<std::uint64_t, Waiter> waiters_;           // demand, purge and flush ids
  std::uint64_t next_ticket_ = 1;
};

}  // namespace foreload::service
