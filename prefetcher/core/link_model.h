// What a link can do, learned from completions, and when work on it would end.
//
// Bandwidth is the larger of two moving averages, each of which alone is too low in one situation: bytes per service
// time of a transfer (too low when many share the link), and bytes per busy time of the link (too low when single
// transfers leave gaps). Latency is what a transfer that had the link for itself took beyond its bytes.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "prefetcher/core/config.h"

namespace foreload::core {

class LinkModel {
 public:
  void Configure(const LinkConfig& config);

  // A load of `bytes` was handed out, or has ended. `now` never goes back. True when the link was idle.
  bool Issued(TimeNs now, std::uint64_t bytes, bool speculative);
  void Ended(TimeNs now, std::uint64_t bytes, bool speculative);
  // An issued load became demand.
  void Promoted(std::uint64_t bytes);
  // A transfer moved `bytes` in `service_ns`; call before its Ended. `predicted` is when it had been expected to end,
  // `alone` what its Issued said.
  struct Sample {
    std::uint64_t bytes = 0;
    DurationNs service_ns = 0;
    TimeNs predicted = 0;
    bool alone = false;
  };
  void Learn(TimeNs now, const Sample& sample);

  // Ages the averages; called once a step.
  void Tick(TimeNs now);

  // T_m = lat_m + (queue ahead + b) / BW_m (prediction.md 6.5).
  TimeNs Finish(TimeNs now, std::uint64_t bytes) const;
  // The same on an idle link.
  double Seconds(std::uint64_t bytes) const;
  // P_on = Phi((D - now - E[T]) / sigma) (6.5), Phi by its logistic approximation.
  double OnTime(TimeNs finish, TimeNs deadline) const;
  // EDF test of 6.5: what is outstanding and these bytes by the deadline, within eta of the bandwidth.
  bool Feasible(TimeNs now, std::uint64_t bytes, TimeNs deadline, double utilisation_max) const;
  // kappa(u) = u / (1 - u) / BW: delay that a wasted byte inflicts on demand (6.5). Seconds per byte.
  double WastePrice() const;
  // Shadow price mu of the link (6.5): grows while utilisation is above eta, falls to 0 below. Seconds per byte.
  double shadow_price() const { return shadow_price_; }

  bool PrefetchRoom(std::uint64_t bytes) const {
    return speculative_bytes_ == 0 || speculative_bytes_ + bytes <= inflight_bytes_max_;
  }
  std::uint64_t outstanding_bytes() const { return outstanding_bytes_; }
  std::uint64_t speculative_bytes() const { return speculative_bytes_; }
  double bytes_per_second() const { return bytes_per_second_; }
  DurationNs latency_ns() const { return static_cast<DurationNs>(latency_ns_); }
  double utilisation() const { return utilisation_; }

 private:
  void CloseBusyWindow(TimeNs now);

  double bytes_per_second_ = 1e9;
  double per_transfer_rate_ = 0;  // 0: nothing learned yet
  double busy_rate_ = 0;
  double latency_ns_ = 0;
  double error_ns_ = 1e6;  // mean absolute error of predicted ends
  double utilisation_ = 0;
  double shadow_price_ = 0;
  std::uint64_t inflight_bytes_max_ = 0;
  std::uint64_t outstanding_bytes_ = 0;
  std::uint64_t speculative_bytes_ = 0;
  std::uint64_t outstanding_ = 0;
  TimeNs busy_since_ = 0;         // while outstanding_ > 0
  std::uint64_t busy_bytes_ = 0;  // ended since then
  TimeNs window_start_ = 0;
  DurationNs window_busy_ns_ = 0;
};

}  // namespace foreload::core
