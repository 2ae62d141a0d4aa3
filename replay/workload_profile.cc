#include "replay/workload_profile.h"

#include <algorithm>
#include <unordered_set>

namespace foreload::replay {

Result<WorkloadProfile> ProfileWorkload(TraceSource& source, const ServiceRates& rates) {
  WorkloadProfile profile;
  std::unordered_set<std::uint64_t> seen;
  TraceRequest request;
  while (true) {
    FORELOAD_ASSIGN_OR_RETURN(const bool more, source.Next(request));
    if (!more) break;
    const std::size_t full = request.full_blocks();
    std::size_t shared = 0;
    while (shared < full && seen.contains(request.blocks[shared])) ++shared;
    for (std::size_t i = shared; i < full; ++i) seen.insert(request.blocks[i]);
    seen.insert(request.output_blocks.begin(), request.output_blocks.end());

    ++profile.requests;
    profile.blocks += full;
    profile.shared_blocks += shared;
    profile.input_tokens += request.input_tokens;
    profile.output_tokens += request.output_tokens;
    profile.block_tokens = request.block_tokens;
    const std::uint64_t tokens = static_cast<std::uint64_t>(request.input_tokens) + request.output_tokens;
    profile.largest_blocks =
        std::max(profile.largest_blocks, (tokens + request.block_tokens - 1) / std::max(request.block_tokens, 1u));
    profile.span_seconds = static_cast<double>(request.arrival) / 1e9 / rates.speed_up;
    const auto fresh = static_cast<double>(request.input_tokens - shared * request.block_tokens);
    profile.service_seconds += fresh / rates.prefill_tokens_per_second +
                               request.output_tokens * rates.decode_seconds_per_token / rates.sequences_max;
  }
  profile.unique_blocks = seen.size();
  return profile;
}

}  // namespace foreload::replay
