// TensorRT-LLM's pull interface: the JSON that KVCacheEventSerializer writes, one event object or an array of them.
// (Its push interface speaks vLLM's MessagePack: telemetry/kv_decoder.h.)
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "telemetry/kv_decoder.h"
#include "telemetry/kv_event.h"

namespace foreload::telemetry {

// Events in order, cut into batches where the data-parallel rank changes. `event_id` grows by one per event: a gap
// between pulls, or inside one, means that the engine's event buffer has overflowed.
struct TrtllmPull {
  std::vector<KvEventBatch> batches;
  std::optional<std::uint64_t> first_event_id;
  std::optional<std::uint64_t> last_event_id;
  bool ids_consecutive = true;
};

// How the four kinds map: created -> AllBlocksCleared (the pool is new); stored -> one BlockStored per run of blocks on
// one cache level (0 is the GPU, 1 the host, beyond it storage); removed -> BlockRemoved on the GPU; updated with a new
// cache level -> BlockRemoved there and BlockStored here, a new priority alone -> nothing. `layer_group_id`, else
// `window_size`, is the group. Limits and errors as in DecodeKvBatch. Any thread.
Result<TrtllmPull> DecodeTrtllmJson(std::string_view json, const DecodeLimits& limits = {},
                                    DecodeReport* report = nullptr);

}  // namespace foreload::telemetry
