// A TOML document as a flat list of its scalar values, for strict loaders outside this folder: the one place that knows
// the TOML library. Thread: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace foreload::service {

struct TomlValue {
  std::string path;  // "quickstart.engine.cache_blocks"; elements of arrays by index
  std::variant<bool, std::int64_t, double, std::string> value;
  std::uint32_t line = 0;
};

inline constexpr std::size_t kTomlDepthMax = 16;

// In the order of the document. kInvalidArgument: ParseToml's (toml_library.h), or "file:line: what is wrong" for a
// date, a time or too deep a nesting.
Result<std::vector<TomlValue>> FlattenToml(std::string_view text, const std::string& file);

}  // namespace foreload::service
