// Keys and bytes of the blocks that the drive stores: both functions of (namespace, trace block id), so that whoever
// reads a block can tell every one of its bytes from the key alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace foreload::drive {

using Digest = std::array<std::uint8_t, 32>;
using Namespace = std::array<std::uint8_t, 16>;

// Unique in its namespace, its last 8 bytes too (they are the block's name in KV events by default).
Digest DigestOf(const Namespace& name_space, std::uint64_t block);

// Seed of a rank's share of a block.
std::uint64_t ContentSeed(const Namespace& name_space, std::span<const std::uint8_t> digest, std::uint32_t rank);

// 64-bit word i is SplitMix64(seed, i). Sizes are multiples of 8.
void FillContent(std::uint64_t seed, std::span<std::byte> bytes);
// Offset of the first wrong word, or nullopt when every byte is right.
std::optional<std::size_t> FindMismatch(std::uint64_t seed, std::span<const std::byte> bytes);

}  // namespace foreload::drive
