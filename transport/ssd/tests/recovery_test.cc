// What is left after crashes, truncation, rot and strangers: whole valid records, byte-exact, or nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "proto/xxh3.h"
#include "transport/ssd/directory.h"
#include "transport/ssd/scan.h"
#include "transport/ssd/tests/test_support.h"

namespace foreload::ssd::testing {
namespace {

const ExtentSizes kRecord = {3000, 5000};  // 4 KiB header, 4 + 8 KiB of extents
constexpr std::uint64_t kRecordBytes = 16384;
constexpr std::uint64_t kRecords = 6;

ReadAt FromMemory(std::span<const std::byte> file) {
  return [file](std::uint64_t offset, std::span<std::byte> out) {
    if (offset > file.size() || out.size() > file.size() - offset) return IoError("past the end");
    std::memcpy(out.data(), file.data() + offset, out.size());
    return OkStatus();
  };
}

// The bytes that a found record stands for in `file` are exactly those that were stored under its key.
bool IsExact(const ScannedRecord& record, std::span<const std::byte> file) {
  const std::uint64_t id = IdOf(record.header.fixed.key);
  if (record.header.fixed.key != KeyOf(id) || record.header.extents.size() != kRecord.size()) return false;
  for (std::size_t i = 0; i < kRecord.size(); ++i) {
    std::vector<std::byte> expected(kRecord[i]);
    FillExtent(id, i, expected);
    if (record.header.extents[i].raw_bytes != kRecord[i]) return false;
    const auto begin = file.begin() + static_cast<std::ptrdiff_t>(record.offset + record.header.extents[i].offset);
    if (!std::equal(expected.begin(), expected.end(), begin)) return false;
  }
  return true;
}

class SsdRecoveryTest : public ::testing::Test {
 protected:
  SsdRecoveryTest() : bench_(dir_.path()) {}
  SsdStore& store() { return *bench_.store; }

  // A segment with kRecords records as a crash leaves it: open, no seal. The store's own file is kept aside.
  std::vector<std::byte> UnsealedSegment() {
    EXPECT_TRUE(bench_.Open().ok());
    for (std::uint64_t id = 0; id < kRecords; ++id) EXPECT_TRUE(bench_.Write(id, kRecord).ok());
    EXPECT_TRUE(store().Flush().ok());
    path_ = SegmentPaths(dir_.path()).front();
    std::vector<std::byte> bytes = ReadFile(path_);
    bench_.Close();
    return bytes;
  }
  std::vector<std::byte> SealedSegment() {
    (void)UnsealedSegment();
    return ReadFile(path_);
  }

  TempDir dir_;
  StoreBench bench_;
  std::string path_;
};

TEST_F(SsdRecoveryTest, ARestartFindsEverything) {
  const std::vector<std::byte> open = UnsealedSegment();
  for (const bool sealed : {true, false}) {
    if (!sealed) {
      for (const std::string& path : SegmentPaths(dir_.path())) std::filesystem::remove(path);
      WriteFile(path_, open);
    }
    ASSERT_TRUE(bench_.Open().ok());
    EXPECT_EQ(bench_.metrics->recovered_records.value(), kRecords);
    for (std::uint64_t id = 0; id < kRecords; ++id) EXPECT_TRUE(bench_.Read(id, kRecord).ok()) << id;
    EXPECT_EQ(store().Find(KeyOf(3))->parent, KeyOf(2));
    EXPECT_TRUE(store().Find(KeyOf(3))->durable);
    EXPECT_EQ(store().durable_sequence(), kRecords);
    ASSERT_TRUE(bench_.Write(100, kRecord).ok());
    EXPECT_EQ(store().Find(KeyOf(100))->sequence, kRecords + 1);
    EXPECT_TRUE(store().Drop(KeyOf(100)));
    bench_.Close();
  }
}

TEST_F(SsdRecoveryTest, EveryPrefixOfAnOpenSegmentGivesItsWholeRecordsOnly) {
  const std::vector<std::byte> file = UnsealedSegment();
  const std::uint64_t end = kSegmentDataOffset + kRecords * kRecordBytes;
  ASSERT_EQ(file.size(), 1u << 20);
  for (std::uint64_t bytes = 0; bytes <= end + 4096; bytes += bytes % 4096 == 4095 || bytes % 4096 == 0 ? 1 : 97) {
    const std::span<const std::byte> prefix(file.data(), bytes);
    const ScanResult scan = ScanSegment(FromMemory(prefix), bytes);
    const std::uint64_t whole = bytes < kSegmentDataOffset ? 0 : (bytes - kSegmentDataOffset) / kRecordBytes;
    ASSERT_EQ(scan.records.size(), std::min(whole, kRecords)) << bytes;
    for (const ScannedRecord& record : scan.records) ASSERT_TRUE(IsExact(record, prefix)) << bytes;
  }
}

TEST_F(SsdRecoveryTest, EveryBlockPrefixOpensAndReadsByteExact) {
  for (const bool sealed : {false, true}) {
    const std::vector<std::byte> file = sealed ? SealedSegment() : UnsealedSegment();
    const std::uint64_t end = kSegmentDataOffset + kRecords * kRecordBytes;
    for (std::uint64_t bytes = 0; bytes <= end; bytes += 2048) {
      for (const std::string& path : SegmentPaths(dir_.path())) std::filesystem::remove(path);
      WriteFile(path_, std::span(file).first(bytes));
      ASSERT_TRUE(bench_.Open().ok());
      const std::uint64_t whole = bytes < kSegmentDataOffset ? 0 : (bytes - kSegmentDataOffset) / kRecordBytes;
      ASSERT_EQ(bench_.Stored().size(), whole) << bytes;
      for (std::uint64_t id = 0; id < whole; ++id) ASSERT_TRUE(bench_.Read(id, kRecord).ok()) << bytes << " " << id;
      EXPECT_EQ(bench_.metrics->discarded_segments.value(), whole == 0 ? 1u : 0u);
      bench_.Close();
    }
    for (const std::string& path : SegmentPaths(dir_.path())) std::filesystem::remove(path);
  }
}

TEST_F(SsdRecoveryTest, AFlippedBitCostsItsRecordAlone) {
  std::vector<std::byte> file = UnsealedSegment();
  Rng rng(20240607);
  for (std::uint64_t block = 2; block < (kSegmentDataOffset + kRecords * kRecordBytes) / kBlockBytes; ++block) {
    for (int i = 0; i < 8; ++i) {
      const std::uint64_t at = block * kBlockBytes + rng.Below(kBlockBytes);
      const auto bit = static_cast<std::byte>(1u << rng.Below(8));
      file[at] ^= bit;
      const ScanResult scan = ScanSegment(FromMemory(file), file.size());
      const std::uint64_t hit = (at - kSegmentDataOffset) / kRecordBytes;
      std::set<std::uint64_t> found;
      for (const ScannedRecord& record : scan.records) {
        ASSERT_TRUE(IsExact(record, file)) << "wrong bytes after a flip at " << at;
        found.insert(IdOf(record.header.fixed.key));
      }
      // A flip in padding is nobody's loss.
      const std::uint64_t in_record = (at - kSegmentDataOffset) % kRecordBytes;
      const bool padding = (in_record >= 4096 + 3000 && in_record < 8192) || in_record >= 8192 + 5000;
      ASSERT_EQ(found.count(hit), padding ? 1u : 0u) << at;
      ASSERT_EQ(found.size(), padding ? kRecords : kRecords - 1) << at;
      file[at] ^= bit;
    }
  }
}

TEST_F(SsdRecoveryTest, AFlippedBitInASealedSegmentIsFoundByTheRead) {
  const std::vector<std::byte> file = SealedSegment();
  Rng rng(7);
  for (std::uint64_t record = 0; record < kRecords; ++record) {
    std::vector<std::byte> bad = file;
    bad[kSegmentDataOffset + record * kRecordBytes + 4096 + rng.Below(3000)] ^= std::byte{16};
    for (const std::string& path : SegmentPaths(dir_.path())) std::filesystem::remove(path);
    WriteFile(path_, bad);
    ASSERT_TRUE(bench_.Open().ok());
    for (std::uint64_t id = 0; id < kRecords; ++id) {
      EXPECT_EQ(bench_.Read(id, kRecord).code(), id == record ? StatusCode::kDataLoss : StatusCode::kOk);
    }
    EXPECT_EQ(bench_.Dropped().size(), record + 1);
    EXPECT_EQ(bench_.Dropped().at(record), DropReason::kCorrupt);
    EXPECT_EQ(bench_.Read(record, kRecord).code(), StatusCode::kNotFound);
    EXPECT_TRUE(bench_.ReadRun((record + 1) % kRecords, kRecord, 1, 1).ok());
    ASSERT_TRUE(store().Flush().ok());
    ASSERT_TRUE(bench_.Open().ok());  // and it does not come back
    EXPECT_EQ(bench_.Stored().count(record), 0u);
    EXPECT_EQ(bench_.Stored().size(), kRecords - 1);
    bench_.Close();
  }
}

TEST_F(SsdRecoveryTest, ADamagedExtentLeavesTheOtherReadable) {
  std::vector<std::byte> file = SealedSegment();
  file[kSegmentDataOffset + 4096 + 10] ^= std::byte{1};  // extent 0 of record 0
  WriteFile(path_, file);
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_TRUE(bench_.ReadRun(0, kRecord, 1, 1).ok());
  EXPECT_EQ(bench_.ReadRun(0, kRecord, 0, 1).code(), StatusCode::kDataLoss);
}

TEST_F(SsdRecoveryTest, SwappedBlocksNeverGiveWrongBytes) {
  const std::vector<std::byte> file = UnsealedSegment();
  const std::uint64_t blocks = (kSegmentDataOffset + kRecords * kRecordBytes) / kBlockBytes;
  std::uint64_t misplaced = 0;
  for (std::uint64_t a = 0; a < blocks; ++a) {
    for (std::uint64_t b = a + 1; b < blocks; ++b) {
      std::vector<std::byte> bad = file;
      std::swap_ranges(bad.begin() + static_cast<std::ptrdiff_t>(a * kBlockBytes),
                       bad.begin() + static_cast<std::ptrdiff_t>((a + 1) * kBlockBytes),
                       bad.begin() + static_cast<std::ptrdiff_t>(b * kBlockBytes));
      const ScanResult scan = ScanSegment(FromMemory(bad), bad.size());
      for (const ScannedRecord& record : scan.records) ASSERT_TRUE(IsExact(record, bad)) << a << " " << b;
      misplaced += scan.discarded[static_cast<std::size_t>(DiscardReason::kMisplaced)];
    }
  }
  EXPECT_GT(misplaced, 0u);
}

TEST_F(SsdRecoveryTest, ARecordOfAnotherSegmentIsNotTakenForOneOfThis) {
  const std::vector<std::byte> first = UnsealedSegment();
  std::filesystem::remove(path_);
  std::vector<std::byte> second = UnsealedSegment();  // the same records under another nonce
  const auto from = first.begin() + kSegmentDataOffset;
  std::copy(from, from + kRecordBytes, second.begin() + kSegmentDataOffset);
  const ScanResult scan = ScanSegment(FromMemory(second), second.size());
  EXPECT_EQ(scan.records.size(), kRecords - 1);
  EXPECT_EQ(scan.discarded[static_cast<std::size_t>(DiscardReason::kMisplaced)], 1u);
}

TEST_F(SsdRecoveryTest, TheNewestVersionCountsAndTheOlderNeverComesBack) {
  const std::vector<std::byte> old = SealedSegment();  // ids 0..5
  ASSERT_TRUE(bench_.Open().ok());
  ASSERT_TRUE(store().Drop(KeyOf(0)));
  ASSERT_TRUE(bench_.Write(0, kRecord).ok());
  ASSERT_TRUE(store().Flush().ok());
  bench_.Close();
  WriteFile(path_, old);  // as if the tombstone had been lost
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_EQ(bench_.metrics->discarded(DiscardReason::kSuperseded).value(), 1u);
  EXPECT_EQ(store().Find(KeyOf(0))->sequence, kRecords + 1);
  EXPECT_TRUE(bench_.Read(0, kRecord).ok());
  ASSERT_TRUE(store().Drop(KeyOf(0)));
  ASSERT_TRUE(store().Flush().ok());
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_EQ(bench_.Stored().count(0), 0u);
  EXPECT_EQ(bench_.Stored().size(), kRecords - 1);
}

TEST_F(SsdRecoveryTest, ALaterFormatIsRefusedAndLeftAlone) {
  std::vector<std::byte> file = SealedSegment();
  const std::uint16_t version = kFormatVersion + 1;
  std::memcpy(file.data() + offsetof(BlockPrefix, version), &version, sizeof version);
  SetBlockChecksum(std::span<std::byte, kBlockBytes>(file.data(), kBlockBytes));
  WriteFile(path_, file);
  const Status status = bench_.Open();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("later version"), std::string::npos);
  EXPECT_EQ(ReadFile(path_), file);
}

TEST_F(SsdRecoveryTest, ForeignFilesAreLeftAndHalfWrittenSegmentsDroppedAndCounted) {
  (void)SealedSegment();
  const std::string foreign = dir_.path() + "/notes.txt";
  const std::string near_miss = dir_.path() + "/seg-0000000G.fls";
  const std::vector<std::byte> text(100, std::byte{'x'});
  WriteFile(foreign, text);
  WriteFile(near_miss, text);
  WriteFile(dir_.path() + "/" + SegmentFileName(77), std::vector<std::byte>(100000));  // allocated, no header yet
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_EQ(ReadFile(foreign), text);
  EXPECT_EQ(ReadFile(near_miss), text);
  EXPECT_EQ(bench_.metrics->discarded_segments.value(), 1u);
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/" + SegmentFileName(77)));
  EXPECT_EQ(bench_.Stored().size(), kRecords);
}

TEST_F(SsdRecoveryTest, ARecordTooLargeForTheSettingsIsDroppedForGood) {
  ASSERT_TRUE(bench_.Open().ok());
  const ExtentSizes many(60, 4096);
  ASSERT_TRUE(bench_.Write(1, many).ok());
  ASSERT_TRUE(bench_.Write(2, kRecord).ok());
  bench_.options.extents_max = 10;
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_EQ(bench_.Stored(), std::set<std::uint64_t>{2});
}

// S2: used bytes are right from the first moment, and the capacity holds across a restart with a lower one.
TEST_F(SsdRecoveryTest, UsedBytesAreRightFromTheFirstMomentAndALowerCapacityShrinks) {
  constexpr std::uint64_t kSegment = 4 * kMiB;
  const ExtentSizes block = {512 << 10};
  TempDir disk(TempDir::Where::kDisk);
  const std::string directory = disk.path() + "/ssd";
  bench_.options.directory = directory;
  bench_.options.capacity_bytes = 64 * kMiB;
  bench_.options.segment_bytes = kSegment;
  ASSERT_TRUE(bench_.Open().ok());
  WriteFile(directory + "/foreign.bin", std::vector<std::byte>(4096));
  const std::uint64_t others = 64 << 10;  // directory, lock, the foreign file
  const auto within = [&](std::uint64_t capacity) { return DiskUse(directory) <= capacity + kSegment + others; };
  const auto used_is_right = [&] {
    const auto used = static_cast<double>(store().stats().used_bytes);
    EXPECT_EQ(bench_.metrics->used_bytes.value(), used);
    return std::abs(used - static_cast<double>(DiskUse(directory))) <= static_cast<double>(kSegment + others);
  };
  std::uint64_t id = 0;
  for (; id < 120; ++id) {  // 60 MiB
    ASSERT_TRUE(bench_.Write(id, block).ok());
    ASSERT_TRUE(within(64 * kMiB)) << id;
    ASSERT_TRUE(used_is_right()) << id;
  }
  ASSERT_TRUE(bench_.Open().ok());
  ASSERT_TRUE(used_is_right());
  EXPECT_GT(store().stats().used_bytes, 40 * kMiB);
  for (; id < 200; ++id) {  // 40 MiB
    ASSERT_TRUE(bench_.Write(id, block).ok());
    ASSERT_TRUE(within(64 * kMiB)) << id;
    ASSERT_TRUE(used_is_right()) << id;
  }
  bench_.Close();
  WriteFile(directory + "/" + SegmentFileName(999), std::vector<std::byte>(1 << 20));
  bench_.options.capacity_bytes = 32 * kMiB;
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_LE(store().stats().used_bytes, 32 * kMiB);
  EXPECT_LE(DiskUse(directory), 32 * kMiB + others);
  EXPECT_GT(bench_.metrics->reclaimed_segments.value(), 0u);
  EXPECT_EQ(bench_.metrics->discarded_segments.value(), 1u);
  EXPECT_TRUE(std::filesystem::exists(directory + "/foreign.bin"));
  EXPECT_FALSE(bench_.Stored().empty());
  EXPECT_EQ(*bench_.Stored().rbegin(), 199u);
  bench_.ExpectAllReadable(block);
  bench_.Close();
}

}  // namespace
}  // namespace foreload::ssd::testing
