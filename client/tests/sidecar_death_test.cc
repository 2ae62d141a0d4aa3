// The sidecar as a process that is killed, stopped and replaced.
#include <gtest/gtest.h>

#include <cstring>

#include "client/tests/client_fixture.h"

namespace foreload::client {
namespace {

class SidecarDeath : public ClientTest {};

TEST_F(SidecarDeath, PinnedBytesStayUntilTheirPinIsDropped) {
  auto first = std::make_unique<SidecarProcess>(socket_, 1, 8);
  Open();
  Grant(2);
  Connect();
  ASSERT_EQ(Pin(0, 4), 4);
  const std::vector<fl_pinned> held = pinned_;
  first->Kill();
  ASSERT_TRUE(Eventually([&] { return fl_connected(client_) == 0; }));
  EXPECT_EQ(Pin(4, 4), 4) << "READY slots stay readable";
  EXPECT_EQ(fl_unpin(client_, pinned_.data(), 4, 1), FL_OK);
  fl_store store{};
  EXPECT_EQ(fl_store_begin(client_, &store), FL_EUNAVAIL);

  SidecarProcess second(socket_, 2, 6);
  ASSERT_TRUE(Eventually([&] { return Pin(4, 1) == 0 || fl_unpin(client_, pinned_.data(), 1, 0) != FL_OK; }))
      << "the new one is there: no new pins on the old table";
  EXPECT_EQ(fl_connect_wait(client_, 50'000), FL_ETIMEDOUT) << "not registered while pins are held";
  for (const fl_pinned& pinned : held) {
    EXPECT_EQ(fl_still_valid(client_, &pinned), 1);
    EXPECT_TRUE(Holds(pinned.slot, FillOf(1, pinned.slot)));
  }
  EXPECT_EQ(fl_unpin(client_, held.data(), 4, 1), FL_OK);
  Connect();
  ASSERT_EQ(Pin(0, 8), 6);
  for (std::uint32_t i = 0; i < 6; ++i) EXPECT_TRUE(Holds(pinned_[i].slot, FillOf(2, i)));
  const fl_counters counters = Counters();
  EXPECT_EQ(counters.reconnects, 1u);
  EXPECT_EQ(counters.regrants, 1u);
}

TEST_F(SidecarDeath, AFastRestartIsNoticedByItsBootToken) {
  auto sidecar = std::make_unique<SidecarProcess>(socket_, 1, 2);
  Open();
  Grant();
  Connect();
  for (std::uint64_t boot = 2; boot < 6; ++boot) {
    sidecar = nullptr;
    sidecar = std::make_unique<SidecarProcess>(socket_, boot, 2);
    ASSERT_TRUE(Eventually([&] { return Counters().reconnects == boot - 1; }));
    Connect();
    ASSERT_EQ(Pin(0, 2), 2);
    EXPECT_TRUE(Holds(pinned_[1].slot, FillOf(boot, 1)));
    ASSERT_EQ(fl_unpin(client_, pinned_.data(), 2, 1), FL_OK);
  }
}

TEST_F(SidecarDeath, AStoppedSidecarCostsOneDeadlineAndKeepsTheArena) {
  options_.breaker_open_ms = 200;
  SidecarProcess sidecar(socket_, 1, 4);
  Open();
  Grant();
  Connect();
  sidecar.Stop();
  const fl_keys keys = Keys(0, 4);
  std::uint64_t ticket = 0;
  fl_fetch_result result{};
  ASSERT_EQ(fl_fetch(client_, "r", &keys, 0, 30'000, &ticket), FL_OK);
  EXPECT_EQ(fl_fetch_wait(client_, ticket, &result), FL_ETIMEDOUT);
  EXPECT_EQ(fl_fetch(client_, "r", &keys, 0, 30'000, &ticket), FL_ESTATE) << "the breaker is open";
  EXPECT_EQ(Pin(0, 4), 4) << "look-ups do not ask the sidecar";
  EXPECT_EQ(fl_unpin(client_, pinned_.data(), 4, 1), FL_OK);
  EXPECT_EQ(fl_revoke_wait(client_, 30'000), FL_ETIMEDOUT) << "it may still write";
  EXPECT_EQ(fl_status_wait(client_, nullptr, 0, 30'000), FL_ETIMEDOUT);
  sidecar.Signal(SIGCONT);
  EXPECT_EQ(fl_revoke_wait(client_, kLongUs), FL_OK) << fl_error_text();
  ASSERT_TRUE(Eventually([&] { return fl_fetch(client_, "r", &keys, 0, kLongUs, &ticket) == FL_OK; })) << "half-open";
  EXPECT_EQ(fl_fetch_wait(client_, ticket, &result), 1);
  EXPECT_EQ(fl_fetch(client_, "r", &keys, 0, kLongUs, &ticket), FL_OK) << "closed again";
  const fl_counters counters = Counters();
  EXPECT_EQ(counters.fetches_timed_out, 1u);
  EXPECT_EQ(counters.breaker_opened, 1u);
}

TEST_F(SidecarDeath, MemoryThatALivingSidecarMayWriteIsNotGrantedToAnother) {
  auto former = std::make_unique<SidecarProcess>(socket_, 1, 4, std::vector<std::string>{"hang-up"});
  Open();
  Grant();
  ASSERT_TRUE(Eventually([&] { return Pin(0, 4) == 4; })) << "its arena came into force before it hung up";
  ASSERT_EQ(fl_unpin(client_, pinned_.data(), 4, 0), FL_OK);
  ASSERT_TRUE(Eventually([&] { return fl_connected(client_) == 0; }));
  SidecarProcess next(socket_, 2, 4);
  ASSERT_TRUE(Eventually([&] { return fl_connected(client_) == 1; }));
  EXPECT_EQ(fl_connect_wait(client_, 100'000), FL_ETIMEDOUT);
  EXPECT_NE(std::string(fl_error_text()).find("former sidecar"), std::string::npos) << fl_error_text();
  EXPECT_EQ(Counters().regrants, 0u);
  EXPECT_EQ(arena_[0], FillOf(1, 0));
  former->Kill();
  Connect();
  EXPECT_EQ(Pin(0, 4), 4);
  EXPECT_EQ(arena_[0], FillOf(2, 0));
}

TEST_F(SidecarDeath, FetchesOnTheirWayEndWithIt) {
  auto sidecar = std::make_unique<SidecarProcess>(socket_, 1, 0, std::vector<std::string>{"silent"});
  Open();
  Grant();
  Connect();
  const fl_keys keys = Keys(0, 1);
  std::uint64_t ticket = 0;
  fl_fetch_result result{};
  ASSERT_EQ(fl_fetch(client_, "r", &keys, 0, kLongUs, &ticket), FL_OK);
  EXPECT_EQ(fl_fetch_poll(client_, ticket, &result), 0);
  sidecar->Kill();
  EXPECT_EQ(fl_fetch_wait(client_, ticket, &result), FL_EUNAVAIL);
  EXPECT_EQ(fl_revoke_wait(client_, kLongUs), FL_OK) << "the dead write nothing";
}

}  // namespace
}  // namespace foreload::client
