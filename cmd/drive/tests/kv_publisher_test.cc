#include "cmd/drive/kv_publisher.h"

#include <gtest/gtest.h>
#include <zmq.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "replay/tests/temp_dir.h"

namespace foreload::drive {
namespace {

constexpr int kReceiveMs = 20'000;  // only a failing test waits for it

class Peer {
 public:
  Peer(int type, const std::string& endpoint) : context_(zmq_ctx_new()), socket_(zmq_socket(context_, type)) {
    const int linger = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &kReceiveMs, sizeof kReceiveMs);
    if (type == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "", 0);
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0);
  }
  ~Peer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  void Send(const std::vector<std::string>& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      zmq_send(socket_, frames[i].data(), frames[i].size(), i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    }
  }
  // Empty when nothing came within `wait_ms`.
  std::vector<std::string> Receive(int wait_ms = kReceiveMs) {
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    std::vector<std::string> frames;
    int more = 1;
    while (more == 1) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket_, 0) < 0) {
        zmq_msg_close(&message);
        return {};
      }
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    return frames;
  }

 private:
  void* context_;
  void* socket_;
};

std::string Sequence(std::uint64_t value) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[static_cast<std::size_t>(i)] = static_cast<char>(value >> (56 - 8 * i));
  return bytes;
}

struct Fixture {
  Fixture() {
    auto started = KvPublisher::Start({"ipc://" + dir.path() + "/kv", "ipc://" + dir.path() + "/replay", "kv-events"});
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    publisher = std::move(*started);
  }
  replay::TempDir dir;
  std::unique_ptr<KvPublisher> publisher;
};

TEST(KvPublisher, SendsTopicSequenceAndPayloadInOrder) {
  Fixture f;
  Peer subscriber(ZMQ_SUB, "ipc://" + f.dir.path() + "/kv");
  // A subscription takes effect at some time after connect: publish until the first message arrives.
  std::vector<std::string> first;
  std::uint64_t sent = 0;
  for (int i = 0; i < 2000 && first.empty(); ++i) {
    f.publisher->Publish("batch " + std::to_string(sent++));
    first = subscriber.Receive(10);
  }
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0], "kv-events");
  f.publisher->Publish("last");
  std::vector<std::string> frames = first;
  std::string expected = first[1];
  while (frames[2] != "last") {
    frames = subscriber.Receive();
    ASSERT_EQ(frames.size(), 3u);
    ASSERT_GT(frames[1], expected) << "big-endian sequences grow as text";
    expected = frames[1];
  }
  EXPECT_EQ(frames[1], Sequence(sent));
}

TEST(KvPublisher, ReplaysFromASequenceAndMarksTheEnd) {
  Fixture f;
  for (int i = 0; i < 5; ++i) f.publisher->Publish("batch " + std::to_string(i));
  Peer dealer(ZMQ_DEALER, "ipc://" + f.dir.path() + "/replay");
  // Until all five have passed through the publisher's thread.
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kReceiveMs);
  while (f.publisher->published() < 5 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  dealer.Send({"", "too short"});
  dealer.Send({"", Sequence(3), "one frame too many"});
  dealer.Send({"", Sequence(3)});
  EXPECT_EQ(dealer.Receive(), (std::vector<std::string>{"", "kv-events", Sequence(3), "batch 3"}));
  EXPECT_EQ(dealer.Receive(), (std::vector<std::string>{"", "kv-events", Sequence(4), "batch 4"}));
  EXPECT_EQ(dealer.Receive(), (std::vector<std::string>{"", "", std::string(8, '\xff'), ""}));
  dealer.Send({"", Sequence(100)});
  EXPECT_EQ(dealer.Receive(), (std::vector<std::string>{"", "", std::string(8, '\xff'), ""})) << "only the end marker";
  EXPECT_EQ(f.publisher->replayed(), 2u);
}

TEST(KvPublisher, SaysWhichEndpointItCannotBind) {
  const auto started = KvPublisher::Start({"ipc:///nonexistent/folder/kv", "ipc:///nonexistent/folder/replay", "t"});
  ASSERT_FALSE(started.ok());
  EXPECT_NE(started.status().message().find("/nonexistent/folder/kv"), std::string::npos);
}

}  // namespace
}  // namespace foreload::drive
