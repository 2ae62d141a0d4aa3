// The ingest thread: subscribes to what engines publish, keeps each stream whole or says that it is not, and hands
// decoded batches to a Sink.
//
// One thread serves all sources of an Ingest in turns: each turn takes at most `turn_messages_max` live messages and as
// many replies of every source, so that a flooding engine costs the others nothing but that. Sockets connect and
// reconnect by themselves; a source that is down is merely silent.
//
//   KV events   SUB, and a DEALER for each replay request (fresh, so that replies of an older one cannot arrive).
//   Order,
//               gaps, restarts: telemetry/sequence_tracker.h. Bad frames and undecodable batches cost a counter; a
//               batch that cannot be decoded leaves the view unknown.
//   access      SUB on topic "foreload". A gap is counted and heals by re-announcement; a new publisher id is a
//   restart.
//
// Create checks the configuration and opens the sockets; Start runs the thread; Stop (or destruction) ends it. Those
// three from one thread; statuses() from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "telemetry/kv_decoder.h"
#include "telemetry/metrics.h"
#include "telemetry/sequence_tracker.h"
#include "telemetry/sink.h"
#include "telemetry/zmq_socket.h"

namespace foreload::telemetry {

enum class SourceKind : std::uint8_t { kKvEvents, kAccess };

struct SourceConfig {
  std::string name;  // for messages and statuses
  SourceKind kind = SourceKind::kKvEvents;
  Dialect dialect = Dialect::kAuto;
  std::string endpoint{};                             // tcp://, ipc:// or inproc://
  bool bind = false;                                  // the engine connects to us
  std::string replay_endpoint{};                      // empty: gaps cannot be healed
  std::string topic{};                                // subscription prefix of KV events; empty: everything
  std::optional<std::uint32_t> data_parallel_rank{};  // of batches that name none
  CurveKeys curve{};                                  // connecting side only
  bool insecure = false;                              // allows TCP beyond loopback without CURVE
};

struct SourceStatus {
  std::string name;
  bool connected = false;
  bool view_unknown = false;              // KV events only, as the next three
  std::optional<std::uint64_t> received;  // highest sequence number seen
  std::uint64_t next = 0;                 // next one to be applied
  std::size_t buffered = 0;               // batches that wait for their turn
  std::uint64_t connections = 0;
};

struct IngestOptions {
  std::vector<SourceConfig> sources;  // SourceIndex is the position here
  LinkOptions link;
  DecodeLimits limits;
  SequenceTracker::Options tracker;  // can_replay is set from the source
  std::size_t turn_messages_max = 64;
  std::size_t replays_max = 4;  // under way at one time: a replay costs the engine's publisher thread
};

class Ingest {
 public:
  // `sink` and `metrics` outlive the object.
  static Result<std::unique_ptr<Ingest>> Create(IngestOptions options, Sink& sink, TelemetryMetrics& metrics);
  ~Ingest();
  Ingest(const Ingest&) = delete;
  Ingest& operator=(const Ingest&) = delete;

  void Start();
  void Stop();

  std::vector<SourceStatus> statuses() const;
  // Where a binding source really is (for wildcard ports).
  std::string bound_endpoint(SourceIndex source) const;

 private:
  struct Impl;
  explicit Ingest(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace foreload::telemetry
