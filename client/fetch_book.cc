#include "client/fetch_book.h"

#include <chrono>
#include <utility>

namespace foreload::client {

int FetchBook::Begin(std::uint64_t ticket, TimeNs now, TimeNs deadline, std::string* why) {
  const std::lock_guard lock(mutex_);
  ExpireAll(now);
  if (breaker_open_ && (now < open_until_ || probe_ != 0)) {
    *why = "the breaker is open: the sidecar did not answer a demand fetch in time";
    return FL_ESTATE;
  }
  if (tickets_.size() >= kFetchesMax) {
    *why = "too many demand fetches are outstanding: poll or wait for their tickets";
    return FL_ESTATE;
  }
  if (breaker_open_) probe_ = ticket;
  tickets_[ticket].deadline = deadline;
  return FL_OK;
}

void FetchBook::Abandon(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  tickets_.erase(ticket);
  if (probe_ == ticket) probe_ = 0;
}

int FetchBook::Answered(std::uint64_t ticket, TimeNs deadline, const fl_fetch_result& result, std::string* why) {
  const std::lock_guard lock(mutex_);
  if (tickets_.size() >= kFetchesMax) {
    *why = "too many fetches that nobody has polled to their end";
    return FL_ESTATE;
  }
  Ticket done;
  done.deadline = deadline;
  done.state = State::kDone;
  done.result = result;
  tickets_.emplace(ticket, std::move(done));
  return FL_OK;
}

void FetchBook::Complete(std::uint64_t ticket, const fl_fetch_result& result) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = tickets_.find(ticket);
    if (it == tickets_.end() || it->second.state != State::kWaiting) return;  // late: its time-out was counted
    if (it->second.counted_late) return;
    it->second.state = State::kDone;
    it->second.result = result;
    if (probe_ == ticket) {
      probe_ = 0;
      breaker_open_ = false;
    }
  }
  changed_.notify_all();
}

void FetchBook::Refuse(std::uint64_t ticket, std::string message) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = tickets_.find(ticket);
    if (it == tickets_.end() || it->second.state != State::kWaiting) return;
    it->second.state = State::kRefused;
    it->second.message = std::move(message);
    if (probe_ == ticket) {
      probe_ = 0;
      breaker_open_ = false;  // it answers
    }
  }
  changed_.notify_all();
}

void FetchBook::LoseAll() {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, ticket] : tickets_) {
      if (ticket.state == State::kWaiting && !ticket.counted_late) ticket.state = State::kLost;
    }
    probe_ = 0;
  }
  changed_.notify_all();
}

void FetchBook::ResetBreaker() {
  const std::lock_guard lock(mutex_);
  breaker_open_ = false;
  probe_ = 0;
}

void FetchBook::NoteTimeOut(std::uint64_t ticket, Ticket& entry, TimeNs now) {
  if (entry.counted_late) return;
  entry.counted_late = true;
  ++timed_out_;
  if (probe_ == ticket) probe_ = 0;
  if (!breaker_open_ || now >= open_until_) ++breaker_opened_;
  breaker_open_ = true;
  open_until_ = now + open_ns_;
}

void FetchBook::ExpireAll(TimeNs now) {
  for (auto& [id, ticket] : tickets_) {
    if (ticket.state == State::kWaiting && now >= ticket.deadline) NoteTimeOut(id, ticket, now);
  }
}

FetchBook::Outcome FetchBook::Take(std::uint64_t ticket, TimeNs now) {
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end()) return {.code = FL_EINVAL, .message = "no such fetch: unknown, or its end was reported"};
  Outcome outcome;
  switch (it->second.state) {
    case State::kDone:
      outcome.code = 1;
      outcome.result = it->second.result;
      break;
    case State::kRefused:
      outcome.code = FL_EREFUSED;
      outcome.message = std::move(it->second.message);
      break;
    case State::kLost:
      outcome.code = FL_EUNAVAIL;
      outcome.message = "the sidecar went away during the fetch";
      break;
    case State::kWaiting:
      if (now < it->second.deadline) return {};
      NoteTimeOut(ticket, it->second, now);
      outcome.code = FL_ETIMEDOUT;
      outcome.message = "the sidecar did not answer before the fetch's deadline";
      break;
  }
  tickets_.erase(it);
  return outcome;
}

FetchBook::Outcome FetchBook::Poll(std::uint64_t ticket, TimeNs now) {
  const std::lock_guard lock(mutex_);
  return Take(ticket, now);
}

FetchBook::Outcome FetchBook::Wait(std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
  for (;;) {
    Outcome outcome = Take(ticket, MonotonicNow());
    if (outcome.code != 0) return outcome;
    const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(tickets_[ticket].deadline)};
    changed_.wait_until(lock, until);
  }
}

bool FetchBook::Known(std::uint64_t ticket) const {
  const std::lock_guard lock(mutex_);
  return tickets_.contains(ticket);
}

std::uint64_t FetchBook::timed_out() const {
  const std::lock_guard lock(mutex_);
  return timed_out_;
}

std::uint64_t FetchBook::breaker_opened() const {
  const std::lock_guard lock(mutex_);
  return breaker_opened_;
}

}  // namespace foreload::client
