// A link model on a clock: transfers queue for one link of a given bandwidth, each pays a latency after its last byte,
// and nothing else happens. Bytes are really moved, at the moment of completion, when both regions have memory (or a
// file) behind them; a memory region without a base is only modelled.
//
// Deterministic: the same submissions at the same times give the same completions at the same times. poll_fd is -1.
#pragma once

#include <cstdint>
#include <deque>

#include "base/clock.h"
#include "transport/backend.h"
#include "transport/region_table.h"

namespace foreload {

struct SimBackendOptions {
  double bytes_per_second = 10e9;
  DurationNs latency_ns = 10 * kMicrosecond;
  std::uint32_t queue_depth = 64;
};

class SimBackend final : public Backend {
 public:
  // `clock` outlives the backend.
  SimBackend(const Clock& clock, SimBackendOptions options);
  ~SimBackend() override;

  Status Probe() override { return OkStatus(); }
  Capabilities capabilities() const override;
  Result<RegionId> Register(const Region& region) override { return regions_.Add(region); }
  Status Unregister(RegionId region) override;
  std::size_t Submit(std::span<const Transfer> transfers) override;
  std::size_t Poll(std::span<Completion> completions) override;

  // When Poll will have something to return; kTimeNever when nothing is outstanding.
  TimeNs next_completion_at() const { return flights_.empty() ? kTimeNever : flights_.front().done_at; }

 private:
  struct Flight {
    Transfer transfer;
    TransferEnd source;
    TransferEnd destination;
    TimeNs done_at = 0;
    bool refused = false;
  };

  const Clock& clock_;
  const SimBackendOptions options_;
  RegionTable regions_;
  std::deque<Flight> flights_;  // done_at never decreases: one link, one latency
  TimeNs link_free_at_ = 0;
};

}  // namespace foreload
