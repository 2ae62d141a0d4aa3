// Observe mode's stand-in for an engine that would use us: from what the engine publishes, the stores, look-ups and
// demand fetches that it would have made, as events for the core. With core::VirtualExecutor in the executor's place
// nothing is moved, and the ledger shows what `on` would have had.
//
// What it supposes: the engine offers each block that it stores in its own cache; when a request is scheduled it uses
// the READY part of its prefix at once and waits for the rest of what is stored.
//
// Thread: the core thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "prefetcher/core/core.h"
#include "prefetcher/service/event_builder.h"

namespace foreload::service {

class ObserveAdapter {
 public:
  ObserveAdapter(const core::Core& core, EventBuilder& events) : core_(core), events_(events) {}

  // Bytes that one block of the engine would take here. 0: unknown, and then it stores nothing.
  void SetBlockBytes(EngineId engine, std::uint64_t bytes);

  // Of a block that was offered; 0 when none was.
  std::uint64_t BytesOf(BlockId block) const { return block.value < bytes_.size() ? bytes_[block.value] : 0; }

  // After the core has taken `batch`: adds what the engine would have done.
  void After(const core::EventBatch& batch);
  // A demand that this adapter asked for has ended: the engine uses what landed.
  void OnDemandDone(const core::DemandDone& done);

 private:
  struct Request {
    EngineId engine;
    std::vector<BlockId> blocks;
  };

  void Schedule(RequestId id);
  // Uses the READY prefix from `first` on, skipping what the engine holds; returns the first block that is neither.
  std::size_t UsePrefix(const Request& request, std::size_t first);

  const core::Core& core_;
  EventBuilder& events_;
  std::unordered_map<EngineId, std::uint64_t> block_bytes_;
  std::unordered_map<RequestId, Request> requests_;
  std::unordered_map<std::uint64_t, std::pair<RequestId, std::size_t>> demands_;  // -> request, first block
  std::vector<std::uint64_t> bytes_;                                              // by BlockId
  std::uint64_t next_store_ = 1;
  std::uint64_t next_demand_ = 1;
};

}  // namespace foreload::service
