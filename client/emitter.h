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
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "client/request_book.h"
#include "proto/unique_fd.h"

namespace foreload::telemetry {
class AccessEvent;
}

namespace foreload::client {

class Emitter {
 public:
  static constexpr std::size_t kStepsMax = 16384;
  static constexpr std::size_t kRequestsMax = 65536;
  static constexpr std::size_t kQueuedBytesMax = 256u << 20;  // key lists of a million-token prompt are 2 MiB
  static constexpr DurationNs kAnnounceEvery = kSecond;
  static constexpr int kLingerMs = 200;                       // what may still be sent at close

  static Result<std::unique_ptr<Emitter>> Open(const std::string& endpoint, const std::string& engine,
                                               const RequestBook& book);
  ~Emitter();
  Emitter(const Emitter&) = delete;
  Emitter& operator=(const Emitter&) = delete;

  // Any thread. False: refused, because too many request events wait.
  bool EmitRequest(std::unique_ptr<telemetry::AccessEvent> event);
  // Any thread. May drop an older step access instead.
  void EmitStep(std::unique_ptr<telemetry::AccessEvent> event);

  std::uint64_t emitted() const { return emitted_.load(std::memory_order_relaxed); }
  std::uint64_t dropped() const {
    return dropped_steps_.load(std::memory_order_relaxed) + dropped_requests_.load(std::memory_order_relaxed);
  }
  // Where it listens, with a port that the system chose filled in.
  const std::string& endpoint() const { return endpoint_; }

 private:
  struct Socket;  // ZeroMQ
  struct Queued {
    std::unique_ptr<telemetry::AccessEvent> event;
    std::size_t bytes = 0;
  };

  Emitter(std::unique_ptr<Socket> socket, UniqueFd wake, std::string engine, const RequestBook& book);

  void Run();
  void Wake();
  // True while there is more.
  bool SendQueued();
  void Announce();
  void Send(std::deque<Queued>& events);

  const RequestBook& book_;
  const std::string engine_;
  std::string endpoint_;
  std::array<std::uint8_t, 16> publisher_id_{};
  std::unique_ptr<Socket> socket_;   // the thread's alone after Open
  UniqueFd wake_;
  std::uint64_t sequence_ = 0;       // the thread's

  std::mutex mutex_;
  std::deque<Queued> requests_;
  std::deque<Queued> steps_;
  std::size_t queued_bytes_ = 0;     // of requests_
  bool asleep_ = false;              // Emit must ring
  std::atomic<std::uint64_t> emitted_{0};
  std::atomic<std::uint64_t> dropped_steps_{0};
  std::atomic<std::uint64_t> dropped_requests_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace foreload::client
