// An engine's publisher over real ZeroMQ sockets, and a sink that keeps what it is given. The publisher lives on the
// test's thread: whoever waits, serves its replay socket meanwhile.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "telemetry/sequence_tracker.h"
#include "telemetry/sink.h"
#include "telemetry/tests/test_support.h"
#include "telemetry/zmq_socket.h"

namespace foreload::telemetry::testing {

// A folder of this process alone, removed at the end. ipc paths are short: sun_path has 108 bytes.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "fl-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  std::string File(const std::string& name) const { return (path_ / name).string(); }
  std::string Ipc(const std::string& name) const { return "ipc://" + File(name); }

 private:
  std::filesystem::path path_;
};

inline Frame SequenceBytes(std::uint64_t number, std::uint8_t publisher = 0) {
  Frame frame;
  for (int shift = 56; shift >= 0; shift -= 8) frame.push_back(static_cast<std::uint8_t>(number >> shift));
  if (publisher != 0) frame.resize(24, publisher);
  return frame;
}

class TestPublisher {
 public:
  struct Options {
    std::string endpoint;
    std::string replay_endpoint;  // empty: none
    bool connect = false;
    bool topic_in_replies = true;
    std::size_t ring_max = 10'000;
    std::uint8_t publisher_id = 0;  // not 0: sequence frames of 24 bytes
    std::uint64_t first = 0;
    double time = 1;  // of the batches; another one for another incarnation
  };

  explicit TestPublisher(Options options) : options_(std::move(options)), next_(options_.first) {
    live_ = Open(ZmqSocket::Type::kXpub);
    const Status status = options_.connect ? live_.Connect(options_.endpoint) : live_.Bind(options_.endpoint);
    EXPECT_TRUE(status.ok()) << status.ToString();
    if (options_.replay_endpoint.empty()) return;
    router_ = Open(ZmqSocket::Type::kRouter);
    const Status bound = router_.Bind(options_.replay_endpoint);
    EXPECT_TRUE(bound.ok()) << bound.ToString();
  }

  // Publishes a batch of these events; `lost` puts it into the ring alone.
  void Publish(const std::vector<Bytes>& events, bool lost = false) {
    Pack pack;
    pack.Array(3).Real(options_.time).Array(static_cast<std::uint32_t>(events.size()));
    for (const Bytes& event : events) pack.Raw(event);
    PublishPayload(pack.Uint(0).bytes(), lost);
  }
  void Store(std::uint64_t hash, bool lost = false) { Publish({StoredEvent({hash})}, lost); }

  void PublishPayload(const Bytes& payload, bool lost = false) {
    ring_.push_back({next_, payload});
    if (ring_.size() > options_.ring_max) ring_.pop_front();
    if (!lost) SendRaw({Frame{'k', 'v'}, SequenceBytes(next_, options_.publisher_id), payload});
    ++next_;
  }
  void SendRaw(const std::vector<Frame>& frames) { live_.Send(frames); }

  // Answers replay requests and takes note of subscriptions, waiting up to `wait_ms` for either.
  void Serve(int wait_ms) {
    std::vector<const ZmqSocket*> sockets{&live_};
    if (router_) sockets.push_back(&router_);
    WaitReadable(sockets, pipe_.read_end(), wait_ms);
    std::vector<Frame> frames;
    std::size_t count = 0;
    while (live_.Receive(frames, 1, count)) {
      if (!frames[0].empty() && frames[0][0] == 1) ++subscriptions_;
    }
    while (router_ && router_.Receive(frames, 3, count)) {
      if (count == 3 && frames[2].size() == 8) Reply(frames[0], frames[2]);
    }
  }
  int subscriptions() const { return subscriptions_; }
  int requests() const { return requests_; }

 private:
  // WaitReadable wants a descriptor; this one is never readable.
  class NeverReadable {
   public:
    NeverReadable() { EXPECT_EQ(pipe(ends_), 0); }
    ~NeverReadable() {
      close(ends_[0]);
      close(ends_[1]);
    }
    int read_end() const { return ends_[0]; }

   private:
    int ends_[2];
  };

  ZmqSocket Open(ZmqSocket::Type type) {
    auto socket = ZmqSocket::Open(context_, type, LinkOptions{.message_bytes_max = -1});
    EXPECT_TRUE(socket.ok());
    return std::move(socket).value();
  }

  void Reply(const Frame& client, const Frame& from_bytes) {
    ++requests_;
    const std::uint64_t from = ParseSequenceFrame(from_bytes)->number;
    for (const auto& [number, payload] : ring_) {
      if (number >= from) ReplyOne(client, number, payload);
    }
    ReplyOne(client, SequenceFrame::kEndMarker, {});
  }
  void ReplyOne(const Frame& client, std::uint64_t number, const Bytes& payload) {
    std::vector<Frame> frames{client, Frame{}};
    if (options_.topic_in_replies) frames.push_back(payload.empty() ? Frame{} : Frame{'k', 'v'});
    frames.push_back(SequenceBytes(number, payload.empty() ? 0 : options_.publisher_id));
    frames.push_back(payload);
    router_.Send(frames);
  }

  const Options options_;
  NeverReadable pipe_;
  ZmqContext context_;
  ZmqSocket live_;
  ZmqSocket router_;
  std::deque<std::pair<std::uint64_t, Bytes>> ring_;
  std::uint64_t next_;
  int subscriptions_ = 0;
  int requests_ = 0;
};

// Keeps the order of everything and the blocks that a believer would hold.
class CollectSink final : public Sink {
 public:
  bool OnKvBatch(SourceIndex source, TimeNs, KvEventBatch&& batch) override {
    const std::lock_guard lock(mutex_);
    if (refusing_) {
      ++refusals_;
      return false;
    }
    ++batches_[source];
    Delivered();
    for (const KvEvent& event : batch.events) Apply(source, event);
    return true;
  }
  bool OnAccessBatch(SourceIndex source, TimeNs, std::unique_ptr<AccessBatch> batch) override {
    const std::lock_guard lock(mutex_);
    ++batches_[source];
    Delivered();
    access_.push_back(std::move(batch));
    return true;
  }
  void OnViewState(SourceIndex source, TimeNs, ViewState state) override {
    const std::lock_guard lock(mutex_);
    Delivered();
    views_[source] += state == ViewState::kKnown ? 'K' : state == ViewState::kUnknown ? 'U' : 'R';
    if (state == ViewState::kRestarted) blocks_[source].clear();
  }

  // Returns when something was delivered, or after `limit`.
  void WaitForDelivery(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    const std::uint64_t seen = deliveries_;
    delivered_.wait_for(lock, limit, [&] { return deliveries_ != seen; });
  }

  void Refuse(bool refusing) {
    const std::lock_guard lock(mutex_);
    refusing_ = refusing;
  }
  std::set<std::uint64_t> blocks(SourceIndex source = 0) { return At(blocks_, source); }
  std::string views(SourceIndex source = 0) { return At(views_, source); }
  int batches(SourceIndex source = 0) { return At(batches_, source); }
  int refusals() {
    const std::lock_guard lock(mutex_);
    return refusals_;
  }
  std::size_t access_batches() {
    const std::lock_guard lock(mutex_);
    return access_.size();
  }

 private:
  template <typename T>
  T At(std::map<SourceIndex, T>& map, SourceIndex source) {
    const std::lock_guard lock(mutex_);
    return map[source];
  }
  void Delivered() {
    ++deliveries_;
    delivered_.notify_all();
  }
  void Apply(SourceIndex source, const KvEvent& event) {
    auto& blocks = blocks_[source];
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      for (const BlockHash& hash : stored->hashes) blocks.insert(hash.low64);
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      for (const BlockHash& hash : removed->hashes) blocks.erase(hash.low64);
    } else {
      blocks.clear();
    }
  }

  std::mutex mutex_;
  std::condition_variable delivered_;
  std::uint64_t deliveries_ = 0;
  std::map<SourceIndex, std::set<std::uint64_t>> blocks_;
  std::map<SourceIndex, std::string> views_;
  std::map<SourceIndex, int> batches_;
  std::vector<std::unique_ptr<AccessBatch>> access_;
  bool refusing_ = false;
  int refusals_ = 0;
};

// Serves `publishers` until `done`; false after `limit`.
inline bool ServeUntil(const std::vector<TestPublisher*>& publishers, const std::function<bool()>& done,
                       std::chrono::seconds limit = std::chrono::seconds(30)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    for (TestPublisher* publisher : publishers) publisher->Serve(2);
  }
  return true;
}

}  // namespace foreload::telemetry::testing
