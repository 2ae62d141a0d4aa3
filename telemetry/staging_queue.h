// Between the ingest threads and the core thread: everything that sources deliver, in order, bounded by items and
// bytes.
//
// When it fills, speculation goes first and nothing that must not be sampled goes silently:
//   StepAccess, BlockSketch   shed from their batch once the queue is beyond its common part; counted by kind
//   KV batch                  refused beyond the common part: the source treats it as a gap and tries again
//   other access events       may use the reserve; an access batch that does not fit there is refused and counted
//   view states               always taken; those that follow each other without a batch between are merged, so that
//                             they are bounded by twice the batches and sources
// Drain swaps the content out, so the memory in use is at most twice the limit: one queue filling, one being read.
//
// Any number of producers; one consumer. One short lock a batch.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "telemetry/metrics.h"
#include "telemetry/sink.h"

namespace foreload::telemetry {

struct StagedItem {
  SourceIndex source = 0;
  TimeNs received = 0;
  std::variant<KvEventBatch, std::unique_ptr<AccessBatch>, ViewState> content;
};

class StagingQueue final : public Sink {
 public:
  struct Options {
    std::size_t items_max = 8192;       // batches
    std::size_t bytes_max = 64u << 20;  // of their content, as estimated by their sizes
    double reserve_ratio = 0.25;        // of both, kept for access events that are never sampled
  };

  // `wake` is called by a producer, outside the lock, when the queue was empty. `metrics` outlives the queue.
  StagingQueue(const Options& options, TelemetryMetrics& metrics, std::function<void()> wake);

  bool OnKvBatch(SourceIndex source, TimeNs received, KvEventBatch&& batch) override;  // untouched when refused
  bool OnAccessBatch(SourceIndex source, TimeNs received, std::unique_ptr<AccessBatch> batch) override;
  void OnViewState(SourceIndex source, TimeNs received, ViewState state) override;

  // Replaces the content of `out` by everything that waits, in order of arrival; returns how many. Never blocks.
  std::size_t Drain(std::vector<StagedItem>& out);

  std::size_t items() const;
  std::size_t bytes() const;

 private:
  // View states of one source at the end of the queue, so that more of them can be merged into these.
  struct Tail {
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
    std::size_t restarted = kNone;  // index in items_
    std::size_t view = kNone;       // kKnown or kUnknown
  };

  bool Fits(std::size_t bytes, double ratio) const;
  template <typename Content>
  void Push(SourceIndex source, TimeNs received, Content&& content, std::size_t bytes);

  const Options options_;
  TelemetryMetrics& metrics_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::vector<StagedItem> items_;
  std::size_t batches_ = 0;
  std::size_t bytes_ = 0;
  std::unordered_map<SourceIndex, Tail> tails_;
};

}  // namespace foreload::telemetry
