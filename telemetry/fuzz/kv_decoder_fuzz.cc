// Any bytes as a KV event batch, in every dialect. Limits are small, so that the fuzzer meets them.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "telemetry/kv_decoder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreload::telemetry;
  DecodeLimits limits;
  limits.array_elements_max = 4096;
  limits.nodes_max = 1u << 16;
  limits.events_max = 64;
  for (const Dialect dialect :
       {Dialect::kAuto, Dialect::kVllm, Dialect::kSglang, Dialect::kTrtllm, Dialect::kMooncake}) {
    DecodeReport report;
    const auto batch = DecodeKvBatch({data, size}, dialect, limits, &report);
    if (!batch.ok()) continue;
    FORELOAD_CHECK(batch.value().events.size() <= limits.events_max, "more events than the limit");
    std::uint64_t counted = 0;
    for (const std::uint64_t errors : report.errors) counted += errors;
    FORELOAD_CHECK(counted == batch.value().bad_events, "every bad event has one reason");
    for (const KvEvent& event : batch.value().events) {
      if (const auto* stored = std::get_if<BlockStored>(&event)) {
        FORELOAD_CHECK(stored->cache_salt.size() <= limits.string_bytes_max, "salt over the limit");
      }
    }
  }
  return 0;
}
