// What a workload demands, in one pass and before anything runs: footprint, what an unlimited prefix cache could serve,
// and the load that it offers to a server of given rates.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"
#include "replay/trace_source.h"

namespace foreload::replay {

struct ServiceRates {
  double prefill_tokens_per_second = 1;
  double decode_seconds_per_token = 0;
  std::uint32_t sequences_max = 1;  // decoded together
  double speed_up = 1;              // of the trace's clock
};

struct WorkloadProfile {
  std::uint64_t requests = 0;
  std::uint64_t blocks = 0;         // accesses to full prompt blocks
  std::uint64_t unique_blocks = 0;  // prompt and output
  std::uint64_t shared_blocks = 0;  // accesses that an unlimited prefix cache serves
  std::uint64_t input_tokens = 0;
  std::uint64_t output_tokens = 0;
  std::uint64_t largest_blocks = 0;  // of one request, output included
  std::uint32_t block_tokens = 0;
  double span_seconds = 0;     // of the last arrival, after speed-up
  double service_seconds = 0;  // sum over requests: prefill of what nothing can serve, and their share of decode
  // Arrival rate x mean service time; above 1 the queue grows without bound.
  double offered_load() const { return span_seconds > 0 ? service_seconds / span_seconds : 0; }
};

// Reads `source` to its end.
Result<WorkloadProfile> ProfileWorkload(TraceSource& source, const ServiceRates& rates);

}  // namespace foreload::replay
