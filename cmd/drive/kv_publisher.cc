#include "cmd/drive/kv_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "proto/unique_fd.h"

namespace foreload::drive {
namespace {

constexpr int kLingerMs = 1000;
constexpr int kSendHighWater = 100'000;  // vLLM's hwm
constexpr std::uint64_t kEndMarker = UINT64_MAX;

struct SocketCloser {
  void operator()(void* socket) const { zmq_close(socket); }
};
using Socket = std::unique_ptr<void, SocketCloser>;
struct ContextCloser {
  void operator()(void* context) const { zmq_ctx_term(context); }
};
using Context = std::unique_ptr<void, ContextCloser>;

Status ZmqError(const std::string& what) {
  return IoError(what + ": " + zmq_strerror(zmq_errno()));
}

using Sequence = std::array<unsigned char, 8>;
Sequence BigEndian(std::uint64_t value) {
  Sequence bytes;
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(value >> (56 - 8 * i));
  return bytes;
}

Result<Socket> Bind(void* context, int type, const std::string& endpoint) {
  Socket socket(zmq_socket(context, type));
  if (socket == nullptr) return ZmqError("zmq_socket");
  zmq_setsockopt(socket.get(), ZMQ_LINGER, &kLingerMs, sizeof kLingerMs);
  zmq_setsockopt(socket.get(), ZMQ_SNDHWM, &kSendHighWater, sizeof kSendHighWater);
  if (zmq_bind(socket.get(), endpoint.c_str()) != 0) return ZmqError("bind " + endpoint);
  return socket;
}

class Publisher final : public KvPublisher {
 public:
  Publisher(Context context, Socket live, Socket replay, UniqueFd wake, std::string topic)
      : context_(std::move(context)),
        live_(std::move(live)),
        replay_(std::move(replay)),
        wake_(std::move(wake)),
        topic_(std::move(topic)),
        queue_(kPublishQueueMax),
        thread_([this] { Run(); }) {}

  ~Publisher() override {
    queue_.Close();
    Wake();
    thread_.join();
  }

  void Publish(std::string payload) override {
    Batch batch{next_sequence_++, std::move(payload)};
    if (queue_.Push(std::move(batch))) {
      Wake();
    } else {
      dropped_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  std::uint64_t published() const override { return published_.load(std::memory_order_relaxed); }
  std::uint64_t dropped() const override { return dropped_.load(std::memory_order_relaxed); }
  std::uint64_t replayed() const override { return replayed_.load(std::memory_order_relaxed); }

 private:
  struct Batch {
    std::uint64_t sequence = 0;
    std::string payload;
  };

  void Wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
  }

  void Run() {
    std::vector<Batch> batches;
    while (true) {
      zmq_pollitem_t items[] = {{nullptr, wake_.get(), ZMQ_POLLIN, 0}, {replay_.get(), 0, ZMQ_POLLIN, 0}};
      if (zmq_poll(items, 2, -1) < 0 && zmq_errno() != EINTR) return;
      if ((items[0].revents & ZMQ_POLLIN) != 0) {
        std::uint64_t count = 0;
        [[maybe_unused]] const auto got = read(wake_.get(), &count, sizeof count);
        const bool open = queue_.WaitDrain(batches, 0);
        for (Batch& batch : batches) SendLive(std::move(batch));
        if (!open) return;
      }
      if ((items[1].revents & ZMQ_POLLIN) != 0) Replay();
    }
  }

  void SendLive(Batch&& batch) {
    const Sequence sequence = BigEndian(batch.sequence);
    zmq_send(live_.get(), topic_.data(), topic_.size(), ZMQ_SNDMORE);
    zmq_send(live_.get(), sequence.data(), sequence.size(), ZMQ_SNDMORE);
    zmq_send(live_.get(), batch.payload.data(), batch.payload.size(), 0);
    published_.fetch_add(1, std::memory_order_relaxed);
    recent_.push_back(std::move(batch));
    if (recent_.size() > kReplayBatchesMax) recent_.pop_front();
  }

  // `[client, b"", start]`; any other arity is ignored, as vLLM does.
  void Replay() {
    std::vector<std::string> frames;
    bool more = true;
    while (more) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, replay_.get(), ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&message);
        return;
      }
      if (frames.size() < 4)
        frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      more = zmq_msg_more(&message) != 0;
      zmq_msg_close(&message);
    }
    if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != 8) return;
    std::uint64_t start = 0;
    for (const char c : frames[2]) start = (start << 8) | static_cast<unsigned char>(c);
    for (const Batch& batch : recent_) {
      if (batch.sequence < start) continue;
      if (!SendReply(frames[0], topic_, batch.sequence, batch.payload)) return;
      replayed_.fetch_add(1, std::memory_order_relaxed);
    }
    SendReply(frames[0], "", kEndMarker, "");
  }

  bool SendReply(const std::string& client, const std::string& topic, std::uint64_t number,
                 const std::string& payload) {
    const Sequence sequence = BigEndian(number);
    return zmq_send(replay_.get(), client.data(), client.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(replay_.get(), "", 0, ZMQ_SNDMORE) >= 0 &&
           zmq_send(replay_.get(), topic.data(), topic.size(), ZMQ_SNDMORE) >= 0 &&
           zmq_send(replay_.get(), sequence.data(), sequence.size(), ZMQ_SNDMORE) >= 0 &&
           zmq_send(replay_.get(), payload.data(), payload.size(), 0) >= 0;
  }

  Context context_;
  Socket live_;
  Socket replay_;
  UniqueFd wake_;
  std::string topic_;
  std::uint64_t next_sequence_ = 0;  // of the caller's thread
  std::deque<Batch> recent_;         // of the thread
  std::atomic<std::uint64_t> published_{0};
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<std::uint64_t> replayed_{0};
  BoundedQueue<Batch> queue_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<KvPublisher>> KvPublisher::Start(const Options& options) {
  Context context(zmq_ctx_new());
  if (context == nullptr) return ZmqError("zmq_ctx_new");
  FORELOAD_ASSIGN_OR_RETURN(Socket live, Bind(context.get(), ZMQ_PUB, options.endpoint));
  FORELOAD_ASSIGN_OR_RETURN(Socket replay, Bind(context.get(), ZMQ_ROUTER, options.replay_endpoint));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0) return Status::FromErrno(errno, "eventfd");
  return std::unique_ptr<KvPublisher>(std::make_unique<Publisher>(std::move(context), std::move(live),
                                                                  std::move(replay), std::move(wake), options.topic));
}

}  // namespace foreload::drive
