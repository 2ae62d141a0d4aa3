// A publisher behind a channel that loses, repeats and reorders, restarts, and answers replays from a ring - against
// the tracker. Whatever happens, in the end the consumer holds exactly the publisher's state or says that it does not
// know; and where the publisher still has its whole history, it always knows in the end.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <set>
#include <sstream>

#include "telemetry/sequence_tracker.h"

namespace foreload::telemetry {
namespace {

using Payload = SequenceTracker::Payload;

enum class Action : std::uint8_t { kHeartbeat, kStore, kRemove, kClear };

struct Message {
  SequenceFrame frame;
  Payload payload;
  bool reconnect = false;  // the consumer sees a new connection here
};

void Apply(const Payload& payload, std::set<std::uint8_t>& state) {
  switch (static_cast<Action>(payload[0])) {
    case Action::kHeartbeat: break;
    case Action::kStore: state.insert(payload[1]); break;
    case Action::kRemove: state.erase(payload[1]); break;
    case Action::kClear: state.clear(); break;
  }
}

struct Publisher {
  std::size_t ring_max;
  bool ids;
  std::uint8_t incarnation = 0;
  std::uint64_t next = 0;
  std::set<std::uint8_t> state;
  std::deque<Message> ring;

  Message Publish(Action action, std::uint8_t key) {
    Message message;
    message.frame.number = next++;
    if (ids) message.frame.publisher.emplace()[0] = incarnation;
    // The time in a real batch makes its bytes as good as unique; here the incarnation does.
    message.payload = {static_cast<std::uint8_t>(action), key, incarnation};
    Apply(message.payload, state);
    ring.push_back(message);
    if (ring.size() > ring_max) ring.pop_front();
    return message;
  }
  void Restart() {
    ++incarnation;
    next = 0;
    state.clear();
    ring.clear();
  }
};

class World {
 public:
  World(bool can_replay, std::size_t ring_max, bool ids, std::size_t buffer_max)
      : tracker_({.can_replay = can_replay, .buffered_batches_max = buffer_max}),
        publisher_{.ring_max = ring_max, .ids = ids, .state = {}, .ring = {}} {
    Connect();
  }

  void Do(std::uint8_t op, std::uint8_t key) {
    switch (op % 16) {
      case 0:
      case 1:
      case 2: Publish(Action::kStore, key % 8); break;
      case 3: Publish(Action::kRemove, key % 8); break;
      case 4: Publish(key % 4 == 0 ? Action::kClear : Action::kHeartbeat, 0); break;
      case 5:
      case 6: DeliverLive(); break;
      case 7:
        if (!live_.empty() && !live_.front().reconnect) live_.pop_front();
        break;  // lost
      case 8:
        if (!live_.empty() && !live_.front().reconnect) live_.push_front(live_.front());
        break;  // repeated
      case 9: Reorder(); break;
      case 10: Answer(); break;
      case 11:
        DeliverReplay();
        DeliverReplay();
        break;
      case 12: replies_.clear(); break;  // the reply is lost on the way
      case 13: now_ += kSecond * (key % 8); break;
      case 14: refusing_ = key % 2 == 0; break;
      case 15: key % 8 == 0 ? RestartPublisher() : key % 8 == 1 ? Connect() : Publish(Action::kStore, key % 8); break;
    }
    Pump();
  }

  // Lets everything arrive that is still under way; false when that does not end.
  bool Settle() {
    refusing_ = false;
    Publish(Action::kHeartbeat, 0);
    constexpr int kTurnsMax = 20000;
    for (int turn = 0; turn < kTurnsMax; ++turn) {
      while (!live_.empty()) DeliverLive();
      Answer();
      while (!replies_.empty()) DeliverReplay();
      Pump();
      const bool quiet = live_.empty() && replies_.empty() && !tracker_.replay_wanted() && !tracker_.replay_active();
      if (quiet && ++quiet_turns_ > 30) return true;
      now_ += 30 * kSecond;
    }
    return false;
  }

  bool known() const { return known_; }
  bool exact() const { return state_ == publisher_.state; }
  // Nothing that was published in this incarnation has left the ring.
  bool history_whole() const { return publisher_.ring.size() == publisher_.next; }

 private:
  void Publish(Action action, std::uint8_t key) { live_.push_back(publisher_.Publish(action, key)); }

  void Connect() {
    live_.clear();  // in flight when the connection broke
    live_.push_back({.frame = {}, .payload = {}, .reconnect = true});
  }
  void RestartPublisher() {
    publisher_.Restart();
    requests_.clear();
    replies_.clear();
    Connect();
  }

  void Reorder() {
    if (live_.size() < 2 || live_[0].reconnect || live_[1].reconnect) return;
    std::swap(live_[0], live_[1]);
  }

  void DeliverLive() {
    if (live_.empty()) return;
    const Message message = live_.front();
    live_.pop_front();
    if (message.reconnect) {
      tracker_.OnReconnect(now_);
    } else {
      tracker_.OnLive(message.frame, message.payload, now_);
    }
  }

  // The publisher answers the request that it has, if any.
  void Answer() {
    if (requests_.empty()) return;
    const std::uint64_t from = requests_.front();
    requests_.pop_front();
    replies_.clear();  // the consumer asks on a fresh socket each time
    for (const Message& message : publisher_.ring) {
      if (message.frame.number >= from) replies_.push_back(message);
    }
    replies_.push_back({.frame = {.number = SequenceFrame::kEndMarker, .publisher = {}}, .payload = {}});
  }

  void DeliverReplay() {
    if (replies_.empty()) return;
    const Message message = replies_.front();
    replies_.pop_front();
    if (message.frame.number == SequenceFrame::kEndMarker) {
      tracker_.OnReplayEnd(now_);
    } else {
      tracker_.OnReplayed(message.frame, message.payload, now_);
    }
  }

  void Pump() {
    while (const auto due = tracker_.Next(now_)) {
      if (due->view) {
        if (*due->view == ViewState::kRestarted) state_.clear();
        known_ = *due->view != ViewState::kUnknown;
        continue;
      }
      if (refusing_) break;
      if (static_cast<Action>((*due->payload)[0]) == Action::kClear && tracker_.NoteClear()) known_ = true;
      Apply(*due->payload, state_);
      tracker_.Pop();
    }
    if (const auto from = tracker_.TakeReplayRequest(now_)) {
      requests_ = {*from};
      replies_.clear();
    }
  }

  SequenceTracker tracker_;
  Publisher publisher_;
  std::deque<Message> live_;
  std::deque<std::uint64_t> requests_;
  std::deque<Message> replies_;
  std::set<std::uint8_t> state_;
  bool known_ = true;
  bool refusing_ = false;
  int quiet_turns_ = 0;
  TimeNs now_ = 0;
};

using Script = std::vector<std::pair<std::uint8_t, std::uint8_t>>;

void Play(World& world, const Script& script) {
  for (const auto& [op, key] : script) world.Do(op, key);
  RC_ASSERT(world.Settle());
}

auto LongScript() {
  return rc::gen::scale(4.0, rc::gen::container<Script>(rc::gen::pair(rc::gen::arbitrary<std::uint8_t>(),
                                                                      rc::gen::arbitrary<std::uint8_t>())));
}

void CheckProperty(const std::function<void()>& property) {
  const auto result = rc::detail::checkTestable(property, rc::detail::TestMetadata{}, [] {
    rc::detail::TestParams params = rc::detail::configuration().testParams;
    params.maxSuccess = std::max(params.maxSuccess, 2000);
    return params;
  }());
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  EXPECT_TRUE(result.template is<rc::detail::SuccessResult>()) << text.str();
}

TEST(SequenceProperty, EndsExactOrUnknown) {
  CheckProperty([] {
    const bool can_replay = *rc::gen::arbitrary<bool>();
    const bool ids = *rc::gen::arbitrary<bool>();
    const auto ring_max = *rc::gen::inRange<std::size_t>(1, 12);
    const auto buffer_max = *rc::gen::inRange<std::size_t>(1, 20);
    World world(can_replay, ring_max, ids, buffer_max);
    Play(world, *LongScript());
    RC_ASSERT(!world.known() || world.exact());
    RC_CLASSIFY(world.known());
  });
}

TEST(SequenceProperty, EndsExactWhereTheHistoryIsWhole) {
  CheckProperty([] {
    const bool ids = *rc::gen::arbitrary<bool>();
    const auto buffer_max = *rc::gen::inRange<std::size_t>(1, 20);
    World world(true, 1 << 20, ids, buffer_max);
    Play(world, *LongScript());
    RC_ASSERT(world.history_whole());
    RC_ASSERT(world.known());
    RC_ASSERT(world.exact());
  });
}

}  // namespace
}  // namespace foreload::telemetry
