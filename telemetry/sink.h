// Where ingest threads deliver what engines say, decoded and in order. Implemented by prefetcher/service (which
// resolves hashes to ids and feeds the core) and by tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "proto/telemetry.pb.h"
#include "telemetry/kv_event.h"

namespace foreload::telemetry {

// One configured source: an engine's KV-event stream or access stream.
using SourceIndex = std::uint32_t;

// What may be believed of the engine's cache from here on.
//   kRestarted: drop what was known. The engine has started anew, or its history is delivered again from the start.
//   kKnown:     what follows is complete: it begins at the publisher's first batch, or the next batch holds a clear.
//   kUnknown:   batches were lost for good; what follows is right, but not all.
enum class ViewState : std::uint8_t { kKnown, kUnknown, kRestarted };

// Called on an ingest thread; must not block and must not keep references. A call that cannot be taken (the staging
// queue is full) returns false. A refused KV batch is left as it was: the source offers it again and replays what it
// cannot hold meanwhile. A refused access batch is lost, and heals by re-announcement.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual bool OnKvBatch(SourceIndex source, TimeNs received, KvEventBatch&& batch) = 0;
  virtual bool OnAccessBatch(SourceIndex source, TimeNs received, std::unique_ptr<AccessBatch> batch) = 0;
  // Comes before the batches that it speaks about. Never refused.
  virtual void OnViewState(SourceIndex source, TimeNs received, ViewState state) = 0;
};

}  // namespace foreload::telemetry
