// Sizes in bytes and how they are rounded. Thread: values.
#pragma once

#include <cstdint>

namespace foreload {

inline constexpr std::uint64_t kKiB = std::uint64_t{1} << 10;
inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// The least multiple of `to` that is not below `value`. `to` > 0.
constexpr std::uint64_t AlignUp(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) / to * to;
}

}  // namespace foreload
