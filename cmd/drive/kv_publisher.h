// The engine's KV-event stream: a PUB socket for live batches and a ROUTER socket that replays recent ones, as vLLM
// runs them (three frames `topic | seq | payload`, seq 8 bytes big-endian from 0; a replay request `[b"", seq]` is
// answered by
// `[b"", topic, seq, payload]` for each batch kept and an end marker with seq -1).
//
// One thread of its own owns both sockets. Publish never blocks: a full queue drops the batch, and its sequence number
// with it, so that a subscriber sees the gap.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace foreload::drive {

inline constexpr std::size_t kReplayBatchesMax = 10'000;  // vLLM's buffer_steps
inline constexpr std::size_t kPublishQueueMax = 100'000;  // vLLM's max_queue_size

class KvPublisher {
 public:
  struct Options {
    std::string endpoint;         // bound
    std::string replay_endpoint;  // bound
    std::string topic = "kv-events";
  };
  static Result<std::unique_ptr<KvPublisher>> Start(const Options& options);
  // Sends what is queued, then closes.
  virtual ~KvPublisher() = default;

  virtual void Publish(std::string payload) = 0;

  virtual std::uint64_t published() const = 0;
  virtual std::uint64_t dropped() const = 0;
  virtual std::uint64_t replayed() const = 0;
};

}  // namespace foreload::drive
