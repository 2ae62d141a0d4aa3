// The core's plain counts as metrics, and what the movers and stores add: one table of names for what the sidecar
// decided and moved. Published by the core thread after its steps.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/metric.h"
#include "prefetcher/core/stats.h"

namespace foreload::service {

// Copies a monotonic integer that somebody else counts into a counter.
class CounterMirror {
 public:
  explicit CounterMirror(Counter& counter) : counter_(&counter) {}
  void Publish(std::uint64_t value) {
    if (value > last_) counter_->Add(value - last_);
    last_ = value;
  }

 private:
  Counter* counter_;
  std::uint64_t last_ = 0;
};

const char* OutcomeName(core::Outcome outcome);
const char* SuppressReasonName(core::SuppressReason reason);
const char* IgnoredReasonName(core::IgnoredReason reason);
const char* StoreRefusalName(core::StoreRefusal reason);
const char* TierName(core::Tier tier);
const char* LinkName(core::Link link);

class CoreMetrics {
 public:
  explicit CoreMetrics(MetricRegistry& registry);

  void Publish(const core::CoreStats& stats);

 private:
  struct Ledger {
    CounterMirror issued, issued_bytes;
    std::array<CounterMirror, core::kOutcomeCount> ended;
    std::array<CounterMirror, core::kOutcomeCount> ended_bytes;
    Gauge* live;
  };
  struct Mirrored {
    std::uint64_t core::CoreStats::*field;
    CounterMirror mirror;
  };
  struct Gauged {
    std::uint64_t core::CoreStats::*field;
    Gauge* gauge;
  };

  std::vector<std::pair<core::Tier, Ledger>> ledgers_;
  std::vector<CounterMirror> suppressed_;
  std::vector<CounterMirror> ignored_;
  std::vector<CounterMirror> store_refused_;
  std::vector<Mirrored> counters_;
  std::vector<Gauged> gauges_;
  std::array<Gauge*, core::kLinkCount> link_bandwidth_{};
  std::array<Gauge*, core::kLinkCount> link_latency_{};
  Gauge* lead_seconds_;
};

}  // namespace foreload::service
