// What a mover and its backend report: one struct per link, resolved at construction, every series present at 0.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "base/metric.h"
#include "transport/backend.h"
#include "transport/mover.h"
#include "transport/mover_queue.h"
#include "transport/uring/file_backend.h"

namespace foreload {

inline constexpr std::size_t kMoveOutcomeCount = 4;
inline constexpr std::size_t kTransferErrorCount = 6;

std::string_view MoveClassName(MoveClass move_class);           // "demand", "prefetch", "write_behind"
std::string_view MoveOutcomeName(MoveResult::Outcome outcome);  // "ok", "cancelled", "timeout", "failed"
std::string_view TransferErrorName(TransferError error);        // "none", "bad_region", ...

// `link` comes from a closed set fixed at start: "ssd_dram", "dram_hbm".
struct TransportMetrics {
  TransportMetrics(MetricRegistry& registry, std::string_view link);

  struct PerClass {
    Counter* bytes = nullptr;
    std::array<Counter*, kMoveOutcomeCount> jobs{};
    Histogram* queued_seconds = nullptr;
    Histogram* service_seconds = nullptr;
  };
  std::array<PerClass, kMoveClassCount> classes;
  std::array<Counter*, kTransferErrorCount> errors{};  // failed jobs by the first reason; [kNone] stays null
  Gauge* queued_jobs = nullptr;
  Gauge* inflight_bytes = nullptr;
  Gauge* link_bytes_per_second = nullptr;  // learned, or the throttle

  void Observe(const EndedJob& job);
};

// Which file backend runs: one series per backend, 1 for the one in use. And what it could not pin.
struct FileBackendMetrics {
  explicit FileBackendMetrics(MetricRegistry& registry);

  Gauge& io_uring;
  Gauge& thread_pool;
  Gauge& pinned_bytes;  // of memory registered with io_uring
  Gauge& plain_bytes;   // known to io_uring but not pinned: slower

  // Call after registration; reads what a UringBackend says of itself.
  void Set(const FileBackendChoice& choice, const Backend& backend);
};

}  // namespace foreload
