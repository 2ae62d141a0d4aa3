// Carries the core's commands out and reports what became of them: the only place where decisions meet memory, disks
// and engines. It decides nothing.
//
// Order that keeps bytes right: a slot's key is written while RESERVED; bytes land while IN_FLIGHT; READY is published
// after the last terminal event of every rank's transfer; a slot is reused only when it is FREE, that is, when no
// reader holds it and no transfer can touch it. A block is visible in DRAM only when its copy out of the store ring has
// ended, and leaves the SSD only after every extent's checksum agreed.
//
// Thread: the core thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
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

namespace foreload::control {
class ControlMessage;
}

namespace foreload::service {

struct ExecutorMetrics {
  explicit ExecutorMetrics(MetricRegistry& registry);
  Counter& checksum_failures;  // SSD bytes that were not what was stored
  Counter& store_bytes;
  Counter& store_bad_size;    // committed with another size than the registered extents
  Counter& store_incomplete;  // some rank never committed its share
  Counter& store_duplicate;   // a rank committed its share of one block twice
  Counter& slots_retired;
  Counter& spills_waited;     // for the SSD store to make its next segment
  Counter& loads_waited;      // for the SSD store, which bounds its open reads
  Histogram& demand_seconds;  // from the frame to the reply
};

class Executor {
 public:
  // A share of a store that waits longer than this for the other ranks is dropped.
  static constexpr DurationNs kStoreAssemblyMax = 10 * kSecond;

  struct Parts {
    Mover& host;            // memory to memory
    Mover* file = nullptr;  // disk; null: no SSD tier
    DramStore& dram;
    const RegionMap& dram_host;  // the DRAM slab as the host backend knows it
    const RegionMap* dram_file = nullptr;
    ssd::SsdStore* ssd = nullptr;
    EngineRegistry& engines;
    BlockInterner& interner;
    Intake& intake;
    EventBuilder& events;
    const Clock& clock;
  };

  // `metrics` outlives the executor.
  Executor(const Parts& parts, ExecutorMetrics& metrics);
  ~Executor();

  void set_control(ControlServer* control) { control_ = control; }

  void Execute(const core::Command& command);

  // Blocks that engines stored and that became visible since the last call.
  std::vector<BlockId> TakeStored() { return std::exchange(stored_, {}); }

  // Answers of movers and stores.
  void OnMove(const MoveResult& result);
  void OnSsdDurable(std::uint64_t token, const Status& status);
  void OnSsdDropped(const BlockKey& key);

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

  bool idle() const { return transfers_.empty() && stores_.empty() && waiting_loads_.empty(); }

 private:
  enum class Kind : std::uint8_t { kLoadToDram, kLoadToArena, kSpill, kStore };
  struct TransferContext {
    Kind kind;
    BlockId block{};
    EngineId engine{};
    SlotIndex slot{};
    std::uint64_t store = 0;
    std::shared_ptr<ArenaGrant> grant{};
    std::uint64_t groups = 0;          // layer groups that the load brings
    std::optional<DramBlock> place{};  // of a load or store that has not ended
    std::optional<ssd::ReadPlan> read{};
    std::optional<ssd::WritePlan> write{};
    std::uint64_t bytes = 0;
    DurationNs service_ns = 0;  // of a spill's write, until it is durable
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
    std::uint32_t missing = 0;                 // 0: offered to the core
    TimeNs since = 0;
  };
  struct AssemblyKey {
    EngineId engine;
    BlockKey key;
    friend bool operator==(const AssemblyKey&, const AssemblyKey&) = default;
  };
  struct AssemblyHash {
    std::size_t operator()(const AssemblyKey& k) const noexcept {
      return std::hash<BlockKey>{}(k.key) + k.engine.value;
    }
  };
  struct WaitingSpill {
    TransferId transfer;
    BlockId block;
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

  // Submits, or ends the transfer at once when the mover is full.
  void Start(Mover& mover, TransferId id, MoveClass move_class, TimeNs deadline, std::vector<MovePart> parts,
             TransferContext context);
  // Ends a transfer that could not start.
  void Refuse(TransferId id, core::TransferStatus status) { Done(id, status, 0, 0); }
  void Done(TransferId id, core::TransferStatus status, std::uint64_t bytes, DurationNs service_ns);
  void EndLoadToDram(TransferId id, TransferContext& context, const MoveResult& result);
  void EndLoadToArena(TransferId id, TransferContext& context, const MoveResult& result);
  void EndSpill(TransferId id, TransferContext& context, const MoveResult& result);
  void EndStore(TransferId id, TransferContext& context, const MoveResult& result);
  bool TryLoadToDram(const core::LoadToDram& command);
  void StartWaitingLoads();
  std::deque<core::LoadToDram>::iterator WaitingLoad(TransferId id);
  bool TrySpill(TransferId transfer, BlockId block);

  void AddDramParts(const DramBlock& place, const BlockImage::Extent& extent, RegionId other,
                    std::uint64_t other_offset, bool to_dram, std::vector<MovePart>& parts) const;
  std::vector<MovePart> SsdParts(const std::vector<ssd::SsdPart>& parts, bool to_file) const;
  std::optional<DramBlock>& Resident(BlockId block);
  void RetireNow(EngineInstance& engine, SlotIndex slot);
  void TryFreeSlots(EngineInstance& engine);
  void Collect(EngineInstance& engine, const std::shared_ptr<StoreLane>& lane, const StoreCommit& commit, TimeNs now);
  void DropStore(std::uint64_t id);
  void Reply(std::uint64_t ticket, control::ControlMessage message);
  std::uint64_t NewTicket(const ControlFrame& frame, TimeNs now);

  Parts parts_;
  ExecutorMetrics& metrics_;
  ControlServer* control_ = nullptr;
  std::vector<std::optional<DramBlock>> resident_;  // by BlockId
  std::unordered_map<TransferId, TransferContext> transfers_;
  std::unordered_map<std::uint64_t, PendingStore> stores_;                   // by store id
  std::unordered_map<AssemblyKey, std::uint64_t, AssemblyHash> assembling_;  // stores that still miss shares
  std::unordered_map<std::uint64_t, Waiter> waiters_;                        // demand, purge and flush ids
  std::deque<core::LoadToDram> waiting_loads_;                               // demand first
  std::deque<WaitingSpill> waiting_spills_;
  std::vector<BlockId> stored_;
  std::uint64_t next_ticket_ = 1;
};

}  // namespace foreload::service
