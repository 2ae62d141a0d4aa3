#include "transport/mover.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "transport/metrics.h"
#include "transport/mover_queue.h"

namespace foreload {
namespace {

constexpr std::size_t kBatch = 64;  // transfers and completions per turn
constexpr int kEmptyPollsMax = 16;  // before a backend without poll_fd gets a short rest
constexpr DurationNs kShortRestNs = 50 * kMicrosecond;
constexpr DurationNs kRestMaxNs = 10 * kMillisecond;    // while anything is queued or outstanding
constexpr std::size_t kThreadNameMax = 15;              // Linux
constexpr unsigned long kThrottledTimerSlackNs = 1000;  // the default 50 us would show in a throttled link's rate

struct Request {
  enum class Kind : std::uint8_t { kSubmit, kPromote, kCancel };
  Kind kind = Kind::kSubmit;
  MoveJob job;  // kSubmit; else its id and deadline alone
  TimeNs at = 0;
};

}  // namespace

struct Mover::Impl {
  Impl(Backend& backend_in, const Clock& clock_in, MoverOptions options_in, Sink sink_in)
      : backend(backend_in),
        clock(clock_in),
        options(std::move(options_in)),
        sink(std::move(sink_in)),
        capabilities(backend.capabilities()),
        queue(options, capabilities.queue_depth, capabilities.transfer_bytes_max),
        event_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    FORELOAD_CHECK(event_fd >= 0, "out of file descriptors: raise LimitNOFILE=");
  }
  ~Impl() { ::close(event_fd); }

  void Post(Request request);
  void Wake();
  void Run();
  bool TakeInbox();
  std::size_t SubmitWork();
  std::size_t PollBackend();
  void DeliverEnded();
  void PublishGauges();
  void Rest(std::size_t refused);
  DurationNs RestTime(std::size_t refused);

  Backend& backend;
  const Clock& clock;
  const MoverOptions options;
  const Sink sink;
  const Capabilities capabilities;

  // The mover's thread alone.
  MoverQueue queue;
  std::vector<Request> taken;
  int empty_polls = 0;
  bool was_told_to_stop = false;

  // Shared.
  const int event_fd;
  std::mutex mutex;  // inbox, sleeping, stopping
  std::vector<Request> inbox;
  bool sleeping = false;
  bool stopping = false;
  std::atomic<bool> has_mail{false};  // inbox or stopping changed; saves a lock per turn
  std::array<std::atomic<std::size_t>, kMoveClassCount> live_jobs{};  // by class at submission
  struct ClassCounters {
    std::array<std::atomic<std::uint64_t>, kMoveOutcomeCount> jobs{};
    std::atomic<std::uint64_t> bytes{0};
  };
  std::array<ClassCounters, kMoveClassCount> counted;
  std::atomic<std::uint64_t> inflight_bytes{0};
  std::atomic<std::uint64_t> queued_jobs{0};
  std::atomic<std::uint64_t> outstanding{0};
  std::atomic<std::uint64_t> completions{0};

  std::thread thread;
};

void Mover::Impl::Post(Request request) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex);
    inbox.push_back(std::move(request));
    has_mail.store(true, std::memory_order_release);
    wake = std::exchange(sleeping, false);
  }
  if (wake) Wake();
}

void Mover::Impl::Wake() {
  const std::uint64_t value = 1;
  FORELOAD_CHECK(::write(event_fd, &value, sizeof value) == static_cast<ssize_t>(sizeof value), "the eventfd is ours");
}

void Mover::Impl::Run() {
  if (options.throttle_bytes_per_second > 0) ::prctl(PR_SET_TIMERSLACK, kThrottledTimerSlackNs);
  while (true) {
    const bool stop = TakeInbox();
    const TimeNs now = clock.Now();
    if (stop && !was_told_to_stop) {
      was_told_to_stop = true;
      queue.Stop(now);
    }
    queue.Advance(now);
    const std::size_t refused = SubmitWork();
    const std::size_t polled = PollBackend();
    DeliverEnded();
    if (stop && queue.idle()) break;
    if (polled > 0) continue;
    Rest(refused);
  }
  PublishGauges();
}

// True when told to stop. What arrives after that is cancelled by the queue.
bool Mover::Impl::TakeInbox() {
  if (!has_mail.load(std::memory_order_acquire)) return was_told_to_stop;
  bool stop = false;
  {
    const std::lock_guard lock(mutex);
    taken.swap(inbox);
    has_mail.store(false, std::memory_order_relaxed);
    sleeping = false;
    stop = stopping;
  }
  const TimeNs now = clock.Now();
  for (Request& request : taken) {
    switch (request.kind) {
      case Request::Kind::kSubmit: queue.Push(std::move(request.job), request.at, now); break;
      case Request::Kind::kPromote: queue.Promote(request.job.id, request.job.deadline, now); break;
      case Request::Kind::kCancel: queue.Cancel(request.job.id, now); break;
    }
  }
  taken.clear();
  return stop;
}

// Returns how many transfers the backend refused.
std::size_t Mover::Impl::SubmitWork() {
  std::array<Transfer, kBatch> batch;
  const std::size_t count = queue.Next(clock.Now(), batch);
  if (count == 0) return 0;
  const std::size_t accepted = backend.Submit({batch.data(), count});
  if (accepted < count) queue.TakeBack(std::span(batch).subspan(accepted, count - accepted));
  return count - accepted;
}

std::size_t Mover::Impl::PollBackend() {
  if (queue.outstanding() == 0) return 0;
  std::array<Completion, kBatch> batch;
  const std::size_t count = backend.Poll(batch);
  if (count == 0) return 0;
  const TimeNs now = clock.Now();
  for (std::size_t i = 0; i < count; ++i) queue.Complete(batch[i], now);
  completions.fetch_add(count, std::memory_order_relaxed);
  return count;
}

void Mover::Impl::DeliverEnded() {
  if (queue.ended().empty()) return;
  for (const EndedJob& ended : queue.ended()) {
    ClassCounters& cells = counted[Index(ended.move_class)];
    cells.jobs[static_cast<std::size_t>(ended.result.outcome)].fetch_add(1, std::memory_order_relaxed);
    cells.bytes.fetch_add(ended.result.bytes, std::memory_order_relaxed);
    live_jobs[Index(ended.submitted_as)].fetch_sub(1, std::memory_order_relaxed);
    if (options.metrics != nullptr) options.metrics->Observe(ended);
  }
  PublishGauges();
  for (const EndedJob& ended : queue.ended()) sink(ended.result);
  queue.ended().clear();
}

void Mover::Impl::PublishGauges() {
  inflight_bytes.store(queue.inflight_bytes(), std::memory_order_relaxed);
  queued_jobs.store(queue.queued_jobs(), std::memory_order_relaxed);
  outstanding.store(queue.outstanding(), std::memory_order_relaxed);
  if (options.metrics == nullptr) return;
  options.metrics->queued_jobs->Set(static_cast<double>(queue.queued_jobs()));
  options.metrics->inflight_bytes->Set(static_cast<double>(queue.inflight_bytes()));
  options.metrics->link_bytes_per_second->Set(queue.link_bytes_per_second());
}

// How long nothing can happen without a descriptor saying so; kTimeNever: for ever, 0: go on at once.
DurationNs Mover::Impl::RestTime(std::size_t refused) {
  if (queue.idle()) return kTimeNever;
  if (queue.outstanding() > 0 && capabilities.poll_fd < 0) {
    if (++empty_polls < kEmptyPollsMax) return 0;
    return kShortRestNs;
  }
  if (refused > 0 && queue.outstanding() == 0) return kShortRestNs;
  const TimeNs now = clock.Now();
  const TimeNs wake = queue.WakeAt(now);
  return wake == kTimeNever ? kRestMaxNs : std::clamp<DurationNs>(wake - now, 0, kRestMaxNs);
}

void Mover::Impl::Rest(std::size_t refused) {
  const DurationNs rest = RestTime(refused);
  if (rest == 0) return;
  PublishGauges();
  {
    const std::lock_guard lock(mutex);
    if (has_mail.load(std::memory_order_relaxed)) return;
    sleeping = true;
  }
  std::array<pollfd, 2> fds{
      {{.fd = event_fd, .events = POLLIN, .revents = 0}, {.fd = capabilities.poll_fd, .events = POLLIN, .revents = 0}}};
  const bool watch_backend = queue.outstanding() > 0 && capabilities.poll_fd >= 0;
  const timespec timeout{.tv_sec = rest / kSecond, .tv_nsec = rest % kSecond};
  ::ppoll(fds.data(), watch_backend ? 2 : 1, rest == kTimeNever ? nullptr : &timeout, nullptr);
  empty_polls = 0;
  {
    const std::lock_guard lock(mutex);
    sleeping = false;
  }
  std::uint64_t value = 0;
  if ((fds[0].revents & POLLIN) != 0 && ::read(event_fd, &value, sizeof value) < 0)
    FORELOAD_CHECK(errno == EAGAIN, "the eventfd is ours");
}

Mover::Mover(Backend& backend, const Clock& clock, MoverOptions options, Sink sink)
    : impl_(std::make_unique<Impl>(backend, clock, std::move(options), std::move(sink))) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
  const std::string name = impl_->options.name.substr(0, kThreadNameMax);
  if (!name.empty()) ::pthread_setname_np(impl_->thread.native_handle(), name.c_str());
}

Mover::~Mover() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    impl_->has_mail.store(true, std::memory_order_release);
  }
  impl_->Wake();
  impl_->thread.join();
}

Status Mover::Submit(MoveJob job) {
  if (!job.id.valid()) return InvalidArgument("a job needs an id");
  if (job.parts.empty()) return InvalidArgument("a job needs parts");
  for (const MovePart& part : job.parts) {
    if (part.bytes == 0) return InvalidArgument("a part needs at least one byte");
  }
  std::atomic<std::size_t>& live = impl_->live_jobs[Index(job.move_class)];
  if (live.fetch_add(1, std::memory_order_relaxed) >= impl_->options.queue_jobs_max) {
    live.fetch_sub(1, std::memory_order_relaxed);
    return ResourceExhausted("mover " + impl_->options.name + ": its " + std::string(MoveClassName(job.move_class)) +
                             " queue is full");
  }
  impl_->Post({.kind = Request::Kind::kSubmit, .job = std::move(job), .at = impl_->clock.Now()});
  return OkStatus();
}

void Mover::Promote(TransferId id, TimeNs deadline) {
  MoveJob job;
  job.id = id;
  job.deadline = deadline;
  impl_->Post({.kind = Request::Kind::kPromote, .job = std::move(job)});
}

void Mover::Cancel(TransferId id) {
  MoveJob job;
  job.id = id;
  impl_->Post({.kind = Request::Kind::kCancel, .job = std::move(job)});
}

Mover::Counters Mover::counters() const {
  Counters out{};
  const auto load = [](const std::atomic<std::uint64_t>& cell) { return cell.load(std::memory_order_relaxed); };
  using Outcome = MoveResult::Outcome;
  for (std::size_t c = 0; c < kMoveClassCount; ++c) {
    const auto& jobs = impl_->counted[c].jobs;
    out.jobs_ok[c] = load(jobs[static_cast<std::size_t>(Outcome::kOk)]);
    out.jobs_failed[c] = load(jobs[static_cast<std::size_t>(Outcome::kFailed)]);
    out.jobs_cancelled[c] = load(jobs[static_cast<std::size_t>(Outcome::kCancelled)]);
    out.jobs_timeout[c] = load(jobs[static_cast<std::size_t>(Outcome::kTimeout)]);
    out.bytes[c] = load(impl_->counted[c].bytes);
  }
  out.inflight_bytes = load(impl_->inflight_bytes);
  out.queued_jobs = load(impl_->queued_jobs);
  out.outstanding = load(impl_->outstanding);
  out.completions = load(impl_->completions);
  return out;
}

}  // namespace foreload
