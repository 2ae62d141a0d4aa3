// The access stream as a subscriber sees it, over real sockets.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zmq.h>

#include <cstring>

#include "client/emitter.h"
#include "client/tests/client_fixture.h"
#include "proto/telemetry.pb.h"
#include "proto/xxh3.h"

namespace foreload::client {
namespace {

class Subscriber {
 public:
  explicit Subscriber(const std::string& endpoint) {
    context_ = zmq_ctx_new();
    socket_ = zmq_socket(context_, ZMQ_SUB);
    const int timeout_ms = 20000;
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "foreload", 8);
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0);
  }
  ~Subscriber() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  Subscriber(const Subscriber&) = delete;
  Subscriber& operator=(const Subscriber&) = delete;

  // The next batch; sequence in `sequence`.
  telemetry::AccessBatch Next() {
    const std::string topic = Frame();
    const std::string number = Frame();
    telemetry::AccessBatch batch;
    EXPECT_EQ(topic, "foreload");
    EXPECT_EQ(number.size(), 8u);
    sequence = 0;
    for (const char c : number) sequence = sequence << 8 | static_cast<std::uint8_t>(c);
    EXPECT_TRUE(batch.ParseFromString(Frame()));
    return batch;
  }
  // The first event for which `wanted` holds; batches may hold others.
  telemetry::AccessEvent Find(const std::function<bool(const telemetry::AccessEvent&)>& wanted) {
    for (int i = 0; i < 1000; ++i) {
      const telemetry::AccessBatch batch = Next();
      for (const auto& event : batch.events()) {
        if (wanted(event)) return event;
      }
      if (batch.publisher_id().empty()) break;  // timed out
    }
    ADD_FAILURE() << "no such event came";
    return {};
  }

  std::uint64_t sequence = 0;

 private:
  std::string Frame() {
    zmq_msg_t message;
    zmq_msg_init(&message);
    std::string bytes;
    if (zmq_msg_recv(&message, socket_, 0) >= 0) {
      bytes.assign(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    }
    zmq_msg_close(&message);
    return bytes;
  }
  void* context_ = nullptr;
  void* socket_ = nullptr;
};

class EmitterTest : public ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    endpoint_ = "ipc://" + folder_ + "/run/access";
    options_.telemetry_endpoint = endpoint_.c_str();
    Open();
  }
  int Emit(const char* id, int state, std::uint32_t keys) {
    fl_request_event event{};
    event.request_id = id;
    event.session_id = "s";
    event.state = state;
    event.kind = FL_KIND_TOOL;
    event.priority = -3;
    event.keys = Keys(0, keys);
    event.expected_start_ms = 250;
    event.prompt_tokens = 99;
    event.turn = 4;
    return fl_emit_request(client_, &event);
  }
  std::string endpoint_;
};

TEST_F(EmitterTest, ALateSubscriberHearsOfEveryLiveRequest) {
  ASSERT_EQ(Emit("old", FL_REQUEST_QUEUED, 3), FL_OK) << fl_error_text();
  ASSERT_EQ(Emit("done", FL_REQUEST_QUEUED, 1), FL_OK);
  ASSERT_EQ(Emit("done", FL_REQUEST_FINISHED, 0), FL_OK);
  Subscriber subscriber(endpoint_);
  const auto event = subscriber.Find([](const auto& e) { return e.has_live_request(); });
  EXPECT_EQ(event.live_request().request_id(), "old");
  EXPECT_EQ(event.live_request().state(), telemetry::REQUEST_STATE_QUEUED);
  EXPECT_EQ(event.live_request().key_count(), 3u);
  const auto digests = DigestsOf(0, 3);
  EXPECT_EQ(event.live_request().key_list_hash(), Xxh3(digests.data(), digests.size()));
  Subscriber another(endpoint_);  // the same topic once more: verbose subscriptions
  EXPECT_EQ(another.Find([](const auto& e) { return e.has_live_request(); }).live_request().request_id(), "old");
}

TEST_F(EmitterTest, EventsCarryWhatWasGivenInOrder) {
  Subscriber subscriber(endpoint_);
  ASSERT_EQ(Emit("first", FL_REQUEST_QUEUED, 1), FL_OK);
  subscriber.Find([](const auto& e) { return e.has_live_request() || e.has_request(); });  // joined
  ASSERT_EQ(Emit("r", FL_REQUEST_QUEUED, 5), FL_OK);
  const auto queued = subscriber.Find([](const auto& e) { return e.request().request_id() == "r"; }).request();
  EXPECT_EQ(queued.state(), telemetry::REQUEST_STATE_QUEUED);
  EXPECT_EQ(queued.kind(), telemetry::REQUEST_KIND_TOOL);
  EXPECT_EQ(queued.session_id(), "s");
  EXPECT_EQ(queued.priority(), -3);
  EXPECT_EQ(queued.digest_bytes(), 32u);
  EXPECT_EQ(queued.digests(), std::string(digests_.back().begin(), digests_.back().end()));
  EXPECT_EQ(queued.expected_start_ms(), 250);
  EXPECT_EQ(queued.prompt_tokens(), 99u);
  EXPECT_EQ(queued.turn(), 4u);
  const std::uint64_t before = subscriber.sequence;

  const std::uint32_t ordinals[3] = {2, 5, 9};
  const std::uint8_t scores[3] = {1, 2, 3};
  const std::uint8_t sketch[16] = {7};
  fl_step_access access{};
  access.request_id = "r";
  access.step = 17;
  access.block_ordinals = ordinals;
  access.scores = scores;
  access.block_count = 3;
  access.query_sketch = sketch;
  access.sketch_source = 4;
  access.draft_position = 2;
  ASSERT_EQ(fl_emit_step_access(client_, &access), FL_OK);
  const auto step = subscriber.Find([](const auto& e) { return e.has_step_access(); }).step_access();
  EXPECT_GT(subscriber.sequence, before);
  EXPECT_EQ(std::vector<std::uint32_t>(step.block_ordinal_deltas().begin(), step.block_ordinal_deltas().end()),
            (std::vector<std::uint32_t>{2, 3, 4}));
  EXPECT_EQ(step.scores(), std::string("\1\2\3"));
  EXPECT_EQ(step.query_sketch().size(), 16u);
  EXPECT_EQ(step.sketch_source(), telemetry::SKETCH_SOURCE_DRAFT);

  fl_hint hint{};
  hint.action = FL_HINT_EXPECT;
  hint.session_id = "s";
  hint.eta_ms = 1500;
  ASSERT_EQ(fl_emit_hint(client_, &hint), FL_OK);
  EXPECT_EQ(subscriber.Find([](const auto& e) { return e.has_hint(); }).hint().eta_ms(), 1500);
  EXPECT_GE(Counters().events_emitted, 4u);
  EXPECT_EQ(Counters().events_dropped, 0u);
}

TEST_F(EmitterTest, WrongEventsAreRefused) {
  EXPECT_EQ(Emit("", FL_REQUEST_QUEUED, 0), FL_EINVAL);
  EXPECT_EQ(Emit(std::string(257, 'x').c_str(), FL_REQUEST_QUEUED, 0), FL_EINVAL);
  EXPECT_EQ(Emit("r", 0, 0), FL_EINVAL);
  const std::uint32_t falling[2] = {5, 4};
  fl_step_access access{};
  access.request_id = "r";
  access.block_ordinals = falling;
  access.block_count = 2;
  EXPECT_EQ(fl_emit_step_access(client_, &access), FL_EINVAL);
  access.block_count = 1;
  access.sketch_source = 77;
  EXPECT_EQ(fl_emit_step_access(client_, &access), FL_EINVAL);
  fl_hint hint{};
  hint.action = FL_HINT_PIN;
  EXPECT_EQ(fl_emit_hint(client_, &hint), FL_EINVAL) << "neither session nor keys";
}

TEST_F(EmitterTest, TheSocketIsItsOwnersAlone) {
  struct stat status {};
  ASSERT_EQ(::stat((folder_ + "/run").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  ASSERT_EQ(::stat((folder_ + "/run/access").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

// A subscriber that stops reading costs itself batches and the engine nothing.
TEST_F(EmitterTest, ASubscriberThatDoesNotReadBlocksNobody) {
  Subscriber subscriber(endpoint_);
  ASSERT_EQ(Emit("first", FL_REQUEST_QUEUED, 1), FL_OK);
  subscriber.Find([](const auto& e) { return e.has_live_request() || e.has_request(); });
  std::vector<std::uint32_t> ordinals(4096);
  for (std::uint32_t i = 0; i < ordinals.size(); ++i) ordinals[i] = i;
  fl_step_access access{};
  access.request_id = "first";
  access.block_ordinals = ordinals.data();
  access.block_count = static_cast<std::uint32_t>(ordinals.size());
  for (int i = 0; i < 20000; ++i) ASSERT_EQ(fl_emit_step_access(client_, &access), FL_OK);
  ASSERT_TRUE(Eventually([&] {
    const fl_counters counters = Counters();
    return counters.events_emitted + counters.events_dropped >= 20001;
  })) << "each was sent or dropped; nothing is stuck";
}

TEST(EmitterEndpoint, ALoopbackPortMayBeChosenByTheSystem) {
  const RequestBook book;
  for (const char* endpoint : {"tcp://127.0.0.1:*", "insecure+tcp://0.0.0.0:*"}) {
    auto emitter = Emitter::Open(endpoint, "e", book);
    ASSERT_TRUE(emitter.ok()) << emitter.status().ToString();
    EXPECT_EQ(emitter.value()->endpoint().rfind("tcp://", 0), 0u);
    EXPECT_EQ(emitter.value()->endpoint().find('*'), std::string::npos);
  }
}

}  // namespace
}  // namespace foreload::client
