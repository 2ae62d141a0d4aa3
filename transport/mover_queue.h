// What a mover does next, as a pure state machine: jobs, completions and `now` go in; transfers and ended jobs come
// out. No thread, clock or backend inside, so that every decision can be tested by hand. The rules are mover.h's.
//
// A job's parts are merged where they adjoin on both sides, then submitted in slices of at most kSliceBytesMax, so that
// demand overtakes anything else at the next slice. With a throttle the link is emulated: a slice occupies it for
// bytes / rate from the later of "link free" and the job's submission, and its completion is held back until then.
//
// Thread: one owner.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/backend.h"
#include "transport/mover.h"

namespace foreload {

inline constexpr std::uint64_t kSliceBytesMax = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kThrottledSliceBytesMin = std::uint64_t{64} << 10;
inline constexpr DurationNs kThrottledSliceNs = kMillisecond;       // of the emulated link, within the two above
inline constexpr DurationNs kThrottleAheadNs = 100 * kMicrosecond;  // submitted before the link is free
inline constexpr DurationNs kThrottleCreditNs = kMillisecond;       // a submission that late still used the whole link
inline constexpr DurationNs kRateWindowNs = kMillisecond;           // shortest busy time that teaches the link's rate

struct EndedJob {
  MoveResult result;
  MoveClass move_class = MoveClass::kPrefetch;  // at the end
  MoveClass submitted_as = MoveClass::kPrefetch;
};

class MoverQueue {
 public:
  // `depth` and `transfer_bytes_max` are the backend's.
  MoverQueue(const MoverOptions& options, std::uint32_t depth, std::uint64_t transfer_bytes_max);

  // The job has parts and no part is empty; its id is not live. `submitted_at` <= now.
  void Push(MoveJob job, TimeNs submitted_at, TimeNs now);
  void Promote(TransferId id, TimeNs deadline, TimeNs now);
  void Cancel(TransferId id, TimeNs now);
  // Cancels what is queued, lets go of held completions, and gives out no more work.
  void Stop(TimeNs now);

  // Ends queued jobs past their deadline; lets completions go whose time on the emulated link is over.
  void Advance(TimeNs now);
  // Transfers to submit now, in order; each counts as outstanding at once.
  std::size_t Next(TimeNs now, std::span<Transfer> out);
  // The last transfers that Next gave out, which the backend did not accept.
  void TakeBack(std::span<const Transfer> refused);
  void Complete(const Completion& completion, TimeNs now);

  // Jobs that ended since the caller last cleared it.
  std::vector<EndedJob>& ended() { return ended_; }

  // When Advance or Next may do more without any other event; kTimeNever when only an event can help.
  TimeNs WakeAt(TimeNs now) const;

  bool idle() const { return live_jobs_ == 0; }
  std::uint32_t outstanding() const { return outstanding_; }  // at the backend
  std::uint64_t queued_jobs() const { return unsent_[0] + unsent_[1] + unsent_[2]; }
  std::uint64_t inflight_bytes() const { return inflight_[0] + inflight_[1] + inflight_[2]; }
  double link_bytes_per_second() const { return rate_; }

 private:
  struct Job {
    TransferId id;
    MoveClass move_class = MoveClass::kPrefetch;
    MoveClass submitted_as = MoveClass::kPrefetch;
    bool live = false;
    bool started = false;  // a slice was submitted
    bool unsent = false;   // has slices that were not; then it is in a heap
    bool cancelled = false;
    TimeNs deadline = kTimeNever;
    TimeNs submitted_at = 0;
    TimeNs started_at = 0;
    std::uint64_t order = 0;
    std::uint32_t stamp = 0;  // of its valid heap entry; grows with each move
    std::uint32_t part = 0;   // next slice: this part, from part_offset
    std::uint64_t part_offset = 0;
    std::uint32_t flights = 0;
    std::uint64_t inflight_bytes = 0;
    std::uint64_t moved_bytes = 0;
    TransferError error = TransferError::kNone;
    int errnum = 0;
    std::vector<MovePart> parts;
  };
  struct Entry {  // stale once its job's stamp has moved on
    TimeNs deadline = 0;
    std::uint64_t order = 0;
    std::uint32_t slot = 0;
    std::uint32_t stamp = 0;
    friend bool operator>(const Entry& a, const Entry& b) {
      return a.deadline != b.deadline ? a.deadline > b.deadline : a.order > b.order;
    }
  };
  using Heap = std::vector<Entry>;
  struct Flight {
    std::uint32_t slot = 0;
    std::uint32_t part = 0;
    std::uint64_t part_offset = 0;
    std::uint64_t bytes = 0;
    TimeNs due_at = 0;            // of its last byte on the emulated link
    TimeNs link_free_before = 0;  // to undo
    bool first = false;
  };
  struct Held {
    TimeNs due_at = 0;
    std::uint64_t order = 0;
    Completion completion;
    friend bool operator>(const Held& a, const Held& b) {
      return a.due_at != b.due_at ? a.due_at > b.due_at : a.order > b.order;
    }
  };
  static constexpr std::uint32_t kNoSlot = UINT32_MAX;

  void Enqueue(std::uint32_t slot);
  bool Stale(const Entry& entry) const;
  void Prune(Heap& heap);
  std::uint32_t Head(MoveClass move_class);
  std::uint32_t OldestWrite();
  std::uint32_t Choose(TimeNs now);
  bool SpeculationAllowed(const Job& job, TimeNs now) const;
  bool DemandRecent(TimeNs now) const;
  void SawDemand(TimeNs now) { last_demand_at_ = now; }
  std::uint64_t SliceBytes(const Job& job) const;
  Transfer Send(std::uint32_t slot, TimeNs now);
  void DropUnsent(std::uint32_t slot);
  void Finish(const Completion& completion, TimeNs now);
  void End(std::uint32_t slot, MoveResult::Outcome outcome, TimeNs now);
  void LearnRate(std::uint64_t bytes, TimeNs now);

  const MoverOptions options_;
  const std::uint32_t depth_;
  const std::uint64_t slice_bytes_;
  double rate_;  // bytes per second

  std::vector<Job> jobs_;
  std::vector<std::uint32_t> free_jobs_;
  std::unordered_map<TransferId, std::uint32_t> by_id_;
  std::array<Heap, kMoveClassCount> waiting_;                   // nothing submitted yet
  std::array<Heap, kMoveClassCount> running_;                   // some slices submitted
  std::deque<std::pair<std::uint32_t, std::uint64_t>> writes_;  // (slot, order), oldest first; ended ones are skipped
  std::vector<Flight> flights_;                                 // by token
  std::vector<std::uint32_t> free_flights_;
  std::vector<Held> held_;  // min-heap
  std::vector<EndedJob> ended_;

  std::array<std::uint64_t, kMoveClassCount> unsent_{};    // jobs with unsubmitted slices
  std::array<std::uint64_t, kMoveClassCount> inflight_{};  // bytes
  std::uint32_t outstanding_ = 0;
  std::uint64_t live_jobs_ = 0;
  std::uint64_t order_ = 0;
  TimeNs last_demand_at_ = INT64_MIN / 2;
  TimeNs link_free_at_ = 0;
  TimeNs window_start_ = -1;  // -1: nothing outstanding
  std::uint64_t window_bytes_ = 0;
  bool stopped_ = false;
};

}  // namespace foreload
