// A JSON document as its scalar values by dotted path ("tiers.ssd.state", array elements by index), for printing.
// Strings are decoded; numbers and booleans stay the text that they were.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/status.h"

namespace foreload::cmd {

inline constexpr int kJsonDepthMax = 32;

// InvalidArgument: not JSON, or deeper than kJsonDepthMax. An empty array or object has no entry.
Result<std::map<std::string, std::string>> JsonFields(std::string_view json);

}  // namespace foreload::cmd
