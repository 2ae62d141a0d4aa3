// The admission model: live requests in their engine's order, the blocks that each needs, and when it will be
// scheduled.
//
// A request *waits* for its blocks from RequestQueued until its first token (or end); while it does, they count as
// wanted. It names them, for the catalog, until it ends. Announced requests wait too, but only expire: nobody promised
// them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "prefetcher/core/event.h"
#include "prefetcher/core/state.h"
#include "prefetcher/core/transfers.h"

namespace foreload::core {

enum class RequestPhase : std::uint8_t { kQueued, kScheduled, kRunning };

struct Request {
  RequestId id;  // invalid: made by a prefetch hint
  EngineId engine;
  std::uint32_t session = kNone;
  RequestKind kind = RequestKind::kUnknown;
  RequestPhase phase = RequestPhase::kQueued;
  QueueKey key;
  std::uint32_t turn = 0;
  TimeNs expected_start = kTimeNever;
  TimeNs expires = kTimeNever;  // announced or hinted: given up then
  bool announced = false;
  bool waits = false;  // its blocks count as wanted
  bool held_out = false;
  std::vector<BlockId> blocks;  // known ones, in prefix order
  // Planning: blocks before `settled` are held, ready or loading; true `done` when nothing after it can be used.
  std::uint64_t plan_epoch = 0;
  std::uint32_t settled = 0;
  bool done = false;
  // How many leading blocks were counted as suppressed for each reason, so that each counts once.
  std::array<std::uint32_t, kSuppressReasonCount> suppressed{};

  void Clear() {
    std::vector<BlockId> kept = std::move(blocks);
    kept.clear();
    *this = Request{};
    blocks = std::move(kept);
  }
};

class Admission {
 public:
  Admission(State& state, Transfers& transfers) : state_(state), transfers_(transfers) {}

  // `blocks` lies in the batch. Chains are linked, sessions returned, wants counted.
  void Queued(const RequestQueued& event, std::span<const BlockId> blocks);
  void Scheduled(RequestId id);
  void FirstToken(RequestId id);
  void Finished(RequestId id, std::span<const BlockId> blocks);
  void Aborted(RequestId id);
  // A prefetch hint: an announced request without an id.
  void Hinted(EngineId engine, std::span<const BlockId> blocks, TimeNs expected_start, TimeNs expires);

  void EngineGone(Engine& engine);
  // Announced requests whose time is over; at most `limit`. True when more wait.
  bool Expire(std::uint32_t limit);
  TimeNs NextExpiry() const { return expiries_.empty() ? kTimeNever : expiries_.begin()->first; }

  // When the request will be scheduled, as position `position` of its engine's queue.
  TimeNs PredictedStart(const Engine& engine, const Request& request, std::uint32_t position) const;

  // Makes a list's blocks known and links their chain; gives back those that can be tracked (a prefix of the list).
  void LinkChain(std::span<const BlockId> blocks, std::vector<BlockId>& known);
  // Makes a block known with its parent (invalid: unknown).
  bool Link(BlockId block, BlockId parent);

  Request& operator[](std::uint32_t i) { return requests_[i]; }
  const Slab<Request>& all() const { return requests_; }
  // Empty when unknown.
  std::span<const BlockId> BlocksOf(RequestId id) const {
    const std::uint32_t i = id.valid() ? index_.Find(id.value) : kNone;
    return i == kNone ? std::span<const BlockId>{} : requests_[i].blocks;
  }
  bool AnyWaiting() const { return waiting_ > 0; }

 private:
  std::uint32_t FindLive(RequestId id);
  bool Refresh(std::uint32_t i, const RequestQueued& event);
  void Enter(std::uint32_t i, std::span<const BlockId> blocks);
  std::uint32_t MatchSession(const RequestQueued& event, std::span<const BlockId> blocks, std::uint32_t& turn);
  void LeaveQueue(std::uint32_t i);
  void StopWaiting(std::uint32_t i);
  void CountNeeds(const Request& request);
  void TouchChain(std::span<const BlockId> blocks, const Request& request);
  void End(std::uint32_t i, std::span<const BlockId> chain, bool used);

  State& state_;
  Transfers& transfers_;
  Slab<Request> requests_;
  FlatMap index_;
  std::uint64_t next_serial_ = 0;
  std::uint32_t waiting_ = 0;
  std::set<std::pair<TimeNs, std::uint32_t>> expiries_;
  std::vector<BlockId> scratch_;
};

}  // namespace foreload::core
