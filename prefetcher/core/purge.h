// Forgetting a namespace in every tier. From NamespacePurged on its blocks are invisible; a purge is answered when none
// of them can be read any more: transfers have ended, slots are free, DRAM copies are gone, records are dropped.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "prefetcher/core/eviction.h"
#include "prefetcher/core/state.h"
#include "prefetcher/core/transfers.h"

namespace foreload::core {

class Purge {
 public:
  Purge(State& state, Transfers& transfers, Eviction& eviction)
      : state_(state), transfers_(transfers), eviction_(eviction) {}

  void Begin(std::uint64_t purge, std::span<const BlockId> blocks);
  // A transfer of a block that is being purged has ended: what it left is dropped too.
  void Continue(BlockId block) {
    if (state_.catalog.At(block).purge_refs > 0) DropEverywhere(block);
  }
  // Answers the purges that are complete. Once a step.
  void Run();

 private:
  struct Record {
    std::uint64_t purge = 0;
    std::uint64_t held = 0;  // blocks that lay somewhere when it began
    std::vector<BlockId> blocks;
    std::size_t next = 0;  // all before are gone
  };
  void DropEverywhere(BlockId block);

  State& state_;
  Transfers& transfers_;
  Eviction& eviction_;
  std::vector<Record> records_;
};

}  // namespace foreload::core
