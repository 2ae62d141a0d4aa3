#include "transport/sim/sim_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "transport/file_io.h"

namespace foreload {
namespace {

constexpr double kServiceNsMax = 1e15;  // 11 days: keeps times far from overflow, whatever the sizes

IoOutcome MoveBytes(const TransferEnd& source, const TransferEnd& destination, std::uint64_t bytes) {
  const bool file = source.kind == Region::Kind::kFile || destination.kind == Region::Kind::kFile;
  const bool modelled = (source.kind == Region::Kind::kHostMemory && source.memory == nullptr) ||
                        (destination.kind == Region::Kind::kHostMemory && destination.memory == nullptr);
  if (modelled) return {.bytes = bytes};
  if (file) return MoveFileBytes(source, destination, bytes);
  std::memcpy(destination.memory, source.memory, bytes);
  return {.bytes = bytes};
}

}  // namespace

SimBackend::SimBackend(const Clock& clock, SimBackendOptions options)
    : clock_(clock),
      options_(options),
      regions_({.memory_to_memory = true, .file_to_memory = true, .memory_to_file = true, .model_only_memory = true}) {
  FORELOAD_CHECK(options.bytes_per_second > 0 && options.queue_depth > 0, "a link needs bandwidth and depth");
}

SimBackend::~SimBackend() {
  FORELOAD_CHECK(flights_.empty(), "poll until nothing is outstanding before destroying");
}

Capabilities SimBackend::capabilities() const {
  Capabilities capabilities;
  capabilities.name = "sim";
  capabilities.memory_to_memory = true;
  capabilities.file_to_memory = true;
  capabilities.memory_to_file = true;
  capabilities.queue_depth = options_.queue_depth;
  capabilities.transfer_bytes_max = UINT64_MAX;
  return capabilities;
}

Status SimBackend::Unregister(RegionId region) {
  auto removed = regions_.BeginRemove(region);
  if (!removed.ok()) return removed.status();
  regions_.FinishRemove(region);
  return OkStatus();
}

std::size_t SimBackend::Submit(std::span<const Transfer> transfers) {
  const TimeNs now = clock_.Now();
  std::size_t accepted = 0;
  for (; accepted < transfers.size() && flights_.size() < options_.queue_depth; ++accepted) {
    Flight& flight = flights_.emplace_back();
    flight.transfer = transfers[accepted];
    flight.refused = !regions_.Acquire(flight.transfer, flight.source, flight.destination);
    const TimeNs start = std::max(now, link_free_at_);
    if (!flight.refused) {
      const double ns = std::ceil(static_cast<double>(flight.transfer.bytes) / options_.bytes_per_second * 1e9);
      link_free_at_ = start + static_cast<DurationNs>(std::min(ns, kServiceNsMax));
    }
    flight.done_at = std::max(start, link_free_at_) + options_.latency_ns;
  }
  return accepted;
}

std::size_t SimBackend::Poll(std::span<Completion> completions) {
  const TimeNs now = clock_.Now();
  std::size_t count = 0;
  while (count < completions.size() && !flights_.empty() && flights_.front().done_at <= now) {
    const Flight& flight = flights_.front();
    Completion& completion = completions[count++];
    completion = {.token = flight.transfer.token, .bytes = 0, .error = TransferError::kBadRegion, .errnum = 0};
    if (!flight.refused) {
      const IoOutcome outcome = MoveBytes(flight.source, flight.destination, flight.transfer.bytes);
      regions_.Release(flight.transfer);
      completion.bytes = outcome.bytes;
      completion.error = outcome.error;
      completion.errnum = outcome.errnum;
    }
    flights_.pop_front();
  }
  return count;
}

}  // namespace foreload
