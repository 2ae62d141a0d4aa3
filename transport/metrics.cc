#include "transport/metrics.h"

#include <string>

#include "transport/uring/uring_backend.h"

namespace foreload {

std::string_view MoveClassName(MoveClass move_class) {
  switch (move_class) {
    case MoveClass::kDemand: return "demand";
    case MoveClass::kPrefetch: return "prefetch";
    case MoveClass::kWriteBehind: return "write_behind";
  }
  return "unknown";
}

std::string_view MoveOutcomeName(MoveResult::Outcome outcome) {
  switch (outcome) {
    case MoveResult::Outcome::kOk: return "ok";
    case MoveResult::Outcome::kCancelled: return "cancelled";
    case MoveResult::Outcome::kTimeout: return "timeout";
    case MoveResult::Outcome::kFailed: return "failed";
  }
  return "unknown";
}

std::string_view TransferErrorName(TransferError error) {
  switch (error) {
    case TransferError::kNone: return "none";
    case TransferError::kBadRegion: return "bad_region";
    case TransferError::kShort: return "short";
    case TransferError::kIo: return "io";
    case TransferError::kNoSpace: return "no_space";
    case TransferError::kShutdown: return "shutdown";
  }
  return "unknown";
}

TransportMetrics::TransportMetrics(MetricRegistry& registry, std::string_view link) {
  const std::string name(link);
  for (std::size_t c = 0; c < kMoveClassCount; ++c) {
    const std::string move_class(MoveClassName(static_cast<MoveClass>(c)));
    const MetricLabels labels{{"link", name}, {"class", move_class}};
    PerClass& cells = classes[c];
    cells.bytes = &registry.AddCounter("foreload_transport_moved_bytes_total", "Bytes moved", labels);
    cells.queued_seconds =
        &registry.AddHistogram("foreload_transport_queued_seconds", "From a job's submission to its first transfer",
                               DurationBucketsSeconds(), labels);
    cells.service_seconds =
        &registry.AddHistogram("foreload_transport_service_seconds", "From a job's first transfer to its end",
                               DurationBucketsSeconds(), labels);
    for (std::size_t o = 0; o < kMoveOutcomeCount; ++o) {
      const std::string outcome(MoveOutcomeName(static_cast<MoveResult::Outcome>(o)));
      cells.jobs[o] = &registry.AddCounter("foreload_transport_jobs_total", "Jobs ended, by outcome",
                                           {{"link", name}, {"class", move_class}, {"outcome", outcome}});
    }
  }
  for (std::size_t e = 1; e < kTransferErrorCount; ++e) {
    const std::string reason(TransferErrorName(static_cast<TransferError>(e)));
    errors[e] = &registry.AddCounter("foreload_transport_errors_total", "Failed jobs, by first reason",
                                     {{"link", name}, {"reason", reason}});
  }
  const MetricLabels labels{{"link", name}};
  queued_jobs = &registry.AddGauge("foreload_transport_queued_jobs", "Jobs with work not yet submitted", labels);
  inflight_bytes = &registry.AddGauge("foreload_transport_inflight_bytes", "Bytes submitted and not ended", labels);
  link_bytes_per_second =
      &registry.AddGauge("foreload_transport_link_bytes_per_second", "Link rate as learned, or its throttle", labels);
}

void TransportMetrics::Observe(const EndedJob& job) {
  const MoveResult& result = job.result;
  PerClass& cells = classes[static_cast<std::size_t>(job.move_class)];
  cells.bytes->Add(result.bytes);
  cells.jobs[static_cast<std::size_t>(result.outcome)]->Add();
  cells.queued_seconds->Observe(static_cast<double>(result.queued_ns) * 1e-9);
  cells.service_seconds->Observe(static_cast<double>(result.service_ns) * 1e-9);
  if (result.error != TransferError::kNone) errors[static_cast<std::size_t>(result.error)]->Add();
}

FileBackendMetrics::FileBackendMetrics(MetricRegistry& registry)
    : io_uring(registry.AddGauge("foreload_transport_io_backend", "1 for the file backend in use",
                                 {{"backend", "io_uring"}})),
      thread_pool(registry.AddGauge("foreload_transport_io_backend", "1 for the file backend in use",
                                    {{"backend", "thread_pool"}})),
      pinned_bytes(registry.AddGauge("foreload_transport_pinned_bytes", "Memory registered with io_uring")),
      plain_bytes(registry.AddGauge("foreload_transport_plain_bytes", "Memory that io_uring uses unregistered")) {}

void FileBackendMetrics::Set(const FileBackendChoice& choice, const Backend& backend) {
  io_uring.Set(choice.io_uring ? 1 : 0);
  thread_pool.Set(choice.io_uring ? 0 : 1);
  if (const auto* uring = dynamic_cast<const UringBackend*>(&backend)) {
    const UringRegistration registration = uring->registration();
    pinned_bytes.Set(static_cast<double>(registration.pinned_bytes));
    plain_bytes.Set(static_cast<double>(registration.plain_bytes));
  }
}

}  // namespace foreload
