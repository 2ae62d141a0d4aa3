// Any text as TensorRT-LLM's pulled events.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "telemetry/trtllm_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreload::telemetry;
  DecodeReport report;
  const auto pull = DecodeTrtllmJson({reinterpret_cast<const char*>(data), size}, {}, &report);
  if (!pull.ok()) return 0;
  std::uint64_t bad = 0;
  for (const KvEventBatch& batch : pull.value().batches) bad += batch.bad_events;
  std::uint64_t counted = 0;
  for (const std::uint64_t errors : report.errors) counted += errors;
  FORELOAD_CHECK(counted == bad, "every bad event has one reason");
  return 0;
}
