// One link's worker: a demand queue and a prefetch queue in front of one backend, on one thread of its own.
//
// - Demand first, always; inside a class, earliest deadline first, then order of submission.
// - Prefetch in flight is capped at max(one part, 100 us of the link) while demand was seen on it within 50 ms; else
// the
//   backend's full depth. The cap falls at the next demand.
// - A job is one or more parts that succeed or fail together: its completion comes once, after the terminal event of
//   every part that was submitted; after the first failure no further part of it is submitted.
// - A job past its deadline that was not submitted yet ends as kTimeout. Cancel ends what is queued; a job with a part
//   in flight runs to its end and reports its true status.
// - Write-behind runs only when neither demand nor prefetch waits, or when its oldest job is over `write_age_max_ns`.
//
// Submit, Promote and Cancel may come from any thread. `sink` is called on the mover's thread and must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "transport/backend.h"

namespace foreload {

struct TransportMetrics;

enum class MoveClass : std::uint8_t { kDemand, kPrefetch, kWriteBehind };
inline constexpr std::size_t kMoveClassCount = 3;
constexpr std::size_t Index(MoveClass move_class) {
  return static_cast<std::size_t>(move_class);
}

struct MovePart {
  RegionId source;
  std::uint64_t source_offset = 0;
  RegionId destination;
  std::uint64_t destination_offset = 0;
  std::uint64_t bytes = 0;
};

struct MoveJob {
  TransferId id;
  MoveClass move_class = MoveClass::kPrefetch;
  TimeNs deadline = kTimeNever;
  std::vector<MovePart> parts;
};

struct MoveResult {
  enum class Outcome : std::uint8_t { kOk, kCancelled, kTimeout, kFailed };
  TransferId id;
  Outcome outcome = Outcome::kOk;
  TransferError error = TransferError::kNone;  // of the first failed part
  int errnum = 0;
  std::uint64_t bytes = 0;
  DurationNs queued_ns = 0;   // from Submit to the first part's submission
  DurationNs service_ns = 0;  // from the first part's submission to the last terminal event
};

struct MoverOptions {
  std::string name;                      // thread name and metric label
  std::size_t queue_jobs_max = 65536;    // per class; beyond it Submit says ResourceExhausted
  double link_bytes_per_second = 1e9;    // first guess for the 100 us cap; learned afterwards
  double throttle_bytes_per_second = 0;  // > 0: pace submissions to this rate (tests, drive scenarios)
  DurationNs demand_window_ns = 50 * kMillisecond;
  DurationNs prefetch_cap_ns = 100 * kMicrosecond;
  DurationNs write_age_max_ns = 1 * kSecond;
  TransportMetrics* metrics = nullptr;  // outlives the mover
};

class Mover {
 public:
  using Sink = std::function<void(const MoveResult&)>;

  // Starts the thread. `backend` and `clock` outlive the mover.
  Mover(Backend& backend, const Clock& clock, MoverOptions options, Sink sink);
  // Drain: refuses new jobs, cancels what is queued, waits for what is in flight; every job has had its sink call.
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // The sink is called for every job for which this returned ok, exactly once. InvalidArgument: no parts, an empty
  // part, or an invalid id. A live id used again is a bug and stops the process.
  Status Submit(MoveJob job);
  void Promote(TransferId id, TimeNs deadline);
  void Cancel(TransferId id);

  struct Counters {  // monotonic, by class at the end, except the gauges
    std::uint64_t jobs_ok[kMoveClassCount];
    std::uint64_t jobs_failed[kMoveClassCount];
    std::uint64_t jobs_cancelled[kMoveClassCount];
    std::uint64_t jobs_timeout[kMoveClassCount];
    std::uint64_t bytes[kMoveClassCount];
    std::uint64_t inflight_bytes;
    std::uint64_t queued_jobs;
    std::uint64_t outstanding;  // transfers at the backend
    std::uint64_t completions;  // that the backend ever returned: stands still when the device hangs
  };
  Counters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace foreload
