// Distinct integer types for the things that the project counts, so that one cannot be passed for another.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace foreload {

template <typename Tag, typename Rep>
struct Id {
  using rep = Rep;
  static constexpr Rep kInvalidValue = static_cast<Rep>(-1);

  Rep value = kInvalidValue;

  constexpr bool valid() const { return value != kInvalidValue; }
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

using EngineId = Id<struct EngineTag, std::uint32_t>;        // one registered engine instance, or one event publisher
using NamespaceId = Id<struct NamespaceTag, std::uint32_t>;  // interned namespace fingerprint
using BlockId = Id<struct BlockTag, std::uint32_t>;          // interned block key, in order of arrival; may be reused
using SessionId = Id<struct SessionTag, std::uint32_t>;
using RequestId = Id<struct RequestTag, std::uint32_t>;
using SlotIndex = Id<struct SlotTag, std::uint32_t>;       // a slot of one engine's arena
using TransferId = Id<struct TransferTag, std::uint64_t>;  // one load, spill or store; never reused

}  // namespace foreload

template <typename Tag, typename Rep>
struct std::hash<foreload::Id<Tag, Rep>> {
  std::size_t operator()(const foreload::Id<Tag, Rep>& id) const noexcept {
    // Fibonacci hashing: 2^64 / golden ratio, so that consecutive ids spread over the high bits.
    return static_cast<std::size_t>(static_cast<std::uint64_t>(id.value) * 0x9E3779B97F4A7C15ull);
  }
};
