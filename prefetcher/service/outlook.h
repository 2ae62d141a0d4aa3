// Tells engines what to expect of their queued requests: how long a prefix of each one's blocks is held or stored here,
// so that the scheduler asks for nothing that is not there (control.proto, RequestOutlook).
//
// Looked at when a request is queued and again when the first block that was missing has been stored. A block that is
// lost later makes the outlook promise too much: then a fetch says so.
//
// Thread: the core thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "prefetcher/core/core.h"

namespace foreload::service {

class Outlook {
 public:
  // `tell`: the engine's request has so many blocks from its first on.
  using Tell = std::function<void(EngineId, RequestId, std::uint32_t stored_blocks)>;

  Outlook(const core::Core& core, Tell tell) : core_(core), tell_(std::move(tell)) {}

  // After the core has taken `batch`.
  void After(const core::EventBatch& batch);
  // The block has become visible, and the core knows.
  void OnStored(BlockId block);

 private:
  struct Waiting {
    EngineId engine;
    std::vector<BlockId> blocks;
    std::uint32_t stored = 0;
  };

  void Look(RequestId request, Waiting& waiting);
  void End(RequestId request);

  const core::Core& core_;
  Tell tell_;
  std::unordered_map<RequestId, Waiting> waiting_;
  std::unordered_map<BlockId, std::vector<RequestId>> missing_;  // by the first block that is not there
};

}  // namespace foreload::service
