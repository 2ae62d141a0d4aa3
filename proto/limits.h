// Limits of the wire, in one place. A message beyond one of them is refused by its receiver; senders keep within them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foreload {

// Control socket -----------------------------------------------------------------------------------------------------

// The largest legitimate frame is a demand fetch or key-list chunk of kKeysPerMessageMax digests of 32 bytes (2 MiB).
inline constexpr std::size_t kControlFrameBytesMax = 4u << 20;
// A grant reply carries ring and doorbell, a register reply the table: two are used, the rest is room.
inline constexpr std::size_t kDescriptorsPerFrameMax = 4;
// Frames waiting for a peer that does not read: two of the largest; beyond it the peer is taken for dead.
inline constexpr std::size_t kControlQueueBytesMax = 8u << 20;
// 65,536 blocks of 16 tokens are a context of one million tokens.
inline constexpr std::size_t kKeysPerMessageMax = 65536;
// Digests of a KeyListChunk: 256 KiB at 32 bytes, so that other frames get between the chunks of a long list.
inline constexpr std::size_t kKeysPerChunk = 8192;
// Ids (request, session, engine) are names, not documents.
inline constexpr std::size_t kIdBytesMax = 256;
inline constexpr std::size_t kTextBytesMax = 4096;
inline constexpr std::uint32_t kRanksMax = 64;
inline constexpr std::uint32_t kLayerGroupsMax = 64;  // bits of the READY mask

// Shared memory ------------------------------------------------------------------------------------------------------

// 2^24 slots of 128 bytes are a table of 2 GiB plus index: 32 TiB of arena at 2 MiB a block.
inline constexpr std::uint32_t kArenaSlotsMax = 1u << 24;
inline constexpr std::uint32_t kStoreSlotsMax = 1u << 16;
inline constexpr std::uint64_t kSlotBytesMax = 1ull << 32;

// Access stream ------------------------------------------------------------------------------------------------------

inline constexpr std::size_t kAccessBatchBytesMax = 8u << 20;
inline constexpr std::size_t kAccessEventsPerBatchMax = 4096;
inline constexpr std::size_t kBlocksPerStepAccessMax = 65536;

}  // namespace foreload
