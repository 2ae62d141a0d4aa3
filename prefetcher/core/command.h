// What the core asks for. The executor (prefetcher/service, or a simulation) carries commands out in order and answers
// with events; it never decides.
//
// Slot life as the core sees it: free -> loading (LoadToArena) -> ready (TransferDone ok) -> retiring (RetireSlot) ->
// free (SlotFree). A load that fails retires its slot by itself: the executor takes the slot IN_FLIGHT -> RETIRED after
// the last terminal event, sends TransferDone, and SlotFree once no reader holds it. Likewise a LoadToDram or
// AcceptStore that fails gives its place in DRAM back by itself, without EvictDram.
#pragma once

#include <cstdint>
#include <type_traits>
#include <variant>

#include "base/clock.h"
#include "base/ids.h"
#include "prefetcher/core/config.h"

namespace foreload::core {

enum class Traffic : std::uint8_t { kDemand, kPrefetch, kWriteBehind };

struct LoadToDram {  // ssd -> dram, verified on arrival; ends with TransferDone
  TransferId transfer;
  BlockId block;
  Traffic traffic = Traffic::kPrefetch;
  TimeNs deadline = kTimeNever;
};
struct LoadToArena {  // dram -> slot of every rank; READY and visible before TransferDone ok is sent
  TransferId transfer;
  BlockId block;
  EngineId engine;
  SlotIndex slot;
  Traffic traffic = Traffic::kPrefetch;
  TimeNs deadline = kTimeNever;
};
struct Spill {  // dram -> ssd; TransferDone ok only when durable
  TransferId transfer;
  BlockId block;
};
struct Promote {  // prefetch becomes demand; may cross the transfer's own completion: then there is nothing to do
  TransferId transfer;
  TimeNs deadline = kTimeNever;
};
struct Cancel {  // what is queued ends as kCancelled, what was submitted runs to its end; TransferDone either way
  TransferId transfer;
};
struct RetireSlot {  // READY -> RETIRED; answered by SlotFree
  EngineId engine;
  SlotIndex slot;
};
struct EvictDram {  // the block's DRAM copy is freed; the core never evicts one with a transfer on it
  BlockId block;
};
struct DropSsd {  // the block's record is forgotten (purge, corrupt read); nothing to do when there is none
  BlockId block;
};
struct AcceptStore {  // ring slot -> dram, checksummed; ends with TransferDone; only then is the block visible
  std::uint64_t store = 0;
  TransferId transfer;
  BlockId block;
};
enum class StoreRefusal : std::uint8_t { kExists, kNoSpace, kUnknownEngine, kPurged };
inline constexpr std::size_t kStoreRefusalCount = 4;
struct RejectStore {
  std::uint64_t store = 0;
  StoreRefusal reason = StoreRefusal::kExists;
};
struct DemandDone {  // ready + absent + failed == the number of blocks asked for
  std::uint64_t demand = 0;
  EngineId engine;
  std::uint32_t ready_blocks = 0;          // longest READY prefix of the range
  std::uint32_t absent_blocks = 0;         // from the first block that is stored nowhere here: useless even when stored
  std::uint32_t failed_blocks = 0;         // the rest: failed, too late, did not fit, or behind one of those
  std::uint32_t already_ready_blocks = 0;  // READY when asked, wherever in the usable range
  std::uint32_t joined_blocks = 0;         // were in flight already
  std::uint64_t bytes_from_dram = 0;
  std::uint64_t bytes_from_ssd = 0;
};
struct PurgeDone {
  std::uint64_t purge = 0;
  std::uint64_t blocks = 0;
};
struct FlushDone {
  std::uint64_t flush = 0;
  std::uint64_t durable_blocks = 0;  // of those that were dirty when it was asked
};
struct ForgetBlock {  // the core knows the block no more: its id may be given to another key
  BlockId block;
};

using Command = std::variant<LoadToDram, LoadToArena, Spill, Promote, Cancel, RetireSlot, EvictDram, DropSsd,
                             AcceptStore, RejectStore, DemandDone, PurgeDone, FlushDone, ForgetBlock>;
static_assert(std::is_trivially_copyable_v<Command>);

}  // namespace foreload::core
