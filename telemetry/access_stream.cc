#include "telemetry/access_stream.h"

#include <utility>

#include "telemetry/access_validate.h"

namespace foreload::telemetry {

void AccessStream::OnMessage(const SequenceFrame& frame, std::span<const std::uint8_t> payload, TimeNs now) {
  AccessReport report;
  auto batch = DecodeAccessBatch(payload, &report);
  metrics_.CountAccessErrors(report);
  if (!batch.ok()) return;  // its number is missing to the next message, which counts the gap

  const std::string& publisher = batch.value()->publisher_id();
  const bool same = publisher == publisher_;
  if (same && frame.number < next_) {
    metrics_.duplicates.Add();
    return;
  }
  // Joining a publisher late is no gap: what it said before is announced again.
  if (same && frame.number > next_) {
    metrics_.access_gaps.Add();
    metrics_.access_missing.Add(frame.number - next_);
  }
  if (!same && !publisher_.empty()) metrics_.access_restarts.Add();
  if (!same) publisher_ = publisher;
  next_ = frame.number + 1;

  const auto events = static_cast<std::uint64_t>(batch.value()->events_size());
  if (events == 0 && report.errors != AccessReport{}.errors) return;  // nothing good was in it
  if (sink_.OnAccessBatch(source_, now, std::move(batch).value())) metrics_.access_events.Add(events);
}

}  // namespace foreload::telemetry
