#include "telemetry/sequence_tracker.h"

#include <gtest/gtest.h>

#include <string>

#include "telemetry/tests/test_support.h"

namespace foreload::telemetry {
namespace {

using testing::Bytes;
using testing::FromHex;
using Fed = SequenceTracker::Fed;

Bytes PayloadOf(std::uint64_t number, char publisher = 'a') {
  const std::string text = publisher + std::to_string(number);
  return {text.begin(), text.end()};
}

// Drives a tracker and writes down what it delivers: numbers, and R, K, U for the view states.
class Driver {
 public:
  explicit Driver(bool can_replay) : Driver(SequenceTracker::Options{.can_replay = can_replay}) {}
  explicit Driver(const SequenceTracker::Options& options) : tracker(options) {}

  Fed Live(std::uint64_t number, char publisher = 'a') {
    return tracker.OnLive({number, id}, PayloadOf(number, publisher), now);
  }
  Fed Replayed(std::uint64_t number, char publisher = 'a') {
    return tracker.OnReplayed({number, id}, PayloadOf(number, publisher), now);
  }

  std::string Deliver() {
    std::string out;
    while (const auto due = tracker.Next(now)) {
      if (!out.empty()) out += ' ';
      if (due->view) {
        out += *due->view == ViewState::kKnown ? 'K' : *due->view == ViewState::kUnknown ? 'U' : 'R';
      } else {
        out += std::string(due->payload->begin(), due->payload->end());
        tracker.Pop();
      }
    }
    return out;
  }

  SequenceTracker tracker;
  std::optional<PublisherId> id;
  TimeNs now = 0;
};

TEST(SequenceFrame, EightAndTwentyFourBytesAreRead) {
  EXPECT_EQ(ParseSequenceFrame(FromHex("0000000000000102"))->number, 0x102u);
  const auto with_id = ParseSequenceFrame(FromHex("0000000000000001000102030405060708090a0b0c0d0e0f"));
  EXPECT_EQ(with_id->number, 1u);
  EXPECT_EQ((*with_id->publisher)[15], 15);
  EXPECT_EQ(ParseSequenceFrame(FromHex("ffffffffffffffff"))->number, SequenceFrame::kEndMarker);
}

TEST(SequenceFrame, OtherLengthsAndNegativeNumbersAreNot) {
  for (const char* hex : {"", "00", "000000000000000000", "fffffffffffffffe", "8000000000000000"}) {
    EXPECT_FALSE(ParseSequenceFrame(FromHex(hex)).has_value()) << hex;
  }
}

TEST(SequenceTracker, InOrderBatchesAreAppliedAtOnce) {
  Driver driver(true);
  EXPECT_EQ(driver.Live(0), Fed::kTaken);
  EXPECT_EQ(driver.Deliver(), "K a0");
  driver.Live(1);
  driver.Live(2);
  EXPECT_EQ(driver.Deliver(), "a1 a2");
  EXPECT_EQ(driver.tracker.next(), 3u);
  EXPECT_EQ(driver.tracker.received(), 2u);
  EXPECT_FALSE(driver.tracker.replay_wanted());
}

TEST(SequenceTracker, GapIsReplayedBeforeBufferedBatches) {
  Driver driver(true);
  driver.Live(0);
  driver.Deliver();
  driver.Live(3);
  EXPECT_EQ(driver.Deliver(), "");
  EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), 1u);
  EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), std::nullopt) << "one request at a time";
  driver.Live(4);
  EXPECT_EQ(driver.Deliver(), "") << "live batches wait for the replay";
  for (std::uint64_t n = 1; n <= 4; ++n) driver.Replayed(n);
  driver.tracker.OnReplayEnd(driver.now);
  EXPECT_EQ(driver.Deliver(), "a1 a2 a3 a4");
  EXPECT_EQ(driver.tracker.gaps(), 1u);
  EXPECT_EQ(driver.Live(4), Fed::kDuplicate);
}

TEST(SequenceTracker, JoiningLateIsAGapFromTheStart) {
  Driver driver(true);
  driver.Live(7);
  driver.Deliver();
  EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), 0u);
  for (std::uint64_t n = 0; n <= 7; ++n) driver.Replayed(n);
  driver.tracker.OnReplayEnd(driver.now);
  EXPECT_EQ(driver.Deliver(), "K a0 a1 a2 a3 a4 a5 a6 a7");
}

TEST(SequenceTracker, ReplayThatStartsAboveTheRequestIsUnreplayable) {
  Driver driver(true);
  driver.Live(0);
  driver.Deliver();
  driver.Live(9);
  driver.Deliver();
  driver.tracker.TakeReplayRequest(driver.now);
  driver.Replayed(8);
  EXPECT_EQ(driver.Deliver(), "U a8 a9");
  driver.tracker.OnReplayEnd(driver.now);
  driver.now += 3600 * kSecond;
  EXPECT_EQ(driver.Deliver(), "");
  EXPECT_FALSE(driver.tracker.replay_wanted()) << "what is lost for good is not asked for again";
}

TEST(SequenceTracker, WithoutReplayAGapMakesTheViewUnknownUntilAClear) {
  Driver driver(false);
  driver.Live(0);
  driver.Live(2);
  EXPECT_EQ(driver.Deliver(), "K a0 U a2");
  driver.Live(5);  // Mooncake skips numbers on purpose
  EXPECT_EQ(driver.Deliver(), "a5");
  driver.Live(6);
  ASSERT_TRUE(driver.tracker.Next(driver.now)->payload);
  EXPECT_TRUE(driver.tracker.NoteClear());
  EXPECT_FALSE(driver.tracker.NoteClear());
  EXPECT_FALSE(driver.tracker.view_unknown());
  EXPECT_EQ(driver.tracker.gaps(), 2u);
}

TEST(SequenceTracker, LowerNumberIsARestart) {
  Driver driver(true);
  for (std::uint64_t n = 0; n < 5; ++n) driver.Live(n);
  driver.Deliver();
  EXPECT_EQ(driver.Live(0, 'b'), Fed::kRestart);
  EXPECT_EQ(driver.Deliver(), "R K b0");
  EXPECT_EQ(driver.tracker.restarts(), 1u);
}

TEST(SequenceTracker, RestartSeenInTheMiddleReplaysItsStart) {
  Driver driver(true);
  for (std::uint64_t n = 0; n < 5; ++n) driver.Live(n);
  driver.Deliver();
  EXPECT_EQ(driver.Live(2, 'b'), Fed::kRestart);
  EXPECT_EQ(driver.Deliver(), "R");
  EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), 0u);
  for (std::uint64_t n = 0; n <= 2; ++n) driver.Replayed(n, 'b');
  EXPECT_EQ(driver.Deliver(), "K b0 b1 b2");
}

TEST(SequenceTracker, NewPublisherIdIsARestartAtAnyNumber) {
  Driver driver(false);
  driver.id = PublisherId{1};
  driver.Live(0);
  EXPECT_EQ(driver.Deliver(), "K a0");
  driver.id = PublisherId{2};
  EXPECT_EQ(driver.Live(1, 'b'), Fed::kRestart);
  EXPECT_EQ(driver.Deliver(), "R U b1");
}

TEST(SequenceTracker, LateBatchOfTheSamePublisherIdFillsItsGap) {
  Driver driver(true);
  driver.id = PublisherId{1};
  driver.Live(0);
  driver.Live(2);
  driver.Deliver();
  EXPECT_EQ(driver.Live(1), Fed::kTaken);
  EXPECT_EQ(driver.Deliver(), "a1 a2");
  EXPECT_EQ(driver.Live(1), Fed::kDuplicate);
}

TEST(SequenceTracker, ReconnectVerifiesThePublisherByItsLastBatch) {
  Driver driver(true);
  for (std::uint64_t n = 0; n < 3; ++n) driver.Live(n);
  driver.Deliver();
  driver.tracker.OnReconnect(driver.now);
  driver.Live(4);
  EXPECT_EQ(driver.Deliver(), "");
  EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), 2u);
  for (std::uint64_t n = 2; n <= 4; ++n) driver.Replayed(n);
  driver.tracker.OnReplayEnd(driver.now);
  EXPECT_EQ(driver.Deliver(), "a3 a4");
  EXPECT_EQ(driver.tracker.restarts(), 0u);
}

TEST(SequenceTracker, NewPublisherThatIsAlreadyAheadIsFoundOut) {
  Driver driver(true);
  for (std::uint64_t n = 0; n < 3; ++n) driver.Live(n);
  driver.Deliver();
  driver.tracker.OnReconnect(driver.now);
  EXPECT_EQ(driver.Live(3, 'b'), Fed::kTaken);
  EXPECT_EQ(driver.Deliver(), "") << "the very next number, but whose?";
  EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), 2u);
  EXPECT_EQ(driver.Replayed(2, 'b'), Fed::kRestart);
  EXPECT_EQ(driver.Deliver(), "R");
  EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), 0u);
  for (std::uint64_t n = 0; n <= 3; ++n) driver.Replayed(n, 'b');
  EXPECT_EQ(driver.Deliver(), "K b0 b1 b2 b3");
}

TEST(SequenceTracker, PublisherWithoutOurLastBatchIsANewOne) {
  Driver driver(true);
  for (std::uint64_t n = 0; n < 3; ++n) driver.Live(n);
  driver.Deliver();
  driver.tracker.OnReconnect(driver.now);
  driver.tracker.TakeReplayRequest(driver.now);
  driver.tracker.OnReplayEnd(driver.now);
  EXPECT_EQ(driver.Deliver(), "R");
  EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), 0u);
}

TEST(SequenceTracker, ReconnectWithoutReplayLeavesTheViewUnknown) {
  Driver driver(false);
  driver.Live(0);
  driver.Deliver();
  driver.tracker.OnReconnect(driver.now);
  EXPECT_EQ(driver.Deliver(), "U");
  driver.Live(1, 'b');
  EXPECT_EQ(driver.Deliver(), "b1");
}

TEST(SequenceTracker, SilentReplayIsRetriedThenGivenUpThenRebuilt) {
  Driver driver(true);
  driver.Live(0);
  driver.Live(2);
  EXPECT_EQ(driver.Deliver(), "K a0");
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), 1u) << attempt;
    driver.now += 5 * kSecond;
    if (attempt < 2) {
      EXPECT_EQ(driver.Deliver(), "");
    }
  }
  EXPECT_EQ(driver.Deliver(), "U a2");
  EXPECT_FALSE(driver.tracker.replay_wanted());
  driver.now += 30 * kSecond;
  EXPECT_EQ(driver.Deliver(), "");
  EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), 0u) << "the history may still be there";
  driver.Live(3);
  for (std::uint64_t n = 0; n <= 3; ++n) driver.Replayed(n);
  driver.tracker.OnReplayEnd(driver.now);
  EXPECT_EQ(driver.Deliver(), "R K a0 a1 a2 a3");
}

TEST(SequenceTracker, FailedRebuildGoesOnWhereItWas) {
  Driver driver(true);
  driver.Live(0);
  driver.Live(2);
  driver.Deliver();
  for (int attempt = 0; attempt < 3; ++attempt) {
    driver.tracker.TakeReplayRequest(driver.now);
    driver.now += 5 * kSecond;
    driver.Deliver();
  }
  driver.now += 30 * kSecond;
  driver.Deliver();
  EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), 0u);
  driver.Replayed(2);  // the start is gone
  driver.Live(3);
  EXPECT_EQ(driver.Deliver(), "a3") << "nothing is applied twice";
}

TEST(SequenceTracker, RefusedBatchStaysDueAndOverflowIsReplayed) {
  Driver driver({.can_replay = true, .buffered_batches_max = 3});
  for (std::uint64_t n = 0; n < 3; ++n) EXPECT_EQ(driver.Live(n), Fed::kTaken);
  EXPECT_EQ(driver.Live(3), Fed::kOverflow);
  EXPECT_EQ(driver.Live(4), Fed::kOverflow);
  EXPECT_EQ(*driver.tracker.Next(driver.now)->view, ViewState::kKnown);
  EXPECT_EQ(driver.tracker.Next(driver.now)->number, 0u);
  EXPECT_EQ(driver.tracker.Next(driver.now)->number, 0u) << "not popped: still due";
  EXPECT_EQ(driver.Deliver(), "a0 a1 a2");
  EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), 3u);
  driver.Replayed(3);
  driver.Replayed(4);
  driver.tracker.OnReplayEnd(driver.now);
  EXPECT_EQ(driver.Deliver(), "a3 a4");
  EXPECT_FALSE(driver.tracker.view_unknown());
}

TEST(SequenceTracker, WhatWasHeldBeforeAReconnectIsNotTakenForTheNextPublishersFirstBatch) {
  Driver driver(true);
  driver.Live(0);  // not taken by the sink: still due when the connection breaks
  driver.tracker.OnReconnect(driver.now);
  for (int attempt = 0; attempt < 4; ++attempt) {  // the publisher never answers
    driver.tracker.TakeReplayRequest(driver.now);
    driver.now += 6 * kSecond;
    EXPECT_EQ(driver.Deliver().find('a'), std::string::npos);
  }
  driver.Live(1, 'b');  // another publisher, whose batch 0 was lost
  driver.Deliver();
  while (!driver.tracker.TakeReplayRequest(driver.now)) {
    driver.now += 30 * kSecond;
    driver.Deliver();
  }
  driver.Replayed(0, 'b');
  driver.Replayed(1, 'b');
  driver.tracker.OnReplayEnd(driver.now);
  const std::string delivered = driver.Deliver();
  EXPECT_NE(delivered.find("b0 b1"), std::string::npos) << delivered;
  EXPECT_FALSE(driver.tracker.view_unknown());
}

TEST(SequenceTracker, OverflowWithoutReplayLeavesTheViewUnknown) {
  Driver driver({.can_replay = false, .buffered_bytes_max = 4});
  driver.Live(0);
  driver.Live(1);
  EXPECT_EQ(driver.Live(2), Fed::kOverflow);
  EXPECT_EQ(driver.Deliver(), "K a0 a1 U");
}

TEST(SequenceTracker, StreamThatStartsAtATimeIsUnknownUntilItsClear) {
  Driver driver(true);
  constexpr std::uint64_t kStart = 1'789'095'808'830'000'000;
  driver.Live(kStart + 3);
  driver.Deliver();
  EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), 0u);
  driver.Replayed(kStart);
  EXPECT_EQ(*driver.tracker.Next(driver.now)->view, ViewState::kUnknown);
  EXPECT_EQ(driver.tracker.Next(driver.now)->number, kStart);
  EXPECT_TRUE(driver.tracker.NoteClear());
  driver.tracker.Pop();
  driver.Replayed(kStart + 1);
  driver.Replayed(kStart + 2);
  driver.tracker.OnReplayEnd(driver.now);
  driver.Deliver();
  EXPECT_EQ(driver.tracker.next(), kStart + 4);
  EXPECT_FALSE(driver.tracker.view_unknown());
}

TEST(SequenceTracker, HoleInsideAReplayIsAskedForOnceMoreAndThenLost) {
  Driver driver(true);
  driver.Live(0);
  driver.Live(5);
  driver.Deliver();
  driver.tracker.TakeReplayRequest(driver.now);
  for (const std::uint64_t n : {1, 2, 4, 5}) driver.Replayed(n);
  driver.tracker.OnReplayEnd(driver.now);
  EXPECT_EQ(driver.Deliver(), "a1 a2");
  EXPECT_EQ(driver.tracker.TakeReplayRequest(driver.now), 3u);
  driver.Replayed(4);
  EXPECT_EQ(driver.Deliver(), "U a4 a5");
}

TEST(SequenceTracker, ReplyThatNobodyWaitsForIsStale) {
  Driver driver(true);
  driver.Live(0);
  driver.Deliver();
  EXPECT_EQ(driver.Replayed(1), Fed::kStale);
  EXPECT_EQ(driver.Deliver(), "");
}

}  // namespace
}  // namespace foreload::telemetry
