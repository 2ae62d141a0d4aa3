// Sessions that have no common clock, made into one workload: each session's start is drawn from a seed (uniform over
// `spread`), its requests keep their own distances, and all are delivered in order of arrival.
//
// Pauses of hours or days, which a rehearsal cannot wait for, can be shortened (`session_gap_max`): then everything
// behind such a pause in its session comes earlier by what was cut.
//
// Requests are held as changes against the one before them in the same (session, stream) - `keep` of its ids, then runs
// of consecutive ids - because agent sessions repeat their whole history each turn: 26,771 requests with 38 M ids take
// some megabytes this way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "base/status.h"
#include "replay/trace_json.h"
#include "replay/trace_source.h"

namespace foreload::replay {

class SessionScript {
 public:
  explicit SessionScript(const TraceOptions& options);

  // Starts a session; the requests that follow belong to it. `id` names it in the requests; local ids are made distinct
  // from those of other sessions.
  void BeginSession(std::uint64_t id, std::uint32_t block_tokens, bool global_ids);

  struct Request {
    double at_seconds = 0;
    double think_seconds = 0;  // before the next request of this stream
    std::uint32_t stream = 0;
    RequestKind kind = RequestKind::kUnknown;
    std::uint32_t input_tokens = 0;
    std::uint32_t output_tokens = 0;
    std::uint64_t keep = 0;
    std::span<const BlockRun> runs = {};
  };
  // kInvalidArgument when the request contradicts what is known (it keeps ids that are not there, follows a lost one,
  // has more ids than tokens); kResourceExhausted at held_requests_max.
  Status Add(const Request& request);
  // A request given by all its ids.
  Status AddWhole(Request request, std::span<const std::uint64_t> ids);

  // A request of the current session was lost and its stream is unknown: until a stream's next request with keep 0,
  // what it keeps is unknown too.
  void LostRequest();

  // After the last Add. In order of arrival; false at the end.
  bool Next(TraceRequest& request);

 private:
  struct Session {
    std::uint64_t id = 0;
    std::uint32_t block_tokens = 0;
    bool global_ids = false;
    TimeNs start = 0;
  };
  struct Held {
    TimeNs arrival = 0;
    std::uint32_t session = 0;  // index
    std::uint32_t stream = 0;
    RequestKind kind = RequestKind::kUnknown;
    std::uint32_t input_tokens = 0;
    std::uint32_t output_tokens = 0;
    std::uint32_t keep = 0;
    std::uint32_t run_begin = 0;
    std::uint32_t run_count = 0;
  };
  // While adding: how many ids the stream's last request had, and its last ids for AddWhole.
  struct Writing {
    std::uint64_t length = 0;
    TimeNs last_arrival = 0;
    double think_seconds = 0;
    bool any = false;
    bool broken = false;
    std::vector<std::uint64_t> ids;
  };
  // While delivering.
  struct Reading {
    std::vector<std::uint64_t> ids;
    std::uint32_t turn = 0;
    std::uint32_t left = 0;
  };

  void Arrange();

  TraceOptions options_;
  Rng rng_;
  std::vector<Session> sessions_;
  std::vector<Held> held_;
  std::vector<BlockRun> runs_;
  std::map<std::uint32_t, Writing> writing_;  // streams of the current session
  std::vector<BlockRun> scratch_runs_;
  bool sorted_ = false;
  std::size_t next_ = 0;
  std::unordered_map<std::uint64_t, Reading> reading_;
};

}  // namespace foreload::replay
