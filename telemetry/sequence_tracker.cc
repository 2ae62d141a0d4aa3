#include "telemetry/sequence_tracker.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "proto/xxh3.h"

namespace foreload::telemetry {

std::optional<SequenceFrame> ParseSequenceFrame(std::span<const std::uint8_t> frame) {
  constexpr std::size_t kNumberBytes = 8;
  SequenceFrame out;
  if (frame.size() != kNumberBytes && frame.size() != kNumberBytes + sizeof(PublisherId)) return std::nullopt;
  for (const std::uint8_t byte : frame.first(kNumberBytes)) out.number = (out.number << 8) | byte;
  if (out.number > INT64_MAX && out.number != SequenceFrame::kEndMarker) return std::nullopt;
  if (frame.size() > kNumberBytes) {
    const auto id = frame.subspan(kNumberBytes);
    std::copy(id.begin(), id.end(), out.publisher.emplace().begin());
  }
  return out;
}

SequenceTracker::SequenceTracker(const Options& options)
    : options_(options), applied_(kAppliedRemembered), rebuild_pause_(options.rebuild_pause_min) {}

SequenceTracker::Match SequenceTracker::Compare(std::uint64_t number, std::uint64_t hash) const {
  if (number < next_) {
    const Applied& applied = applied_[number % applied_.size()];
    if (applied.number != number) return Match::kUnseen;
    return applied.hash == hash ? Match::kSame : Match::kOther;
  }
  const auto it = buffer_.find(number);
  if (it == buffer_.end()) return Match::kUnseen;
  return it->second.hash == hash ? Match::kSame : Match::kOther;
}

bool SequenceTracker::ComesFromAnother(const SequenceFrame& frame) {
  if (!frame.publisher) return false;
  const bool known_before = publisher_.has_value();
  const bool another = known_before && *publisher_ != *frame.publisher;
  publisher_ = frame.publisher;
  if (known_before && !another) verifying_ = false;
  return another;
}

SequenceTracker::Fed SequenceTracker::OnLive(const SequenceFrame& frame, Payload payload, TimeNs now) {
  const std::uint64_t hash = Xxh3(payload.data(), payload.size());
  const std::uint64_t number = frame.number;
  bool restarted = false;
  if (ComesFromAnother(frame)) {
    restarted = true;
  } else if (number < next_ || (last_live_ && number <= *last_live_)) {
    const Match match = Compare(number, hash);
    const bool same_publisher = frame.publisher.has_value();
    if (match == Match::kSame || (same_publisher && number < next_)) {
      last_live_ = last_live_ ? std::max(*last_live_, number) : number;
      return Fed::kDuplicate;
    }
    // Without an id, a number at or below the last one that is no duplicate cannot be told from a new publisher's.
    restarted = !same_publisher;
  } else if (Compare(number, hash) == Match::kOther) {
    restarted = true;
  }
  if (restarted) Restart();
  if (verifying_ && !options_.can_replay && received_) {
    // Reconnected without an id and without replay: the number may be a new publisher's.
    verifying_ = false;
    history_lost_ = true;
    SkipTo(number, now);
  }
  last_live_ = last_live_ ? std::max(*last_live_, number) : number;
  const Fed fed = Insert(number, std::move(payload), hash);
  return restarted ? Fed::kRestart : fed;
}

SequenceTracker::Fed SequenceTracker::OnReplayed(const SequenceFrame& frame, Payload payload, TimeNs now) {
  if (replay_ != Replay::kActive || frame.number < replay_from_) return Fed::kStale;
  const std::uint64_t hash = Xxh3(payload.data(), payload.size());
  const std::uint64_t number = frame.number;
  const bool first = !std::exchange(replay_answered_, true);
  replay_deadline_ = now + options_.replay_silence_max;
  const Match match = Compare(number, hash);
  if (ComesFromAnother(frame) || match == Match::kOther) {
    Restart();
    WantReplay(0);
    return Fed::kRestart;
  }
  if (first && number > replay_from_) {
    history_lost_ = true;
    lost_below_ = number;
  }
  const bool verified = number == replay_from_ && match == Match::kSame;
  if (std::exchange(verifying_, false) && !verified) {
    SkipTo(number, now);  // the last batch cannot be compared: it was never applied, or is in no ring any more
  }
  return Insert(number, std::move(payload), hash);
}

void SequenceTracker::OnReplayEnd(TimeNs) {
  if (replay_ != Replay::kActive) return;
  replay_ = Replay::kIdle;
  // The publisher knows nothing of what it had sent before: it is another one.
  const bool expects_history = (verifying_ && next_ > 0) || resume_at_ > 0;
  if (!replay_answered_ && expects_history) {
    Restart();
    WantReplay(0);
  }
  verifying_ = false;
}

void SequenceTracker::OnReconnect(TimeNs now) {
  verifying_ = received_.has_value();
  if (!options_.can_replay) {
    if (verifying_ && !publisher_) {
      history_lost_ = true;
      MarkUnknown(now);
    }
    return;
  }
  attempts_ = 0;
  WantReplay(verifying_ && next_ > 0 ? next_ - 1 : 0);
}

std::optional<std::uint64_t> SequenceTracker::TakeReplayRequest(TimeNs now) {
  if (replay_ != Replay::kWanted) return std::nullopt;
  replay_ = Replay::kActive;
  replay_answered_ = false;
  replay_deadline_ = now + options_.replay_silence_max;
  return replay_from_;
}

std::optional<SequenceTracker::Due> SequenceTracker::Next(TimeNs now) {
  if (replay_ == Replay::kActive && now >= replay_deadline_) replay_ = Replay::kIdle;
  if (Blocked() && replay_ == Replay::kIdle && !WantReplay(next_ > 0 ? next_ - 1 : 0)) GiveUpVerifying(now);
  // One skip makes a batch due, so this ends at the second turn.
  while (!due() && ResolveHole(now)) {
  }
  if (due() && next_ == 0 && view_ != View::kKnown) {  // the publisher's first batch: nothing is missing
    if (view_ == View::kUnknown) notice_restarted_ = true;
    view_ = View::kKnown;
    notice_view_ = ViewState::kKnown;
    rebuild_pause_ = options_.rebuild_pause_min;
    resume_at_ = 0;
  }
  if (const auto notice = TakeNotice()) return Due{.view = notice};
  if (due()) {
    const auto& [number, held] = *buffer_.begin();
    return Due{.view = std::nullopt, .number = number, .payload = &held.payload};
  }
  MaybeRebuild(now);
  return std::nullopt;
}

void SequenceTracker::Pop() {
  FORELOAD_CHECK(due(), "no batch is due");
  const auto it = buffer_.begin();
  applied_[next_ % applied_.size()] = {next_, it->second.hash};
  buffered_bytes_ -= it->second.payload.size();
  buffer_.erase(it);
  ++next_;
  attempts_ = 0;
}

bool SequenceTracker::NoteClear() {
  if (view_ == View::kKnown) return false;
  view_ = View::kKnown;
  history_lost_ = false;
  rebuild_pause_ = options_.rebuild_pause_min;
  return true;
}

void SequenceTracker::NoteUndecodable(TimeNs now) {
  history_lost_ = true;
  MarkUnknown(now);
}

SequenceTracker::Fed SequenceTracker::Insert(std::uint64_t number, Payload&& payload, std::uint64_t hash) {
  if (number < next_ || buffer_.contains(number)) return Fed::kDuplicate;
  received_ = received_ ? std::max(*received_, number) : number;
  const auto full = [&] {
    return buffer_.size() >= options_.buffered_batches_max ||
           buffered_bytes_ + payload.size() > options_.buffered_bytes_max;
  };
  while (full()) {  // the lowest numbers are due first, so the highest give way
    if (buffer_.empty() || std::prev(buffer_.end())->first < number) return Fed::kOverflow;
    const auto last = std::prev(buffer_.end());
    buffered_bytes_ -= last->second.payload.size();
    buffer_.erase(last);
  }
  buffered_bytes_ += payload.size();
  buffer_.emplace(number, Held{std::move(payload), hash});
  return Fed::kTaken;
}

void SequenceTracker::Restart() {
  buffer_.clear();
  buffered_bytes_ = 0;
  std::fill(applied_.begin(), applied_.end(), Applied{});
  next_ = 0;
  received_.reset();
  last_live_.reset();
  view_ = View::kUnset;
  notice_restarted_ = true;
  notice_view_.reset();
  replay_ = Replay::kIdle;
  attempts_ = 0;
  verifying_ = false;
  lost_below_ = 0;
  history_lost_ = false;
  resume_at_ = 0;
  rebuild_at_ = kTimeNever;
  rebuild_pause_ = options_.rebuild_pause_min;
  gap_at_ = SequenceFrame::kEndMarker;
  ++restarts_;
}

void SequenceTracker::MarkUnknown(TimeNs now) {
  rebuild_at_ = now + rebuild_pause_;
  rebuild_pause_ = std::min(rebuild_pause_ * 2, options_.rebuild_pause_max);
  if (view_ == View::kUnknown) return;
  view_ = View::kUnknown;
  notice_view_ = ViewState::kUnknown;
}

void SequenceTracker::SkipTo(std::uint64_t number, TimeNs now) {
  next_ = std::max({number, next_, resume_at_});
  resume_at_ = 0;
  while (!buffer_.empty() && buffer_.begin()->first < next_) {
    buffered_bytes_ -= buffer_.begin()->second.payload.size();
    buffer_.erase(buffer_.begin());
  }
  attempts_ = 0;
  MarkUnknown(now);
}

// False when this request has been made too often without progress.
bool SequenceTracker::WantReplay(std::uint64_t from) {
  if (attempts_ == 0 || attempt_from_ != from) attempts_ = 0;
  attempt_from_ = from;
  if (attempts_ >= options_.replay_attempts_max) return false;
  ++attempts_;
  replay_ = Replay::kWanted;
  replay_from_ = from;
  return true;
}

void SequenceTracker::GiveUpVerifying(TimeNs now) {
  verifying_ = false;
  attempts_ = 0;
  if (next_ == 0) {  // what is held may be another publisher's first batch, and nothing applied would contradict it
    buffer_.clear();
    buffered_bytes_ = 0;
  }
  MarkUnknown(now);
}

std::optional<ViewState> SequenceTracker::TakeNotice() {
  if (std::exchange(notice_restarted_, false)) return ViewState::kRestarted;
  return std::exchange(notice_view_, std::nullopt);
}

// Nothing is due. True when a hole was skipped, so that something may be due now.
bool SequenceTracker::ResolveHole(TimeNs now) {
  const bool hole = !buffer_.empty() || (received_ && *received_ >= next_) || resume_at_ > 0;
  if (!hole || Blocked()) return false;
  const std::uint64_t held = buffer_.empty() ? received_.value_or(0) + 1 : buffer_.begin()->first;
  if (resume_at_ == 0 && gap_at_ != next_) {
    gap_at_ = next_;
    ++gaps_;
  }
  if (!options_.can_replay) {
    history_lost_ = true;
    SkipTo(held, now);
    return true;
  }
  if (next_ < lost_below_) {
    SkipTo(std::min(held, lost_below_), now);
    return true;
  }
  if (replay_ != Replay::kIdle || WantReplay(next_)) return false;
  SkipTo(held, now);
  return true;
}

void SequenceTracker::MaybeRebuild(TimeNs now) {
  if (view_ != View::kUnknown || history_lost_ || !options_.can_replay) return;
  if (replay_ != Replay::kIdle || now < rebuild_at_ || next_ == 0) return;
  resume_at_ = next_;
  next_ = 0;
  lost_below_ = 0;
  attempts_ = 0;
  WantReplay(0);
}

}  // namespace foreload::telemetry
