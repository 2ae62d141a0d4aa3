// Sessions between their requests: who is idle since when, and which chain it will come back to.
//
// A session with an id is that id's; a request without one continues the anonymous session whose chain it extends (the
// key is then the chain's last block). Idle sessions stand in one list per bin of idle time, in the order in which they
// became idle, so that leaving a bin is always at a list's head.
//
// Limit: sessions_max; beyond it the one that has been idle longest is forgotten, and where none is idle the new one is
// not tracked.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/ids.h"
#include "prefetcher/core/containers.h"
#include "prefetcher/core/return_model.h"
#include "prefetcher/core/stats.h"

namespace foreload::core {

inline constexpr std::uint64_t kNoSession = UINT64_MAX;
inline constexpr std::uint64_t SessionKey(SessionId id) {
  return id.valid() ? id.value : kNoSession;
}
inline constexpr std::uint64_t AnonymousKey(BlockId leaf) {
  return (std::uint64_t{1} << 32) | leaf.value;
}

// Whether the session belongs to the permanent hold-out: by a hash of its id, so that a conversation is wholly in or
// out. Never without an id.
inline bool HeldOut(std::uint64_t key, double fraction) {
  const std::uint64_t hash = (key + 1) * 0x9E3779B97F4A7C15ull;
  return key < AnonymousKey(BlockId{0}) && static_cast<double>(hash >> 11) * 0x1.0p-53 < fraction;
}

struct Session {
  std::uint64_t key = kNoSession;
  std::uint32_t live_requests = 0;
  std::uint32_t turns = 0;
  std::uint32_t bin = 0;  // list that it stands in while idle; kReturnBins: beyond the last edge
  std::uint16_t return_class = 0;
  bool idle = false;
  TimeNs idle_since = 0;
  BlockId leaf;                 // last block of its chain
  EngineId engine;              // where it ran last
  TimeNs expect_at = 0;         // hint: back at this time ...
  DurationNs expect_sigma = 0;  // ... give or take; 0: no such hint
  ListLink link;

  void Clear() { *this = Session{}; }
};

class SessionTable {
 public:
  SessionTable(std::uint32_t sessions_max, CoreStats& stats) : sessions_max_(sessions_max), stats_(stats) {}

  std::uint32_t Find(std::uint64_t key) const { return key == kNoSession ? kNone : index_.Find(key); }
  Session& operator[](std::uint32_t i) { return sessions_[i]; }
  const Session& operator[](std::uint32_t i) const { return sessions_[i]; }

  // A request of this session has arrived: its return is learned. kNone when it cannot be tracked.
  std::uint32_t Arrived(TimeNs now, std::uint64_t key);
  // An anonymous session goes on under a new key when its chain has grown.
  void Rename(std::uint32_t session, std::uint64_t key);
  // A request of it has ended; after the last one it is idle in this class.
  void Departed(TimeNs now, std::uint32_t session, std::uint16_t return_class);

  // Moves at most `limit` sessions whose bin has ended to the next one; `moved(session)` sees each. True when more
  // wait.
  template <typename F>
  bool Advance(TimeNs now, std::uint32_t limit, F&& moved);
  // When the next one leaves its bin.
  TimeNs NextCrossing() const;

  // Narrow distribution of a hinted return, or the learned one.
  double ReturnProbability(const Session& session, TimeNs now, DurationNs within) const;
  const ReturnModel& returns() const { return returns_; }
  std::uint32_t size() const { return sessions_.live(); }

 private:
  void LeaveIdle(std::uint32_t i);
  bool ForgetOne();

  const std::uint32_t sessions_max_;
  CoreStats& stats_;
  ReturnModel returns_;
  Slab<Session> sessions_;
  FlatMap index_;
  std::array<IndexList<&Session::link>, kReturnBins + 1> idle_;
};

// P(back in (now, now + within] | not back by now) of a normal distribution around `at` (6.7: expect replaces S_c).
double ExpectedReturnProbability(TimeNs now, DurationNs within, TimeNs at, DurationNs sigma);

template <typename F>
bool SessionTable::Advance(TimeNs now, std::uint32_t limit, F&& moved) {
  // Old bins first, so that one call moves a session by one bin at most.
  for (std::uint32_t bin = kReturnBins; bin > 0; --bin) {
    auto& list = idle_[bin - 1];
    while (!list.empty() && now - sessions_[list.front()].idle_since >= ReturnBinEnd(bin - 1)) {
      if (limit-- == 0) return true;
      const std::uint32_t i = list.front();
      list.Remove(sessions_, i);
      sessions_[i].bin = bin;
      idle_[bin].PushBack(sessions_, i);
      returns_.Entered(sessions_[i].return_class, bin);
      moved(i);
    }
  }
  return false;
}

}  // namespace foreload::core
