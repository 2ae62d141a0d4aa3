#include "prefetcher/core/store_path.h"

#include <algorithm>

namespace foreload::core {
namespace {

constexpr double kNsPerDay = 86400e9;
constexpr double kBurstDays = 1.0 / 24;  // the write budget of an hour may be spent at once
constexpr std::uint64_t kBlockBytesMax = 1ull << 40;

}  // namespace

void StorePath::Refuse(std::uint64_t store, StoreRefusal reason) {
  ++state_.stats.store_refused[static_cast<std::size_t>(reason)];
  state_.Emit(RejectStore{store, reason});
}

void StorePath::Offered(const StoreOffered& event) {
  if (stores_.Find(event.store) != kNone) return state_.Ignore(IgnoredReason::kDuplicate);
  const Engine* engine = state_.FindEngine(event.engine);
  if (engine == nullptr || !engine->up) return Refuse(event.store, StoreRefusal::kUnknownEngine);
  const Block* known = state_.catalog.Find(event.block);
  if (known != nullptr && known->purge_refs > 0) return Refuse(event.store, StoreRefusal::kPurged);
  if (known != nullptr && (known->dram != DramState::kAbsent || known->ssd)) {
    return Refuse(event.store, StoreRefusal::kExists);
  }
  // A slot or a transfer may still have it under its first size: one block has one size.
  const bool other_size = known != nullptr && (known->slots > 0 || known->transfers > 0) && known->bytes != event.bytes;
  if (other_size) return Refuse(event.store, StoreRefusal::kExists);
  const bool sane = event.bytes > 0 && event.bytes <= kBlockBytesMax;
  if (!sane || !admission_.Link(event.block, event.parent)) return Refuse(event.store, StoreRefusal::kNoSpace);
  Accept(event, state_.catalog.At(event.block));
}

void StorePath::Accept(const StoreOffered& event, Block& block) {
  if (eviction_.MakeDram(event.bytes, Purpose::kStore) != Eviction::Room::kReady) {
    return Refuse(event.store, StoreRefusal::kNoSpace);
  }
  block.bytes = event.bytes;
  // Until it is used, it counts as used now: a new block is not the first to go.
  if (!block.ever_used) block.last_use = state_.now;
  transfers_.Store(event.block, event.engine, event.store);
  stores_.Insert(event.store, 0);
  if (SsdWanted(block)) state_.dram.QueueDirty(event.block, state_.now);
}

bool StorePath::SsdWanted(const Block& block) const {
  if (state_.config.ssd_bytes == 0) return false;
  return !state_.config.ssd_second_use_admission || block.uses > 1;
}

// A token bucket of bytes.
bool StorePath::TakeWriteBudget(std::uint64_t bytes) {
  const auto per_day = static_cast<double>(state_.config.ssd_write_bytes_per_day);
  if (per_day <= 0) return true;
  const double burst = std::max(per_day * kBurstDays, static_cast<double>(bytes));
  if (write_tokens_ < 0) {
    write_tokens_ = burst;
  } else {
    write_tokens_ += per_day * (static_cast<double>(state_.now - write_tokens_at_) / kNsPerDay);
    write_tokens_ = std::min(write_tokens_, burst);
  }
  write_tokens_at_ = state_.now;
  if (write_tokens_ < static_cast<double>(bytes)) return false;
  write_tokens_ -= static_cast<double>(bytes);
  return true;
}

void StorePath::Ended(const Transfers::Ended& ended) {
  const Transfer& transfer = ended.transfer;
  Block& block = state_.catalog.At(transfer.block);
  if (transfer.kind == TransferKind::kStore) {
    stores_.Erase(transfer.tag);
    if (ended.status != TransferStatus::kOk) return;  // its place, and its turn in the dirty queue, are gone already
    ++state_.stats.stores_accepted;
    if (block.dirty_serial != 0 && block.dram == DramState::kClean) state_.dram.MarkDirty(transfer.block);
    return;
  }
  if (ended.status != TransferStatus::kOk) return;
  for (FlushRecord& flush : flushes_) {
    if (transfer.tag <= flush.serial) ++flush.durable;
  }
}

void StorePath::UsedAgain(BlockId id) {
  const Block& block = state_.catalog.At(id);
  const bool only_in_dram = block.dram == DramState::kClean && !block.ssd && block.dirty_serial == 0;
  if (!state_.config.ssd_second_use_admission || !only_in_dram || !block.DramReadable() || !SsdWanted(block)) return;
  state_.dram.QueueDirty(id, state_.now);
  state_.dram.MarkDirty(id);
}

void StorePath::Recovered(const SsdRecovered& event) {
  if (event.bytes == 0 || event.bytes > kBlockBytesMax) return state_.Ignore(IgnoredReason::kUnknownBlock);
  if (!admission_.Link(event.block, event.parent)) return;
  Block& block = state_.catalog.At(event.block);
  const bool elsewhere = block.dram != DramState::kAbsent || block.transfers > 0 || block.slots > 0;
  if (block.ssd || block.purge_refs > 0 || (elsewhere && block.bytes != event.bytes)) {
    return state_.Ignore(IgnoredReason::kDuplicate);
  }
  block.bytes = event.bytes;
  block.ssd = true;
  state_.stats.ssd_bytes_used += event.bytes;
  state_.catalog.UpdateIdle(event.block);
  if (block.wanted > 0) state_.Replan();
}

void StorePath::Dropped(BlockId id) {
  Block* block = state_.catalog.Find(id);
  if (block == nullptr) return state_.Ignore(IgnoredReason::kUnknownBlock);
  if (!block->ssd) return;  // forgotten here first: both are right
  block->ssd = false;
  state_.stats.ssd_bytes_used -= block->bytes;
  state_.catalog.UpdateIdle(id);
  if (block->wanted > 0) state_.Replan();
}

void StorePath::Flush(std::uint64_t flush) {
  if (flushes_.size() >= state_.config.purges_max) {
    state_.Ignore(IgnoredReason::kTooManyRequests);
    state_.Emit(FlushDone{flush, 0});
    return;
  }
  flushes_.push_back({.flush = flush, .serial = state_.dram.last_dirty_serial()});
}

void StorePath::Run() {
  SpillDue();
  state_.dram_pressure = false;
  AnswerFlushes();
}

void StorePath::SpillDue() {
  const CoreConfig& config = state_.config;
  const LinkModel& link = state_.link(Link::kDramToSsd);
  const std::uint64_t inflight_max = config.links[static_cast<std::size_t>(Link::kDramToSsd)].inflight_bytes_max;
  const std::uint64_t flush_serial = flushes_.empty() ? 0 : flushes_.back().serial;
  std::uint64_t waiting = state_.stats.dram_bytes_dirty;  // dirty bytes that are not on their way, from here on
  std::uint32_t spills = config.plan_loads_max;
  std::uint32_t looks = config.plan_blocks_max;
  auto& queue = state_.dram.dirty();
  for (std::uint32_t i = queue.front(); i != kNone && spills > 0 && looks > 0; --looks) {
    const std::uint32_t next = queue.Next(state_.catalog.blocks(), i);
    const Block& block = state_.catalog.blocks()[i];
    const bool aged = state_.now - block.dirty_since >= config.dirty_age_max_ns;
    const bool crowded = waiting > config.dirty_bytes_max || state_.dram_pressure;
    if (!aged && !crowded && block.dirty_serial > flush_serial) break;  // every later one is younger
    if (block.dram == DramState::kDirty || block.dram == DramState::kSpilling) waiting -= block.bytes;
    if (block.dram == DramState::kDirty && block.DramReadable()) {
      // Age counts whatever the link does; the rest waits for the link.
      if (!aged && link.outstanding_bytes() > 0 && link.outstanding_bytes() + block.bytes > inflight_max) break;
      if (TakeWriteBudget(block.bytes)) {
        transfers_.Spill(BlockId{i});
        --spills;
      } else {
        state_.dram.LeaveDirty(BlockId{i});  // over the budget: it stays in memory only
      }
    }
    i = next;
  }
}

void StorePath::AnswerFlushes() {
  const auto& queue = state_.dram.dirty();
  while (!flushes_.empty()) {
    const bool waits = !queue.empty() && state_.catalog.blocks()[queue.front()].dirty_serial <= flushes_.front().serial;
    if (waits) return;
    state_.Emit(FlushDone{flushes_.front().flush, flushes_.front().durable});
    flushes_.pop_front();
  }
}

TimeNs StorePath::NextDue() const {
  const auto& queue = state_.dram.dirty();
  if (queue.empty()) return kTimeNever;
  // What is being stored or spilled at the head will send an event; the first that only waits for its age counts.
  std::uint32_t looks = 64;
  for (std::uint32_t i = queue.front(); i != kNone; i = queue.Next(state_.catalog.blocks(), i)) {
    const Block& block = state_.catalog.blocks()[i];
    if (block.dram == DramState::kDirty) return Later(block.dirty_since, state_.config.dirty_age_max_ns);
    if (--looks == 0) break;
  }
  return Later(state_.now, state_.config.dirty_age_max_ns);
}

}  // namespace foreload::core
