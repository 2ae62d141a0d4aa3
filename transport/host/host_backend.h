// Copies between regions of host memory. All work is done inside Poll (poll_fd is -1), on the caller's thread and in
// bounded slices: the mover decides which core pays, and demand that arrives meanwhile waits for one slice at most.
//
// Transfers are performed in order of submission. Source and destination must not overlap (kBadRegion).
#pragma once

#include <cstdint>
#include <vector>

#include "transport/backend.h"
#include "transport/region_table.h"

namespace foreload {

struct HostBackendOptions {
  // Small on purpose: depth buys nothing where the caller does the work, and what is queued here delays demand.
  std::uint32_t queue_depth = 8;
  std::uint64_t slice_bytes = 1 << 20;  // copied by one Poll at most
};

class HostBackend final : public Backend {
 public:
  explicit HostBackend(HostBackendOptions options = {});
  ~HostBackend() override;

  Status Probe() override { return OkStatus(); }
  Capabilities capabilities() const override;
  Result<RegionId> Register(const Region& region) override;
  Status Unregister(RegionId region) override;
  std::size_t Submit(std::span<const Transfer> transfers) override;
  std::size_t Poll(std::span<Completion> completions) override;

 private:
  struct Job {
    Transfer transfer;
    const std::uint8_t* source = nullptr;
    std::uint8_t* destination = nullptr;
    std::uint64_t done = 0;
    bool refused = false;
  };

  const HostBackendOptions options_;
  RegionTable regions_;
  std::vector<Job> ring_;  // queue_depth entries
  std::size_t head_ = 0;   // oldest
  std::size_t outstanding_ = 0;
};

}  // namespace foreload
