#include "transport/mover_queue.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/check.h"

namespace foreload {
namespace {

constexpr std::uint64_t kSliceAlignment = 4096;  // cuts stay valid for direct files
constexpr double kRateDecay = 1.0 / 8;           // towards a slower sample; a faster one counts at once

std::uint64_t BytesIn(double bytes_per_second, DurationNs duration) {
  return static_cast<std::uint64_t>(bytes_per_second * static_cast<double>(duration) / 1e9);
}

std::uint64_t SliceLimit(double throttle, std::uint64_t transfer_bytes_max) {
  std::uint64_t limit = kSliceBytesMax;
  if (throttle > 0) limit = std::clamp(BytesIn(throttle, kThrottledSliceNs), kThrottledSliceBytesMin, kSliceBytesMax);
  limit = std::min(limit, transfer_bytes_max);
  return limit > kSliceAlignment ? limit / kSliceAlignment * kSliceAlignment : limit;
}

bool Adjoins(const MovePart& a, const MovePart& b) {
  return a.source == b.source && a.destination == b.destination && a.source_offset + a.bytes == b.source_offset &&
         a.destination_offset + a.bytes == b.destination_offset;
}

void MergeAdjoining(std::vector<MovePart>& parts) {
  std::size_t last = 0;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (Adjoins(parts[last], parts[i])) {
      parts[last].bytes += parts[i].bytes;
    } else {
      parts[++last] = parts[i];
    }
  }
  parts.resize(last + 1);
}

}  // namespace

MoverQueue::MoverQueue(const MoverOptions& options, std::uint32_t depth, std::uint64_t transfer_bytes_max)
    : options_(options),
      depth_(depth),
      slice_bytes_(SliceLimit(options.throttle_bytes_per_second, transfer_bytes_max)),
      rate_(options.throttle_bytes_per_second > 0 ? options.throttle_bytes_per_second : options.link_bytes_per_second) {
  FORELOAD_CHECK(depth_ > 0 && slice_bytes_ > 0, "a backend takes at least one transfer of one byte");
}

void MoverQueue::Push(MoveJob job, TimeNs submitted_at, TimeNs now) {
  FORELOAD_CHECK(!job.parts.empty(), "Mover::Submit refuses empty jobs");
  if (free_jobs_.empty()) {
    free_jobs_.push_back(static_cast<std::uint32_t>(jobs_.size()));
    jobs_.emplace_back();
  }
  const std::uint32_t slot = free_jobs_.back();
  free_jobs_.pop_back();
  const bool is_new = by_id_.emplace(job.id, slot).second;
  FORELOAD_CHECK(is_new, "a TransferId is never reused while its job lives");
  Job& entry = jobs_[slot];
  const std::uint32_t stamp = entry.stamp;
  entry = {};
  entry.stamp = stamp;
  entry.id = job.id;
  entry.move_class = job.move_class;
  entry.submitted_as = job.move_class;
  entry.live = true;
  entry.deadline = job.deadline;
  entry.submitted_at = submitted_at;
  entry.order = order_++;
  entry.parts = std::move(job.parts);
  MergeAdjoining(entry.parts);
  ++live_jobs_;
  if (entry.move_class == MoveClass::kDemand) SawDemand(now);
  if (entry.move_class == MoveClass::kWriteBehind) writes_.emplace_back(slot, entry.order);
  Enqueue(slot);
  if (stopped_) {
    DropUnsent(slot);
    End(slot, MoveResult::Outcome::kCancelled, now);
  }
}

// Puts the job into the heap that fits its state; an earlier entry of it becomes stale.
void MoverQueue::Enqueue(std::uint32_t slot) {
  Job& job = jobs_[slot];
  if (!job.unsent) ++unsent_[Index(job.move_class)];
  job.unsent = true;
  ++job.stamp;
  Heap& heap = (job.started ? running_ : waiting_)[Index(job.move_class)];
  heap.push_back({.deadline = job.deadline, .order = job.order, .slot = slot, .stamp = job.stamp});
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

bool MoverQueue::Stale(const Entry& entry) const {
  const Job& job = jobs_[entry.slot];
  return !job.unsent || job.stamp != entry.stamp;
}

void MoverQueue::Prune(Heap& heap) {
  while (!heap.empty() && Stale(heap.front())) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
  }
}

std::uint32_t MoverQueue::Head(MoveClass move_class) {
  Heap& waiting = waiting_[Index(move_class)];
  Heap& running = running_[Index(move_class)];
  Prune(waiting);
  Prune(running);
  if (waiting.empty()) return running.empty() ? kNoSlot : running.front().slot;
  if (running.empty()) return waiting.front().slot;
  return running.front() > waiting.front() ? waiting.front().slot : running.front().slot;
}

std::uint32_t MoverQueue::OldestWrite() {
  while (!writes_.empty()) {
    const auto [slot, order] = writes_.front();
    const Job& job = jobs_[slot];
    if (job.unsent && job.order == order && job.move_class == MoveClass::kWriteBehind) return slot;
    writes_.pop_front();
  }
  return kNoSlot;
}

void MoverQueue::Promote(TransferId id, TimeNs deadline, TimeNs now) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  Job& job = jobs_[found->second];
  SawDemand(now);
  if (job.move_class == MoveClass::kDemand) deadline = std::min(deadline, job.deadline);
  job.deadline = deadline;
  inflight_[Index(job.move_class)] -= job.inflight_bytes;
  inflight_[Index(MoveClass::kDemand)] += job.inflight_bytes;
  const bool unsent = job.unsent;
  if (unsent) DropUnsent(found->second);
  job.move_class = MoveClass::kDemand;
  if (unsent) Enqueue(found->second);
}

void MoverQueue::Cancel(TransferId id, TimeNs now) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || jobs_[found->second].started) return;
  const std::uint32_t slot = found->second;
  DropUnsent(slot);
  End(slot, MoveResult::Outcome::kCancelled, now);
}

void MoverQueue::DropUnsent(std::uint32_t slot) {
  Job& job = jobs_[slot];
  if (!job.unsent) return;
  job.unsent = false;
  ++job.stamp;
  --unsent_[Index(job.move_class)];
}

void MoverQueue::Stop(TimeNs now) {
  stopped_ = true;
  for (std::uint32_t slot = 0; slot < jobs_.size(); ++slot) {
    if (!jobs_[slot].live || !jobs_[slot].unsent) continue;
    DropUnsent(slot);
    jobs_[slot].cancelled = true;
    if (jobs_[slot].flights == 0) End(slot, MoveResult::Outcome::kCancelled, now);
  }
  Advance(now);
}

void MoverQueue::Advance(TimeNs now) {
  while (!held_.empty() && (stopped_ || held_.front().due_at <= now)) {
    const Completion completion = held_.front().completion;
    std::pop_heap(held_.begin(), held_.end(), std::greater<>());
    held_.pop_back();
    Finish(completion, now);
  }
  for (Heap& heap : waiting_) {
    for (Prune(heap); !heap.empty() && heap.front().deadline <= now; Prune(heap)) {
      const std::uint32_t slot = heap.front().slot;
      DropUnsent(slot);
      End(slot, MoveResult::Outcome::kTimeout, now);
    }
  }
}

bool MoverQueue::DemandRecent(TimeNs now) const {
  return unsent_[Index(MoveClass::kDemand)] > 0 || inflight_[Index(MoveClass::kDemand)] > 0 ||
         now - last_demand_at_ < options_.demand_window_ns;
}

std::uint64_t MoverQueue::SliceBytes(const Job& job) const {
  return std::min(job.parts[job.part].bytes - job.part_offset, slice_bytes_);
}

// Prefetch and write-behind share one cap while demand is about; one slice is always allowed.
bool MoverQueue::SpeculationAllowed(const Job& job, TimeNs now) const {
  const std::uint64_t inflight = inflight_[Index(MoveClass::kPrefetch)] + inflight_[Index(MoveClass::kWriteBehind)];
  if (inflight == 0 || !DemandRecent(now)) return true;
  return inflight + SliceBytes(job) <= BytesIn(rate_, options_.prefetch_cap_ns);
}

// The job whose next slice goes now, or kNoSlot.
std::uint32_t MoverQueue::Choose(TimeNs now) {
  // An overdue write gets one slice at a time, even past demand: dirty bytes must not wait for ever.
  const std::uint32_t write = OldestWrite();
  if (write != kNoSlot && inflight_[Index(MoveClass::kWriteBehind)] == 0 &&
      now - jobs_[write].submitted_at > options_.write_age_max_ns)
    return write;
  const std::uint32_t demand = Head(MoveClass::kDemand);
  if (demand != kNoSlot) return demand;
  const std::uint32_t prefetch = Head(MoveClass::kPrefetch);
  if (prefetch != kNoSlot) return SpeculationAllowed(jobs_[prefetch], now) ? prefetch : kNoSlot;
  const std::uint32_t behind = Head(MoveClass::kWriteBehind);
  if (behind != kNoSlot && SpeculationAllowed(jobs_[behind], now)) return behind;
  return kNoSlot;
}

std::size_t MoverQueue::Next(TimeNs now, std::span<Transfer> out) {
  std::size_t count = 0;
  if (stopped_) return 0;
  const bool throttled = options_.throttle_bytes_per_second > 0;
  while (count < out.size() && outstanding_ < depth_ && queued_jobs() > 0) {
    if (throttled && link_free_at_ > now + kThrottleAheadNs) break;
    const std::uint32_t slot = Choose(now);
    if (slot == kNoSlot) break;
    out[count++] = Send(slot, now);
  }
  return count;
}

Transfer MoverQueue::Send(std::uint32_t slot, TimeNs now) {
  Job& job = jobs_[slot];
  if (free_flights_.empty()) {
    free_flights_.push_back(static_cast<std::uint32_t>(flights_.size()));
    flights_.emplace_back();
  }
  const std::uint32_t token = free_flights_.back();
  free_flights_.pop_back();
  const MovePart& part = job.parts[job.part];
  Flight& flight = flights_[token];
  flight = {.slot = slot, .part = job.part, .part_offset = job.part_offset, .bytes = SliceBytes(job)};
  flight.first = !job.started;
  flight.link_free_before = link_free_at_;
  if (options_.throttle_bytes_per_second > 0) {
    // From when it could have started, not from now: a late wake-up of this thread is no idle time of the link.
    const double ns = std::ceil(static_cast<double>(flight.bytes) / options_.throttle_bytes_per_second * 1e9);
    const TimeNs start = std::max({link_free_at_, job.submitted_at, now - kThrottleCreditNs});
    link_free_at_ = start + static_cast<DurationNs>(ns);
    flight.due_at = link_free_at_;
  }
  const Transfer transfer{.token = token,
                          .source = part.source,
                          .source_offset = part.source_offset + job.part_offset,
                          .destination = part.destination,
                          .destination_offset = part.destination_offset + job.part_offset,
                          .bytes = flight.bytes};
  if (job.move_class == MoveClass::kDemand) SawDemand(now);
  if (outstanding_++ == 0) {
    window_start_ = now;
    window_bytes_ = 0;
  }
  ++job.flights;
  job.inflight_bytes += flight.bytes;
  inflight_[Index(job.move_class)] += flight.bytes;
  job.part_offset += flight.bytes;
  if (job.part_offset == part.bytes) {
    ++job.part;
    job.part_offset = 0;
  }
  if (job.part == job.parts.size()) DropUnsent(slot);
  if (!job.started) {
    job.started = true;
    job.started_at = now;
    if (job.unsent) Enqueue(slot);
  }
  return transfer;
}

void MoverQueue::TakeBack(std::span<const Transfer> refused) {
  for (std::size_t i = refused.size(); i > 0; --i) {
    const auto token = static_cast<std::uint32_t>(refused[i - 1].token);
    const Flight& flight = flights_[token];
    Job& job = jobs_[flight.slot];
    --outstanding_;
    --job.flights;
    job.inflight_bytes -= flight.bytes;
    inflight_[Index(job.move_class)] -= flight.bytes;
    job.part = flight.part;
    job.part_offset = flight.part_offset;
    if (flight.first) job.started = false;
    link_free_at_ = flight.link_free_before;
    if (job.move_class == MoveClass::kWriteBehind) writes_.emplace_front(flight.slot, job.order);
    Enqueue(flight.slot);
    free_flights_.push_back(token);
  }
}

void MoverQueue::Complete(const Completion& completion, TimeNs now) {
  FORELOAD_CHECK(completion.token < flights_.size() && outstanding_ > 0, "a backend completes what it was given");
  const Flight& flight = flights_[completion.token];
  --outstanding_;
  LearnRate(completion.bytes, now);
  if (!stopped_ && flight.due_at > now) {
    held_.push_back({.due_at = flight.due_at, .order = order_++, .completion = completion});
    std::push_heap(held_.begin(), held_.end(), std::greater<>());
    return;
  }
  Finish(completion, now);
}

void MoverQueue::Finish(const Completion& completion, TimeNs now) {
  const Flight flight = flights_[completion.token];
  free_flights_.push_back(static_cast<std::uint32_t>(completion.token));
  Job& job = jobs_[flight.slot];
  FORELOAD_CHECK(job.live && job.flights > 0, "a transfer completes once");
  --job.flights;
  job.inflight_bytes -= flight.bytes;
  inflight_[Index(job.move_class)] -= flight.bytes;
  job.moved_bytes += std::min(completion.bytes, flight.bytes);
  if (job.move_class == MoveClass::kDemand) SawDemand(now);
  TransferError error = completion.error;
  if (error == TransferError::kNone && completion.bytes != flight.bytes) error = TransferError::kShort;
  if (error != TransferError::kNone && job.error == TransferError::kNone) {
    job.error = error;
    job.errnum = completion.errnum;
    DropUnsent(flight.slot);
  }
  if (job.flights > 0 || job.unsent) return;
  const auto outcome = job.error != TransferError::kNone ? MoveResult::Outcome::kFailed
                       : job.cancelled                   ? MoveResult::Outcome::kCancelled
                                                         : MoveResult::Outcome::kOk;
  End(flight.slot, outcome, now);
}

void MoverQueue::End(std::uint32_t slot, MoveResult::Outcome outcome, TimeNs now) {
  Job& job = jobs_[slot];
  EndedJob& ended = ended_.emplace_back();
  ended.move_class = job.move_class;
  ended.submitted_as = job.submitted_as;
  ended.result = {.id = job.id, .outcome = outcome, .error = job.error, .errnum = job.errnum, .bytes = job.moved_bytes};
  const TimeNs begun = job.started ? job.started_at : now;
  ended.result.queued_ns = std::max<DurationNs>(begun - job.submitted_at, 0);
  ended.result.service_ns = now - begun;
  by_id_.erase(job.id);
  job.live = false;
  job.parts.clear();
  free_jobs_.push_back(slot);
  --live_jobs_;
}

// Only windows through which something was always outstanding count, so that an idle link does not look slow.
void MoverQueue::LearnRate(std::uint64_t bytes, TimeNs now) {
  if (options_.throttle_bytes_per_second > 0) return;
  window_bytes_ += bytes;
  const DurationNs elapsed = now - window_start_;
  if (elapsed < kRateWindowNs) return;
  const double sample = static_cast<double>(window_bytes_) * 1e9 / static_cast<double>(elapsed);
  if (window_bytes_ > 0) rate_ = sample > rate_ ? sample : rate_ + (sample - rate_) * kRateDecay;
  window_start_ = now;
  window_bytes_ = 0;
}

TimeNs MoverQueue::WakeAt(TimeNs now) const {
  TimeNs wake = held_.empty() ? kTimeNever : held_.front().due_at;
  if (queued_jobs() == 0) return wake;
  // A stale head wakes too early at worst.
  for (const Heap& heap : waiting_) {
    if (!heap.empty()) wake = std::min(wake, heap.front().deadline);
  }
  if (options_.throttle_bytes_per_second > 0 && link_free_at_ > now + kThrottleAheadNs)
    wake = std::min(wake, link_free_at_ - kThrottleAheadNs);
  const bool speculation_waits =
      unsent_[Index(MoveClass::kPrefetch)] > 0 || unsent_[Index(MoveClass::kWriteBehind)] > 0;
  const TimeNs window_ends_at = last_demand_at_ + options_.demand_window_ns;
  if (speculation_waits && window_ends_at > now) wake = std::min(wake, window_ends_at);
  if (unsent_[Index(MoveClass::kWriteBehind)] > 0 && !writes_.empty()) {
    const TimeNs overdue_at = jobs_[writes_.front().first].submitted_at + options_.write_age_max_ns;
    if (overdue_at > now) wake = std::min(wake, overdue_at);
  }
  return std::max(wake, now);
}

}  // namespace foreload
