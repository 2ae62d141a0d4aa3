// Turns one publisher's numbered batches, live and replayed, into each batch once and in order - or says that the view
// of that publisher is unknown. A pure state machine: no socket, no clock; `now` comes in with every call.
//
//   feed:    OnLive, OnReplayed, OnReplayEnd, OnReconnect
//   ask:     TakeReplayRequest - send this request on a fresh socket (stale replies must not reach the new request)
//   deliver: Next -> a view state, or the batch that is due; Pop when it was taken. A batch that the receiver refuses
//   is
//            simply not popped: it stays due, later ones wait in the bounded buffer, and what overflows is replayed.
//
// Rules (docs/wire.md gives the evidence):
//   gap           buffer live batches, replay from the first missing one, apply in order. History is delivered from
//                 batch 0 where the publisher still has it, so joining late is just a gap.
//   duplicate     a number that was seen with the same bytes (or from the same publisher id): ignored.
//   restart       a new publisher id, or a number at or below the last live one with other bytes. After a reconnect the
//                 last applied batch is replayed and compared, because a new publisher may already be past our number.
//   unreplayable  a replay that starts above what was asked, no replay socket, or too many silent replays: kUnknown,
//   then
//                 on with what there is. Heals by a clear, a restart, or (where the history may still exist) by a full
//                 replay with growing pauses.
// A publisher that starts at time_ns (TensorRT-LLM) looks like one whose history is lost; its clear at start heals
// that. A publisher that skips numbers on purpose (Mooncake) has lost those events: an unreplayable gap.
//
// Single-threaded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "telemetry/sink.h"

namespace foreload::telemetry {

using PublisherId = std::array<std::uint8_t, 16>;

struct SequenceFrame {
  static constexpr std::uint64_t kEndMarker = ~std::uint64_t{0};  // -1: the end of a replay

  std::uint64_t number = 0;
  std::optional<PublisherId> publisher;  // in frames of 24 bytes
};

// Nothing when the frame has neither 8 nor 24 bytes, or a negative number other than the end marker.
std::optional<SequenceFrame> ParseSequenceFrame(std::span<const std::uint8_t> frame);

class SequenceTracker {
 public:
  struct Options {
    bool can_replay = false;
    std::size_t buffered_batches_max = 65536;
    std::size_t buffered_bytes_max = 64u << 20;
    DurationNs replay_silence_max = 5 * kSecond;  // between two replies
    std::uint32_t replay_attempts_max = 3;        // without progress between them
    DurationNs rebuild_pause_min = 30 * kSecond;  // before a full replay of an unknown view; doubles
    DurationNs rebuild_pause_max = 600 * kSecond;
  };
  using Payload = std::vector<std::uint8_t>;

  enum class Fed : std::uint8_t {
    kTaken,  // due now or buffered
    kDuplicate,
    kRestart,   // taken as the first sight of a new publisher
    kOverflow,  // dropped because the buffer is full; will be replayed, or the view becomes unknown
    kStale,     // a reply that no request waits for
  };

  explicit SequenceTracker(const Options& options);

  Fed OnLive(const SequenceFrame& frame, Payload payload, TimeNs now);
  Fed OnReplayed(const SequenceFrame& frame, Payload payload, TimeNs now);
  void OnReplayEnd(TimeNs now);
  // The connection was (re-)established: batches may be missing and the publisher may be another one.
  void OnReconnect(TimeNs now);

  // The first number to ask for, once for each request; nothing while none is wanted or one is under way.
  std::optional<std::uint64_t> TakeReplayRequest(TimeNs now);
  bool replay_wanted() const { return replay_ == Replay::kWanted; }
  bool replay_active() const { return replay_ == Replay::kActive; }

  struct Due {
    std::optional<ViewState> view;     // either a state to announce ...
    std::uint64_t number = 0;          // ... or a batch
    const Payload* payload = nullptr;  // valid until the next call
  };
  // What is to be delivered next; nothing while waiting. Also runs the time-outs: call it regularly. A view state
  // counts as taken when it is returned.
  std::optional<Due> Next(TimeNs now);
  // The batch that Next returned has been taken.
  void Pop();

  // The batch that is due holds a clear. True when that makes an unknown view known: announce kKnown before it.
  bool NoteClear();
  // The batch that is due cannot be decoded: its events are lost.
  void NoteUndecodable(TimeNs now);

  // Watermarks: the highest number seen of this publisher, and the next one to be applied.
  std::optional<std::uint64_t> received() const { return received_; }
  std::uint64_t next() const { return next_; }
  bool view_unknown() const { return view_ == View::kUnknown; }
  std::uint64_t gaps() const { return gaps_; }
  std::uint64_t restarts() const { return restarts_; }
  std::size_t buffered() const { return buffer_.size(); }

 private:
  enum class View : std::uint8_t { kUnset, kKnown, kUnknown };
  enum class Replay : std::uint8_t { kIdle, kWanted, kActive };
  struct Held {
    Payload payload;
    std::uint64_t hash;
  };
  struct Applied {
    std::uint64_t number = SequenceFrame::kEndMarker;
    std::uint64_t hash = 0;
  };
  // Applied batches that are remembered to tell duplicates from restarts; more than vLLM's replay ring (10,000) holds.
  static constexpr std::size_t kAppliedRemembered = 16384;

  enum class Match : std::uint8_t { kUnseen, kSame, kOther };
  Match Compare(std::uint64_t number, std::uint64_t hash) const;
  bool ComesFromAnother(const SequenceFrame& frame);
  Fed Insert(std::uint64_t number, Payload&& payload, std::uint64_t hash);
  void Restart();
  void MarkUnknown(TimeNs now);
  void SkipTo(std::uint64_t number, TimeNs now);
  bool WantReplay(std::uint64_t from);
  void GiveUpVerifying(TimeNs now);
  bool due() const { return !Blocked() && !buffer_.empty() && buffer_.begin()->first == next_; }
  bool Blocked() const { return verifying_ && options_.can_replay; }
  std::optional<ViewState> TakeNotice();
  bool ResolveHole(TimeNs now);
  void MaybeRebuild(TimeNs now);

  const Options options_;
  std::map<std::uint64_t, Held> buffer_;  // numbers from next_ on
  std::size_t buffered_bytes_ = 0;
  std::vector<Applied> applied_;  // by number modulo its size
  std::uint64_t next_ = 0;
  std::optional<std::uint64_t> received_;
  std::optional<std::uint64_t> last_live_;
  std::optional<PublisherId> publisher_;

  View view_ = View::kUnset;
  bool notice_restarted_ = false;
  std::optional<ViewState> notice_view_;

  Replay replay_ = Replay::kIdle;
  std::uint64_t replay_from_ = 0;
  bool replay_answered_ = false;
  TimeNs replay_deadline_ = 0;
  std::uint64_t attempt_from_ = 0;
  std::uint32_t attempts_ = 0;

  bool verifying_ = false;        // after a reconnect: is it the same publisher?
  std::uint64_t lost_below_ = 0;  // numbers below this that are not here will never come
  bool history_lost_ = false;     // a full replay cannot make the view whole again
  std::uint64_t resume_at_ = 0;   // during a rebuild: where to go on if the history turns out to be lost
  TimeNs rebuild_at_ = kTimeNever;
  DurationNs rebuild_pause_;
  std::uint64_t gap_at_ = SequenceFrame::kEndMarker;  // the hole that was counted last
  std::uint64_t gaps_ = 0;
  std::uint64_t restarts_ = 0;
};

}  // namespace foreload::telemetry
