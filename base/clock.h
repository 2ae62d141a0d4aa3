// Time as a plain signed count of nanoseconds. Leases, deadlines and decisions use the monotonic clock; the wall clock
// appears in logs and file names only. The core never reads a clock: `now` comes in as an argument.
#pragma once

#include <cstdint>

namespace foreload {

using TimeNs = std::int64_t;  // point on the monotonic clock (or on a simulated one)
using DurationNs = std::int64_t;

inline constexpr DurationNs kMicrosecond = 1'000;
inline constexpr DurationNs kMillisecond = 1'000'000;
inline constexpr DurationNs kSecond = 1'000'000'000;
inline constexpr TimeNs kTimeNever = INT64_MAX;

// CLOCK_MONOTONIC.
TimeNs MonotonicNow();

// CLOCK_REALTIME, for logs and names.
TimeNs WallNow();

// A source of `now` for objects that need one: the real clock, or one that a test or simulation moves.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimeNs Now() const = 0;
};

class MonotonicClock final : public Clock {
 public:
  TimeNs Now() const override { return MonotonicNow(); }
};

class ManualClock final : public Clock {
 public:
  TimeNs Now() const override { return now_; }
  void Set(TimeNs now) { now_ = now; }
  void Advance(DurationNs by) { now_ += by; }

 private:
  TimeNs now_ = 0;
};

}  // namespace foreload
