#include "transport/ssd/format.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "proto/xxh3.h"

namespace foreload::ssd {
namespace {

constexpr std::size_t kChecksumOffset = kBlockBytes - sizeof(std::uint64_t);

using Block = std::span<std::byte, kBlockBytes>;
using ConstBlock = std::span<const std::byte, kBlockBytes>;

void StartBlock(Block out, BlockKind kind, const Place& place, std::uint64_t sequence, std::uint16_t index = 0) {
  std::memset(out.data(), 0, out.size());
  const BlockPrefix prefix{.kind = kind,
                           .index = index,
                           .segment = place.segment,
                           .nonce = place.nonce,
                           .offset = place.offset,
                           .sequence = sequence};
  std::memcpy(out.data(), &prefix, sizeof prefix);
}

template <typename T>
void PutBody(Block out, const T& value, std::size_t at = 0) {
  std::memcpy(out.data() + sizeof(BlockPrefix) + at, &value, sizeof value);
}

template <typename T>
T GetBody(ConstBlock block, std::size_t at = 0) {
  T value;
  std::memcpy(&value, block.data() + sizeof(BlockPrefix) + at, sizeof value);
  return value;
}

BlockVerdict CheckAt(const Place& place, BlockKind kind, ConstBlock block, BlockPrefix& prefix) {
  const BlockCheck check = CheckBlock(block);
  prefix = check.prefix;
  if (check.verdict != BlockVerdict::kGood) return check.verdict;
  if (prefix.nonce != place.nonce || prefix.segment != place.segment || prefix.offset != place.offset) {
    return BlockVerdict::kMisplaced;
  }
  return prefix.kind == kind ? BlockVerdict::kGood : BlockVerdict::kGarbage;
}

bool KeyIsSound(const BlockKey& key, bool may_be_absent) {
  if (may_be_absent && key.digest_bytes == 0) return true;
  return key.digest_bytes >= kDigestBytesMin && key.digest_bytes <= kDigestBytesMax;
}

bool FixedIsSound(const RecordFixed& fixed) {
  return KeyIsSound(fixed.key, false) && KeyIsSound(fixed.parent, true) && fixed.extent_count > 0 &&
         fixed.extent_count <= kExtentsMax && fixed.header_blocks == HeaderBlocks(fixed.extent_count) &&
         fixed.record_bytes % kBlockBytes == 0 && fixed.record_bytes <= kExtentsMax * kExtentBytesMax &&
         fixed.record_bytes > fixed.header_blocks * kBlockBytes;
}

bool ExtentsAreSound(const RecordHeader& header) {
  std::uint64_t offset = header.fixed.header_blocks * kBlockBytes;
  std::uint64_t raw_bytes = 0;
  for (const DiskExtent& extent : header.extents) {
    if (extent.codec != Codec::kNone || extent.raw_bytes != extent.stored_bytes) return false;
    if (extent.raw_bytes == 0 || extent.raw_bytes > kExtentBytesMax || extent.offset != offset) return false;
    offset += RoundUpToBlock(extent.stored_bytes);
    raw_bytes += extent.raw_bytes;
  }
  return offset == header.fixed.record_bytes && raw_bytes == header.fixed.raw_bytes;
}

// Calls visit(block index, first extent, extents in that block) for each block of a header.
template <typename Visit>
void ForEachTableBlock(std::uint32_t extents, Visit visit) {
  std::uint32_t first = 0;
  for (std::uint32_t block = 0; block < HeaderBlocks(extents); ++block) {
    const std::uint32_t room = block == 0 ? kExtentsInFirstBlock : kExtentsInMoreBlock;
    const std::uint32_t count = std::min(room, extents - first);
    visit(block, first, count);
    first += count;
  }
}

}  // namespace

void SetBlockChecksum(Block block) {
  const std::uint64_t checksum = Xxh3(block.data(), kChecksumOffset);
  std::memcpy(block.data() + kChecksumOffset, &checksum, sizeof checksum);
}

BlockCheck CheckBlock(ConstBlock block) {
  BlockCheck check;
  std::memcpy(&check.prefix, block.data(), sizeof check.prefix);
  switch (check.prefix.kind) {
    case BlockKind::kSegmentHeader:
    case BlockKind::kSegmentSeal:
    case BlockKind::kRecord:
    case BlockKind::kRecordMore:
    case BlockKind::kTombstone: break;
    default: {
      const bool empty = std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; });
      check.verdict = empty ? BlockVerdict::kEmpty : BlockVerdict::kGarbage;
      return check;
    }
  }
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, block.data() + kChecksumOffset, sizeof checksum);
  if (checksum != Xxh3(block.data(), kChecksumOffset)) return check;
  check.verdict = check.prefix.version == kFormatVersion ? BlockVerdict::kGood : BlockVerdict::kNewerVersion;
  return check;
}

void EncodeSegmentHeader(const SegmentHeader& header, Block out) {
  StartBlock(out, BlockKind::kSegmentHeader, {header.segment, header.nonce, 0}, header.first_sequence);
  PutBody(out, header.segment_bytes);
  SetBlockChecksum(out);
}

BlockVerdict DecodeSegmentHeader(ConstBlock block, SegmentHeader& out) {
  const BlockCheck check = CheckBlock(block);
  if (check.verdict == BlockVerdict::kGood || check.verdict == BlockVerdict::kNewerVersion) {
    if (check.prefix.kind != BlockKind::kSegmentHeader || check.prefix.offset != 0) return BlockVerdict::kMisplaced;
  }
  if (check.verdict != BlockVerdict::kGood) return check.verdict;
  out = {check.prefix.segment, check.prefix.nonce, GetBody<std::uint64_t>(block), check.prefix.sequence};
  return BlockVerdict::kGood;
}

void EncodeSeal(const Place& place, const SegmentSeal& seal, Block out) {
  StartBlock(out, BlockKind::kSegmentSeal, place, 0);
  PutBody(out, seal.end_offset);
  PutBody(out, seal.records, sizeof seal.end_offset);
  SetBlockChecksum(out);
}

BlockVerdict DecodeSeal(const Place& place, ConstBlock block, SegmentSeal& out) {
  BlockPrefix prefix;
  const BlockVerdict verdict = CheckAt(place, BlockKind::kSegmentSeal, block, prefix);
  if (verdict != BlockVerdict::kGood) return verdict;
  out = {GetBody<std::uint64_t>(block), GetBody<std::uint64_t>(block, sizeof out.end_offset)};
  return BlockVerdict::kGood;
}

void EncodeTombstone(const Place& place, std::uint64_t sequence, std::uint64_t record_bytes, Block out) {
  StartBlock(out, BlockKind::kTombstone, place, sequence);
  PutBody(out, record_bytes);
  SetBlockChecksum(out);
}

BlockVerdict DecodeTombstone(const Place& place, ConstBlock block, std::uint64_t& record_bytes) {
  BlockPrefix prefix;
  const BlockVerdict verdict = CheckAt(place, BlockKind::kTombstone, block, prefix);
  if (verdict != BlockVerdict::kGood) return verdict;
  record_bytes = GetBody<std::uint64_t>(block);
  return record_bytes > 0 && record_bytes % kBlockBytes == 0 ? BlockVerdict::kGood : BlockVerdict::kInvalid;
}

void LayOutExtents(RecordHeader& header) {
  RecordFixed& fixed = header.fixed;
  fixed.extent_count = static_cast<std::uint32_t>(header.extents.size());
  fixed.header_blocks = HeaderBlocks(fixed.extent_count);
  fixed.raw_bytes = 0;
  fixed.record_bytes = fixed.header_blocks * kBlockBytes;
  for (DiskExtent& extent : header.extents) {
    extent.offset = fixed.record_bytes;
    fixed.record_bytes += RoundUpToBlock(extent.stored_bytes);
    fixed.raw_bytes += extent.raw_bytes;
  }
}

void EncodeRecordHeader(const Place& place, const RecordHeader& header, std::span<std::byte> out) {
  FORELOAD_CHECK(out.size() == header.fixed.header_blocks * kBlockBytes, "header buffer of another size");
  ForEachTableBlock(header.fixed.extent_count, [&](std::uint32_t index, std::uint32_t first, std::uint32_t count) {
    const Block block(out.subspan(index * kBlockBytes).first<kBlockBytes>());
    const Place at{place.segment, place.nonce, place.offset + index * kBlockBytes};
    StartBlock(block, index == 0 ? BlockKind::kRecord : BlockKind::kRecordMore, at, header.sequence,
               static_cast<std::uint16_t>(index));
    std::size_t table = 0;
    if (index == 0) {
      PutBody(block, header.fixed);
      table = sizeof(RecordFixed);
    }
    for (std::uint32_t i = 0; i < count; ++i) PutBody(block, header.extents[first + i], table + i * sizeof(DiskExtent));
    SetBlockChecksum(block);
  });
}

BlockVerdict DecodeRecordStart(const Place& place, ConstBlock block, RecordHeader& out) {
  BlockPrefix prefix;
  const BlockVerdict verdict = CheckAt(place, BlockKind::kRecord, block, prefix);
  if (verdict != BlockVerdict::kGood) return verdict;
  out.sequence = prefix.sequence;
  out.fixed = GetBody<RecordFixed>(block);
  return FixedIsSound(out.fixed) ? BlockVerdict::kGood : BlockVerdict::kInvalid;
}

BlockVerdict DecodeRecordHeader(const Place& place, std::span<const std::byte> blocks, RecordHeader& out) {
  if (blocks.size() < kBlockBytes) return BlockVerdict::kInvalid;
  const BlockVerdict start = DecodeRecordStart(place, blocks.first<kBlockBytes>(), out);
  if (start != BlockVerdict::kGood) return start;
  if (blocks.size() != out.fixed.header_blocks * kBlockBytes) return BlockVerdict::kInvalid;
  out.extents.resize(out.fixed.extent_count);
  BlockVerdict verdict = BlockVerdict::kGood;
  ForEachTableBlock(out.fixed.extent_count, [&](std::uint32_t index, std::uint32_t first, std::uint32_t count) {
    const ConstBlock block(blocks.subspan(index * kBlockBytes).first<kBlockBytes>());
    if (index > 0) {
      BlockPrefix prefix;
      const Place at{place.segment, place.nonce, place.offset + index * kBlockBytes};
      const BlockVerdict more = CheckAt(at, BlockKind::kRecordMore, block, prefix);
      if (verdict == BlockVerdict::kGood) verdict = more;
      if (verdict == BlockVerdict::kGood && (prefix.sequence != out.sequence || prefix.index != index)) {
        verdict = BlockVerdict::kInvalid;
      }
    }
    const std::size_t table = index == 0 ? sizeof(RecordFixed) : 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      out.extents[first + i] = GetBody<DiskExtent>(block, table + i * sizeof(DiskExtent));
    }
  });
  if (verdict != BlockVerdict::kGood) return verdict;
  return ExtentsAreSound(out) ? BlockVerdict::kGood : BlockVerdict::kInvalid;
}

}  // namespace foreload::ssd
