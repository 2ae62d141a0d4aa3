// What the crash writer stores under each id; its parent checks the same.
#pragma once

#include <cstdint>

#include "transport/ssd/tests/test_support.h"

namespace foreload::ssd::testing {

inline ExtentSizes CrashRecordSizes(std::uint64_t id) {
  if (id % 4 == 3) return ExtentSizes(50, 4096);  // a header of two blocks
  return {1000 + id % 50000, 4096 + id % 9000};
}

}  // namespace foreload::ssd::testing
