#include "telemetry/kv_stream.h"

#include <algorithm>

namespace foreload::telemetry {
namespace {

std::uint64_t BlocksIn(const KvEventBatch& batch) {
  std::uint64_t blocks = 0;
  for (const KvEvent& event : batch.events) {
    if (const auto* stored = std::get_if<BlockStored>(&event)) blocks += stored->hashes.size();
    if (const auto* removed = std::get_if<BlockRemoved>(&event)) blocks += removed->hashes.size();
  }
  return blocks;
}

bool HoldsClear(const KvEventBatch& batch) {
  return std::any_of(batch.events.begin(), batch.events.end(),
                     [](const KvEvent& event) { return std::holds_alternative<AllBlocksCleared>(event); });
}

}  // namespace

KvStream::KvStream(const Options& options, Sink& sink, TelemetryMetrics& metrics)
    : options_(options), sink_(sink), metrics_(metrics), tracker_(options.tracker) {}

void KvStream::OnLive(const SequenceFrame& frame, SequenceTracker::Payload payload, TimeNs now) {
  if (frame.number == SequenceFrame::kEndMarker) {
    metrics_.Drop(DropReason::kSequenceFrame);
    return;
  }
  metrics_.kv_live.messages.Add();
  metrics_.kv_live.bytes.Add(payload.size());
  Count(tracker_.OnLive(frame, std::move(payload), now));
}

void KvStream::OnReplayed(const SequenceFrame& frame, SequenceTracker::Payload payload, TimeNs now) {
  if (frame.number == SequenceFrame::kEndMarker) {
    tracker_.OnReplayEnd(now);
    return;
  }
  metrics_.kv_replayed.messages.Add();
  metrics_.kv_replayed.bytes.Add(payload.size());
  Count(tracker_.OnReplayed(frame, std::move(payload), now));
}

void KvStream::Count(SequenceTracker::Fed fed) {
  if (fed == SequenceTracker::Fed::kDuplicate) metrics_.duplicates.Add();
  if (fed == SequenceTracker::Fed::kOverflow) metrics_.Drop(DropReason::kBufferFull);
  if (fed == SequenceTracker::Fed::kStale) metrics_.Drop(DropReason::kStaleReplay);
}

KvStream::Pumped KvStream::Pump(std::size_t batches_max, TimeNs now) {
  std::size_t offered = 0;
  Pumped result = Pumped::kIdle;
  while (const auto due = tracker_.Next(now)) {
    if (due->view) {
      decoded_.reset();
      sink_.OnViewState(options_.source, now, *due->view);
      continue;
    }
    if (offered++ == batches_max) {
      result = Pumped::kMore;
      break;
    }
    if (Decode(*due, now) && !Offer(now)) {
      result = Pumped::kRefused;
      break;
    }
    decoded_.reset();
    tracker_.Pop();
  }
  metrics_.kv_gaps.Add(tracker_.gaps() - std::exchange(gaps_seen_, tracker_.gaps()));
  metrics_.kv_restarts.Add(tracker_.restarts() - std::exchange(restarts_seen_, tracker_.restarts()));
  return result;
}

// False when there is nothing to offer: undecodable, or without events.
bool KvStream::Decode(const SequenceTracker::Due& due, TimeNs now) {
  if (decoded_ && decoded_number_ == due.number) return true;
  DecodeReport report;
  auto batch = DecodeKvBatch(*due.payload, options_.dialect, options_.limits, &report);
  metrics_.CountDecodeErrors(report);
  if (!batch.ok()) {
    tracker_.NoteUndecodable(now);
    return false;
  }
  decoded_ = std::move(batch).value();
  decoded_number_ = due.number;
  if (!decoded_->data_parallel_rank) decoded_->data_parallel_rank = options_.data_parallel_rank;
  metrics_.unknown_events.Add(decoded_->unknown_events);
  metrics_.unknown_fields.Add(decoded_->unknown_fields);
  const double lag = static_cast<double>(WallNow()) / static_cast<double>(kSecond) - decoded_->wall_time_seconds;
  metrics_.lag_seconds.Observe(std::max(lag, 0.0));
  if (!decoded_->events.empty()) return true;
  if (decoded_->bad_events == 0 && decoded_->unknown_events == 0) metrics_.heartbeats.Add();
  return false;
}

bool KvStream::Offer(TimeNs now) {
  // Before the batch that holds the clear: what came earlier in it is void anyway.
  if (HoldsClear(*decoded_) && tracker_.NoteClear()) sink_.OnViewState(options_.source, now, ViewState::kKnown);
  const std::uint64_t events = decoded_->events.size();
  const std::uint64_t blocks = BlocksIn(*decoded_);
  if (!sink_.OnKvBatch(options_.source, now, std::move(*decoded_))) return false;
  metrics_.kv_events.Add(events);
  metrics_.kv_blocks.Add(blocks);
  return true;
}

}  // namespace foreload::telemetry
