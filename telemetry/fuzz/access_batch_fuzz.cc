// Any bytes as an access batch: what passes is good when it is looked at again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "telemetry/access_validate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreload::telemetry;
  const auto batch = DecodeAccessBatch({data, size});
  if (!batch.ok()) return 0;
  const std::string again = batch.value()->SerializeAsString();
  AccessReport report;
  const auto second = DecodeAccessBatch({reinterpret_cast<const std::uint8_t*>(again.data()), again.size()}, &report);
  FORELOAD_CHECK(second.ok() && report.errors == AccessReport{}.errors, "what passed once passes again");
  FORELOAD_CHECK(second.value()->events_size() == batch.value()->events_size(), "and stays whole");
  return 0;
}
