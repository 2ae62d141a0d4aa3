#include "transport/ssd/scan.h"

#include <algorithm>

#include "proto/xxh3.h"
#include "transport/ssd/aligned_buffer.h"

namespace foreload::ssd {
namespace {

constexpr std::uint64_t kWindowBytes = 256 << 10;  // read ahead while stepping block by block

// Blocks by offset. A jump reads one block (a sealed segment is walked from header to header), a step reads ahead.
class BlockWindow {
 public:
  BlockWindow(const ReadAt& read, std::uint64_t limit) : read_(read), limit_(limit), buffer_(kWindowBytes) {}

  Status Get(std::uint64_t offset, std::span<const std::byte, kBlockBytes>& out) {
    if (offset < begin_ || offset + kBlockBytes > end_) {
      const bool step = end_ != 0 && offset == end_;
      Status status = Fill(offset, step ? std::min(kWindowBytes, limit_ - offset) : kBlockBytes);
      if (!status.ok() && step) status = Fill(offset, kBlockBytes);  // one bad block must not hide its neighbours
      if (!status.ok()) return status;
    }
    out = std::span<const std::byte, kBlockBytes>(buffer_.data() + (offset - begin_), kBlockBytes);
    return OkStatus();
  }

 private:
  Status Fill(std::uint64_t offset, std::uint64_t bytes) {
    begin_ = end_ = 0;
    FORELOAD_RETURN_IF_ERROR(read_(offset, buffer_.first(bytes)));
    begin_ = offset;
    end_ = offset + bytes;
    return OkStatus();
  }

  const ReadAt& read_;
  const std::uint64_t limit_;
  AlignedBuffer buffer_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
};

class Scanner {
 public:
  Scanner(const ReadAt& read, std::uint64_t file_bytes)
      : read_(read), limit_(file_bytes / kBlockBytes * kBlockBytes), window_(read, limit_), buffer_(kBlockBytes) {}

  ScanResult Run() {
    if (!ReadSegmentHeader()) return std::move(result_);
    ReadSeal();
    std::uint64_t offset = kSegmentDataOffset;
    while (offset + kBlockBytes <= limit_ && read_errors_ < kScanReadErrorsMax) offset = Step(offset);
    return std::move(result_);
  }

 private:
  bool ReadSegmentHeader() {
    std::span<const std::byte, kBlockBytes> block(buffer_.block());
    if (limit_ < kSegmentDataOffset || !window_.Get(0, block).ok()) return false;
    result_.segment_verdict = DecodeSegmentHeader(block, result_.segment);
    return result_.segment_verdict == BlockVerdict::kGood;
  }

  void ReadSeal() {
    std::span<const std::byte, kBlockBytes> block(buffer_.block());
    if (!window_.Get(kSealOffset, block).ok()) return;
    SegmentSeal seal;
    if (DecodeSeal(At(kSealOffset), block, seal) != BlockVerdict::kGood) return;
    if (seal.end_offset < kSegmentDataOffset) return;
    result_.sealed = true;
    limit_ = std::min(limit_, RoundUpToBlock(seal.end_offset));
  }

  // Looks at one place and returns the next one.
  std::uint64_t Step(std::uint64_t offset) {
    std::span<const std::byte, kBlockBytes> block(buffer_.block());
    if (!window_.Get(offset, block).ok()) {
      ++read_errors_;
      Discard(DiscardReason::kReadError);
      return offset + kBlockBytes;
    }
    const BlockCheck check = CheckBlock(block);
    if (check.verdict == BlockVerdict::kEmpty) {
      in_garbage_ = false;
      return offset + kBlockBytes;
    }
    RecordHeader header;
    const BlockVerdict verdict = DecodeRecordStart(At(offset), block, header);
    if (verdict == BlockVerdict::kGood) return Record(offset, header);
    std::uint64_t dropped_bytes = 0;
    if (DecodeTombstone(At(offset), block, dropped_bytes) == BlockVerdict::kGood && dropped_bytes <= limit_ - offset) {
      ++result_.tombstones;
      Passed(check.prefix.sequence, offset + dropped_bytes);
      return offset + dropped_bytes;
    }
    if (verdict == BlockVerdict::kMisplaced) {
      Discard(DiscardReason::kMisplaced);
    } else if (!in_garbage_) {
      Discard(DiscardReason::kTorn);
      in_garbage_ = true;
    }
    return offset + kBlockBytes;
  }

  // The first block is sound, so its range belongs to this record, whole or not: ranges of one segment never overlap.
  std::uint64_t Record(std::uint64_t offset, RecordHeader& header) {
    const std::uint64_t record_bytes = header.fixed.record_bytes;
    if (record_bytes > limit_ - offset) {
      Discard(DiscardReason::kTruncated);
      return limit_;
    }
    Passed(header.sequence, offset + record_bytes);
    if (HeaderIsWhole(offset, header) && (result_.sealed || PayloadIsWhole(offset, header))) {
      result_.records.push_back({offset, std::move(header)});
    } else {
      result_.rejected.push_back({offset, header.sequence, record_bytes});
    }
    return offset + record_bytes;
  }

  bool HeaderIsWhole(std::uint64_t offset, RecordHeader& header) {
    const std::uint64_t bytes = header.fixed.header_blocks * kBlockBytes;
    buffer_.Reserve(bytes);
    if (!ReadOrCount(offset, bytes)) return false;
    if (DecodeRecordHeader(At(offset), buffer_.first(bytes), header) == BlockVerdict::kGood) return true;
    Discard(DiscardReason::kHeader);
    return false;
  }

  bool PayloadIsWhole(std::uint64_t offset, const RecordHeader& header) {
    for (const DiskExtent& extent : header.extents) {
      buffer_.Reserve(extent.stored_bytes);
      if (!ReadOrCount(offset + extent.offset, RoundUpToBlock(extent.stored_bytes))) return false;
      if (Xxh3(buffer_.data(), extent.stored_bytes) != extent.xxh3_stored) {
        Discard(DiscardReason::kPayload);
        return false;
      }
    }
    return true;
  }

  bool ReadOrCount(std::uint64_t offset, std::uint64_t bytes) {
    if (read_(offset, buffer_.first(bytes)).ok()) return true;
    ++read_errors_;
    Discard(DiscardReason::kReadError);
    return false;
  }

  Place At(std::uint64_t offset) const { return {result_.segment.segment, result_.segment.nonce, offset}; }
  void Discard(DiscardReason reason) { ++result_.discarded[static_cast<std::size_t>(reason)]; }
  void Passed(std::uint64_t sequence, std::uint64_t end) {
    in_garbage_ = false;
    result_.sequence_max = std::max(result_.sequence_max, sequence);
    result_.end_offset = std::max(result_.end_offset, end);
  }

  const ReadAt& read_;
  std::uint64_t limit_;
  BlockWindow window_;
  AlignedBuffer buffer_;
  ScanResult result_;
  bool in_garbage_ = false;
  int read_errors_ = 0;
};

}  // namespace

std::string_view DiscardReasonName(DiscardReason reason) {
  switch (reason) {
    case DiscardReason::kTorn: return "torn";
    case DiscardReason::kHeader: return "header";
    case DiscardReason::kPayload: return "payload";
    case DiscardReason::kTruncated: return "truncated";
    case DiscardReason::kMisplaced: return "misplaced";
    case DiscardReason::kSuperseded: return "superseded";
    case DiscardReason::kReadError: return "read_error";
  }
  return "unknown";
}

ScanResult ScanSegment(const ReadAt& read, std::uint64_t file_bytes) {
  return Scanner(read, file_bytes).Run();
}

}  // namespace foreload::ssd
