// The sidecar's side of the residency table (residency/layout.h): its only writer.
//
// Slot life: Reserve (FREE -> RESERVED) -> StartLoad (-> IN_FLIGHT, found by look-ups from now) -> Publish as layer
// groups land -> MarkReady (-> READY) -> Retire (-> RETIRED, found no more) -> TryFree (-> FREE once no reader holds
// it). A load that failed goes IN_FLIGHT -> RETIRED after the last terminal event of its transfers, a reservation that
// was dropped RESERVED -> RETIRED. Calling one in another state is a bug and stops the process.
//
// Readers can write anything anywhere in the mapping. The writer keeps state, generation, key and index of its own,
// never follows a value that it reads back, and reports what no honest reader can have written as DataLoss: revoke that
// engine's arena and go on. After DataLoss the object stays safe to use and to destroy. Values that only steer
// statistics
// (`used` words, counters) are ignored when impossible, and counted in `hostile_values`.
//
// Every transition is wait-free (one atomic add): a reader cannot hold the writer up. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/block_key.h"
#include "base/ids.h"
#include "base/status.h"
#include "residency/layout.h"
#include "residency/shared_memory.h"

namespace foreload {

struct TableOptions {
  std::uint32_t engine_id = 0;
  std::uint32_t slot_count = 0;  // 1 to kArenaSlotsMax
  std::uint64_t boot_token = 0;
  std::uint64_t layer_group_mask = 0;  // the groups of a whole block; not 0
};

struct ReaderCounters {
  std::uint64_t lookups = 0;
  std::uint64_t hit_blocks = 0;
  std::uint64_t miss_blocks = 0;
};

class TableWriter {
 public:
  // Fails for options out of range and when the machine refuses the memory.
  static Result<TableWriter> Create(const TableOptions& options);

  // The descriptor to hand to readers (SharedMemory::Adopt, TableReader) and its length.
  int fd() const { return memory_.fd(); }
  std::uint64_t bytes() const { return memory_.bytes(); }
  std::uint32_t slot_count() const { return static_cast<std::uint32_t>(slots_.size()); }

  // A bit for a new reader process; ResourceExhausted when all FL_READERS_MAX are in use.
  Result<std::uint32_t> AddReader();
  // The reader is dead: drops its pins in every slot and takes its bit back. Never for a process that may still live.
  Status ClearReader(std::uint32_t bit);

  // The slot's new generation. The key must not be in the table already (one indexed slot a key).
  Result<std::uint32_t> Reserve(SlotIndex slot, const BlockKey& key);
  Status StartLoad(SlotIndex slot);
  // The bytes of these groups are in every rank. Release: a reader that sees the bit sees the bytes.
  Status Publish(SlotIndex slot, std::uint64_t groups);
  // All groups of layer_group_mask must be published.
  Status MarkReady(SlotIndex slot);
  Status Retire(SlotIndex slot);

  struct FreeResult {
    bool freed = false;       // false: a reader still holds it; ask again later
    bool newly_used = false;  // was used in this generation, and CollectUsed has not said so yet
  };
  Result<FreeResult> TryFree(SlotIndex slot);

  // The slots whose content was used since the last time, each once per generation. Looks at up to `slots_max` slots,
  // going on where the last call ended. DataLoss as everywhere.
  Status CollectUsed(std::size_t slots_max, const std::function<void(SlotIndex, std::uint32_t generation)>& used);
  // Compares state, generation and holder bits of up to `slots_max` slots, in turn, with what they must be, and the
  // header with what was written. For a slow periodic check; transitions check their own slot anyway.
  Status CheckIntegrity(std::size_t slots_max);

  // Of all readers since creation, dead ones included; impossible steps are left out.
  ReaderCounters CollectCounters();

  // For good: every look-up misses from now on. Pins stay until they are dropped.
  void Close();

  // The writer's own view.
  fl_slot_state state(SlotIndex slot) const { return slots_[slot.value].state; }
  std::uint32_t generation(SlotIndex slot) const { return slots_[slot.value].generation; }
  // Holder bits in the shared word now; hostile bits included.
  std::uint32_t holders(SlotIndex slot) const;

  std::uint64_t hostile_values() const { return hostile_values_; }
  // Blocks that were loaded but found no bucket within FL_PROBE_MAX: look-ups miss them. Stays 0 in practice.
  std::uint64_t index_overflows() const { return index_overflows_; }

 private:
  static constexpr std::uint64_t kNoBucket = UINT64_MAX;

  struct Slot {
    std::uint64_t hash = 0;
    std::uint64_t bucket = kNoBucket;  // where the index has it
    std::uint64_t ready_mask = 0;
    std::uint32_t generation = 0;
    fl_slot_state state = FL_SLOT_FREE;
    bool used_reported = false;
  };

  TableWriter(SharedMemory memory, const TableOptions& options);

  Slot& Own(SlotIndex slot);
  fl_slot& Shared(SlotIndex slot) const;
  fl_reader& Reader(std::uint32_t bit) const;
  Status Move(SlotIndex slot, fl_slot_state to, std::uint32_t generation_step);
  Status CheckWord(SlotIndex slot, std::uint64_t word) const;
  bool TakeUsed(SlotIndex slot);
  void AddCounters(std::uint32_t bit);
  void InsertIndex(SlotIndex slot);
  void RemoveIndex(SlotIndex slot);
  void SetBucket(std::uint64_t bucket, std::uint32_t slot_plus_one);

  SharedMemory memory_;
  fl_table_header header_{};  // as written; never read back
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> buckets_;  // slot + 1; 0: empty
  std::uint32_t readers_ = 0;           // bits that are in use
  std::array<ReaderCounters, FL_READERS_MAX> seen_{};
  ReaderCounters totals_;
  std::uint32_t used_cursor_ = 0;
  std::uint32_t check_cursor_ = 0;
  std::uint64_t hostile_values_ = 0;
  std::uint64_t index_overflows_ = 0;
};

}  // namespace foreload
