// Carries commands out without moving a byte: links with bandwidth and latency on the caller's own time line, and the
// completion events that a real executor would send. For tests, `observe` mode and simulation.
//
// Each link serves one transfer at a time, demand before prefetch before write-behind, in order of arrival within a
// class; a transfer that has started runs to its end. A copy out of a store ring takes no link and ends at once.
// Retired slots are free at the next collection. Deterministic: the same calls give the same events.
//
// Use: Execute after each step; NextEventTime to know when something ends; CollectUntil appends what has ended by
// `now`, earliest first. Thread: the caller's. Misuse: collecting with a time before the last one.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "prefetcher/core/command.h"
#include "prefetcher/core/config.h"
#include "prefetcher/core/containers.h"
#include "prefetcher/core/event.h"

namespace foreload::core {

class VirtualExecutor {
 public:
  // Link speeds are `config.links`.
  explicit VirtualExecutor(const CoreConfig& config);

  // How large a block is. Without it, block_bytes_default.
  std::function<std::uint64_t(BlockId)> block_bytes;
  std::uint64_t block_bytes_default = 1u << 20;
  // The status with which a transfer ends; without it, always ok. Called once, when its service begins.
  std::function<TransferStatus(TransferId)> fault;
  // Extra service time of a transfer; without it, none.
  std::function<DurationNs(TransferId)> delay;

  void Execute(TimeNs now, std::span<const Command> commands);
  // kTimeNever when nothing is under way.
  TimeNs NextEventTime() const;
  void CollectUntil(TimeNs now, EventBatch& batch);

  // Answers to stores, demands, purges and flushes since the last call, for a caller that plays the engine.
  std::vector<Command> TakeAnswers() { return std::exchange(answers_, {}); }

  std::uint64_t bytes_moved(Link link) const { return moved_[static_cast<std::size_t>(link)]; }

 private:
  struct Job {
    TransferId transfer;
    std::uint64_t bytes = 0;
    bool to_arena = false;
    EngineId engine;  // to_arena: its slot is retired when the load fails
    SlotIndex slot;
    std::uint64_t serial = 0;  // order of arrival, also of equal ends
  };
  struct LinkState {
    LinkConfig config;
    std::array<std::deque<Job>, 3> waiting;  // by Traffic
    bool busy = false;
    Job job;
    TimeNs started = 0;
    TimeNs ends = 0;
    TransferStatus status = TransferStatus::kOk;
  };
  struct Done {
    TimeNs at = 0;
    std::uint64_t serial = 0;
    Event event;
  };

  void Carry(const LoadToDram& c);
  void Carry(const LoadToArena& c);
  void Carry(const Spill& c);
  void Carry(const Promote& c);
  void Carry(const Cancel& c);
  void Carry(const RetireSlot& c);
  void Carry(const AcceptStore& c);
  void Carry(const RejectStore& c) { answers_.push_back(c); }
  void Carry(const DemandDone& c) { answers_.push_back(c); }
  void Carry(const PurgeDone& c) { answers_.push_back(c); }
  void Carry(const FlushDone& c) { answers_.push_back(c); }
  void Carry(const EvictDram&) {}  // no bytes: nothing to do
  void Carry(const DropSsd&) {}
  void Carry(const ForgetBlock&) {}

  std::uint64_t BytesOf(BlockId block) const;
  void Queue(Link link, Traffic traffic, Job job);
  void Start(LinkState& link, TimeNs now);
  void Finish(LinkState& link);
  void Push(TimeNs at, const Event& event) { done_.push_back({at, next_serial_++, event}); }
  void Fail(TimeNs at, const Job& job, TransferStatus status);
  LinkState* EarliestEnd();

  std::array<LinkState, kLinkCount> links_;
  std::array<std::uint64_t, kLinkCount> moved_{};
  std::deque<Done> done_;  // sorted by CollectUntil
  std::vector<Command> answers_;
  std::uint64_t next_serial_ = 0;
  TimeNs now_ = 0;
};

}  // namespace foreload::core
