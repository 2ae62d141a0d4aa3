// Demand fetches on their way, and the breaker that keeps an engine from waiting for a sidecar that does not answer.
//
// Closed: fetches go out. One that times out opens it: fetches fail at once for `open_ns`. Then half-open: one fetch
// goes out as a probe; its answer closes the breaker, its time-out opens it again. Any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "client/foreload.h"

namespace foreload::client {

class FetchBook {
 public:
  static constexpr std::size_t kFetchesMax = 4096;  // tickets that nobody has polled to their end

  struct Outcome {
    int code = FL_OK;  // 1: done; 0: not yet; else an fl_code, ticket gone
    fl_fetch_result result{};
    std::string message;
  };

  explicit FetchBook(DurationNs open_ns) : open_ns_(open_ns) {}

  // FL_OK, or FL_ESTATE with the reason: breaker open, or too many tickets.
  int Begin(std::uint64_t ticket, TimeNs now, TimeNs deadline, std::string* why);
  // A fetch whose answer is known without asking: done at once, whatever the breaker. FL_ESTATE: too many tickets.
  int Answered(std::uint64_t ticket, TimeNs deadline, const fl_fetch_result& result, std::string* why);
  // The request could not be sent.
  void Abandon(std::uint64_t ticket);
  void Complete(std::uint64_t ticket, const fl_fetch_result& result);
  void Refuse(std::uint64_t ticket, std::string message);
  // The connection ended: no answer will come for any of them.
  void LoseAll();
  // A fresh connection: the breaker's reason is gone.
  void ResetBreaker();

  Outcome Poll(std::uint64_t ticket, TimeNs now);
  // Waits until done, or the ticket's deadline.
  Outcome Wait(std::uint64_t ticket);

  bool Known(std::uint64_t ticket) const;
  std::uint64_t timed_out() const;
  std::uint64_t breaker_opened() const;

 private:
  enum class State : unsigned char { kWaiting, kDone, kRefused, kLost };
  struct Ticket {
    TimeNs deadline = 0;
    State state = State::kWaiting;
    bool counted_late = false;
    fl_fetch_result result{};
    std::string message;
  };

  Outcome Take(std::uint64_t ticket, TimeNs now);
  void NoteTimeOut(std::uint64_t ticket, Ticket& entry, TimeNs now);
  void ExpireAll(TimeNs now);

  const DurationNs open_ns_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<std::uint64_t, Ticket> tickets_;
  bool breaker_open_ = false;
  TimeNs open_until_ = 0;
  std::uint64_t probe_ = 0;  // ticket of the half-open probe; 0: none
  std::uint64_t timed_out_ = 0;
  std::uint64_t breaker_opened_ = 0;
};

}  // namespace foreload::client
