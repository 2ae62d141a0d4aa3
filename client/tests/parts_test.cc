// The client's parts on their own: breaker, request book, emission queue, table gate.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <thread>

#include "client/emit_queue.h"
#include "client/fetch_book.h"
#include "client/request_book.h"
#include "client/table_gate.h"
#include "client/tests/fake_sidecar.h"
#include "proto/telemetry.pb.h"
#include "residency/table_writer.h"

namespace foreload::client {
namespace {

// --- breaker ---------------------------------------------------------------------------------------------------------

class Breaker : public ::testing::Test {
 protected:
  int Begin(std::uint64_t ticket, TimeNs now) { return book_.Begin(ticket, now, now + 10, &why_); }
  static fl_fetch_result Ready(std::uint32_t blocks) {
    fl_fetch_result result{};
    result.ready_blocks = blocks;
    return result;
  }
  FetchBook book_{100};
  std::string why_;
};

TEST_F(Breaker, OpensAfterOneTimeOutAndClosesAfterAProbe) {
  ASSERT_EQ(Begin(1, 0), FL_OK);
  EXPECT_EQ(book_.Poll(1, 9).code, 0);
  EXPECT_EQ(book_.Poll(1, 10).code, FL_ETIMEDOUT);
  EXPECT_EQ(Begin(2, 11), FL_ESTATE);
  EXPECT_EQ(Begin(3, 109), FL_ESTATE);
  ASSERT_EQ(Begin(4, 110), FL_OK) << "half-open: the probe";
  EXPECT_EQ(Begin(5, 111), FL_ESTATE) << "one probe at a time";
  book_.Complete(4, Ready(3));
  EXPECT_EQ(Begin(6, 112), FL_OK) << "closed";
  const auto outcome = book_.Poll(4, 112);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.result.ready_blocks, 3u);
  EXPECT_EQ(book_.breaker_opened(), 1u);
}

TEST_F(Breaker, AProbeThatTimesOutOpensItAgain) {
  ASSERT_EQ(Begin(1, 0), FL_OK);
  EXPECT_EQ(Begin(2, 50), FL_ESTATE) << "an unpolled ticket that is late counts as well";
  ASSERT_EQ(Begin(3, 150), FL_OK);
  EXPECT_EQ(book_.Poll(3, 160).code, FL_ETIMEDOUT);
  EXPECT_EQ(Begin(4, 170), FL_ESTATE);
  EXPECT_EQ(book_.timed_out(), 2u);
  EXPECT_EQ(book_.breaker_opened(), 2u);
  book_.ResetBreaker();
  EXPECT_EQ(Begin(5, 171), FL_OK) << "a fresh connection";
}

TEST_F(Breaker, ALateAnswerChangesNothing) {
  ASSERT_EQ(Begin(1, 0), FL_OK);
  EXPECT_EQ(Begin(2, 20), FL_ESTATE);
  book_.Complete(1, Ready(1));
  EXPECT_EQ(book_.Poll(1, 21).code, FL_ETIMEDOUT);
  EXPECT_EQ(book_.timed_out(), 1u);
}

TEST_F(Breaker, TicketsAreBounded) {
  for (std::uint64_t i = 1; i <= FetchBook::kFetchesMax; ++i) ASSERT_EQ(Begin(i, 0), FL_OK);
  EXPECT_EQ(Begin(UINT64_MAX, 0), FL_ESTATE);
  book_.LoseAll();
  EXPECT_EQ(book_.Poll(1, 0).code, FL_EUNAVAIL);
  EXPECT_EQ(book_.Poll(1, 0).code, FL_EINVAL);
  EXPECT_EQ(Begin(UINT64_MAX, 0), FL_OK);
}

// --- request book ----------------------------------------------------------------------------------------------------

KeyList Keys(std::size_t count) {
  return {.name_space = {}, .digest_bytes = 32, .digests = std::vector<std::uint8_t>(count * 32, 7)};
}

TEST(Requests, LiveFromQueuedToFinished) {
  RequestBook book;
  book.Update("a", FL_REQUEST_QUEUED, Keys(3));
  book.Update("b", FL_REQUEST_QUEUED, Keys(0));
  book.Update("a", FL_REQUEST_SCHEDULED, Keys(0));
  ASSERT_EQ(book.Live().size(), 2u);
  EXPECT_EQ(book.Live()[0].state, FL_REQUEST_SCHEDULED);
  EXPECT_EQ(book.Live()[0].key_count, 3u) << "the list known so far stays";
  EXPECT_EQ(book.Keys("a").count(), 3u);
  book.Update("a", FL_REQUEST_FINISHED, Keys(5));
  book.Update("never", FL_REQUEST_ABORTED, Keys(0));
  EXPECT_EQ(book.Live().size(), 1u);
  EXPECT_EQ(book.Keys("a").count(), 0u);
}

TEST(Requests, BothBoundsHold) {
  RequestBook book;
  const KeyList large = Keys(RequestBook::kKeyBytesMax / 32 / 2);
  for (const char* id : {"a", "b", "c"}) book.Update(id, FL_REQUEST_QUEUED, large);
  EXPECT_EQ(book.Keys("a").count(), 0u) << "the oldest list went";
  EXPECT_EQ(book.Keys("b").count(), large.count());
  EXPECT_EQ(book.Live()[0].key_count, large.count()) << "it is announced all the same";
  for (std::size_t i = 0; i < RequestBook::kRequestsMax; ++i) book.Update(std::to_string(i), FL_REQUEST_QUEUED, {});
  EXPECT_EQ(book.Live().size(), RequestBook::kRequestsMax);
}

// --- emission queue --------------------------------------------------------------------------------------------------

std::unique_ptr<telemetry::AccessEvent> Step(std::uint64_t step) {
  auto event = std::make_unique<telemetry::AccessEvent>();
  event->mutable_step_access()->set_step(step);
  return event;
}
std::unique_ptr<telemetry::AccessEvent> Request(const std::string& id) {
  auto event = std::make_unique<telemetry::AccessEvent>();
  event->mutable_request()->set_request_id(id);
  return event;
}
UniqueFd EventFd() {
  return UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

TEST(Emission, AFullQueueDropsTheOldestStepsAndNoRequest) {
  EmitQueue queue({.steps = 4, .requests = 3, .request_bytes = 1000}, EventFd());
  for (std::uint64_t i = 0; i < 10; ++i) queue.AddStep(Step(i));
  for (const char* id : {"a", "b", "c"}) EXPECT_TRUE(queue.AddRequest(Request(id)));
  EXPECT_FALSE(queue.AddRequest(Request("d")));
  EXPECT_EQ(queue.dropped_steps(), 6u);
  EXPECT_EQ(queue.dropped_requests(), 1u);
  const auto events = queue.Take(100, 10000);
  ASSERT_EQ(events.size(), 7u);
  EXPECT_EQ(events[0]->request().request_id(), "a");
  EXPECT_EQ(events[3]->step_access().step(), 6u);
  EXPECT_EQ(events[6]->step_access().step(), 9u);
}

TEST(Emission, BytesAreBoundedAndBatchesCut) {
  EmitQueue queue({.steps = 4, .requests = 100, .request_bytes = 1000}, EventFd());
  EXPECT_TRUE(queue.AddRequest(Request(std::string(600, 'a'))));
  EXPECT_FALSE(queue.AddRequest(Request(std::string(600, 'b'))));
  EXPECT_TRUE(queue.AddRequest(Request(std::string(200, 'c'))));
  EXPECT_EQ(queue.Take(100, 100).size(), 1u) << "one at least";
  EXPECT_EQ(queue.Take(100, 100).size(), 1u);
  EXPECT_TRUE(queue.Take(100, 100).empty());
  EXPECT_TRUE(queue.AddRequest(Request(std::string(600, 'd')))) << "the room came back";
}

TEST(Emission, OnlyASleeperIsRung) {
  EmitQueue queue({}, EventFd());
  std::uint64_t rings = 0;
  queue.AddStep(Step(1));
  EXPECT_EQ(::read(queue.wake_fd(), &rings, sizeof rings), -1);
  EXPECT_EQ(queue.Take(10, 1000).size(), 1u);
  EXPECT_TRUE(queue.Take(10, 1000).empty());
  queue.AddStep(Step(2));
  queue.AddStep(Step(3));
  ASSERT_EQ(::read(queue.wake_fd(), &rings, sizeof rings), static_cast<ssize_t>(sizeof rings));
  EXPECT_EQ(rings, 1u);
}

// --- table gate ------------------------------------------------------------------------------------------------------

// Tables are exchanged under look-ups; a pin made through the gate is on a table that is still there.
TEST(Gate, TablesAreExchangedUnderLookUps) {
  TableGate gate;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> pinned_blocks{0};
  std::atomic<std::uint64_t> failures{0};
  const auto digests = DigestsOf(0, 4);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      const KeyListView keys{.name_space = {}, .digests = digests.data(), .digest_bytes = 32, .count = 4};
      PinnedBlock pinned[4];
      while (!stop.load()) {
        const std::uint32_t hits = gate.LookupPin(keys, pinned);
        for (std::uint32_t j = 0; j < hits; ++j) {
          failures += gate.StillValid(pinned[j].slot, pinned[j].generation) ? 0 : 1;
          failures += gate.Unpin(pinned[j].slot, pinned[j].generation, true) ? 0 : 1;
        }
        pinned_blocks += hits;
      }
    });
  }
  for (std::uint64_t boot = 1; boot <= 50; ++boot) {
    auto table = TableWriter::Create({.slot_count = 8, .boot_token = boot, .layer_group_mask = 1});
    ASSERT_TRUE(table.ok());
    for (std::uint32_t i = 0; i < 4; ++i) {
      const SlotIndex slot{i};
      ASSERT_TRUE(table->Reserve(slot, BlockKey::From({}, {digests.data() + i * 32, 32})).ok());
      ASSERT_TRUE(table->StartLoad(slot).ok());
      ASSERT_TRUE(table->Publish(slot, 1).ok());
      ASSERT_TRUE(table->MarkReady(slot).ok());
    }
    const std::uint32_t bit = table->AddReader().value();
    auto reader = TableReader::Open(UniqueFd(::fcntl(table->fd(), F_DUPFD_CLOEXEC, 0)), boot, bit);
    ASSERT_TRUE(reader.ok());
    std::unique_ptr<TableReader> next = std::move(reader).value();
    gate.CloseLookups();
    while (!gate.TryReplace(next)) std::this_thread::yield();
    gate.OpenLookups();
    const std::uint64_t before = pinned_blocks.load();
    while (pinned_blocks.load() < before + 8) std::this_thread::yield();
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0u);
}

}  // namespace
}  // namespace foreload::client
