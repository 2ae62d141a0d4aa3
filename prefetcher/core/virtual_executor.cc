#include "prefetcher/core/virtual_executor.h"

#include <algorithm>

namespace foreload::core {

VirtualExecutor::VirtualExecutor(const CoreConfig& config) {
  for (std::size_t i = 0; i < kLinkCount; ++i) links_[i].config = config.links[i];
}

std::uint64_t VirtualExecutor::BytesOf(BlockId block) const {
  return block_bytes ? block_bytes(block) : block_bytes_default;
}

void VirtualExecutor::Execute(TimeNs now, std::span<const Command> commands) {
  now_ = std::max(now_, now);
  for (const Command& command : commands) {
    std::visit([this](const auto& c) { Carry(c); }, command);
  }
}

void VirtualExecutor::Carry(const LoadToDram& c) {
  Job job;
  job.transfer = c.transfer;
  job.bytes = BytesOf(c.block);
  Queue(Link::kSsdToDram, c.traffic, job);
}

void VirtualExecutor::Carry(const LoadToArena& c) {
  Job job;
  job.transfer = c.transfer;
  job.bytes = BytesOf(c.block);
  job.to_arena = true;
  job.engine = c.engine;
  job.slot = c.slot;
  Queue(Link::kDramToHbm, c.traffic, job);
}

void VirtualExecutor::Carry(const Spill& c) {
  Job job;
  job.transfer = c.transfer;
  job.bytes = BytesOf(c.block);
  Queue(Link::kDramToSsd, Traffic::kWriteBehind, job);
}

void VirtualExecutor::Carry(const AcceptStore& c) {
  const TransferStatus status = fault ? fault(c.transfer) : TransferStatus::kOk;
  Push(now_, TransferDone{c.transfer, status, status == TransferStatus::kOk ? BytesOf(c.block) : 0, 0});
}

void VirtualExecutor::Carry(const RetireSlot& c) {
  Push(now_, SlotFree{c.engine, c.slot});
}

void VirtualExecutor::Queue(Link link, Traffic traffic, Job job) {
  LinkState& state = links_[static_cast<std::size_t>(link)];
  job.serial = next_serial_++;
  state.waiting[static_cast<std::size_t>(traffic)].push_back(job);
  if (!state.busy) Start(state, now_);
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

void VirtualExecutor::Carry(const Promote& c) {
  for (LinkState& link : links_) {
    std::deque<Job>& queue = link.waiting[static_cast<std::size_t>(Traffic::kPrefetch)];
    const auto found =
        std::find_if(queue.begin(), queue.end(), [&](const Job& job) { return job.transfer == c.transfer; });
    if (found == queue.end()) continue;
    link.waiting[static_cast<std::size_t>(Traffic::kDemand)].push_back(*found);
    queue.erase(found);
    return;
  }
}

void VirtualExecutor::Carry(const Cancel& c) {
  for (LinkState& link : links_) {
    for (std::deque<Job>& queue : link.waiting) {
      const auto found =
          std::find_if(queue.begin(), queue.end(), [&](const Job& job) { return job.transfer == c.transfer; });
      if (found == queue.end()) continue;
      Fail(now_, *found, TransferStatus::kCancelled);
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
  std::sort(done_.begin(), done_.end(),
            [](const Done& a, const Done& b) { return a.at != b.at ? a.at < b.at : a.serial < b.serial; });
  while (!done_.empty() && done_.front().at <= now) {
    batch.events.push_back(done_.front().event);
    done_.pop_front();
  }
  now_ = std::max(now_, now);
}

}  // namespace foreload::core
