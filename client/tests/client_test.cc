// The C API against a small sidecar on a thread: register, grant, look up, fetch, store, and what hostile answers get.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>

#include "client/tests/client_fixture.h"
#include "proto/control.pb.h"
#include "proto/namespace.h"
#include "residency/table_writer.h"

namespace foreload::client {
namespace {

using ::testing::Test;

TEST_F(ClientTest, WrongOptionsAreRefusedWithTheReason) {
  const auto refused = [&](const std::function<void(fl_options&)>& change, const char* word) {
    fl_options options = options_;
    change(options);
    fl_client* client = nullptr;
    return fl_open(&options, &client) == FL_EINVAL && client == nullptr &&
           std::string(fl_error_text()).find(word) != std::string::npos;
  };
  const fl_extent twice[2] = {{0, 0, 64}, {0, 64, 64}};
  const fl_extent overlap[2] = {{0, 0, 128}, {1, 64, 64}};
  const fl_extent askew[1] = {{0, 8, 64}};
  const fl_extent endless[1] = {{0, 0, UINT64_MAX}};
  const std::string longest(200, 'x');
  EXPECT_TRUE(refused([](fl_options& o) { o.api_version = 99; }, "api_version"));
  EXPECT_TRUE(refused([](fl_options& o) { o.socket_path = nullptr; }, "socket_path"));
  EXPECT_TRUE(refused([&](fl_options& o) { o.socket_path = longest.c_str(); }, "socket_path"));
  EXPECT_TRUE(refused([](fl_options& o) { o.engine = ""; }, "engine"));
  EXPECT_TRUE(refused([](fl_options& o) { o.scheduler = o.worker = 0; }, "neither"));
  EXPECT_TRUE(refused([](fl_options& o) { o.rank = 1; }, "rank"));
  EXPECT_TRUE(refused([](fl_options& o) { o.rank_count = 0; }, "rank_count"));
  EXPECT_TRUE(refused([](fl_options& o) { o.extent_count = 0; }, "extents"));
  EXPECT_TRUE(refused([&](fl_options& o) { o.extents = twice, o.extent_count = 2; }, "twice"));
  EXPECT_TRUE(refused([&](fl_options& o) { o.extents = overlap, o.extent_count = 2; }, "overlap"));
  EXPECT_TRUE(refused([&](fl_options& o) { o.extents = askew; }, "64"));
  EXPECT_TRUE(refused([&](fl_options& o) { o.extents = endless; }, "extent"));
  EXPECT_TRUE(refused([](fl_options& o) { o.recompute_seconds_per_token = -1; }, "recompute"));
  EXPECT_TRUE(refused([](fl_options& o) { o.telemetry_endpoint = "tcp://10.0.0.1:5560"; }, "insecure"));
  EXPECT_TRUE(refused([](fl_options& o) { o.telemetry_endpoint = "file"; }, "ipc"));
  EXPECT_EQ(fl_open(nullptr, nullptr), FL_EINVAL);
}

TEST_F(ClientTest, FingerprintsAreThoseOfTheSidecar) {
  const fl_namespace_fields fields{"rev", "lora", nullptr, 3, 4};
  std::uint8_t made[16];
  ASSERT_EQ(fl_namespace(&fields, made), FL_OK);
  const auto expected =
      FingerprintOf(NamespaceFields{.model_revision = "rev", .lora = "lora", .kv_group = 3, .weights_epoch = 4});
  EXPECT_EQ(std::memcmp(made, expected.bytes.data(), 16), 0);
  const fl_namespace_fields nothing{nullptr, nullptr, nullptr, 0, 0};
  EXPECT_EQ(fl_namespace(&nothing, made), FL_EINVAL);
}

TEST_F(ClientTest, WithoutASidecarNothingWaitsAndNothingHits) {
  Open();
  Grant(2);
  EXPECT_EQ(fl_connected(client_), 0);
  EXPECT_EQ(Pin(0, 4), 0);
  const fl_keys keys = Keys(0, 4);
  EXPECT_EQ(fl_lookup(client_, &keys), 0);
  std::uint64_t ticket = 0;
  EXPECT_EQ(fl_fetch(client_, "r", &keys, 0, 1000000, &ticket), FL_EUNAVAIL);
  fl_store store{};
  EXPECT_EQ(fl_store_begin(client_, &store), FL_EUNAVAIL);
  EXPECT_EQ(fl_flush_wait(client_, 1000), FL_EUNAVAIL);
  EXPECT_EQ(fl_connect_wait(client_, 1000), FL_ETIMEDOUT);
  EXPECT_EQ(fl_granted_slots(client_), 0u);
  EXPECT_EQ(Counters().miss_blocks, 4u);
  EXPECT_EQ(fl_revoke_wait(client_, 0), FL_OK) << "nobody ever had it";
}

TEST_F(ClientTest, PinnedBlocksAreInTheArenaAndTheirUseIsSeen) {
  StartSidecar({.boot_token = 5, .preload = 8});
  Open();
  Grant();
  Connect();
  EXPECT_EQ(fl_connected(client_), 1);
  EXPECT_EQ(fl_granted_slots(client_), kSlots);
  ASSERT_EQ(Pin(0, 10), 8);
  for (std::uint32_t i = 0; i < 8; ++i) EXPECT_TRUE(Holds(pinned_[i].slot, FillOf(5, i)));
  EXPECT_EQ(fl_still_valid(client_, &pinned_[0]), 1);
  EXPECT_EQ(fl_unpin(client_, pinned_.data(), 8, 1), FL_OK);
  EXPECT_EQ(fl_unpin(client_, pinned_.data(), 1, 1), FL_EINVAL) << "unpinned already";
  int used = 0;
  sidecar_->Do([&](FakeSidecar& fake) {
    EXPECT_TRUE(fake.table()->CollectUsed(kSlots, [&](SlotIndex, std::uint32_t) { ++used; }).ok());
    EXPECT_EQ(fake.table()->CollectCounters().hit_blocks, 8u);
  });
  EXPECT_EQ(used, 8);
  const fl_counters counters = Counters();
  EXPECT_EQ(counters.hit_blocks, 8u);
  EXPECT_EQ(counters.miss_blocks, 2u);
  char status[8];
  EXPECT_EQ(fl_status_wait(client_, status, sizeof status, kLongUs), 14);
  EXPECT_STREQ(status, "{\"fake\"");
  EXPECT_EQ(fl_flush_wait(client_, kLongUs), FL_OK);
  EXPECT_EQ(fl_purge_wait(client_, options_.name_space, kLongUs), FL_EREFUSED);
  EXPECT_STREQ(fl_error_text(), "the sidecar refused: no purge here");
}

TEST_F(ClientTest, MemoryOfTheEngineIsGrantedWhenItIsSealed) {
  StartSidecar({.preload = 1});
  Open();
  const UniqueFd memory(::memfd_create("mine", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(memory.get(), kSlots * kStride), 0);
  EXPECT_EQ(fl_grant_fd(client_, memory.get(), kSlots, kStride, 0), FL_EINVAL) << "not sealed";
  ASSERT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(fl_grant_fd(client_, memory.get(), kSlots + 1, kStride, 0), FL_EINVAL) << "too short";
  EXPECT_EQ(fl_grant_fd(client_, memory.get(), kSlots, 100, 0), FL_EINVAL) << "stride";
  ASSERT_EQ(fl_grant_fd(client_, memory.get(), kSlots, kStride, 0), FL_OK) << fl_error_text();
  EXPECT_EQ(fl_grant_fd(client_, memory.get(), kSlots, kStride, 0), FL_ESTATE) << "granted already";
  Connect();
  EXPECT_EQ(Pin(0, 1), 1);
  EXPECT_EQ(fl_unpin(client_, pinned_.data(), 1, 0), FL_OK);
  EXPECT_EQ(fl_revoke_wait(client_, kLongUs), FL_OK);
  EXPECT_EQ(fl_granted_slots(client_), 0u);
  EXPECT_EQ(Pin(0, 1), 0) << "the table was closed";
  Grant();  // another arena
  Connect();
  EXPECT_EQ(Pin(0, 1), 1);
}

TEST_F(ClientTest, FetchesAreAnsweredOnce) {
  StartSidecar({});
  Open();
  Grant();
  Connect();
  const fl_keys keys = Keys(0, 7);
  std::uint64_t ticket = 0;
  fl_fetch_result result{};
  ASSERT_EQ(fl_fetch(client_, "r", &keys, 0, kLongUs, &ticket), FL_OK) << fl_error_text();
  ASSERT_EQ(fl_fetch_wait(client_, ticket, &result), 1) << fl_error_text();
  EXPECT_EQ(result.ready_blocks, 7u);
  EXPECT_EQ(fl_fetch_poll(client_, ticket, &result), FL_EINVAL) << "the ticket is gone";
  ASSERT_EQ(fl_fetch(client_, "r", &keys, 0, kLongUs, &ticket), FL_OK);
  EXPECT_TRUE(Eventually([&] { return fl_fetch_poll(client_, ticket, &result) != 0; }));
  EXPECT_EQ(fl_fetch(client_, "", &keys, 0, kLongUs, &ticket), FL_EINVAL);
  EXPECT_EQ(fl_fetch(client_, "r", &keys, 0, 0, &ticket), FL_EINVAL);
  const fl_keys none = Keys(0, 0);
  EXPECT_EQ(fl_fetch(client_, "r", &none, 0, 10, &ticket), FL_EINVAL);
}

TEST_F(ClientTest, StoredBytesArriveUnderTheirKeys) {
  StartSidecar({});
  Open();
  Grant(2);
  Connect();
  fl_store stores[3];
  ASSERT_EQ(fl_store_begin(client_, &stores[0]), FL_OK) << fl_error_text();
  ASSERT_EQ(fl_store_begin(client_, &stores[1]), FL_OK);
  EXPECT_EQ(fl_store_begin(client_, &stores[2]), FL_EFULL);
  EXPECT_EQ(stores[0].bytes, extent_.bytes);
  std::memset(stores[0].data, 0x5A, stores[0].bytes);
  const fl_keys two = Keys(1, 2);
  EXPECT_EQ(fl_store_commit(client_, &stores[0], &two, nullptr), FL_EINVAL) << "one key at a time";
  const auto parent = DigestsOf(0, 1);
  const fl_keys key = Keys(1, 1);
  ASSERT_EQ(fl_store_commit(client_, &stores[0], &key, parent.data()), FL_OK) << fl_error_text();
  EXPECT_EQ(fl_store_commit(client_, &stores[0], &key, nullptr), FL_EINVAL) << "committed already";
  EXPECT_EQ(fl_store_abort(client_, &stores[1]), FL_OK);
  EXPECT_EQ(fl_store_abort(client_, &stores[1]), FL_EINVAL);
  EXPECT_EQ(fl_store_begin(client_, &stores[2]), FL_OK) << "the aborted slot";
  ASSERT_TRUE(sidecar_->WaitFor([](FakeSidecar& fake) {
    fake.TakeCommits();
    return fake.stored().size() == 1;
  }));
  sidecar_->Do([&](FakeSidecar& fake) {
    EXPECT_EQ(fake.stored()[0].first, BlockKey::From({}, {digests_.back().data(), 32}));
    EXPECT_EQ(fake.stored()[0].second, std::vector<std::byte>(extent_.bytes, std::byte{0x5A}));
  });
  const fl_counters counters = Counters();
  EXPECT_EQ(counters.stores_begun, 3u);
  EXPECT_EQ(counters.stores_committed, 1u);
  EXPECT_EQ(counters.stores_full, 1u);
}

TEST_F(ClientTest, AStoreOfAnArenaThatEndedIsRefusedAtCommit) {
  StartSidecar({});
  Open();
  Grant(2);
  Connect();
  fl_store store{};
  ASSERT_EQ(fl_store_begin(client_, &store), FL_OK);
  sidecar_->Do([](FakeSidecar& fake) { fake.EndArena("taken away"); });
  ASSERT_TRUE(Eventually([&] { return fl_granted_slots(client_) == 0; }));
  std::memset(store.data, 1, store.bytes);  // still mapped
  const fl_keys key = Keys(0, 1);
  EXPECT_EQ(fl_store_commit(client_, &store, &key, nullptr), FL_EUNAVAIL);
  EXPECT_EQ(fl_store_commit(client_, &store, &key, nullptr), FL_EINVAL) << "given back by the refusal";
}

TEST_F(ClientTest, AnArenaThatWasTakenAwayIsGrantedAgain) {
  StartSidecar({.preload = 2});
  Open();
  Grant();
  Connect();
  sidecar_->Do([](FakeSidecar& fake) { fake.EndArena("another rank died"); });
  ASSERT_TRUE(sidecar_->WaitFor([](FakeSidecar& fake) { return fake.grants() == 2; }));
  Connect();
  EXPECT_EQ(Pin(0, 2), 2);
  EXPECT_EQ(Counters().regrants, 1u);
}

TEST_F(ClientTest, ANewTableWaitsForThePinsOfTheOld) {
  StartSidecar({.preload = 2});
  Open();
  Grant();
  Connect();
  ASSERT_EQ(Pin(0, 1), 1);
  const fl_pinned held = pinned_[0];
  sidecar_->Do([](FakeSidecar& fake) { fake.EndArena("another rank died"); });
  ASSERT_TRUE(sidecar_->WaitFor([](FakeSidecar& fake) { return fake.table() != nullptr; }));
  ASSERT_TRUE(Eventually([&] { return fl_granted_slots(client_) == kSlots; }));
  EXPECT_EQ(Pin(0, 1), 0);
  EXPECT_EQ(fl_still_valid(client_, &held), 1);
  EXPECT_EQ(fl_unpin(client_, &held, 1, 0), FL_OK);
  Connect();
  EXPECT_EQ(Pin(0, 2), 2);
}

TEST_F(ClientTest, ARefusedRegistrationSaysWhy) {
  StartSidecar({.refuse = "two engines of one name"});
  Open();
  EXPECT_EQ(fl_connect_wait(client_, kLongUs), FL_EREFUSED);
  EXPECT_NE(std::string(fl_error_text()).find("two engines of one name"), std::string::npos) << fl_error_text();
  EXPECT_EQ(fl_connected(client_), 0);
}

TEST_F(ClientTest, InObserveModeConnectedIsEnough) {
  StartSidecar({.mode = "observe"});
  Open();
  Grant();
  Connect();
  EXPECT_EQ(fl_granted_slots(client_), 0u);
}

TEST_F(ClientTest, RanksAndSchedulerInClientsOfTheirOwn) {
  StartSidecar({.ranks = 2, .preload = 3});
  fl_client* clients[3] = {};
  for (std::uint32_t i = 0; i < 3; ++i) {
    options_.scheduler = i == 2;
    options_.worker = i < 2;
    options_.rank = i < 2 ? i : 0;
    options_.rank_count = 2;
    ASSERT_EQ(fl_open(&options_, &clients[i]), FL_OK) << fl_error_text();
  }
  void* bases[2];
  for (int i = 0; i < 2; ++i) ASSERT_EQ(fl_grant_host(clients[i], kSlots, kStride, 0, &bases[i]), FL_OK);
  EXPECT_EQ(fl_grant_host(clients[2], kSlots, kStride, 0, &bases[0]), FL_EINVAL) << "a scheduler has no memory";
  client_ = clients[2];
  ASSERT_EQ(fl_connect_wait(clients[0], kLongUs), FL_OK) << fl_error_text();
  ASSERT_TRUE(Eventually([&] { return Pin(0, 3) == 3; }));
  for (const void* base : bases) {
    EXPECT_EQ(static_cast<const std::uint8_t*>(base)[pinned_[1].slot * kStride], FillOf(1, 1));
  }
  EXPECT_EQ(fl_unpin(client_, pinned_.data(), 3, 1), FL_OK);
  client_ = nullptr;
  for (fl_client* client : clients) fl_close(client);
}

TEST_F(ClientTest, ALostKeyListIsSentInChunks) {
  StartSidecar({});
  Open();
  Connect();
  fl_request_event event{};
  event.request_id = "r1";
  event.state = FL_REQUEST_QUEUED;
  event.keys = Keys(0, 20000);
  ASSERT_EQ(fl_emit_request(client_, &event), FL_OK) << fl_error_text();
  sidecar_->Do([](FakeSidecar& fake) {
    for (const char* id : {"r1", "unknown"}) {
      control::ControlMessage message;
      message.mutable_key_list_request()->set_request_id(id);
      fake.Send(message);
    }
  });
  ASSERT_TRUE(sidecar_->WaitFor([](FakeSidecar& fake) { return fake.key_chunks().contains("unknown"); }));
  sidecar_->Do([&](FakeSidecar& fake) {
    std::string joined;
    for (const std::string& chunk : fake.key_chunks().at("r1")) joined += chunk;
    EXPECT_EQ(fake.key_chunks().at("r1").size(), 3u);
    EXPECT_EQ(joined, std::string(digests_.back().begin(), digests_.back().end()));
    EXPECT_EQ(fake.key_chunks().at("unknown"), std::vector<std::string>{""});
  });
}

// --- a sidecar gone wrong
// ----------------------------------------------------------------------------------------------

using Malice = std::function<void(FakeSidecar&)>;

void SendTable(FakeSidecar& fake, const TableOptions& table_options, std::uint32_t slots, std::uint32_t bit) {
  const auto table = TableWriter::Create(table_options);
  ASSERT_TRUE(table.ok());
  control::ControlMessage message;
  message.mutable_arena_state()->set_slot_count(slots);
  message.mutable_arena_state()->set_reader_bit(bit);
  message.mutable_arena_state()->add_descriptors(control::DESCRIPTOR_TABLE);
  fake.Send(message, {table->fd()});
}

TEST_F(ClientTest, HostileAnswersCostTheConnectionAndNothingElse) {
  const std::vector<std::pair<const char*, Malice>> malices = {
      {"a huge frame", [](FakeSidecar& fake) { fake.SendRaw("\xff\xff\xff\x7f"); }},
      {"a frame of nothing", [](FakeSidecar& fake) { fake.SendRaw(std::string(4, '\0')); }},
      {"no protobuf", [](FakeSidecar& fake) { fake.SendRaw(std::string("\x04\0\0\0\xff\xff\xff\xff", 8)); }},
      {"another boot token",
       [](FakeSidecar& fake) {
         const std::uint64_t before = std::exchange(fake.options.boot_token, 99);
         control::ControlMessage message;
         message.mutable_flush_reply();
         fake.Send(message);
         fake.options.boot_token = before;
       }},
      {"an engine's message",
       [](FakeSidecar& fake) {
         control::ControlMessage message;
         message.mutable_grant_arena();
         fake.Send(message);
       }},
      {"a table of another sidecar",
       [](FakeSidecar& fake) { SendTable(fake, {.slot_count = 4, .boot_token = 77, .layer_group_mask = 1}, 4, 0); }},
      {"a table of another size",
       [](FakeSidecar& fake) { SendTable(fake, {.slot_count = 4, .boot_token = 1, .layer_group_mask = 1}, 8, 0); }},
      {"no such reader bit",
       [](FakeSidecar& fake) { SendTable(fake, {.slot_count = 4, .boot_token = 1, .layer_group_mask = 1}, 4, 40); }},
      {"no table at all",
       [](FakeSidecar& fake) {
         control::ControlMessage message;
         message.mutable_arena_state()->set_slot_count(4);
         fake.Send(message);
       }},
      {"something that is no table",
       [](FakeSidecar& fake) {
         const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
         control::ControlMessage message;
         message.mutable_arena_state()->set_slot_count(4);
         message.mutable_arena_state()->add_descriptors(control::DESCRIPTOR_TABLE);
         fake.Send(message, {null.get()});
       }},
  };
  StartSidecar({.preload = 4});
  Open();
  Grant();
  for (const auto& [name, malice] : malices) {
    SCOPED_TRACE(name);
    Connect();
    const std::uint64_t before = Counters().reconnects;
    sidecar_->Do(malice);
    ASSERT_TRUE(Eventually([&] { return Counters().reconnects == before + 1; }));
    sidecar_->Do([](FakeSidecar& fake) { fake.EndArena("forgotten with its connection"); });
  }
  Connect();
  EXPECT_EQ(Pin(0, 4), 4);
}

// --- fork
// --------------------------------------------------------------------------------------------------------------

std::size_t OpenSockets() {
  std::size_t sockets = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    struct stat status {};
    if (::fstatat(::dirfd(folder), entry->d_name, &status, 0) == 0 && S_ISSOCK(status.st_mode)) ++sockets;
  }
  ::closedir(folder);
  return sockets;
}

TEST_F(ClientTest, AForkedChildHoldsNeitherTheConnectionNorTheClient) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow a fork of a process with threads";
#endif
  SidecarProcess sidecar(socket_, 1, 1);  // a process: so the only sockets here are the client's
  const std::size_t without = OpenSockets();
  Open();
  Grant();
  Connect();
  ASSERT_EQ(OpenSockets(), without + 1);
  const pid_t child = ::fork();
  if (child == 0) {
    int failures = OpenSockets() == without ? 0 : 1;
    failures += Pin(0, 1) == FL_ESTATE ? 0 : 2;
    failures += fl_connected(client_) == FL_ESTATE && fl_granted_slots(client_) == 0 ? 0 : 4;
    fl_close(client_);
    ::_exit(failures);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(fl_connected(client_), 1);
  EXPECT_EQ(Pin(0, 1), 1);
  EXPECT_EQ(fl_unpin(client_, pinned_.data(), 1, 0), FL_OK);
}

}  // namespace
}  // namespace foreload::client
