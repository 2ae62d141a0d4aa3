// The store as its owner sees it: write, read, drop, reclaim, limits.
#include <gtest/gtest.h>

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport/ssd/tests/test_support.h"

namespace foreload::ssd::testing {
namespace {

const ExtentSizes kSmall = {5000, 4096, 1, 12288};  // padded: 8192 + 4096 + 4096 + 12288

class SsdStoreTest : public ::testing::Test {
 protected:
  SsdStoreTest() : bench_(dir_.path()) {}
  void SetUp() override { ASSERT_TRUE(bench_.Open().ok()); }
  SsdStore& store() { return *bench_.store; }

  TempDir dir_;
  StoreBench bench_;
};

TEST_F(SsdStoreTest, ARecordIsReadBackByteExact) {
  ASSERT_TRUE(bench_.Write(1, kSmall).ok());
  EXPECT_EQ(bench_.Read(1, kSmall).ToString(), OkStatus().ToString());
  EXPECT_TRUE(store().Contains(KeyOf(1), LayoutOf(1)));
  const auto info = store().Find(KeyOf(1));
  ASSERT_TRUE(info);
  EXPECT_EQ(info->raw_bytes, 5000u + 4096 + 1 + 12288);
  EXPECT_EQ(info->memory_bytes, PaddedBytes(kSmall));
  EXPECT_EQ(info->extent_count, 4u);
  EXPECT_EQ(info->parent, KeyOf(0));
}

TEST_F(SsdStoreTest, AnyRunOfExtentsIsReadableAlone) {
  const ExtentSizes sizes(60, 4096);  // a header of two blocks
  ASSERT_TRUE(bench_.Write(1, sizes).ok());
  for (std::uint32_t first = 0; first < 60; first += 7) {
    for (std::uint32_t count = 1; first + count <= 60; count += 11) {
      EXPECT_TRUE(bench_.ReadRun(1, sizes, first, count).ok()) << first << " " << count;
    }
  }
  EXPECT_EQ(bench_.ReadRun(1, sizes, 60, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bench_.ReadRun(1, sizes, 59, 2).code(), StatusCode::kInvalidArgument);
}

TEST_F(SsdStoreTest, ContiguousExtentsTravelAsOnePart) {
  const auto plan = bench_.Prepare(1, {4096, 8192, 4096});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->parts.size(), 2u);  // header, data
  auto copy = plan.value();
  EXPECT_EQ(store().FinishWrite(copy, IoResult::kCancelled).code(), StatusCode::kCancelled);
}

TEST_F(SsdStoreTest, PartsRespectTheBackendsLongestTransfer) {
  bench_.backend.transfer_bytes_max = 10000;
  ASSERT_TRUE(bench_.Open().ok());
  const ExtentSizes sizes = {50000};
  ASSERT_TRUE(bench_.Write(1, sizes).ok());  // the backend refuses longer ones
  EXPECT_TRUE(bench_.Read(1, sizes).ok());
}

TEST_F(SsdStoreTest, AnotherLayoutIsNeverReturned) {
  ASSERT_TRUE(bench_.Write(1, kSmall, 1).ok());
  EXPECT_EQ(bench_.Read(1, kSmall, 2).code(), StatusCode::kNotFound);
  EXPECT_EQ(bench_.Read(2, kSmall, 1).code(), StatusCode::kNotFound);
  EXPECT_FALSE(store().Contains(KeyOf(1), LayoutOf(2)));
}

TEST_F(SsdStoreTest, TheFirstVersionStaysAndAnotherLayoutReplaces) {
  ASSERT_TRUE(bench_.Write(1, kSmall, 1).ok());
  EXPECT_EQ(bench_.Write(1, kSmall, 1).code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(bench_.Write(1, kSmall, 2).ok());
  EXPECT_EQ(bench_.Dropped().at(1), DropReason::kReplaced);
  EXPECT_TRUE(bench_.Read(1, kSmall, 2).ok());
  EXPECT_EQ(bench_.Read(1, kSmall, 1).code(), StatusCode::kNotFound);
  ASSERT_TRUE(store().Flush().ok());
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_TRUE(bench_.Read(1, kSmall, 2).ok());
  EXPECT_EQ(bench_.Read(1, kSmall, 1).code(), StatusCode::kNotFound);
}

TEST_F(SsdStoreTest, ARecordCannotBeReadBeforeItsWriteEnded) {
  auto plan = bench_.Prepare(1, kSmall);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(bench_.Read(1, kSmall).code(), StatusCode::kNotFound);
  EXPECT_EQ(bench_.Prepare(1, kSmall).status().code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(store().FinishWrite(plan.value(), IoResult::kCancelled).code() == StatusCode::kCancelled);
  EXPECT_FALSE(store().Find(KeyOf(1)));
  EXPECT_TRUE(bench_.Write(1, kSmall).ok());
}

TEST_F(SsdStoreTest, BadInputIsRefused) {
  alignas(4096) static std::byte memory[8192];
  const auto write = [&](BlockKey key, std::span<const std::byte> data) {
    const ExtentData extent{.rank = 0, .layer_group = 0, .data = data, .xxh3 = {}};
    return store()
        .PrepareWrite({.key = key, .parent = {}, .layout = LayoutOf(1), .token = 0, .extents = {&extent, 1}})
        .status()
        .code();
  };
  EXPECT_EQ(write(BlockKey{}, memory), StatusCode::kInvalidArgument);
  EXPECT_EQ(write(KeyOf(1), {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(write(KeyOf(1), std::span(memory).subspan(1)), StatusCode::kInvalidArgument);
  EXPECT_EQ(bench_.Write(1, {2 << 20}).code(), StatusCode::kInvalidArgument);  // larger than a segment
  EXPECT_EQ(bench_.Write(1, ExtentSizes(513, 1)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bench_.metrics->refused(RefuseReason::kInvalid).value(), 5u);
  ASSERT_TRUE(bench_.Write(1, {4096}).ok());
  EXPECT_EQ(store()
                .PrepareRead({.key = KeyOf(1), .layout = LayoutOf(1), .memory = std::span(memory).first(4095)})
                .status()
                .code(),
            StatusCode::kInvalidArgument);
}

TEST_F(SsdStoreTest, PlansInFlightAreLimitedByTheHeaderPool) {
  bench_.options.headers_in_flight = 2;
  ASSERT_TRUE(bench_.Open().ok());
  auto a = bench_.Prepare(1, {4096});
  auto b = bench_.Prepare(2, {4096});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(bench_.Prepare(3, {4096}).status().code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(store().FinishWrite(a.value(), IoResult::kCancelled).ok());
  EXPECT_FALSE(store().FinishWrite(b.value(), IoResult::kCancelled).ok());
  EXPECT_TRUE(bench_.Write(3, {4096}).ok());
}

TEST_F(SsdStoreTest, TheDurableSinkIsCalledOncePerRecordAndTheWatermarkFollows) {
  for (std::uint64_t id = 0; id < 20; ++id) ASSERT_TRUE(bench_.Write(id, kSmall).ok());
  ASSERT_TRUE(bench_.WaitFor([&] { return bench_.durable.size() == 20; }));  // without a flush: by the interval
  EXPECT_EQ(store().durable_sequence(), 20u);
  EXPECT_EQ(store().stats().unsynced_bytes, 0u);
  EXPECT_TRUE(store().Find(KeyOf(7))->durable);
  EXPECT_EQ(bench_.metrics->durable_records.value(), 20u);
}

TEST_F(SsdStoreTest, AnOpenWriteHoldsTheWatermarkBack) {
  auto first = bench_.Prepare(1, kSmall);
  ASSERT_TRUE(first.ok());
  const IoResult moved = bench_.MoveParts(first->parts, true);
  ASSERT_TRUE(bench_.Write(2, kSmall).ok());
  ASSERT_TRUE(store().Flush().ok());
  EXPECT_EQ(bench_.Durable().count(2), 1u);
  EXPECT_EQ(store().durable_sequence(), 0u);
  ASSERT_TRUE(store().FinishWrite(first.value(), moved).ok());
  ASSERT_TRUE(store().Flush().ok());
  EXPECT_EQ(store().durable_sequence(), 2u);
}

TEST_F(SsdStoreTest, OneSyncCoversManyRecords) {
  bench_.options.sync_interval_ns = 60 * kSecond;
  ASSERT_TRUE(bench_.Open().ok());
  for (std::uint64_t id = 0; id < 20; ++id) ASSERT_TRUE(bench_.Write(id, {4096}).ok());
  const auto before = bench_.metrics->syncs.value();
  ASSERT_TRUE(store().Flush().ok());
  EXPECT_EQ(bench_.metrics->syncs.value(), before + 1);
  EXPECT_EQ(bench_.Durable().size(), 20u);
}

TEST_F(SsdStoreTest, EnoughUnsyncedBytesStartASync) {
  bench_.options.sync_interval_ns = 3600 * kSecond;
  bench_.options.sync_bytes = 64 << 10;
  ASSERT_TRUE(bench_.Open().ok());
  for (std::uint64_t id = 0; id < 16; ++id) ASSERT_TRUE(bench_.Write(id, {4096}).ok());  // 8 KiB each
  EXPECT_TRUE(bench_.WaitFor([&] { return bench_.durable.size() >= 8; }));
}

TEST_F(SsdStoreTest, ADroppedRecordStaysDroppedAcrossARestart) {
  for (std::uint64_t id = 0; id < 5; ++id) ASSERT_TRUE(bench_.Write(id, kSmall).ok());
  EXPECT_TRUE(store().Drop(KeyOf(2)));
  EXPECT_FALSE(store().Drop(KeyOf(2)));
  EXPECT_EQ(bench_.Read(2, kSmall).code(), StatusCode::kNotFound);
  ASSERT_TRUE(store().Flush().ok());
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_EQ(bench_.Stored(), (std::set<std::uint64_t>{0, 1, 3, 4}));
  EXPECT_EQ(bench_.metrics->recovered_tombstones.value(), 1u);
  EXPECT_TRUE(bench_.Write(2, kSmall).ok());
}

TEST_F(SsdStoreTest, ADropDuringTheWriteWins) {
  auto plan = bench_.Prepare(1, kSmall);
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(store().Drop(KeyOf(1)));
  const IoResult moved = bench_.MoveParts(plan->parts, true);
  EXPECT_EQ(store().FinishWrite(plan.value(), moved).code(), StatusCode::kCancelled);
  ASSERT_TRUE(store().Flush().ok());
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_TRUE(bench_.Stored().empty());
}

TEST_F(SsdStoreTest, ADropBeforeTheSyncIsReportedAsNotDurable) {
  bench_.options.sync_interval_ns = 60 * kSecond;
  ASSERT_TRUE(bench_.Open().ok());
  ASSERT_TRUE(bench_.Write(1, kSmall).ok());
  EXPECT_TRUE(store().Drop(KeyOf(1)));
  ASSERT_TRUE(store().Flush().ok());
  EXPECT_TRUE(bench_.Durable().empty());
  EXPECT_EQ(bench_.Failed().at(1).code(), StatusCode::kCancelled);
}

TEST_F(SsdStoreTest, OldSegmentsAreReclaimedWithinTheCapacity) {
  bench_.options.capacity_bytes = 4 << 20;
  ASSERT_TRUE(bench_.Open().ok());
  for (std::uint64_t id = 0; id < 60; ++id) {
    ASSERT_TRUE(bench_.Write(id, kQuarter).ok()) << id;
    EXPECT_LE(store().stats().used_bytes, 4u << 20);
    EXPECT_LE(DiskUse(dir_.path()), (4u << 20) + (64u << 10));
  }
  bench_.ExpectAllReadable(kQuarter);
  EXPECT_GT(bench_.metrics->reclaimed_segments.value(), 5u);
  bench_.Close();  // reclaim may run until here
  for (const auto& [id, reason] : bench_.Dropped()) EXPECT_EQ(reason, DropReason::kReclaimed);
  ASSERT_TRUE(bench_.Open().ok());
  const auto stored = bench_.Stored();
  EXPECT_GE(stored.size(), 8u);
  EXPECT_EQ(*stored.rbegin(), 59u);
  for (std::uint64_t id = 0; id < 60; ++id) EXPECT_NE(stored.count(id), bench_.Dropped().count(id)) << id;
}

TEST_F(SsdStoreTest, ASegmentThatIsReadIsSparedOnce) {
  bench_.options.capacity_bytes = 4 << 20;
  ASSERT_TRUE(bench_.Open().ok());
  for (std::uint64_t id = 0; id < 8; ++id) ASSERT_TRUE(bench_.Write(id, kQuarter).ok());
  ASSERT_EQ(bench_.Dropped().size(), 0u);
  for (std::uint64_t id = 0; id < 4; ++id) ASSERT_TRUE(bench_.Read(id, kQuarter).ok());  // the oldest segment
  std::uint64_t id = 8;
  while (bench_.Dropped().empty()) ASSERT_TRUE(bench_.Write(id++, kQuarter).ok());
  EXPECT_EQ(bench_.Dropped().count(0), 0u) << "the segment that was read went first";
  EXPECT_EQ(bench_.Dropped().count(4), 1u);
  EXPECT_EQ(bench_.metrics->spared_segments.value(), 1u);
  while (bench_.Dropped().count(0) == 0) ASSERT_TRUE(bench_.Write(id++, kQuarter).ok());  // once only
  ASSERT_LT(id, 40u);
}

TEST_F(SsdStoreTest, ASegmentInUseIsNotReclaimed) {
  bench_.options.capacity_bytes = 2 << 20;
  ASSERT_TRUE(bench_.Open().ok());
  AlignedBuffer memory(256 << 10);
  const auto pin = [&](std::uint64_t id) {
    return store().PrepareRead({.key = KeyOf(id), .layout = LayoutOf(1), .memory = memory.first(256 << 10)});
  };
  ASSERT_TRUE(bench_.Write(0, kQuarter).ok());
  auto oldest = pin(0);
  ASSERT_TRUE(oldest.ok());
  for (std::uint64_t id = 1; id < 20; ++id) ASSERT_TRUE(bench_.Write(id, kQuarter).ok()) << id;
  EXPECT_EQ(bench_.Dropped().count(0), 0u);
  EXPECT_EQ(bench_.Dropped().count(4), 1u);  // the younger segment went instead

  ASSERT_TRUE(store().Find(KeyOf(19)));
  auto newest = pin(19);  // now nothing can make room
  ASSERT_TRUE(newest.ok());
  std::uint64_t id = 20;
  Result<WritePlan> plan = bench_.Prepare(id, kQuarter);
  while (plan.ok()) {
    const IoResult moved = bench_.MoveParts(plan->parts, true);
    ASSERT_TRUE(store().FinishWrite(plan.value(), moved).ok());
    plan = bench_.Prepare(++id, kQuarter);
  }
  EXPECT_EQ(plan.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store().WaitWritable(MonotonicNow() + 20 * kMillisecond).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(store().FinishRead(oldest.value(), IoResult::kCancelled).code(), StatusCode::kCancelled);
  EXPECT_TRUE(bench_.Write(id, kQuarter).ok());  // waits until the segment is free
  EXPECT_EQ(bench_.Dropped().count(0), 1u);
  EXPECT_EQ(store().FinishRead(newest.value(), IoResult::kCancelled).code(), StatusCode::kCancelled);
}

TEST_F(SsdStoreTest, DirectAndBufferedFilesReadEachOther) {
  TempDir disk(TempDir::Where::kDisk);
  bench_.options.directory = disk.path() + "/ssd";
  bench_.options.direct_io = DirectIo::kAuto;
  ASSERT_TRUE(bench_.Open().ok());
  RecordProperty("direct_io", store().stats().direct_io ? 1 : 0);
  ASSERT_TRUE(bench_.Write(1, kSmall).ok());
  bench_.options.direct_io = DirectIo::kOff;
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_TRUE(bench_.Read(1, kSmall).ok());
  ASSERT_TRUE(bench_.Write(2, kSmall).ok());
  bench_.options.direct_io = DirectIo::kAuto;
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_TRUE(bench_.Read(1, kSmall).ok());
  EXPECT_TRUE(bench_.Read(2, kSmall).ok());
  bench_.Close();
}

TEST_F(SsdStoreTest, ASecondStoreOnTheDirectoryIsRefusedAndToldWho) {
  StoreBench second(dir_.path());
  const Status status = second.Open();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("process " + std::to_string(::getpid())), std::string::npos) << status.message();
  bench_.Close();
  EXPECT_TRUE(second.Open().ok());
}

TEST_F(SsdStoreTest, FilesAreForTheOwnerAlone) {
  ASSERT_TRUE(bench_.Write(1, kSmall).ok());
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    struct stat info {};
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u) << entry.path();
  }
  StoreBench made(dir_.path() + "/a/b");
  ASSERT_TRUE(made.Open().ok());
  struct stat info {};
  ASSERT_EQ(::stat((dir_.path() + "/a/b").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  made.Close();
  ASSERT_EQ(::chmod((dir_.path() + "/a/b").c_str(), 0750), 0);
  EXPECT_EQ(made.Open().code(), StatusCode::kFailedPrecondition);
}

TEST_F(SsdStoreTest, BadOptionsAreRefusedWithAReason) {
  const auto refused = [&](auto change) {
    StoreBench other(dir_.path() + "/other");
    change(other.options);
    return other.Open().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](SsdOptions& o) { o.segment_bytes = (1 << 20) + 1; }));
  EXPECT_TRUE(refused([](SsdOptions& o) { o.segment_bytes = 4096; }));
  EXPECT_TRUE(refused([](SsdOptions& o) { o.capacity_bytes = 1 << 20; }));
  EXPECT_TRUE(refused([](SsdOptions& o) { o.capacity_bytes = std::uint64_t{1} << 40; }));  // too many files
  EXPECT_TRUE(refused([](SsdOptions& o) { o.extents_max = 5000; }));
  EXPECT_TRUE(refused([](SsdOptions& o) { o.sync_interval_ns = 0; }));
  EXPECT_TRUE(refused([](SsdOptions& o) { o.directory.clear(); }));
}

TEST_F(SsdStoreTest, ChecksumsThatTheCallerKnowsAreTakenAndChecked) {
  alignas(4096) static std::byte memory[4096];
  FillExtent(9, 0, memory);
  const ExtentData extent{.rank = 0, .layer_group = 0, .data = memory, .xxh3 = 12345};  // not what the bytes are
  auto plan = store().PrepareWrite(
      {.key = KeyOf(9), .parent = {}, .layout = LayoutOf(1), .token = 10, .extents = {&extent, 1}});
  ASSERT_TRUE(plan.ok());
  // The bench moves from its own memory; what matters is that the wrong checksum surfaces at the read.
  std::vector<SsdPart> header(plan->parts.begin(), plan->parts.begin() + 1);
  ASSERT_EQ(bench_.MoveParts(header, true), IoResult::kOk);
  ASSERT_TRUE(store().FinishWrite(plan.value(), IoResult::kOk).ok());
  EXPECT_EQ(bench_.Read(9, {4096}).code(), StatusCode::kDataLoss);
  EXPECT_EQ(bench_.Dropped().at(9), DropReason::kCorrupt);
  EXPECT_FALSE(store().Find(KeyOf(9)));
  EXPECT_EQ(bench_.metrics->checksum_failures.value(), 1u);
}

}  // namespace
}  // namespace foreload::ssd::testing
