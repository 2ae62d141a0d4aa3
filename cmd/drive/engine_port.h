// What the engine model needs from outside: the sidecar's client library, the KV-event stream and the bytes. The live
// one speaks to a running sidecar; tests script their own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "replay/trace_source.h"

namespace foreload::drive {

// One request as the engine has it, and what became of it. Block counts add up:
// full_blocks = own + arena + demand_dram + demand_ssd + demand_joined + recomputed.
struct RequestRecord {
  std::uint64_t number = 0;  // in order of arrival, from 0
  TimeNs arrival = 0;
  TimeNs scheduled = 0;
  TimeNs prefill_started = 0;
  TimeNs first_token = 0;
  TimeNs finished = 0;
  DurationNs stall = 0;            // scheduled, and waiting for loads
  std::uint32_t full_blocks = 0;   // of the prompt
  std::uint32_t own_blocks = 0;    // in the engine's own cache
  std::uint32_t arena_blocks = 0;  // READY in the arena when scheduled
  std::uint32_t demand_dram_blocks = 0;
  std::uint32_t demand_ssd_blocks = 0;
  std::uint32_t demand_joined_blocks = 0;  // landed or landing as prefetch while the demand fetch ran
  std::uint32_t recomputed_blocks = 0;
  std::uint32_t recomputed_stored_blocks = 0;  // of these: computed before in this run, hence lost, late or refused
  bool fetched = false;                        // a demand fetch was sent
  bool fetch_refused = false;                  // no sidecar, or breaker open
  bool fetch_timed_out = false;
};

struct EngineRequest {
  RequestRecord record;
  std::string id;
  replay::TraceRequest trace;
  std::uint32_t usable_blocks = 0;    // full prompt blocks that a hit can serve: the last token is always computed
  std::vector<std::uint8_t> digests;  // of the full prompt blocks, then of the output's; filled by the port
};

enum class RequestState : std::uint8_t { kQueued, kScheduled, kFirstToken, kFinished };

struct FetchOutcome {
  DurationNs waited_ns = 0;  // from the call to its end, by the port's clock; 0: the model's clock counts
  bool timed_out = false;
  std::uint32_t dram_blocks = 0;
  std::uint32_t ssd_blocks = 0;
};

enum class StoreOutcome : std::uint8_t { kStored, kFull, kUnavailable };

class EnginePort {
 public:
  virtual ~EnginePort() = default;

  // Tells the sidecar about a request. At kQueued the port may fill request.digests.
  virtual void Announce(EngineRequest& request, RequestState state) = 0;

  // Copies the longest READY run of the request's blocks [first, usable_blocks) out of the arena and verifies every
  // byte; returns its length. kDataLoss: bytes are not what the key says, and the run must stop.
  virtual Result<std::uint32_t> ReadReady(const EngineRequest& request, std::uint32_t first) = 0;

  // Asks for blocks [first, usable_blocks); nullopt: refused at once. The ticket ends with one PollFetch that has a
  // value.
  virtual std::optional<std::uint64_t> StartFetch(const EngineRequest& request, std::uint32_t first,
                                                  DurationNs deadline) = 0;
  virtual std::optional<FetchOutcome> PollFetch(std::uint64_t ticket) = 0;

  // Offers block `index` of prompt and output, whose parent is the one before it.
  virtual StoreOutcome Store(const EngineRequest& request, std::uint32_t index) = 0;

  // The engine's own cache now holds blocks [first, first + count) of the request; it has dropped others.
  virtual void PublishStored(const EngineRequest& request, std::uint32_t first, std::uint32_t count) = 0;
  virtual void PublishRemoved(std::span<const std::uint64_t> blocks) = 0;
  // The end of an engine step: what was published since the last one goes out as one batch.
  virtual void EndStep() = 0;
};

}  // namespace foreload::drive
