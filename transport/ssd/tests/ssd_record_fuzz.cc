// Hostile bytes as a segment file: the scan must end, stay inside the file, and name only records that lie in it.
//
// The first byte chooses: bit 0 repairs the checksum of every block that starts with a known magic, so that the fuzzer
// gets past them; the rest is the file, padded to whole blocks.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "transport/ssd/scan.h"

using namespace foreload;
using namespace foreload::ssd;

namespace {

void Repair(std::vector<std::byte>& file) {
  for (std::size_t at = 0; at + kBlockBytes <= file.size(); at += kBlockBytes) {
    if (std::memcmp(file.data() + at, "FLS", 3) != 0 && std::memcmp(file.data() + at, "FLR", 3) != 0) continue;
    SetBlockChecksum(std::span<std::byte, kBlockBytes>(file.data() + at, kBlockBytes));
  }
}

void CheckScan(const ScanResult& scan, std::uint64_t bytes) {
  std::uint64_t end = kSegmentDataOffset;
  for (const ScannedRecord& record : scan.records) {
    const RecordFixed& fixed = record.header.fixed;
    FORELOAD_CHECK(record.offset >= end && record.offset % kBlockBytes == 0, "records overlap");
    end = record.offset + fixed.record_bytes;
    FORELOAD_CHECK(end <= bytes && end <= scan.end_offset, "a record reaches past the file");
    FORELOAD_CHECK(!record.header.extents.empty() && record.header.extents.size() == fixed.extent_count, "table size");
    for (const DiskExtent& extent : record.header.extents) {
      FORELOAD_CHECK(extent.offset % kBlockBytes == 0 && extent.stored_bytes > 0 &&
                         extent.offset + extent.stored_bytes <= fixed.record_bytes,
                     "an extent lies outside its record");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<std::byte> file(RoundUpToBlock(size - 1));
  if (size > 1) std::memcpy(file.data(), data + 1, size - 1);
  if ((data[0] & 1) != 0) Repair(file);
  const ReadAt read = [&](std::uint64_t offset, std::span<std::byte> out) {
    if (offset > file.size() || out.size() > file.size() - offset) return IoError("past the end");
    std::memcpy(out.data(), file.data() + offset, out.size());
    return OkStatus();
  };
  CheckScan(ScanSegment(read, size - 1), size - 1);
  CheckScan(ScanSegment(read, file.size()), file.size());
  return 0;
}
