// Bytes of configurations, event batches and commands, for recordings: little-endian, fixed width, versioned. Any bytes
// may be given to the decoders: what is not an encoding is refused, and what is accepted is bounded by its own length.
//
// Format: a 2-byte tag ("FC", "FE"), a 2-byte version, then
//   config   every field in the order of CoreConfig
//   batch    u32 pool size, pool; u32 event count, events: u8 kind (index in the variant), fields in order
//   commands u8 kind, fields in order, back to back
// Integers and enums take their own width, bools one byte (0 or 1), doubles their 8 bytes, ids their representation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "prefetcher/core/command.h"
#include "prefetcher/core/config.h"
#include "prefetcher/core/event.h"

namespace foreload::core {

inline constexpr std::uint16_t kCodecVersion = 1;
// Events of one batch and blocks of its pool that a decoder accepts.
inline constexpr std::uint32_t kDecodedEventsMax = 1u << 16;
inline constexpr std::uint32_t kDecodedBlocksMax = 1u << 24;

std::vector<std::uint8_t> EncodeConfig(const CoreConfig& config);
// Also validated.
Result<CoreConfig> DecodeConfig(std::span<const std::uint8_t> bytes);

// Appends to `out`.
void EncodeBatch(const EventBatch& batch, std::vector<std::uint8_t>& out);
// Replaces `batch`; the bytes must be one whole batch. On an error `batch` is empty.
Status DecodeBatch(std::span<const std::uint8_t> bytes, EventBatch& batch);

void EncodeCommands(std::span<const Command> commands, std::vector<std::uint8_t>& out);

// A hash of the encoded commands that is the same on every machine and in every later version of the code that keeps
// the encoding. Not cryptographic. Of no commands: a constant.
std::uint64_t CommandDigest(std::span<const Command> commands);

}  // namespace foreload::core
