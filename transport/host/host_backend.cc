#include "transport/host/host_backend.h"

#include <algorithm>

#include "base/check.h"
#include "transport/host/stream_copy.h"

namespace foreload {

HostBackend::HostBackend(HostBackendOptions options)
    : options_(options), regions_({.memory_to_memory = true}), ring_(options.queue_depth) {
  FORELOAD_CHECK(options.queue_depth > 0 && options.slice_bytes > 0, "a queue and a slice need a size");
}

HostBackend::~HostBackend() {
  FORELOAD_CHECK(outstanding_ == 0, "poll until nothing is outstanding before destroying");
}

Capabilities HostBackend::capabilities() const {
  Capabilities capabilities;
  capabilities.name = "host";
  capabilities.memory_to_memory = true;
  capabilities.queue_depth = options_.queue_depth;
  capabilities.transfer_bytes_max = UINT64_MAX;
  return capabilities;
}

Result<RegionId> HostBackend::Register(const Region& region) {
  if (region.kind != Region::Kind::kHostMemory) return InvalidArgument("the host backend moves memory, not files");
  return regions_.Add(region);
}

Status HostBackend::Unregister(RegionId region) {
  auto removed = regions_.BeginRemove(region);
  if (!removed.ok()) return removed.status();
  regions_.FinishRemove(region);
  return OkStatus();
}

std::size_t HostBackend::Submit(std::span<const Transfer> transfers) {
  std::size_t accepted = 0;
  for (; accepted < transfers.size() && outstanding_ < ring_.size(); ++accepted, ++outstanding_) {
    Job& job = ring_[(head_ + outstanding_) % ring_.size()];
    TransferEnd source;
    TransferEnd destination;
    job.transfer = transfers[accepted];
    job.refused = !regions_.Acquire(job.transfer, source, destination);
    job.source = source.memory;
    job.destination = destination.memory;
    job.done = 0;
  }
  return accepted;
}

std::size_t HostBackend::Poll(std::span<Completion> completions) {
  std::uint64_t budget = options_.slice_bytes;
  std::size_t count = 0;
  while (count < completions.size() && outstanding_ > 0) {
    Job& job = ring_[head_];
    if (job.refused) {
      completions[count++] = {.token = job.transfer.token, .bytes = 0, .error = TransferError::kBadRegion, .errnum = 0};
    } else {
      const std::uint64_t bytes = std::min(job.transfer.bytes - job.done, budget);
      if (bytes == 0) break;
      StreamCopy(job.destination + job.done, job.source + job.done, bytes);
      job.done += bytes;
      budget -= bytes;
      if (job.done < job.transfer.bytes) break;
      regions_.Release(job.transfer);
      completions[count++] = {
          .token = job.transfer.token, .bytes = job.done, .error = TransferError::kNone, .errnum = 0};
    }
    head_ = (head_ + 1) % ring_.size();
    --outstanding_;
  }
  return count;
}

}  // namespace foreload
