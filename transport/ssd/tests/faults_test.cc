// A failing or full device: what is visible, what goes on, what is never trusted.
#include <gtest/gtest.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include "transport/ssd/tests/test_support.h"

namespace foreload::ssd::testing {
namespace {

class SsdFaultsTest : public ::testing::Test {
 protected:
  SsdFaultsTest() : bench_(dir_.path()) {}
  SsdStore& store() { return *bench_.store; }

  TempDir dir_;
  StoreBench bench_;
};

TEST_F(SsdFaultsTest, AFailedSyncLosesWhatItCoveredAndNothingElse) {
  bench_.options.sync_interval_ns = 60 * kSecond;
  ASSERT_TRUE(bench_.Open().ok());
  ASSERT_TRUE(bench_.Write(1, kQuarter).ok());
  ASSERT_TRUE(store().Flush().ok());
  ASSERT_TRUE(bench_.Write(2, kQuarter).ok());
  {
    const std::lock_guard lock(bench_.faults->mutex);
    bench_.faults->sync_errno = EIO;
    bench_.faults->syncs_to_fail = 1;
  }
  EXPECT_EQ(store().Flush().code(), StatusCode::kIoError);
  EXPECT_EQ(bench_.Failed().at(2).code(), StatusCode::kIoError);
  EXPECT_EQ(bench_.Read(2, kQuarter).code(), StatusCode::kNotFound);
  EXPECT_TRUE(bench_.Read(1, kQuarter).ok());
  EXPECT_EQ(bench_.metrics->abandoned_segments.value(), 1u);
  EXPECT_EQ(store().stats().state, SsdState::kOn);
  ASSERT_TRUE(bench_.Write(3, kQuarter).ok());  // into another segment
  ASSERT_TRUE(store().Flush().ok());
  EXPECT_EQ(store().durable_sequence(), 3u);
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_EQ(bench_.Stored(), (std::set<std::uint64_t>{1, 3}));
}

TEST_F(SsdFaultsTest, AWriteInFlightIntoAnAbandonedSegmentFails) {
  bench_.options.sync_interval_ns = 60 * kSecond;
  ASSERT_TRUE(bench_.Open().ok());
  ASSERT_TRUE(bench_.Write(1, kQuarter).ok());
  auto plan = bench_.Prepare(2, kQuarter);
  ASSERT_TRUE(plan.ok());
  const IoResult moved = bench_.MoveParts(plan->parts, true);
  {
    const std::lock_guard lock(bench_.faults->mutex);
    bench_.faults->sync_errno = EIO;
    bench_.faults->syncs_to_fail = 1;
  }
  EXPECT_FALSE(store().Flush().ok());
  EXPECT_EQ(store().FinishWrite(plan.value(), moved).code(), StatusCode::kIoError);
  EXPECT_FALSE(store().Find(KeyOf(2)));
}

TEST_F(SsdFaultsTest, RepeatedErrorsTurnTheTierOff) {
  bench_.options.io_errors_max = 3;
  ASSERT_TRUE(bench_.Open().ok());
  for (std::uint64_t id = 0; id < 4; ++id) ASSERT_TRUE(bench_.Write(id, {4096}).ok());
  bench_.backend.fail_errno = EIO;
  EXPECT_EQ(bench_.Read(0, {4096}).code(), StatusCode::kIoError);
  EXPECT_EQ(bench_.Dropped().at(0), DropReason::kIoError);
  EXPECT_EQ(store().stats().state, SsdState::kOn);
  bench_.backend.fail_errno = 0;
  EXPECT_TRUE(bench_.Read(1, {4096}).ok());  // a success starts the count anew
  bench_.backend.fail_errno = EIO;
  EXPECT_FALSE(bench_.Read(1, {4096}).ok());
  EXPECT_FALSE(bench_.Read(2, {4096}).ok());
  EXPECT_TRUE(store().Flush().ok());  // of another kind: a disk that cannot be read may well sync
  EXPECT_EQ(bench_.Write(9, {4096}).code(), StatusCode::kIoError);
  EXPECT_EQ(store().stats().state, SsdState::kOn);
  EXPECT_FALSE(bench_.Read(3, {4096}).ok());
  EXPECT_EQ(store().stats().state, SsdState::kOff);
  EXPECT_EQ(bench_.metrics->state.value(), 2.0);
  bench_.backend.fail_errno = 0;
  EXPECT_EQ(bench_.Read(3, {4096}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(bench_.Write(10, {4096}).code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(store().stats().last_error.empty());
}

TEST_F(SsdFaultsTest, ACancelledReadHarmsNothing) {
  ASSERT_TRUE(bench_.Open().ok());
  ASSERT_TRUE(bench_.Write(1, kQuarter).ok());
  AlignedBuffer memory(256 << 10);
  auto plan = store().PrepareRead({.key = KeyOf(1), .layout = LayoutOf(1), .memory = memory.first(256 << 10)});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(store().FinishRead(plan.value(), IoResult::kCancelled).code(), StatusCode::kCancelled);
  EXPECT_TRUE(bench_.Read(1, kQuarter).ok());
  EXPECT_EQ(bench_.metrics->io_error(IoKind::kRead).value(), 0u);
}

TEST_F(SsdFaultsTest, AFullDiskStopsWritesAndReadsGoOnUntilSpaceReturns) {
  bench_.clock = &bench_.manual_clock;
  ASSERT_TRUE(bench_.Open().ok());
  ASSERT_TRUE(bench_.Write(1, kQuarter).ok());
  {
    const std::lock_guard lock(bench_.faults->mutex);
    bench_.faults->create_errno = ENOSPC;
  }
  std::uint64_t id = 2;
  Status status;
  while ((status = bench_.Write(id, kQuarter)).ok()) ++id;  // what is allocated still fills
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_EQ(store().stats().state, SsdState::kWritesStopped);
  EXPECT_TRUE(bench_.Read(1, kQuarter).ok());
  EXPECT_EQ(bench_.Write(id, kQuarter).code(), StatusCode::kResourceExhausted);  // not before the retry time
  {
    const std::lock_guard lock(bench_.faults->mutex);
    bench_.faults->create_errno = 0;
  }
  bench_.manual_clock.Advance(120 * kSecond);
  ASSERT_TRUE(store().Flush().ok());  // wakes the store's thread, which asks for space again
  for (int i = 0; i < 8; ++i) {       // two segments' worth: at least one new segment was made
    status = bench_.Write(id++, kQuarter);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_EQ(store().stats().state, SsdState::kOn);
  EXPECT_TRUE(bench_.Read(1, kQuarter).ok());
}

TEST_F(SsdFaultsTest, NoSpaceAtAWriteStopsWrites) {
  bench_.clock = &bench_.manual_clock;
  ASSERT_TRUE(bench_.Open().ok());
  ASSERT_TRUE(bench_.Write(1, {4096}).ok());
  bench_.backend.fail_errno = ENOSPC;
  EXPECT_EQ(bench_.Write(2, {4096}).code(), StatusCode::kResourceExhausted);
  bench_.backend.fail_errno = 0;
  EXPECT_EQ(store().stats().state, SsdState::kWritesStopped);
  EXPECT_EQ(bench_.Write(2, {4096}).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(bench_.Read(1, {4096}).ok());
  bench_.manual_clock.Advance(120 * kSecond);
  EXPECT_TRUE(bench_.Write(2, {4096}).ok());
}

TEST_F(SsdFaultsTest, AFailedWriteLeavesNothingBehind) {
  ASSERT_TRUE(bench_.Open().ok());
  bench_.backend.fail_errno = EIO;
  EXPECT_EQ(bench_.Write(1, {4096}).code(), StatusCode::kIoError);
  bench_.backend.fail_errno = 0;
  EXPECT_FALSE(store().Find(KeyOf(1)));
  ASSERT_TRUE(bench_.Write(1, {4096}).ok());
  ASSERT_TRUE(bench_.Write(2, {4096}).ok());
  ASSERT_TRUE(store().Flush().ok());
  EXPECT_EQ(store().durable_sequence(), 3u);
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_EQ(bench_.Stored(), (std::set<std::uint64_t>{1, 2}));
}

// A real file system that is really full.
TEST_F(SsdFaultsTest, ARealFullFileSystemIsSurvived) {
  TempDir mount_point;
  if (::mount("tmpfs", mount_point.path().c_str(), "tmpfs", 0, "size=8m,mode=0700") != 0) {
    GTEST_SKIP() << "mounting a tmpfs needs CAP_SYS_ADMIN";
  }
  {
    StoreBench bench(mount_point.path() + "/ssd");
    bench.clock = &bench.manual_clock;
    bench.options.capacity_bytes = 64 << 20;  // far more than there is
    ASSERT_TRUE(bench.Open().ok());
    for (std::uint64_t id = 0; id < 100; ++id) {  // lives within what there is, reclaiming its own
      Status status = bench.Write(id, kQuarter);
      for (int retry = 0; status.code() == StatusCode::kResourceExhausted && retry < 100; ++retry) {
        bench.manual_clock.Advance(120 * kSecond);
        ASSERT_TRUE(bench.store->Flush().ok());
        status = bench.Write(id, kQuarter);
      }
      ASSERT_TRUE(status.ok()) << id << " " << status.ToString();
    }
    EXPECT_FALSE(bench.Dropped().empty());
    EXPECT_GE(bench.Stored().size(), 12u);
    bench.ExpectAllReadable(kQuarter);
    ASSERT_TRUE(bench.store->Flush().ok());
    ASSERT_TRUE(bench.Open().ok());
    bench.ExpectAllReadable(kQuarter);
    EXPECT_GE(bench.Stored().size(), 8u);
  }
  EXPECT_EQ(::umount(mount_point.path().c_str()), 0);
}

TEST_F(SsdFaultsTest, AStoreOpensOnAFullDiskForReading) {
  ASSERT_TRUE(bench_.Open().ok());
  ASSERT_TRUE(bench_.Write(1, kQuarter).ok());
  bench_.Close();
  bench_.faults->create_errno = ENOSPC;
  ASSERT_TRUE(bench_.Open().ok());
  EXPECT_EQ(store().stats().state, SsdState::kWritesStopped);
}

}  // namespace
}  // namespace foreload::ssd::testing
