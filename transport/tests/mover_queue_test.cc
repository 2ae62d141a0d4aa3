// The mover's decisions, cranked by hand: no thread, no clock, no backend.
#include "transport/mover_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/units.h"

namespace foreload {
namespace {

class MoverQueueTest : public ::testing::Test {
 protected:
  void Make(std::uint32_t depth = 64) { queue_ = std::make_unique<MoverQueue>(options_, depth, UINT64_MAX); }

  // A job of one part whose source offset tells it apart.
  MoveJob Job(std::uint64_t id, MoveClass move_class, std::uint64_t bytes, TimeNs deadline = kTimeNever) {
    MoveJob job;
    job.id = TransferId{id};
    job.move_class = move_class;
    job.deadline = deadline;
    job.parts = {{.source = RegionId{1},
                  .source_offset = id << 32,
                  .destination = RegionId{2},
                  .destination_offset = id << 32,
                  .bytes = bytes}};
    return job;
  }
  void Push(MoveJob job) { queue_->Push(std::move(job), now_, now_); }

  static std::uint64_t IdOf(const Transfer& transfer) { return transfer.source_offset >> 32; }

  // Ids of the jobs whose slices go now, in order.
  std::vector<std::uint64_t> Next(std::size_t max = 256) {
    std::vector<Transfer> out(max);
    out.resize(queue_->Next(now_, out));
    std::vector<std::uint64_t> ids;
    for (const Transfer& transfer : out) {
      ids.push_back(IdOf(transfer));
      flying_.push_back(transfer);
    }
    return ids;
  }
  void Complete(std::size_t index, TransferError error = TransferError::kNone, int errnum = 0) {
    const Transfer transfer = flying_[index];
    flying_.erase(flying_.begin() + static_cast<std::ptrdiff_t>(index));
    queue_->Complete({.token = transfer.token,
                      .bytes = error == TransferError::kNone ? transfer.bytes : 0,
                      .error = error,
                      .errnum = errnum},
                     now_);
  }
  void CompleteAll() {
    while (!flying_.empty()) Complete(0);
  }
  std::vector<MoveResult> Ended() {
    std::vector<MoveResult> results;
    for (const EndedJob& ended : queue_->ended()) results.push_back(ended.result);
    queue_->ended().clear();
    return results;
  }

  MoverOptions options_{.name = "test", .link_bytes_per_second = 1e9};
  std::unique_ptr<MoverQueue> queue_;
  std::vector<Transfer> flying_;
  TimeNs now_ = kSecond;
};

using Ids = std::vector<std::uint64_t>;

TEST_F(MoverQueueTest, DemandGoesBeforePrefetchAndPrefetchBeforeWriteBehind) {
  Make(1);
  Push(Job(1, MoveClass::kWriteBehind, kKiB));
  Push(Job(2, MoveClass::kPrefetch, kKiB));
  Push(Job(3, MoveClass::kDemand, kKiB));
  EXPECT_EQ(Next(), Ids{3});
  CompleteAll();
  EXPECT_EQ(Next(), Ids{2});
  CompleteAll();
  EXPECT_EQ(Next(), Ids{1});
}

TEST_F(MoverQueueTest, EarliestDeadlineGoesFirstThenOrderOfSubmission) {
  Make();
  Push(Job(1, MoveClass::kDemand, kKiB));
  Push(Job(2, MoveClass::kDemand, kKiB, now_ + 20));
  Push(Job(3, MoveClass::kDemand, kKiB, now_ + 10));
  Push(Job(4, MoveClass::kDemand, kKiB));
  Push(Job(5, MoveClass::kDemand, kKiB, now_ + 20));
  EXPECT_EQ(Next(), (Ids{3, 2, 5, 1, 4}));
}

TEST_F(MoverQueueTest, WithoutDemandPrefetchUsesTheFullDepth) {
  Make(16);
  for (std::uint64_t id = 1; id <= 32; ++id) Push(Job(id, MoveClass::kPrefetch, kMiB));
  EXPECT_EQ(Next().size(), 16u);
  EXPECT_TRUE(Next().empty());
  Complete(3);
  EXPECT_EQ(Next().size(), 1u);
}

TEST_F(MoverQueueTest, PrefetchIsCappedWhileDemandWasSeenLately) {
  Make();  // 100 us at 1 GB/s: 100,000 bytes
  Push(Job(1, MoveClass::kDemand, kKiB));
  EXPECT_EQ(Next(), Ids{1});
  CompleteAll();
  for (std::uint64_t id = 2; id <= 20; ++id) Push(Job(id, MoveClass::kPrefetch, 32 * kKiB));
  EXPECT_EQ(Next().size(), 3u) << "3 x 32 KiB fit in 100,000 bytes, 4 do not";
  Complete(0);
  EXPECT_EQ(Next().size(), 1u);
  now_ += options_.demand_window_ns - 1;
  EXPECT_TRUE(Next().empty());
  EXPECT_EQ(queue_->WakeAt(now_), now_ + 1) << "the window's end lets more go";
  now_ += 1;
  EXPECT_EQ(Next().size(), 15u);
}

TEST_F(MoverQueueTest, TheCapAlwaysLetsOneSliceGo) {
  Make();
  Push(Job(1, MoveClass::kDemand, kKiB));
  Push(Job(2, MoveClass::kPrefetch, kMiB));
  Push(Job(3, MoveClass::kPrefetch, kMiB));
  EXPECT_EQ(Next(), (Ids{1, 2}));
  EXPECT_TRUE(Next().empty());
}

TEST_F(MoverQueueTest, TheCapFallsAtTheNextDemand) {
  Make();
  for (std::uint64_t id = 1; id <= 4; ++id) Push(Job(id, MoveClass::kPrefetch, kMiB));
  EXPECT_EQ(Next().size(), 4u);
  Push(Job(5, MoveClass::kDemand, kKiB));
  for (std::uint64_t id = 6; id <= 9; ++id) Push(Job(id, MoveClass::kPrefetch, kMiB));
  EXPECT_EQ(Next(), Ids{5});
  Complete(0);
  EXPECT_TRUE(Next().empty()) << "three prefetch slices are still above the cap";
  Complete(0);
  Complete(0);
  Complete(0);
  EXPECT_EQ(Next(), Ids{6});
}

TEST_F(MoverQueueTest, DemandOvertakesALargePrefetchAtTheNextSlice) {
  Make(1);
  Push(Job(1, MoveClass::kPrefetch, 8 * kMiB));
  EXPECT_EQ(Next(), Ids{1});
  EXPECT_EQ(flying_[0].bytes, kSliceBytesMax);
  Push(Job(2, MoveClass::kDemand, 2 * kMiB));
  CompleteAll();
  EXPECT_EQ(Next(), Ids{2});
  CompleteAll();
  EXPECT_EQ(Next(), Ids{2});
  CompleteAll();
  EXPECT_EQ(Next(), Ids{1});
  EXPECT_EQ(flying_[0].source_offset, (std::uint64_t{1} << 32) + kSliceBytesMax) << "it goes on where it was";
}

TEST_F(MoverQueueTest, ANewDemandWithAnEarlierDeadlineOvertakesOneThatRuns) {
  Make(1);
  Push(Job(1, MoveClass::kDemand, 2 * kMiB, now_ + 100));
  EXPECT_EQ(Next(), Ids{1});
  Push(Job(2, MoveClass::kDemand, kKiB, now_ + 50));
  CompleteAll();
  EXPECT_EQ(Next(), Ids{2});
}

TEST_F(MoverQueueTest, AdjoiningPartsAreMerged) {
  Make();
  MoveJob job = Job(1, MoveClass::kDemand, 4 * kKiB);
  for (std::uint64_t i = 1; i < 8; ++i) {
    MovePart part = job.parts[0];
    part.source_offset += i * 4 * kKiB;
    part.destination_offset += i * 4 * kKiB;
    job.parts.push_back(part);
  }
  job.parts[6].destination_offset += kMiB;  // 6 does not adjoin 5, nor 7 it
  Push(std::move(job));
  EXPECT_EQ(Next().size(), 3u);
  EXPECT_EQ(flying_[0].bytes, 24 * kKiB);
  CompleteAll();
  const auto ended = Ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].bytes, 32 * kKiB);
}

TEST_F(MoverQueueTest, WriteBehindWaitsForPrefetchThatTheCapHoldsBack) {
  Make();
  Push(Job(1, MoveClass::kDemand, kKiB));
  Push(Job(2, MoveClass::kPrefetch, kMiB));
  Push(Job(3, MoveClass::kPrefetch, kMiB));
  Push(Job(4, MoveClass::kWriteBehind, kKiB));
  EXPECT_EQ(Next(), (Ids{1, 2}));
  CompleteAll();
  EXPECT_EQ(Next(), Ids{3});
  CompleteAll();
  EXPECT_EQ(Next(), Ids{4});
}

TEST_F(MoverQueueTest, AnOverdueWriteGoesPastDemandOneSliceAtATime) {
  Make(2);
  Push(Job(1, MoveClass::kWriteBehind, 2 * kMiB));
  Push(Job(2, MoveClass::kDemand, 8 * kMiB));
  EXPECT_EQ(Next(), (Ids{2, 2}));
  EXPECT_EQ(queue_->WakeAt(now_), std::min(now_ + options_.write_age_max_ns, now_ + options_.demand_window_ns));
  now_ += options_.write_age_max_ns + 1;
  CompleteAll();
  EXPECT_EQ(Next(), (Ids{1, 2}));
  Complete(1);
  EXPECT_EQ(Next(), Ids{2}) << "not a second write slice while one is in flight";
}

TEST_F(MoverQueueTest, ADeadlineEndsAJobThatWasNotSubmitted) {
  Make(1);
  Push(Job(1, MoveClass::kDemand, 2 * kMiB, now_ + 5));
  Push(Job(2, MoveClass::kDemand, kKiB, now_ + 10));
  EXPECT_EQ(Next(), Ids{1});
  EXPECT_EQ(queue_->WakeAt(now_), now_ + 5);  // job 1's stale entry wakes early; job 2's own is at 10
  now_ += 10;
  queue_->Advance(now_);
  auto ended = Ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].id, TransferId{2});
  EXPECT_EQ(ended[0].outcome, MoveResult::Outcome::kTimeout);
  EXPECT_EQ(ended[0].queued_ns, 10);
  CompleteAll();
  EXPECT_EQ(Next(), Ids{1}) << "one that has begun runs to its end";
  CompleteAll();
  EXPECT_EQ(Ended()[0].outcome, MoveResult::Outcome::kOk);
}

TEST_F(MoverQueueTest, CancelEndsWhatIsQueuedAndLeavesWhatHasBegun) {
  Make(1);
  Push(Job(1, MoveClass::kPrefetch, 2 * kMiB));
  Push(Job(2, MoveClass::kPrefetch, kKiB));
  EXPECT_EQ(Next(), Ids{1});
  queue_->Cancel(TransferId{1}, now_);
  queue_->Cancel(TransferId{2}, now_);
  queue_->Cancel(TransferId{77}, now_);
  auto ended = Ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].id, TransferId{2});
  EXPECT_EQ(ended[0].outcome, MoveResult::Outcome::kCancelled);
  CompleteAll();
  EXPECT_EQ(Next(), Ids{1});
  CompleteAll();
  EXPECT_EQ(Ended()[0].outcome, MoveResult::Outcome::kOk);
  EXPECT_TRUE(queue_->idle());
}

TEST_F(MoverQueueTest, PromoteMovesAQueuedPrefetchAheadOfTheOthers) {
  Make(1);
  Push(Job(1, MoveClass::kPrefetch, kKiB));
  Push(Job(2, MoveClass::kPrefetch, kKiB));
  Push(Job(3, MoveClass::kPrefetch, kKiB));
  queue_->Promote(TransferId{3}, now_ + 100, now_);
  queue_->Promote(TransferId{99}, now_, now_);
  EXPECT_EQ(Next(), Ids{3});
  CompleteAll();
  ASSERT_EQ(queue_->ended().size(), 1u);
  EXPECT_EQ(queue_->ended()[0].move_class, MoveClass::kDemand);
  EXPECT_EQ(queue_->ended()[0].submitted_as, MoveClass::kPrefetch);
}

TEST_F(MoverQueueTest, PromotedBytesInFlightNoLongerCountAgainstTheCap) {
  Make();
  Push(Job(1, MoveClass::kPrefetch, kMiB));
  Push(Job(2, MoveClass::kPrefetch, kMiB));
  EXPECT_EQ(Next(1), Ids{1});
  queue_->Promote(TransferId{1}, kTimeNever, now_);
  EXPECT_EQ(Next(), Ids{2}) << "one prefetch slice beside the promoted one";
}

TEST_F(MoverQueueTest, APromotedDemandKeepsTheEarlierDeadline) {
  Make(1);
  Push(Job(1, MoveClass::kDemand, kKiB, now_ + 10));
  Push(Job(2, MoveClass::kDemand, kKiB, now_ + 20));
  queue_->Promote(TransferId{1}, now_ + 1000, now_);
  EXPECT_EQ(Next(), Ids{1});
}

TEST_F(MoverQueueTest, AfterTheFirstFailureNoFurtherPartIsSubmitted) {
  Make(2);
  Push(Job(1, MoveClass::kDemand, 8 * kMiB));
  EXPECT_EQ(Next(), (Ids{1, 1}));
  Complete(0, TransferError::kNoSpace, 28);
  EXPECT_TRUE(Next().empty());
  EXPECT_TRUE(Ended().empty()) << "its last part is still in flight";
  Complete(0, TransferError::kIo, 5);
  const auto ended = Ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].outcome, MoveResult::Outcome::kFailed);
  EXPECT_EQ(ended[0].error, TransferError::kNoSpace) << "the first error, not the last";
  EXPECT_EQ(ended[0].errnum, 28);
}

TEST_F(MoverQueueTest, AShortCountIsAFailureEvenWhenTheBackendSaysOk) {
  Make();
  Push(Job(1, MoveClass::kDemand, kMiB));
  Next();
  queue_->Complete({.token = flying_[0].token, .bytes = kMiB - 1}, now_);
  const auto ended = Ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].error, TransferError::kShort);
}

TEST_F(MoverQueueTest, WhatTheBackendRefusesIsGivenOutAgainInTheSameOrder) {
  Make();
  options_.throttle_bytes_per_second = 0;
  Push(Job(1, MoveClass::kDemand, 2 * kMiB));
  Push(Job(2, MoveClass::kDemand, kKiB));
  std::vector<Transfer> out(8);
  ASSERT_EQ(queue_->Next(now_, out), 3u);
  queue_->TakeBack({out.data() + 1, 2});
  EXPECT_EQ(queue_->outstanding(), 1u);
  std::vector<Transfer> again(8);
  ASSERT_EQ(queue_->Next(now_, again), 2u);
  EXPECT_EQ(again[0].source_offset, out[1].source_offset);
  EXPECT_EQ(again[0].bytes, out[1].bytes);
  EXPECT_EQ(again[1].source_offset, out[2].source_offset);
  queue_->TakeBack({again.data(), 2});
  queue_->Cancel(TransferId{2}, now_);
  EXPECT_EQ(Ended().size(), 1u) << "taken back whole, it can be cancelled again";
}

TEST_F(MoverQueueTest, AThrottledLinkGivesCompletionsNoEarlierThanItsRate) {
  options_.throttle_bytes_per_second = 64e6;  // 64 KiB in 1.024 ms
  Make();
  for (std::uint64_t id = 1; id <= 3; ++id) Push(Job(id, MoveClass::kPrefetch, 64 * kKiB));
  const TimeNs start = now_;
  const DurationNs slice = 64 * kKiB * kSecond / 64'000'000;
  EXPECT_EQ(Next(), Ids{1});
  CompleteAll();
  EXPECT_TRUE(Ended().empty());
  EXPECT_EQ(queue_->WakeAt(now_), start + slice - kThrottleAheadNs);
  now_ = start + slice - kThrottleAheadNs;
  queue_->Advance(now_);
  EXPECT_TRUE(Ended().empty());
  EXPECT_EQ(Next(), Ids{2});
  CompleteAll();
  now_ = start + slice - 1;
  queue_->Advance(now_);
  EXPECT_TRUE(Ended().empty());
  now_ = start + slice;
  queue_->Advance(now_);
  EXPECT_EQ(Ended().size(), 1u);
  now_ = start + 2 * slice - 1;
  queue_->Advance(now_);
  EXPECT_TRUE(Ended().empty());
  now_ += 1;
  queue_->Advance(now_);
  EXPECT_EQ(Ended().size(), 1u);
}

TEST_F(MoverQueueTest, DemandOvertakesPrefetchOnAThrottledLink) {
  options_.throttle_bytes_per_second = 64e6;
  Make();
  Push(Job(1, MoveClass::kPrefetch, 8 * kMiB));
  EXPECT_EQ(Next(), Ids{1});
  EXPECT_EQ(flying_[0].bytes, kThrottledSliceBytesMin);
  CompleteAll();
  Push(Job(2, MoveClass::kDemand, 16 * kKiB));
  now_ = queue_->WakeAt(now_);
  queue_->Advance(now_);
  EXPECT_EQ(Next(1), Ids{2});
}

TEST_F(MoverQueueTest, AnIdleThrottledLinkSavesNoCredit) {
  options_.throttle_bytes_per_second = 64e6;
  Make();
  now_ += 10 * kSecond;
  Push(Job(1, MoveClass::kDemand, 64 * kKiB));
  const TimeNs start = now_;
  Next();
  CompleteAll();
  now_ = start + 64 * kKiB * kSecond / 64'000'000 - 1;
  queue_->Advance(now_);
  EXPECT_TRUE(Ended().empty());
  now_ += 1;
  queue_->Advance(now_);
  EXPECT_EQ(Ended().size(), 1u);
}

TEST_F(MoverQueueTest, StopCancelsTheQueuedAndTheUnsentPartsAndWaitsForTheRest) {
  Make(1);
  Push(Job(1, MoveClass::kDemand, 4 * kMiB));
  Push(Job(2, MoveClass::kPrefetch, kKiB));
  Next();
  queue_->Stop(now_);
  EXPECT_EQ(Ended().size(), 1u);
  EXPECT_FALSE(queue_->idle());
  EXPECT_TRUE(Next().empty());
  CompleteAll();
  const auto ended = Ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].outcome, MoveResult::Outcome::kCancelled);
  EXPECT_EQ(ended[0].bytes, kMiB);
  Push(Job(3, MoveClass::kDemand, kKiB));
  EXPECT_EQ(Ended()[0].outcome, MoveResult::Outcome::kCancelled) << "late comers are cancelled too";
  EXPECT_TRUE(queue_->idle());
}

TEST_F(MoverQueueTest, TheLinksRateIsLearnedFromBusyWindows) {
  Make();
  for (std::uint64_t id = 1; id <= 40; ++id) Push(Job(id, MoveClass::kPrefetch, kMiB));
  while (!queue_->idle()) {
    Next();
    now_ += 100 * kMicrosecond;  // 1 MiB in 100 us: 10.5 GB/s
    Complete(0);
    Ended();
  }
  EXPECT_NEAR(queue_->link_bytes_per_second(), 10.5e9, 1.2e9);
}

// Invariants under a seeded storm of everything: once each, no byte twice, caps held, nothing stuck.
TEST_F(MoverQueueTest, EveryJobEndsOnceUnderASeededStorm) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    options_ = {.name = "storm", .link_bytes_per_second = 1e9};
    if (seed % 3 == 0) options_.throttle_bytes_per_second = 1e8;
    now_ = kSecond;
    flying_.clear();
    Make(static_cast<std::uint32_t>(1 + rng.Below(16)));
    std::map<std::uint64_t, std::uint64_t> asked;  // id -> bytes
    std::map<std::uint64_t, std::uint64_t> sent;   // id -> next offset, for order and exactness
    std::set<std::uint64_t> ended;
    std::uint64_t next_id = 1;
    const auto collect = [&] {
      for (const MoveResult& result : Ended()) {
        EXPECT_TRUE(ended.insert(result.id.value).second) << "ended twice";
        if (result.outcome == MoveResult::Outcome::kOk) {
          EXPECT_EQ(result.bytes, asked[result.id.value]);
        }
      }
    };
    for (int step = 0; step < 3000; ++step) {
      switch (rng.Below(7)) {
        case 0:
        case 1: {
          const std::uint64_t bytes = 1 + rng.Below(3 * kMiB);
          const TimeNs deadline =
              rng.Below(3) == 0 ? now_ + static_cast<DurationNs>(rng.Below(5 * kMillisecond)) : kTimeNever;
          asked[next_id] = bytes;
          Push(Job(next_id++, static_cast<MoveClass>(rng.Below(3)), bytes, deadline));
          break;
        }
        case 2: queue_->Cancel(TransferId{rng.Below(next_id)}, now_); break;
        case 3: queue_->Promote(TransferId{rng.Below(next_id)}, now_ + kMillisecond, now_); break;
        case 4: {
          std::vector<Transfer> out(1 + rng.Below(8));
          out.resize(queue_->Next(now_, out));
          const std::size_t accepted = rng.Below(out.size() + 1);
          queue_->TakeBack({out.data() + accepted, out.size() - accepted});
          for (std::size_t i = 0; i < accepted; ++i) {
            const std::uint64_t id = IdOf(out[i]);
            EXPECT_EQ(out[i].source_offset & 0xFFFFFFFF, sent[id]) << "a byte was skipped or sent twice";
            sent[id] += out[i].bytes;
            EXPECT_LE(sent[id], asked[id]);
            EXPECT_FALSE(ended.contains(id));
            flying_.push_back(out[i]);
          }
          break;
        }
        default: {
          now_ += static_cast<DurationNs>(rng.Below(500 * kMicrosecond));
          queue_->Advance(now_);
          if (!flying_.empty())
            Complete(rng.Below(flying_.size()), rng.Below(30) == 0 ? TransferError::kIo : TransferError::kNone, 5);
        }
      }
      collect();
      EXPECT_EQ(queue_->outstanding(), flying_.size());
    }
    const TimeNs give_up = now_ + 3600 * kSecond;
    while (!queue_->idle() && now_ < give_up) {
      Next();
      CompleteAll();
      now_ = std::max(now_ + kMicrosecond, std::min(queue_->WakeAt(now_), now_ + kSecond));
      queue_->Advance(now_);
      collect();
    }
    EXPECT_EQ(ended.size(), asked.size());
    EXPECT_EQ(queue_->inflight_bytes(), 0u);
    EXPECT_EQ(queue_->queued_jobs(), 0u);
  }
}

}  // namespace
}  // namespace foreload
