// Publishes the access stream (proto/telemetry.proto): three frames, topic "foreload", sequence, AccessBatch.
//
// Emit never blocks: events go into bounded queues and a thread of its own sends them. A full queue of step accesses
// drops its oldest; request events and hints, which nothing samples, have a larger bound of their own, and what is
// refused there is counted. Every second, and when a subscriber joins, every live request is announced again, so a
// sidecar that starts late or lost a batch learns what it missed.
//
// Endpoints: "ipc:///path/socket" (the folder is made with mode 0700, the socket gets 0600), "tcp://" on loopback, and
// "insecure+tcp://" for any address: that stream is neither encrypted nor authenticated.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "client/emit_queue.h"
#include "client/request_book.h"
#include "proto/unique_fd.h"

namespace foreload::telemetry {
class AccessEvent;
}

namespace foreload::client {

class Emitter {
 public:
  static constexpr DurationNs kAnnounceEvery = kSecond;
  static constexpr int kLingerMs = 200;  // what may still be sent at close

  static Result<std::unique_ptr<Emitter>> Open(const std::string& endpoint, const std::string& engine,
                                               const RequestBook& book);
  ~Emitter();
  Emitter(const Emitter&) = delete;
  Emitter& operator=(const Emitter&) = delete;

  // Any thread; never waits. The queue says what it dropped.
  EmitQueue& queue() { return queue_; }

  std::uint64_t emitted() const { return emitted_.load(std::memory_order_relaxed); }
  std::uint64_t dropped() const { return queue_.dropped_steps() + queue_.dropped_requests(); }
  // Where it listens, with a port that the system chose filled in.
  const std::string& endpoint() const { return endpoint_; }

 private:
  struct Socket;  // ZeroMQ
  using Events = std::vector<std::unique_ptr<telemetry::AccessEvent>>;

  Emitter(std::unique_ptr<Socket> socket, UniqueFd wake, std::string engine, const RequestBook& book);

  void Run();
  bool SendQueued();
  void Announce();
  void Send(Events events);

  const RequestBook& book_;
  const std::string engine_;
  std::string endpoint_;
  std::array<std::uint8_t, 16> publisher_id_{};
  std::unique_ptr<Socket> socket_;  // the thread's alone after Open
  std::uint64_t sequence_ = 0;      // the thread's
  EmitQueue queue_;
  std::atomic<std::uint64_t> emitted_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace foreload::client
