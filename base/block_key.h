// The identity of stored bytes: a namespace and the engine's own digest. Never a hash of ours.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>

namespace foreload {

// First 16 bytes of the SHA-256 over the canonical namespace description (proto/namespace.h).
struct NamespaceFingerprint {
  std::array<std::uint8_t, 16> bytes{};
  friend constexpr auto operator<=>(const NamespaceFingerprint&, const NamespaceFingerprint&) = default;
};

// First 16 bytes of the SHA-256 over the canonical layout description (proto/namespace.h).
struct LayoutFingerprint {
  std::array<std::uint8_t, 16> bytes{};
  friend constexpr auto operator<=>(const LayoutFingerprint&, const LayoutFingerprint&) = default;
};

inline constexpr std::size_t kDigestBytesMin = 16;
inline constexpr std::size_t kDigestBytesMax = 32;

// 56 bytes, no padding bits, so it can be compared and copied as memory and laid into shared memory and disk records.
// A digest shorter than 32 bytes is zero-extended and told apart by its length.
struct BlockKey {
  NamespaceFingerprint name_space;
  std::array<std::uint8_t, kDigestBytesMax> digest{};
  std::uint64_t digest_bytes = 0;

  // The engine's digest; kDigestBytesMin <= size <= kDigestBytesMax is the caller's duty (checked at the boundaries).
  static BlockKey From(const NamespaceFingerprint& name_space, std::span<const std::uint8_t> digest) {
    BlockKey key;
    key.name_space = name_space;
    key.digest_bytes = digest.size();
    std::memcpy(key.digest.data(), digest.data(), digest.size());
    return key;
  }

  std::span<const std::uint8_t> digest_span() const { return {digest.data(), digest_bytes}; }

  // The alias that KV events carry by default: the digest's last 8 bytes read big-endian.
  std::uint64_t alias() const {
    std::uint64_t value = 0;
    for (std::size_t i = digest_bytes - 8; i < digest_bytes; ++i) value = (value << 8) | digest[i];
    return value;
  }

  friend constexpr auto operator<=>(const BlockKey&, const BlockKey&) = default;
};
static_assert(sizeof(BlockKey) == 56);

// Lower-case hexadecimal of `bytes`, for messages.
std::string ToHex(std::span<const std::uint8_t> bytes);

}  // namespace foreload

template <>
struct std::hash<foreload::BlockKey> {
  std::size_t operator()(const foreload::BlockKey& key) const noexcept {
    // The digest is already uniform; its middle 8 bytes are mixed with the namespace. For tables only, never identity.
    std::uint64_t digest_word = 0;
    std::uint64_t space_word = 0;
    std::memcpy(&digest_word, key.digest.data() + 8, sizeof digest_word);
    std::memcpy(&space_word, key.name_space.bytes.data(), sizeof space_word);
    return static_cast<std::size_t>((digest_word ^ space_word) * 0x9E3779B97F4A7C15ull);
  }
};
