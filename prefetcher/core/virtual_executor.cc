#include "prefetcher/core/virtual_executor.h"

#include <algorithm>

namespace foreload::core {

VirtualExecutor::VirtualExecutor(const CoreConfig& config) {
  for (std::size_t i = 0; i < kLinkCount; ++i) links_[i].config = config.links[i];
}

void VirtualExecutor::Execute(TimeNs now, std::span<const Command> commands) {
  now_ = std::max(now_, now);
  const auto bytes_of = [this](BlockId block) { return block_bytes ? block_bytes(block) : block_bytes_default; };
  for (const Command& command : commands) {
    if (const auto* c = std::get_if<LoadToDram>(&command)) {
      Queue(now_, Link::kSsdToDram, c->traffic, {.transfer = c->transfer, .bytes = bytes_of(c->block)});
    } else if (const auto* c = std::get_if<LoadToArena>(&command)) {
      Queue(now_, Link::kDramToHbm, c->traffic,
            {.transfer = c->transfer, .bytes = bytes_of(c->block), .to_arena = true, .engine = c->engine, .slot = c->slot});
    } else if (const auto* c = std::get_if<Spill>(&command)) {
      Queue(now_, Link::kDramToSsd, Traffic::kWriteBehind, {.transfer = c->transfer, .bytes = bytes_of(c->block)});
    } else if (const auto* c = std::get_if<AcceptStore>(&command)) {
      const TransferStatus status = fault ? fault(c->transfer) : TransferStatus::kOk;
      Push(now_, TransferDone{c->transfer, status, status == TransferStatus::kOk ? bytes_of(c->block) : 0, 0});
    } else if (const auto* c = std::get_if<core::Promote>(&command)) {
      Promote(c->transfer);
    } else if (const auto* c = std::get_if<core::Cancel>(&command)) {
      Cancel(now_, c->transfer);
    } else if (const auto* c = std::get_if<RetireSlot>(&command)) {
      Push(now_, SlotFree{c->engine, c->slot});
    } else if (std::holds_alternative<RejectStore>(command) || std::holds_alternative<DemandDone>(command) ||
               std::holds_alternative<PurgeDone>(command) || std::holds_alternative<FlushDone>(command)) {
      answers_.push_back(command);
    }
    // EvictDram, DropSsd and ForgetBlock leave nothing to do: there are no bytes.
  }
}

void VirtualExecutor::Queue(TimeNs now, Link link, Traffic traffic, Job job) {
  LinkState& state = links_[static_cast<std::size_t>(link)];
  job.serial = next_serial_++;
  state.waiting[static_cast<std::size_t>(traffic)].push_back(job);
  if (!state.busy) Start(state, now);
}

void VirtualExecutor::Start(LinkState& link, TimeNs now) {
  for (std::deque<Job>& queue : link.waiting) {
    if (queue.empty()) continue;
    link.job = queue.front();
    queue.pop_front();
    link.busy = true;
    link.started = now;
    link.status = fault ? fault(link.job.transfer) : TransferStatus::kOk;
    const double seconds = static_cast<double>(link.job.bytes) / link.config.bytes_per_second;
    const DurationNs extra = delay ? delay(link.job.transfer) : 0;
    link.ends = now + link.config.latency_ns + static_cast<DurationNs>(seconds * 1e9) + extra;
    return;
  }
}

void VirtualExecutor::Fail(TimeNs at, const Job& job, TransferStatus status) {
  Push(at, TransferDone{job.transfer, status, 0, status == TransferStatus::kCancelled ? 0 : 1});
  if (job.to_arena) Push(at, SlotFree{job.engine, job.slot});
}

void VirtualExecutor::Finish(LinkState& link) {
  const TimeNs at = link.ends;
  const Job job = link.job;
  link.busy = false;
  if (link.status == TransferStatus::kOk) {
    moved_[static_cast<std::size_t>(&link - links_.data())] += job.bytes;
    Push(at, TransferDone{job.transfer, link.status, job.bytes, std::max<DurationNs>(at - link.started, 1)});
  } else {
    Fail(at, job, link.status);
  }
  Start(link, at);
}

void VirtualExecutor::Promote(TransferId transfer) {
  for (LinkState& link : links_) {
    std::deque<Job>& queue = link.waiting[static_cast<std::size_t>(Traffic::kPrefetch)];
    const auto found = std::find_if(queue.begin(), queue.end(), [&](const Job& job) { return job.transfer == transfer; });
    if (found == queue.end()) continue;
    link.waiting[static_cast<std::size_t>(Traffic::kDemand)].push_back(*found);
    queue.erase(found);
    return;
  }
}

void VirtualExecutor::Cancel(TimeNs now, TransferId transfer) {
  for (LinkState& link : links_) {
    for (std::deque<Job>& queue : link.waiting) {
      const auto found = std::find_if(queue.begin(), queue.end(), [&](const Job& job) { return job.transfer == transfer; });
      if (found == queue.end()) continue;
      Fail(now, *found, TransferStatus::kCancelled);
      queue.erase(found);
      return;
    }
  }
}

VirtualExecutor::LinkState* VirtualExecutor::EarliestEnd() {
  LinkState* earliest = nullptr;
  for (LinkState& link : links_) {
    if (link.busy && (earliest == nullptr || link.ends < earliest->ends)) earliest = &link;
  }
  return earliest;
}

TimeNs VirtualExecutor::NextEventTime() const {
  const LinkState* earliest = const_cast<VirtualExecutor*>(this)->EarliestEnd();
  const TimeNs next = done_.empty() ? kTimeNever : done_.front().at;
  return earliest == nullptr ? next : std::min(next, earliest->ends);
}

void VirtualExecutor::CollectUntil(TimeNs now, EventBatch& batch) {
  for (LinkState* link = EarliestEnd(); link != nullptr && link->ends <= now; link = EarliestEnd()) Finish(*link);
  // Ends found now may lie before answers that were pushed at a later Execute: order by time, then by arrival.
  std::sort(done_.begin(), done_.end(), [](const Done& a, const Done& b) {
    return a.at != b.at ? a.at < b.at : a.serial < b.serial;
  });
  while (!done_.empty() && done_.front().at <= now) {
    batch.events.push_back(done_.front().event);
    done_.pop_front();
  }
  now_ = std::max(now_, now);
}

}  // namespace foreload::core
