#include "residency/store_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "proto/xxh3.h"
#include "residency/tests/table_fixture.h"

namespace foreload {
namespace {

class StoreRingTest : public ::testing::Test {
 protected:
  void MakeRing(std::uint32_t slots, std::uint64_t bytes) {
    auto made = StoreRingWriter::Create({.slot_count = slots, .slot_bytes = bytes, .boot_token = kBootToken});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    sidecar_ = std::make_unique<StoreRingWriter>(std::move(made).value());
    auto opened = StoreRingClient::Open(Duplicate(sidecar_->fd()), Duplicate(sidecar_->doorbell_fd()), kBootToken);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    engine_ = std::make_unique<StoreRingClient>(std::move(opened).value());
  }
  fl_ring_header& RawHeader() { return *reinterpret_cast<fl_ring_header*>(sidecar_->memory().data()); }
  fl_store_record& RawRecord(std::uint32_t slot) {
    return reinterpret_cast<fl_store_record*>(sidecar_->memory().data() + RawHeader().records_offset)[slot];
  }

  std::unique_ptr<StoreRingWriter> sidecar_;
  std::unique_ptr<StoreRingClient> engine_;
};

TEST_F(StoreRingTest, ASlotGoesRoundWithItsBytesAndKeys) {
  MakeRing(3, 1000);
  EXPECT_FALSE(engine_->Begin().has_value()) << "nothing granted yet";
  sidecar_->GrantAll();
  const BlockKey key = KeyOf(1);
  const BlockKey parent = KeyOf(2);
  for (int round = 0; round < 10; ++round) {
    const auto slot = engine_->Begin();
    ASSERT_TRUE(slot.has_value());
    ASSERT_EQ(engine_->data(*slot).size(), 1000u);
    std::memset(engine_->data(*slot).data(), round, 1000);
    engine_->Commit(*slot, key, round % 2 ? &parent : nullptr, 900, 5000 + round);
    StoreCommit commits[4];
    ASSERT_EQ(sidecar_->PollCommits(commits).value(), 1u);
    EXPECT_EQ(commits[0].key, key);
    EXPECT_EQ(commits[0].parent.has_value(), round % 2 == 1);
    EXPECT_EQ(commits[0].parent.value_or(parent), parent);
    ASSERT_EQ(commits[0].data.size(), 900u);
    EXPECT_EQ(static_cast<int>(commits[0].data[899]), round);
    EXPECT_EQ(commits[0].token, 5000u + round);
    sidecar_->Grant(commits[0].slot);
  }
}

TEST_F(StoreRingTest, AFullRingSaysSoAndAbortedSlotsComeBack) {
  MakeRing(2, 64);
  sidecar_->GrantAll();
  const auto a = engine_->Begin();
  const auto b = engine_->Begin();
  ASSERT_TRUE(a && b);
  EXPECT_NE(*a, *b);
  EXPECT_FALSE(engine_->Begin().has_value());
  EXPECT_EQ(engine_->taken_count(), 2u);
  engine_->Abort(*a);
  EXPECT_FALSE(engine_->taken(*a));
  EXPECT_EQ(engine_->Begin(), a);
}

TEST_F(StoreRingTest, ImpossibleRecordsAndPositionsAreDataLoss) {
  const std::vector<std::function<void(fl_store_record&)>> records = {
      [](fl_store_record& r) { r.bytes = 0; },
      [](fl_store_record& r) { r.bytes = 65; },
      [](fl_store_record& r) { r.key.digest_bytes = 8; },
      [](fl_store_record& r) { r.key.digest_bytes = UINT64_MAX; },
      [](fl_store_record& r) { r.key.digest_bytes = 16; },  // bytes beyond the digest are not zero
      [](fl_store_record& r) { r.parent.digest_bytes = 33; },
  };
  for (std::size_t i = 0; i < records.size(); ++i) {
    SCOPED_TRACE(i);
    MakeRing(2, 64);
    sidecar_->GrantAll();
    const auto slot = engine_->Begin();
    engine_->Commit(*slot, KeyOf(1), nullptr, 64, 0);
    records[i](RawRecord(*slot));
    StoreCommit commits[2];
    EXPECT_EQ(sidecar_->PollCommits(commits).status().code(), StatusCode::kDataLoss);
  }
  const std::vector<std::function<void(fl_ring_header&)>> positions = {
      [](fl_ring_header& h) { h.commit_head = 5; }, [](fl_ring_header& h) { h.commit_head = UINT64_MAX; },
      [](fl_ring_header& h) { h.commit_head = 2; },  // the second entry repeats a slot that has come back
  };
  for (std::size_t i = 0; i < positions.size(); ++i) {
    SCOPED_TRACE(i);
    MakeRing(2, 64);
    sidecar_->GrantAll();
    engine_->Commit(*engine_->Begin(), KeyOf(1), nullptr, 64, 0);
    positions[i](RawHeader());
    StoreCommit commits[2];
    EXPECT_EQ(sidecar_->PollCommits(commits).status().code(), StatusCode::kDataLoss);
  }
}

TEST_F(StoreRingTest, ASidecarGoneWrongCostsTheEngineRefusedStoresOnly) {
  MakeRing(2, 64);
  sidecar_->GrantAll();
  auto* const grants = reinterpret_cast<std::uint32_t*>(sidecar_->memory().data() + RawHeader().grant_queue_offset);
  grants[0] = 4000000000u;
  EXPECT_FALSE(engine_->Begin().has_value());
  const auto slot = engine_->Begin();
  ASSERT_TRUE(slot.has_value());
  RawHeader().grant_head = 1000000;
  EXPECT_FALSE(engine_->Begin().has_value());
  RawHeader().slot_count = 1u << 31;  // not read again
  EXPECT_EQ(engine_->data(*slot).size(), 64u);
}

TEST_F(StoreRingTest, AForgedRingIsRefused) {
  MakeRing(4, 64);
  const auto opens = [&](const std::function<void(fl_ring_header&)>& change, std::uint64_t boot_token = kBootToken) {
    fl_ring_header& header = RawHeader();
    const fl_ring_header before = header;
    change(header);
    header.checksum = Xxh3(&header, offsetof(fl_ring_header, checksum));
    const bool ok = StoreRingClient::Open(Duplicate(sidecar_->fd()), UniqueFd(), boot_token).ok();
    header = before;
    return ok;
  };
  EXPECT_TRUE(opens([](fl_ring_header&) {}));
  EXPECT_FALSE(opens([](fl_ring_header&) {}, kBootToken + 1));
  EXPECT_FALSE(opens([](fl_ring_header& h) { h.magic = 0; }));
  EXPECT_FALSE(opens([](fl_ring_header& h) { h.queue_entries = 3; }));
  EXPECT_FALSE(opens([](fl_ring_header& h) { h.slot_count = 5; }));
  EXPECT_FALSE(opens([](fl_ring_header& h) { h.slot_stride = std::uint64_t{1} << 40; }));
  EXPECT_FALSE(opens([](fl_ring_header& h) { h.slot_bytes = h.slot_stride + 1; }));
  EXPECT_FALSE(opens([](fl_ring_header& h) { h.data_offset = UINT64_MAX - 4095; }));
  EXPECT_FALSE(opens([](fl_ring_header& h) { h.records_offset = h.total_bytes; }));
}

TEST_F(StoreRingTest, ACommitRingsOnlyASleepingSidecar) {
  MakeRing(4, 64);
  sidecar_->GrantAll();
  const auto rung = [&] {
    pollfd entry{.fd = sidecar_->doorbell_fd(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) == 1;
  };
  engine_->Commit(*engine_->Begin(), KeyOf(1), nullptr, 1, 0);
  EXPECT_FALSE(rung());
  EXPECT_FALSE(sidecar_->PrepareSleep()) << "something is waiting";
  StoreCommit commits[4];
  ASSERT_EQ(sidecar_->PollCommits(commits).value(), 1u);
  EXPECT_TRUE(sidecar_->PrepareSleep());
  engine_->Commit(*engine_->Begin(), KeyOf(1), nullptr, 1, 0);
  EXPECT_TRUE(rung());
  sidecar_->Wake();
  EXPECT_FALSE(rung());
}

// Every commit is seen although the sidecar sleeps whenever it can: a lost wake-up would end in the poll's timeout.
TEST_F(StoreRingTest, NoWakeUpIsLost) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr std::uint64_t kCommits = 20000;
#else
  constexpr std::uint64_t kCommits = 200000;
#endif
  MakeRing(4, 64);
  sidecar_->GrantAll();
  std::thread engine([this] {
    for (std::uint64_t i = 0; i < kCommits;) {
      const auto slot = engine_->Begin();
      if (!slot) {
        std::this_thread::yield();
        continue;
      }
      std::memcpy(engine_->data(*slot).data(), &i, sizeof i);
      engine_->Commit(*slot, KeyOf(i), nullptr, 64, i);
      ++i;
    }
  });
  std::uint64_t next = 0;
  bool lost = false;
  while (next < kCommits && !lost) {
    StoreCommit commits[4];
    const auto taken = sidecar_->PollCommits(commits);
    ASSERT_TRUE(taken.ok());
    for (std::size_t i = 0; i < taken.value(); ++i, ++next) {
      std::uint64_t content = 0;
      std::memcpy(&content, commits[i].data.data(), sizeof content);
      ASSERT_EQ(content, next);
      ASSERT_EQ(commits[i].token, next);
      sidecar_->Grant(commits[i].slot);
    }
    if (taken.value() > 0 || !sidecar_->PrepareSleep()) continue;
    pollfd entry{.fd = sidecar_->doorbell_fd(), .events = POLLIN, .revents = 0};
    lost = ::poll(&entry, 1, 20000) != 1;
    sidecar_->Wake();
  }
  EXPECT_FALSE(lost) << "at commit " << next;
  engine.join();
}

}  // namespace
}  // namespace foreload
