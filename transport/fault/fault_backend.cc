#include "transport/fault/fault_backend.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace foreload {

FaultBackend::FaultBackend(std::unique_ptr<Backend> inner, FaultOptions options)
    : inner_(std::move(inner)), options_(options), rng_(options.seed) {
  const int inner_fd = inner_->capabilities().poll_fd;
  if (inner_fd < 0) return;
  epoll_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  event_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  FORELOAD_CHECK(epoll_fd_ >= 0 && event_fd_ >= 0, "out of file descriptors");
  for (const int fd : {inner_fd, event_fd_}) {
    epoll_event event{};
    event.events = EPOLLIN;
    FORELOAD_CHECK(::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0, "a poll_fd must be pollable");
  }
}

FaultBackend::~FaultBackend() {
  FORELOAD_CHECK(free_flights_.size() == flights_.size(), "poll until nothing is outstanding before destroying");
  if (epoll_fd_ >= 0) ::close(epoll_fd_);
  if (event_fd_ >= 0) ::close(event_fd_);
}

Capabilities FaultBackend::capabilities() const {
  Capabilities capabilities = inner_->capabilities();
  capabilities.name = "fault(" + capabilities.name + ")";
  if (epoll_fd_ >= 0) capabilities.poll_fd = epoll_fd_;
  return capabilities;
}

Status FaultBackend::Unregister(RegionId region) {
  {
    const std::lock_guard lock(mutex_);
    for (const Flight& flight : flights_) {
      if (flight.live && (flight.transfer.source == region || flight.transfer.destination == region))
        return FailedPrecondition("transfers of the region are outstanding");
    }
  }
  return inner_->Unregister(region);
}

std::size_t FaultBackend::Submit(std::span<const Transfer> transfers) {
  const std::lock_guard lock(mutex_);
  if (refuse_submits_ > 0) {
    --refuse_submits_;
    return 0;
  }
  if (rng_.Uniform() < options_.refuse_probability) return 0;
  const std::size_t depth = inner_->capabilities().queue_depth;
  std::size_t accepted = 0;
  for (; accepted < transfers.size() && flights_.size() - free_flights_.size() < depth; ++accepted) {
    if (free_flights_.empty()) {
      free_flights_.push_back(flights_.size());
      flights_.emplace_back();
    }
    const std::size_t index = free_flights_.back();
    Flight& flight = flights_[index];
    flight = {};
    flight.transfer = transfers[accepted];
    flight.token = flight.transfer.token;
    flight.asked = flight.transfer.bytes;
    Decide(flight);

    Transfer inner = flight.transfer;
    inner.token = index;
    if (flight.fate == Fate::kShorten) inner.bytes -= inner.bytes > options_.granule ? options_.granule : 0;
    if (flight.fate == Fate::kFailAtOnce) {
      held_.push_back({.completion = {.token = index}, .flight = index, .polls_left = flight.delay_polls});
    } else if (inner_->Submit({&inner, 1}) == 0) {
      break;
    }
    flight.live = true;
    free_flights_.pop_back();
  }
  SignalHeld();
  return accepted;
}

void FaultBackend::Decide(Flight& flight) {
  if (!scripts_.empty()) {
    const Script script = scripts_.front();
    scripts_.pop_front();
    flight.fate = script.fate;
    flight.error = script.error;
    flight.errnum = script.errnum;
    flight.delay_polls = script.delay_polls;
    return;
  }
  if (rng_.Uniform() < options_.fail_probability) {
    flight.fate = rng_.Uniform() < options_.fail_after_moving ? Fate::kFailAfterMoving : Fate::kFailAtOnce;
    flight.error = TransferError::kIo;
    flight.errnum = EIO;
  } else if (rng_.Uniform() < options_.short_probability && flight.asked > options_.granule) {
    flight.fate = Fate::kShorten;
  }
  if (rng_.Uniform() < options_.delay_probability)
    flight.delay_polls = 1 + static_cast<std::uint32_t>(rng_.Below(options_.delay_polls_max));
}

Completion FaultBackend::Outcome(const Flight& flight, const Completion& inner) const {
  Completion outcome = inner;
  outcome.token = flight.token;
  if (inner.error != TransferError::kNone) return outcome;
  if (flight.fate == Fate::kFailAtOnce || flight.fate == Fate::kFailAfterMoving) {
    outcome.bytes = 0;
    outcome.error = flight.error;
    outcome.errnum = flight.errnum;
  } else if (outcome.bytes < flight.asked) {
    outcome.error = TransferError::kShort;
  }
  return outcome;
}

void FaultBackend::CollectInner() {
  std::array<Completion, 64> buffer;
  const std::size_t count = inner_->Poll(buffer);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t index = buffer[i].token;
    held_.push_back({.completion = buffer[i], .flight = index, .polls_left = flights_[index].delay_polls});
  }
}

std::size_t FaultBackend::Poll(std::span<Completion> completions) {
  const std::lock_guard lock(mutex_);
  CollectInner();
  if (options_.reorder) {
    for (std::size_t i = held_.size(); i > 1; --i) std::swap(held_[i - 1], held_[rng_.Below(i)]);
  }
  std::size_t count = 0;
  std::size_t kept = 0;
  for (Held& held : held_) {
    if (hold_ || held.polls_left > 0 || count == completions.size()) {
      held.polls_left -= held.polls_left > 0 && !hold_ ? 1 : 0;
      held_[kept++] = held;
      continue;
    }
    completions[count++] = Outcome(flights_[held.flight], held.completion);
    flights_[held.flight].live = false;
    free_flights_.push_back(held.flight);
  }
  held_.resize(kept);
  SignalHeld();
  return count;
}

// Level-triggered: readable exactly while something is held that another Poll can let go.
void FaultBackend::SignalHeld() {
  if (event_fd_ < 0) return;
  const bool wanted = !held_.empty() && !hold_;
  if (wanted == signalled_) return;
  std::uint64_t value = 1;
  const ssize_t done = wanted ? ::write(event_fd_, &value, sizeof value) : ::read(event_fd_, &value, sizeof value);
  FORELOAD_CHECK(done == static_cast<ssize_t>(sizeof value), "an eventfd takes and gives eight bytes");
  signalled_ = wanted;
}

void FaultBackend::FailNext(TransferError error, int errnum, std::uint32_t count) {
  const std::lock_guard lock(mutex_);
  scripts_.insert(scripts_.end(), count, {.fate = Fate::kFailAtOnce, .error = error, .errnum = errnum});
}

void FaultBackend::ShortenNext(std::uint32_t count) {
  const std::lock_guard lock(mutex_);
  scripts_.insert(scripts_.end(), count, {.fate = Fate::kShorten});
}

void FaultBackend::DelayNext(std::uint32_t polls, std::uint32_t count) {
  const std::lock_guard lock(mutex_);
  scripts_.insert(scripts_.end(), count, {.fate = Fate::kPass, .delay_polls = polls});
}

void FaultBackend::RefuseNextSubmits(std::uint32_t count) {
  const std::lock_guard lock(mutex_);
  refuse_submits_ += count;
}

void FaultBackend::Hold() {
  const std::lock_guard lock(mutex_);
  hold_ = true;
  SignalHeld();
}

void FaultBackend::Release() {
  const std::lock_guard lock(mutex_);
  hold_ = false;
  SignalHeld();
}

}  // namespace foreload
