// The bytes of a segment file, as docs/ssd-format.md specifies them: encoding and checking of its 4 KiB meta blocks.
//
// Pure functions over memory, so that recovery, tests and the fuzzer share them. Little-endian, x86-64: structures are
// copied as memory. Nothing read here is trusted: a block that fails any check is refused with the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/block_key.h"
#include "base/units.h"

namespace foreload::ssd {

inline constexpr std::uint64_t kBlockBytes = 4096;
inline constexpr std::uint16_t kFormatVersion = 1;
inline constexpr std::uint64_t kSealOffset = kBlockBytes;             // block 1; block 0 is the segment header
inline constexpr std::uint64_t kSegmentDataOffset = 2 * kBlockBytes;  // first record
inline constexpr std::uint32_t kExtentsMax = 4096;                    // per record: 64 layer groups x 64 ranks
inline constexpr std::uint64_t kExtentBytesMax = std::uint64_t{1} << 32;

constexpr std::uint64_t RoundUpToBlock(std::uint64_t bytes) {
  return AlignUp(bytes, kBlockBytes);
}

enum class BlockKind : std::uint32_t {  // the first four bytes of a meta block, readable in a dump
  kSegmentHeader = 0x47534C46,          // "FLSG"
  kSegmentSeal = 0x45534C46,            // "FLSE"
  kRecord = 0x43524C46,                 // "FLRC"
  kRecordMore = 0x4D524C46,             // "FLRM"
  kTombstone = 0x54524C46               // "FLRT"
};

// Starts each meta block and says which block it is, so that a block found in the wrong place is known as such.
struct BlockPrefix {
  BlockKind kind = BlockKind::kRecord;
  std::uint16_t version = kFormatVersion;
  std::uint16_t index = 0;  // within the record's header
  std::uint32_t segment = 0;
  std::uint32_t reserved = 0;
  std::uint64_t nonce = 0;     // random, of the segment: payload cannot pass for a record
  std::uint64_t offset = 0;    // of this block in the file
  std::uint64_t sequence = 0;  // of the record; segment header: of the first record that may follow
};
static_assert(sizeof(BlockPrefix) == 40);

inline constexpr std::size_t kBodyBytes = kBlockBytes - sizeof(BlockPrefix) - sizeof(std::uint64_t);

enum class Codec : std::uint8_t { kNone = 0 };

struct DiskExtent {
  std::uint16_t rank = 0;
  std::uint16_t layer_group = 0;
  Codec codec = Codec::kNone;
  std::uint8_t reserved0[3] = {};
  std::uint64_t offset = 0;  // from the record's start, a multiple of 4 KiB
  std::uint64_t raw_bytes = 0;
  std::uint64_t stored_bytes = 0;  // == raw_bytes with Codec::kNone
  std::uint8_t nonce[12] = {};     // of the cipher; zeros
  std::uint8_t tag[16] = {};       // of the cipher; zeros
  std::uint32_t reserved1 = 0;
  std::uint64_t xxh3_stored = 0;
  std::uint64_t xxh3_raw = 0;
};
static_assert(sizeof(DiskExtent) == 80);

struct RecordFixed {
  BlockKey key;
  BlockKey parent;  // digest_bytes 0: root or unknown
  LayoutFingerprint layout;
  std::uint64_t raw_bytes = 0;     // of all extents
  std::uint64_t record_bytes = 0;  // header and padded extents
  std::uint32_t extent_count = 0;
  std::uint32_t header_blocks = 0;
  std::uint8_t reserved[56] = {};
};
static_assert(sizeof(RecordFixed) == 208);

inline constexpr std::uint32_t kExtentsInFirstBlock = (kBodyBytes - sizeof(RecordFixed)) / sizeof(DiskExtent);
inline constexpr std::uint32_t kExtentsInMoreBlock = kBodyBytes / sizeof(DiskExtent);
static_assert(kExtentsInFirstBlock == 48 && kExtentsInMoreBlock == 50);

constexpr std::uint32_t HeaderBlocks(std::uint32_t extents) {
  if (extents <= kExtentsInFirstBlock) return 1;
  return 1 + (extents - kExtentsInFirstBlock + kExtentsInMoreBlock - 1) / kExtentsInMoreBlock;
}

// Where a meta block is expected: what its prefix must say.
struct Place {
  std::uint32_t segment = 0;
  std::uint64_t nonce = 0;
  std::uint64_t offset = 0;
};

struct SegmentHeader {
  std::uint32_t segment = 0;
  std::uint64_t nonce = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t first_sequence = 0;
};

struct SegmentSeal {
  std::uint64_t end_offset = 0;  // end of the last record
  std::uint64_t records = 0;     // appended, dropped ones included
};

struct RecordHeader {
  RecordFixed fixed;
  std::uint64_t sequence = 0;
  std::vector<DiskExtent> extents;
};

enum class BlockVerdict : std::uint8_t {
  kGood,
  kEmpty,         // all zeros: never written
  kGarbage,       // no meta block: magic or checksum is wrong
  kMisplaced,     // a sound block of another place
  kNewerVersion,  // sound, of a later format
  kInvalid        // sound, but its content contradicts itself
};

// Each encoder fills whole blocks, checksums included.
void EncodeSegmentHeader(const SegmentHeader& header, std::span<std::byte, kBlockBytes> out);
void EncodeSeal(const Place& place, const SegmentSeal& seal, std::span<std::byte, kBlockBytes> out);
void EncodeTombstone(const Place& place, std::uint64_t sequence, std::uint64_t record_bytes,
                     std::span<std::byte, kBlockBytes> out);
// `out` holds fixed.header_blocks blocks; `header` must be consistent (LayOutExtents).
void EncodeRecordHeader(const Place& place, const RecordHeader& header, std::span<std::byte> out);

// Sets header_blocks, extent_count, raw_bytes, record_bytes and the extents' offsets from the extents' sizes.
void LayOutExtents(RecordHeader& header);

// Prefix and checksum of one block, wherever it lies.
struct BlockCheck {
  BlockVerdict verdict = BlockVerdict::kGarbage;
  BlockPrefix prefix;
};
BlockCheck CheckBlock(std::span<const std::byte, kBlockBytes> block);

BlockVerdict DecodeSegmentHeader(std::span<const std::byte, kBlockBytes> block, SegmentHeader& out);
BlockVerdict DecodeSeal(const Place& place, std::span<const std::byte, kBlockBytes> block, SegmentSeal& out);
BlockVerdict DecodeTombstone(const Place& place, std::span<const std::byte, kBlockBytes> block,
                             std::uint64_t& record_bytes);
// Reads the first block of a record's header: everything but the extents that lie in later blocks. `out.fixed` is set
// whenever the result is kGood.
BlockVerdict DecodeRecordStart(const Place& place, std::span<const std::byte, kBlockBytes> block, RecordHeader& out);
// The whole header, `blocks` being fixed.header_blocks blocks long. kGood: keys, sizes and offsets agree.
BlockVerdict DecodeRecordHeader(const Place& place, std::span<const std::byte> blocks, RecordHeader& out);

// Recomputes the checksum at the end of a block.
void SetBlockChecksum(std::span<std::byte, kBlockBytes> block);

}  // namespace foreload::ssd
