// Stores: from the engine's ring into DRAM, from there to SSD.
//
// The first version of a block stays. A stored block is visible when its TransferDone says ok, dirty from then until it
// is durable, and written when it reaches dirty_age_max_ns, when there are more than dirty_bytes_max, when DRAM is full
// of dirty blocks, or for a flush; without an SSD it is never dirty. A block whose write fails or is not admitted
// (write budget, second use) stays in DRAM as a clean copy that is the only one.
#pragma once

#include <cstdint>
#include <deque>

#include "prefetcher/core/admission.h"
#include "prefetcher/core/event.h"
#include "prefetcher/core/eviction.h"
#include "prefetcher/core/state.h"
#include "prefetcher/core/transfers.h"

namespace foreload::core {

class StorePath {
 public:
  StorePath(State& state, Admission& admission, Transfers& transfers, Eviction& eviction)
      : state_(state), admission_(admission), transfers_(transfers), eviction_(eviction) {}

  void Offered(const StoreOffered& event);
  void Recovered(const SsdRecovered& event);
  void Dropped(BlockId block);
  void Flush(std::uint64_t flush);

  // After the end of a kStore or kSpill transfer.
  void Ended(const Transfers::Ended& ended);
  // Blocks in DRAM only that were used again are written too (second-use admission).
  void UsedAgain(BlockId block);
  // Issues the spills that are due and answers flushes. Once a step.
  void Run();
  TimeNs NextDue() const;

 private:
  struct FlushRecord {
    std::uint64_t flush = 0;
    std::uint64_t serial = 0;  // done when no block up to this one is dirty, spilling or being stored
    std::uint64_t durable = 0;
  };
  void Refuse(std::uint64_t store, StoreRefusal reason);
  void Accept(const StoreOffered& event, Block& block);
  bool SsdWanted(const Block& block) const;
  bool TakeWriteBudget(std::uint64_t bytes);
  void SpillDue();
  void AnswerFlushes();

  State& state_;
  Admission& admission_;
  Transfers& transfers_;
  Eviction& eviction_;
  FlatMap stores_;  // live store ids
  std::deque<FlushRecord> flushes_;
  double write_tokens_ = -1;  // bytes; negative: not started
  TimeNs write_tokens_at_ = 0;
};

}  // namespace foreload::core
