#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "prefetcher/core/containers.h"
#include "prefetcher/core/link_model.h"
#include "prefetcher/core/return_model.h"
#include "prefetcher/core/session.h"
#include "prefetcher/core/tests/world.h"

namespace foreload::core {
namespace {

TEST(ReturnModel, BinsCoverIdleTimeWithoutGaps) {
  for (std::uint32_t bin = 0; bin < kReturnBins; ++bin) {
    EXPECT_EQ(ReturnBin(ReturnBinEnd(bin) - 1), bin);
    EXPECT_EQ(ReturnBin(ReturnBinEnd(bin)), bin + 1);
  }
  EXPECT_EQ(ReturnBin(0), 0u);
}

// Return times of a class are exponential; half of the sessions never come back.
TEST(ReturnModel, LearnsAReturnDistributionWithCensoring) {
  CoreStats stats;
  SessionTable sessions(1 << 16, stats);
  Rng rng(7);
  const std::uint16_t c = ReturnClass(RequestKind::kHuman, 1, 8);
  struct Pending {
    TimeNs at;
    std::uint64_t key;
  };
  std::vector<Pending> pending;
  TimeNs now = 0;
  for (std::uint64_t key = 0; key < 4000; ++key) {
    now += kSecond / 2;
    while (!pending.empty() && pending.front().at <= now) {
      sessions.Advance(pending.front().at, 1 << 20, [](std::uint32_t) {});
      sessions.Arrived(pending.front().at, pending.front().key);
      pending.erase(pending.begin());
    }
    sessions.Advance(now, 1 << 20, [](std::uint32_t) {});
    const std::uint32_t s = sessions.Arrived(now, key);
    sessions.Departed(now, s, c);
    if (rng.Below(2) == 0) {
      const auto gap = static_cast<DurationNs>(-60.0 * std::log(1.0 - rng.Uniform()) * 1e9);
      const Pending p{now + gap, key};
      pending.insert(std::upper_bound(pending.begin(), pending.end(), p,
                                      [](const Pending& a, const Pending& b) { return a.at < b.at; }),
                     p);
    }
  }
  const double within_minute = sessions.returns().ReturnProbability(c, 0, 60 * kSecond);
  EXPECT_NEAR(within_minute, 0.5 * (1 - std::exp(-1.0)), 0.05);
  const double after_five_minutes = sessions.returns().ReturnProbability(c, 300 * kSecond, 60 * kSecond);
  EXPECT_LT(after_five_minutes, 0.05);
  EXPECT_GT(sessions.returns().ReturnProbability(c, 0, 3600 * kSecond), 0.45);
}

TEST(ReturnModel, AnUnseenClassBorrowsFromItsParents) {
  ReturnModel model;
  const std::uint16_t seen = ReturnClass(RequestKind::kTool, 2, 8);
  const std::uint16_t sibling = ReturnClass(RequestKind::kTool, 2, 1000);
  const std::uint16_t stranger = ReturnClass(RequestKind::kHuman, 2, 8);
  for (int i = 0; i < 500; ++i) {
    for (std::uint32_t bin = 0; bin <= 4; ++bin) model.Entered(seen, bin);
    model.Returned(seen, 4);
  }
  const double p_seen = model.ReturnProbability(seen, 0, 10 * kSecond);
  const double p_sibling = model.ReturnProbability(sibling, 0, 10 * kSecond);
  EXPECT_GT(p_seen, 0.9);
  EXPECT_GT(p_sibling, 0.9);
  EXPECT_GE(p_seen + 1e-12, p_sibling);
  EXPECT_LT(model.ReturnProbability(stranger, 0, 10 * kSecond), p_seen + 1e-12);
}

TEST(Session, AHintNarrowsTheReturn) {
  EXPECT_LT(ExpectedReturnProbability(0, 10 * kSecond, 60 * kSecond, kSecond), 0.01);
  EXPECT_GT(ExpectedReturnProbability(55 * kSecond, 10 * kSecond, 60 * kSecond, kSecond), 0.98);
}

TEST(Session, TheTableForgetsTheOneThatHasBeenIdleLongest) {
  CoreStats stats;
  SessionTable sessions(2, stats);
  const std::uint32_t a = sessions.Arrived(0, 1);
  sessions.Departed(0, a, 0);
  const std::uint32_t b = sessions.Arrived(kSecond, 2);
  EXPECT_NE(sessions.Arrived(2 * kSecond, 3), kNone);
  EXPECT_EQ(sessions.Find(1), kNone);
  EXPECT_EQ(sessions.Find(2), b);
  EXPECT_EQ(sessions.Arrived(3 * kSecond, 4), kNone) << "all are active";
}

TEST(Session, AReturningSessionsChainIsBroughtToDram) {
  World w;
  w.EngineWith(4);
  w.OnSsd({1, 2, 3});
  // A class whose sessions come back after two seconds.
  for (std::uint32_t i = 0; i < 60; ++i) {
    RequestQueued queued = w.Queue(i, {500});
    queued.session = SessionId{9};
    queued.kind = RequestKind::kTool;
    queued.turn = 2;
    w.Send(queued);
    w.Send(RequestScheduled{RequestId{i}});
    w.Send(RequestFinished{RequestId{i}, {}});
    w.Step(2 * kSecond);
  }
  // The chain of this one is only named at its end, so nothing was loaded for its request.
  RequestQueued queued = w.Queue(1000, {});
  queued.session = SessionId{10};
  queued.kind = RequestKind::kTool;
  queued.turn = 2;
  w.Send(queued);
  w.Send(RequestScheduled{RequestId{1000}});
  w.Step();
  w.Send(RequestFinished{RequestId{1000}, w.Range({1, 2, 3})});
  w.Settle();
  ASSERT_EQ(w.Last<LoadToDram>().size(), 3u);
  EXPECT_EQ(w.Last<LoadToDram>()[0].block, BlockId{1}) << "root first";
  EXPECT_TRUE(w.Last<LoadToArena>().empty()) << "a likely return is no reason to fill HBM";
}

TEST(Hint, PrefetchLoadsIntoTheArena) {
  World w;
  w.EngineWith(4);
  w.InDram({1, 2});
  HintGiven hint{kEngine, HintAction::kPrefetch, SessionId{}, kSecond, 0, 0, {}};
  hint.blocks = w.Range({1, 2});
  w.Send(hint);
  w.Step();
  EXPECT_EQ(w.Last<LoadToArena>().size(), 2u);
}

TEST(Hint, AnExpectedSessionsChainIsInDramInTime) {
  CoreConfig config = SmallConfig();
  config.session_promote_horizon_ns = 5 * kSecond;
  config.session_promote_probability_min = 0.4;
  World w(config);
  w.EngineWith(4);
  w.OnSsd({1, 2});
  RequestQueued queued = w.Queue(1, {});
  queued.session = SessionId{3};
  w.Send(queued);
  w.Send(RequestScheduled{RequestId{1}});
  w.Step();
  w.Send(RequestFinished{RequestId{1}, w.Range({1, 2})});
  w.Settle();
  ASSERT_TRUE(w.Last<LoadToDram>().empty());
  w.Send(HintGiven{kEngine, HintAction::kExpect, SessionId{3}, 20 * kSecond, kSecond, 0, {}});
  w.Step(kSecond);
  EXPECT_TRUE(w.Last<LoadToDram>().empty()) << "too early";
  w.Step(15 * kSecond);
  w.LastLoadsDone();
  w.Settle();
  EXPECT_EQ(w.Of<LoadToDram>(w.all).size(), 2u);
}

TEST(Hint, APinnedBlockOutlivesColderOnesAndADemotedOneGoesFirst) {
  CoreConfig config = SmallConfig();
  config.dram_bytes = 4 * kBlockBytes;
  config.ssd_bytes = 0;
  World w(config);
  w.EngineWith(4);
  for (const std::uint32_t id : {1u, 2u, 3u, 4u}) w.InDram({id});
  HintGiven pin{kEngine, HintAction::kPin, SessionId{}, 0, 0, 100 * kSecond, {}};
  pin.blocks = w.Range({1});
  w.Send(pin);
  HintGiven demote{kEngine, HintAction::kDemote, SessionId{}, 0, 0, 0, {}};
  demote.blocks = w.Range({4});
  w.Send(demote);
  w.Step();
  w.InDram({50});
  w.InDram({51});
  const auto gone = w.Of<EvictDram>(w.all);
  ASSERT_EQ(gone.size(), 2u);
  EXPECT_EQ(gone[0].block, BlockId{4});
  EXPECT_NE(gone[1].block, BlockId{1});
}

TEST(Containers, TheFlatMapKeepsWhatIsInItThroughErasures) {
  FlatMap map;
  Rng rng(3);
  std::vector<std::uint32_t> shadow(512, kNone);
  for (int i = 0; i < 20000; ++i) {
    const auto key = static_cast<std::uint32_t>(rng.Below(512));
    if (shadow[key] == kNone) {
      shadow[key] = static_cast<std::uint32_t>(i);
      map.Insert(key, shadow[key]);
    } else {
      EXPECT_TRUE(map.Erase(key));
      shadow[key] = kNone;
    }
    const auto probe = static_cast<std::uint32_t>(rng.Below(512));
    ASSERT_EQ(map.Find(probe), shadow[probe]);
  }
}

TEST(LinkModel, LearnsBandwidthFromABusyLinkAndLatencyFromAnIdleOne) {
  LinkModel link;
  link.Configure({.bytes_per_second = 1e9, .latency_ns = 0, .inflight_bytes_max = 1u << 30});
  TimeNs now = 0;
  // 2 GB/s and 1 ms, one transfer of 4 MiB at a time.
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t bytes = 4u << 20;
    const bool alone = link.Issued(now, bytes, false);
    const auto service = static_cast<DurationNs>(kMillisecond + static_cast<double>(bytes) / 2e9 * 1e9);
    now += service;
    link.Learn(now, {.bytes = bytes, .service_ns = service, .predicted = now, .alone = alone});
    link.Ended(now, bytes, false);
  }
  const double seconds = link.Seconds(4u << 20);
  EXPECT_NEAR(seconds, 0.001 + (4u << 20) / 2e9, 0.0003);
  // Sixteen share it: each takes long, together they show the bandwidth.
  for (int i = 0; i < 50; ++i) {
    const TimeNs start = now;
    for (int k = 0; k < 16; ++k) link.Issued(now, 4u << 20, false);
    now += static_cast<DurationNs>(16.0 * (4u << 20) / 2e9 * 1e9);
    for (int k = 0; k < 16; ++k) {
      link.Learn(now, {.bytes = 4u << 20, .service_ns = now - start, .predicted = now, .alone = false});
      link.Ended(now, 4u << 20, false);
    }
  }
  EXPECT_NEAR(link.bytes_per_second(), 2e9, 2e8);
}

TEST(LinkModel, UtilisationFollowsTheLoad) {
  LinkModel link;
  link.Configure({.bytes_per_second = 1e9, .latency_ns = 0, .inflight_bytes_max = 1u << 30});
  TimeNs now = 0;
  for (int i = 0; i < 400; ++i) {
    link.Issued(now, 1000, true);
    now += 5 * kMillisecond;
    link.Ended(now, 1000, true);
    now += 5 * kMillisecond;
    link.Tick(now);
  }
  EXPECT_NEAR(link.utilisation(), 0.5, 0.05);
}

}  // namespace
}  // namespace foreload::core
