// The mover's thread over real and failing backends. Waits are on conditions; no assertion is about how long it took.
#include "transport/mover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "transport/fault/fault_backend.h"
#include "transport/host/host_backend.h"
#include "transport/metrics.h"
#include "transport/region_map.h"
#include "transport/sim/sim_backend.h"
#include "transport/tests/transport_testing.h"
#include "transport/uring/file_backend.h"

namespace foreload::testing {
namespace {

using Outcome = MoveResult::Outcome;

// Collects results; any thread may wait for them.
class Results {
 public:
  Mover::Sink sink() {
    return [this](const MoveResult& result) {
      {
        const std::lock_guard lock(mutex_);
        if (!results_.emplace(result.id.value, result).second) duplicates_ = true;
        order_.push_back(result.id.value);
      }
      changed_.notify_all();
    };
  }
  [[nodiscard]] bool WaitFor(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(kPatience), [&] { return results_.size() >= count; });
  }
  MoveResult Get(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(results_.contains(id)) << id;
    return results_[id];
  }
  std::vector<std::uint64_t> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return results_.size();
  }
  bool duplicates() {
    const std::lock_guard lock(mutex_);
    return duplicates_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, MoveResult> results_;
  std::vector<std::uint64_t> order_;
  bool duplicates_ = false;
};

MoveJob JobOf(std::uint64_t id, MoveClass move_class, std::vector<MovePart> parts, TimeNs deadline = kTimeNever) {
  MoveJob job;
  job.id = TransferId{id};
  job.move_class = move_class;
  job.deadline = deadline;
  job.parts = std::move(parts);
  return job;
}

class HostMoverTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = std::size_t{8} << 20;

  HostMoverTest() : source_(kBytes), destination_(kBytes) {
    auto inner = std::make_unique<HostBackend>();
    fault_ = std::make_unique<FaultBackend>(std::move(inner), FaultOptions{});
    source_id_ = fault_->Register(source_.region()).value();
    destination_id_ = fault_->Register(destination_.region()).value();
    const std::vector<std::uint8_t> content = Pattern(5, kBytes);
    std::memcpy(source_.data(), content.data(), kBytes);
  }
  MovePart Part(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) const {
    return {.source = source_id_,
            .source_offset = from,
            .destination = destination_id_,
            .destination_offset = to,
            .bytes = bytes};
  }
  void Start(MoverOptions options = {.name = "test"}) {
    mover_ = std::make_unique<Mover>(*fault_, clock_, std::move(options), results_.sink());
  }
  void Submit(std::uint64_t id, MoveClass move_class, std::vector<MovePart> parts, TimeNs deadline = kTimeNever) {
    const Status status = mover_->Submit(JobOf(id, move_class, std::move(parts), deadline));
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  MonotonicClock clock_;
  Memory source_;
  Memory destination_;
  std::unique_ptr<FaultBackend> fault_;
  RegionId source_id_;
  RegionId destination_id_;
  Results results_;
  std::unique_ptr<Mover> mover_;  // last: stops before what it uses
};

TEST_F(HostMoverTest, MovesAJobOfSeveralPartsAndReportsItOnce) {
  Start();
  Submit(1, MoveClass::kDemand, {Part(0, 100, 3'000'000), Part(4'000'000, 5'000'000, 77)});
  ASSERT_TRUE(results_.WaitFor(1));
  const MoveResult result = results_.Get(1);
  EXPECT_EQ(result.outcome, Outcome::kOk);
  EXPECT_EQ(result.bytes, 3'000'077u);
  EXPECT_EQ(std::memcmp(destination_.data() + 100, source_.data(), 3'000'000), 0);
  EXPECT_EQ(std::memcmp(destination_.data() + 5'000'000, source_.data() + 4'000'000, 77), 0);
  const Mover::Counters counters = mover_->counters();
  EXPECT_EQ(counters.jobs_ok[0], 1u);
  EXPECT_EQ(counters.bytes[0], 3'000'077u);
}

TEST_F(HostMoverTest, RefusesJobsThatMakeNoSense) {
  Start({.name = "test", .queue_jobs_max = 1});
  EXPECT_EQ(mover_->Submit(JobOf(1, MoveClass::kDemand, {})).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(mover_->Submit(JobOf(1, MoveClass::kDemand, {Part(0, 0, 0)})).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(mover_->Submit(JobOf(TransferId::kInvalidValue, MoveClass::kDemand, {Part(0, 0, 1)})).code(),
            StatusCode::kInvalidArgument);
  Submit(2, MoveClass::kDemand, {Part(0, kBytes - 1, 2)});
  ASSERT_TRUE(results_.WaitFor(1));
  EXPECT_EQ(results_.Get(2).error, TransferError::kBadRegion);
}

TEST_F(HostMoverTest, AFullQueueRefusesItsClassAlone) {
  fault_->Hold();
  Start({.name = "test", .queue_jobs_max = 2});
  Submit(1, MoveClass::kPrefetch, {Part(0, 0, 1)});
  Submit(2, MoveClass::kPrefetch, {Part(0, 0, 1)});
  EXPECT_EQ(mover_->Submit(JobOf(3, MoveClass::kPrefetch, {Part(0, 0, 1)})).code(), StatusCode::kResourceExhausted);
  Submit(4, MoveClass::kDemand, {Part(0, 0, 1)});
  fault_->Release();
  ASSERT_TRUE(results_.WaitFor(3));
  Submit(5, MoveClass::kPrefetch, {Part(0, 0, 1)});
  ASSERT_TRUE(results_.WaitFor(4));
}

TEST_F(HostMoverTest, AFailedPartFailsItsJobAndNoOther) {
  fault_->FailNext(TransferError::kNoSpace, ENOSPC);
  Start();
  Submit(1, MoveClass::kWriteBehind, {Part(0, 0, 100), Part(200, 200, 100)});
  ASSERT_TRUE(results_.WaitFor(1));
  EXPECT_EQ(results_.Get(1).outcome, Outcome::kFailed);
  EXPECT_EQ(results_.Get(1).error, TransferError::kNoSpace);
  EXPECT_EQ(results_.Get(1).errnum, ENOSPC);
  Submit(2, MoveClass::kWriteBehind, {Part(0, 0, 100)});
  ASSERT_TRUE(results_.WaitFor(2));
  EXPECT_EQ(results_.Get(2).outcome, Outcome::kOk);
  EXPECT_EQ(mover_->counters().jobs_failed[2], 1u);
}

TEST_F(HostMoverTest, AShortTransferIsAFailure) {
  fault_->ShortenNext();
  Start();
  Submit(1, MoveClass::kDemand, {Part(0, 0, 100)});
  ASSERT_TRUE(results_.WaitFor(1));
  EXPECT_EQ(results_.Get(1).error, TransferError::kShort);
  EXPECT_EQ(results_.Get(1).bytes, 99u);
}

TEST_F(HostMoverTest, RefusedSubmissionsAreTriedAgain) {
  fault_->RefuseNextSubmits(20);
  Start();
  for (std::uint64_t id = 1; id <= 5; ++id) Submit(id, MoveClass::kPrefetch, {Part(id * 100, id * 100, 100)});
  ASSERT_TRUE(results_.WaitFor(5));
  EXPECT_EQ(std::memcmp(destination_.data() + 100, source_.data() + 100, 500), 0);
}

TEST_F(HostMoverTest, CancelAndPromoteReachTheQueueAndUnknownIdsAreIgnored) {
  fault_->Hold();
  Start();
  // The backend's depth is taken by the first eight, so that the rest must wait.
  for (std::uint64_t id = 1; id <= 8; ++id) Submit(id, MoveClass::kPrefetch, {Part(0, id * 1000, 1000)});
  ASSERT_TRUE(Eventually([this] { return mover_->counters().outstanding == 8; }));
  for (std::uint64_t id = 9; id <= 12; ++id) Submit(id, MoveClass::kPrefetch, {Part(0, id * 1000, 1000)});
  mover_->Cancel(TransferId{10});
  mover_->Promote(TransferId{12}, kTimeNever);
  mover_->Cancel(TransferId{4711});
  mover_->Promote(TransferId{4711}, 0);
  ASSERT_TRUE(results_.WaitFor(1));
  EXPECT_EQ(results_.Get(10).outcome, Outcome::kCancelled);
  fault_->Release();
  ASSERT_TRUE(results_.WaitFor(12));
  const std::vector<std::uint64_t> order = results_.order();
  const auto at = [&](std::uint64_t id) { return std::find(order.begin(), order.end(), id) - order.begin(); };
  EXPECT_LT(at(12), at(9)) << "the promoted one went first";
  EXPECT_LT(at(9), at(11));
}

TEST_F(HostMoverTest, AJobPastItsDeadlineEndsAsTimeoutWithoutBeingSubmitted) {
  fault_->Hold();
  Start();
  for (std::uint64_t id = 1; id <= 8; ++id) Submit(id, MoveClass::kDemand, {Part(0, id * 1000, 1000)});
  ASSERT_TRUE(Eventually([this] { return mover_->counters().outstanding == 8; }));
  Submit(9, MoveClass::kDemand, {Part(0, 9000, 1000)}, clock_.Now() + kMillisecond);
  ASSERT_TRUE(results_.WaitFor(1));
  EXPECT_EQ(results_.Get(9).outcome, Outcome::kTimeout);
  fault_->Release();
  ASSERT_TRUE(results_.WaitFor(9));
  EXPECT_EQ(std::vector<std::uint8_t>(destination_.data() + 9000, destination_.data() + 10000),
            std::vector<std::uint8_t>(1000, 0));
  EXPECT_EQ(mover_->counters().jobs_timeout[0], 1u);
}

TEST_F(HostMoverTest, DestructionCancelsTheQueuedAndWaitsForTheRest) {
  fault_->Hold();
  Start();
  for (std::uint64_t id = 1; id <= 40; ++id) Submit(id, MoveClass::kPrefetch, {Part(0, id * 1000, 1000)});
  ASSERT_TRUE(Eventually([this] { return mover_->counters().outstanding == 8; }));
  std::thread stopper([this] { mover_.reset(); });
  ASSERT_TRUE(results_.WaitFor(32));  // the cancelled ones come while the device still hangs
  fault_->Release();
  stopper.join();
  EXPECT_EQ(results_.size(), 40u);
  EXPECT_FALSE(results_.duplicates());
  EXPECT_EQ(results_.Get(1).outcome, Outcome::kOk);
  EXPECT_EQ(results_.Get(40).outcome, Outcome::kCancelled);
  EXPECT_TRUE(fault_->Unregister(source_id_).ok()) << "nothing is outstanding";
}

TEST_F(HostMoverTest, ThrottledJobsTakeAtLeastTheirTimeOnTheLink) {
  Start({.name = "test", .throttle_bytes_per_second = 100e6});
  const TimeNs start = clock_.Now();
  Submit(1, MoveClass::kPrefetch, {Part(0, 0, 1'000'000)});
  Submit(2, MoveClass::kPrefetch, {Part(0, 2'000'000, 1'000'000)});
  ASSERT_TRUE(results_.WaitFor(2));
  EXPECT_GE(clock_.Now() - start, 20 * kMillisecond) << "2 MB at 100 MB/s: a lower bound, whatever the machine's load";
  EXPECT_EQ(std::memcmp(destination_.data() + 2'000'000, source_.data(), 1'000'000), 0);
}

TEST_F(HostMoverTest, MetricsCountByClassAndOutcome) {
  MetricRegistry registry;
  TransportMetrics metrics(registry, "dram_hbm");
  fault_->FailNext(TransferError::kIo, EIO);
  Start({.name = "test", .metrics = &metrics});
  Submit(1, MoveClass::kDemand, {Part(0, 0, 10)});
  ASSERT_TRUE(results_.WaitFor(1));
  Submit(2, MoveClass::kPrefetch, {Part(0, 0, 1000)});
  ASSERT_TRUE(results_.WaitFor(2));
  mover_.reset();
  EXPECT_EQ(metrics.classes[0].jobs[3]->value(), 1u);
  EXPECT_EQ(metrics.classes[1].jobs[0]->value(), 1u);
  EXPECT_EQ(metrics.classes[1].bytes->value(), 1000u);
  EXPECT_EQ(metrics.errors[static_cast<std::size_t>(TransferError::kIo)]->value(), 1u);
  EXPECT_EQ(metrics.inflight_bytes->value(), 0);
  for (const auto& family : registry.Families()) EXPECT_EQ(family.name.rfind("foreload_transport_", 0), 0u);
}

// Many threads submit, promote and cancel against a backend that fails, shortens, delays, reorders and refuses.
TEST_F(HostMoverTest, EveryJobEndsExactlyOnceUnderFaultsAndConcurrency) {
  mover_.reset();
  FaultOptions storm{.seed = 17,
                     .fail_probability = 0.05,
                     .short_probability = 0.05,
                     .delay_probability = 0.3,
                     .delay_polls_max = 3,
                     .refuse_probability = 0.1,
                     .reorder = true};
  fault_ = std::make_unique<FaultBackend>(std::make_unique<HostBackend>(), storm);
  source_id_ = fault_->Register(source_.region()).value();
  destination_id_ = fault_->Register(destination_.region()).value();
  Start();
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kJobs = 400;
  constexpr std::uint64_t kSlot = kBytes / (kThreads * kJobs);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      Rng rng(100 + t);
      for (std::uint64_t i = 0; i < kJobs; ++i) {
        const std::uint64_t id = t * kJobs + i;
        const auto move_class = static_cast<MoveClass>(rng.Below(3));
        ASSERT_TRUE(mover_->Submit(JobOf(id, move_class, {Part(id * kSlot, id * kSlot, kSlot)})).ok());
        if (rng.Below(4) == 0) mover_->Cancel(TransferId{t * kJobs + rng.Below(i + 1)});
        if (rng.Below(4) == 0) mover_->Promote(TransferId{t * kJobs + rng.Below(i + 1)}, clock_.Now() + kSecond);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(results_.WaitFor(kThreads * kJobs));
  mover_.reset();
  EXPECT_FALSE(results_.duplicates());
  for (std::uint64_t id = 0; id < kThreads * kJobs; ++id) {
    const MoveResult result = results_.Get(id);
    if (result.outcome != Outcome::kOk) continue;
    EXPECT_EQ(result.bytes, kSlot);
    EXPECT_EQ(std::memcmp(destination_.data() + id * kSlot, source_.data() + id * kSlot, kSlot), 0) << id;
  }
}

TEST(FileMoverTest, ReadsAndWritesFilesThroughTheMover) {
  constexpr std::uint64_t kBytes = std::uint64_t{6} << 20;
  for (const auto kind : {FileBackendOptions::Kind::kAuto, FileBackendOptions::Kind::kThreadPool}) {
    auto backend = MakeFileBackend({.kind = kind, .queue_depth = 8});
    ASSERT_TRUE(backend.ok()) << backend.status().ToString();
    SCOPED_TRACE((*backend)->capabilities().name);
    TempFile file;
    Memory out(kBytes);
    Memory in(kBytes);
    const std::vector<std::uint8_t> content = Pattern(21, kBytes);
    std::memcpy(out.data(), content.data(), kBytes);
    const RegionId file_id = (*backend)->Register(file.region(kBytes)).value();
    const RegionId out_id = (*backend)->Register(out.region()).value();
    const RegionId in_id = (*backend)->Register(in.region()).value();
    const MonotonicClock clock;
    Results results;
    {
      Mover mover(**backend, clock, {.name = "file"}, results.sink());
      ASSERT_TRUE(
          mover.Submit(JobOf(1, MoveClass::kWriteBehind, {{.source = out_id, .destination = file_id, .bytes = kBytes}}))
              .ok());
      ASSERT_TRUE(results.WaitFor(1));
      for (std::uint64_t i = 0; i < 6; ++i) {
        const std::uint64_t offset = i << 20;
        ASSERT_TRUE(mover
                        .Submit(JobOf(2 + i, MoveClass::kPrefetch,
                                      {{.source = file_id,
                                        .source_offset = offset,
                                        .destination = in_id,
                                        .destination_offset = offset,
                                        .bytes = std::uint64_t{1} << 20}}))
                        .ok());
      }
      ASSERT_TRUE(results.WaitFor(7));
    }
    for (std::uint64_t id = 1; id <= 7; ++id) EXPECT_EQ(results.Get(id).outcome, Outcome::kOk);
    EXPECT_EQ(std::memcmp(in.data(), content.data(), kBytes), 0);
  }
}

TEST(SimMoverTest, RunsOverASimulatedLinkWhoseClockIsMovedByHand) {
  AtomicClock clock;
  SimBackend backend(clock, {.bytes_per_second = 1e9, .latency_ns = kMillisecond});
  Memory source(1 << 20);
  Memory destination(1 << 20);
  const std::vector<std::uint8_t> content = Pattern(3, 1 << 20);
  std::memcpy(source.data(), content.data(), content.size());
  const RegionId from = backend.Register(source.region()).value();
  const RegionId to = backend.Register(destination.region()).value();
  Results results;
  Mover mover(backend, clock, {.name = "sim"}, results.sink());
  ASSERT_TRUE(mover.Submit(JobOf(1, MoveClass::kDemand, {{.source = from, .destination = to, .bytes = 1 << 20}})).ok());
  ASSERT_TRUE(Eventually([&] { return mover.counters().outstanding == 1; }));
  EXPECT_EQ(results.size(), 0u) << "time stands still";
  ASSERT_TRUE(Eventually([&] {
    clock.Advance(100 * kMicrosecond);
    return results.size() == 1;
  }));
  EXPECT_EQ(std::memcmp(destination.data(), content.data(), content.size()), 0);
  EXPECT_GE(results.Get(1).service_ns, kMillisecond);
}

// What an idle mover costs: its thread makes no turn at all.
TEST_F(HostMoverTest, AnIdleMoverSleepsUntilWorkArrives) {
  class CountingClock final : public Clock {
   public:
    TimeNs Now() const override {
      reads.fetch_add(1);
      return MonotonicNow();
    }
    mutable std::atomic<std::uint64_t> reads{0};
  };
  CountingClock counting;
  Mover mover(*fault_, counting, {.name = "idle"}, results_.sink());
  ASSERT_TRUE(mover.Submit(JobOf(1, MoveClass::kDemand, {Part(0, 0, 10)})).ok());
  ASSERT_TRUE(results_.WaitFor(1));
  // It has gone to rest once its clock is not read any more between two looks.
  std::uint64_t before = 0;
  ASSERT_TRUE(Eventually([&] {
    const std::uint64_t seen = counting.reads.load();
    const TimeNs until = MonotonicNow() + 30 * kMillisecond;  // longer than any rest of a busy mover
    while (MonotonicNow() < until) std::this_thread::yield();
    before = counting.reads.load();
    return seen == before;
  }));
  ASSERT_TRUE(mover.Submit(JobOf(2, MoveClass::kDemand, {Part(0, 0, 10)})).ok());
  ASSERT_TRUE(results_.WaitFor(2));
  EXPECT_GT(counting.reads.load(), before);
}

}  // namespace
}  // namespace foreload::testing
