// The engine model's port to a running sidecar, through the public C API (client/foreload.h) and the public wire
// formats alone. One scheduler-and-worker client, one more worker client for each further rank.
//
// Thread: the model's, except that fetches are waited for on threads of this object and WaitUntil sleeps until one
// ends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "client/foreload.h"
#include "cmd/drive/block_content.h"
#include "cmd/drive/engine_port.h"
#include "cmd/drive/kv_encoding.h"

namespace foreload::drive {

inline constexpr std::uint32_t kRanksMax = 16;

struct LivePortOptions {
  std::string control_socket;
  std::string engine = "drive";
  std::string access_endpoint;  // access telemetry; bound by the client library
  std::string kv_endpoint;      // KV events; bound here
  std::string kv_replay_endpoint;
  HashForm hash_form = HashForm::kInt64;
  std::string model_revision;     // makes the namespace
  std::uint64_t block_bytes = 0;  // of all ranks together
  std::uint32_t block_tokens = 0;
  std::uint32_t layer_groups = 1;  // extents of a slot
  std::uint32_t ranks = 1;
  std::uint32_t arena_slots = 0;
  std::uint32_t store_slots = 0;
  double recompute_seconds_per_token = 0;
  bool demand_only = false;
  std::uint32_t fetches_max = 1;  // at the same time: the model's admitted_max
  std::uint32_t breaker_open_ms = 0;
};

struct LiveCounts {
  std::uint64_t verified_blocks = 0;
  std::uint64_t verified_bytes = 0;
  std::uint64_t mismatches = 0;
  std::vector<double> fetch_seconds;         // of each demand fetch, from the call to its end
  std::vector<double> loaded_fetch_seconds;  // of those that moved bytes
  std::uint64_t kv_batches = 0;
  std::uint64_t kv_batches_dropped = 0;
};

class LivePort : public EnginePort {
 public:
  // Opens the clients and grants the arena; does not wait for the sidecar.
  static Result<std::unique_ptr<LivePort>> Open(const LivePortOptions& options);

  // Until registered and granted on every rank. `observing`: until registered alone, since there is no arena then.
  virtual Status WaitReady(DurationNs timeout, bool observing) = 0;
  // Sleeps until a fetch has ended or `deadline` (monotonic) has passed.
  virtual void WaitUntil(TimeNs deadline) = 0;

  virtual Result<std::string> StatusJson(DurationNs timeout) = 0;
  virtual Status Flush(DurationNs timeout) = 0;
  virtual Status Purge(DurationNs timeout) = 0;
  virtual LiveCounts counts() const = 0;
  virtual fl_counters client_counters() const = 0;
};

}  // namespace foreload::drive
