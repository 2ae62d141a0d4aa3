#include "prefetcher/core/session.h"

#include <algorithm>

#include "base/exp_log.h"

namespace foreload::core {
namespace {

// Phi by its logistic approximation, |error| < 0.01.
double Phi(double x) {
  return 1.0 / (1.0 + Exp(-1.702 * std::clamp(x, -40.0, 40.0)));
}

}  // namespace

double ExpectedReturnProbability(TimeNs now, DurationNs within, TimeNs at, DurationNs sigma) {
  const double scale = static_cast<double>(std::max<DurationNs>(sigma, 1));
  const double distance = static_cast<double>(now) - static_cast<double>(at);
  const double before = Phi(distance / scale);
  const double until = Phi((distance + static_cast<double>(within)) / scale);
  return before >= 1.0 ? 0.0 : std::clamp((until - before) / (1.0 - before), 0.0, 1.0);
}

std::uint32_t SessionTable::Arrived(TimeNs now, std::uint64_t key) {
  if (key == kNoSession) return kNone;
  std::uint32_t i = index_.Find(key);
  if (i == kNone) {
    if (sessions_.live() >= sessions_max_ && !ForgetOne()) return kNone;
    i = sessions_.Add();
    sessions_[i].key = key;
    index_.Insert(key, i);
    stats_.sessions = sessions_.live();
  }
  Session& session = sessions_[i];
  if (session.idle) {
    const std::uint32_t bin = ReturnBin(now - session.idle_since);
    // Bins that it has outlived since the last Advance.
    for (std::uint32_t b = session.bin + 1; b <= std::min(bin, kReturnBins - 1); ++b) {
      returns_.Entered(session.return_class, b);
    }
    returns_.Returned(session.return_class, std::max(bin, session.bin));
    LeaveIdle(i);
  }
  session.expect_sigma = 0;
  ++session.live_requests;
  ++session.turns;
  return i;
}

void SessionTable::Rename(std::uint32_t i, std::uint64_t key) {
  Session& session = sessions_[i];
  if (session.key == key || index_.Find(key) != kNone) return;  // another chain of the same end keeps its own
  index_.Erase(session.key);
  session.key = key;
  index_.Insert(key, i);
}

void SessionTable::Departed(TimeNs now, std::uint32_t i, std::uint16_t return_class) {
  Session& session = sessions_[i];
  if (--session.live_requests > 0) return;
  session.return_class = return_class;
  session.idle = true;
  session.idle_since = now;
  session.bin = 0;
  idle_[0].PushBack(sessions_, i);
  returns_.Entered(return_class, 0);
}

TimeNs SessionTable::NextCrossing() const {
  TimeNs next = kTimeNever;
  for (std::uint32_t bin = 0; bin < kReturnBins; ++bin) {
    if (!idle_[bin].empty()) next = std::min(next, sessions_[idle_[bin].front()].idle_since + ReturnBinEnd(bin));
  }
  return next;
}

double SessionTable::ReturnProbability(const Session& session, TimeNs now, DurationNs within) const {
  if (session.live_requests > 0) return 1.0;
  if (session.expect_sigma > 0) {
    // A hint that has not come true by four sigmas is no hint any more.
    if (now <= session.expect_at || now - session.expect_at < 4 * session.expect_sigma) {
      return ExpectedReturnProbability(now, within, session.expect_at, session.expect_sigma);
    }
  }
  return returns_.ReturnProbability(session.return_class, now - session.idle_since, within);
}

void SessionTable::LeaveIdle(std::uint32_t i) {
  Session& session = sessions_[i];
  idle_[session.bin].Remove(sessions_, i);
  session.idle = false;
}

bool SessionTable::ForgetOne() {
  for (std::uint32_t bin = kReturnBins + 1; bin > 0; --bin) {
    if (idle_[bin - 1].empty()) continue;
    const std::uint32_t i = idle_[bin - 1].front();
    LeaveIdle(i);
    index_.Erase(sessions_[i].key);
    sessions_.Remove(i);
    return true;
  }
  return false;
}

}  // namespace foreload::core
