#include "prefetcher/service/executor.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "proto/control.pb.h"
#include "proto/limits.h"

namespace foreload::service {
namespace {

using core::TransferStatus;

TransferStatus StatusOf(const MoveResult& result) {
  switch (result.outcome) {
    case MoveResult::Outcome::kOk: return TransferStatus::kOk;
    case MoveResult::Outcome::kCancelled: return TransferStatus::kCancelled;
    case MoveResult::Outcome::kTimeout: return TransferStatus::kTimeout;
    case MoveResult::Outcome::kFailed:
      return result.error == TransferError::kNoSpace ? TransferStatus::kNoSpace : TransferStatus::kIoError;
  }
  return TransferStatus::kIoError;
}

MoveClass ClassOf(core::Traffic traffic) {
  switch (traffic) {
    case core::Traffic::kDemand: return MoveClass::kDemand;
    case core::Traffic::kPrefetch: return MoveClass::kPrefetch;
    case core::Traffic::kWriteBehind: return MoveClass::kWriteBehind;
  }
  return MoveClass::kPrefetch;
}

constexpr std::size_t kCommitsPerPoll = 64;
constexpr std::size_t kSlotsPerScan = 1u << 16;    // 8 MiB of slots: a fraction of a millisecond
constexpr DurationNs kSpillWaitMax = 2 * kSecond;  // for the SSD store to make its next segment

}  // namespace

ExecutorMetrics::ExecutorMetrics(MetricRegistry& registry)
    : checksum_failures(registry.AddCounter("foreload_checksum_failures_total",
                                            "Bytes that were not what was stored: refused, never used.",
                                            {{"tier", "ssd"}})),
      store_bytes(registry.AddCounter("foreload_store_bytes_total", "Bytes taken out of store rings.")),
      store_bad_size(registry.AddCounter("foreload_store_dropped_blocks_total", "Committed blocks dropped, by reason.",
                                         {{"reason", "bad_size"}})),
      store_incomplete(registry.AddCounter("foreload_store_dropped_blocks_total",
                                           "Committed blocks dropped, by reason.", {{"reason", "rank_missing"}})),
      store_duplicate(registry.AddCounter("foreload_store_dropped_blocks_total", "Committed blocks dropped, by reason.",
                                          {{"reason", "duplicate_share"}})),
      slots_retired(registry.AddCounter("foreload_slots_retired_total", "Arena slots taken out of use.")),
      spills_waited(registry.AddCounter("foreload_spill_waits_total",
                                        "Spills that waited for the SSD store to make its next segment.")),
      loads_waited(
          registry.AddCounter("foreload_load_waits_total", "SSD loads that waited for an earlier one to end.")),
      demand_seconds(registry.AddHistogram("foreload_demand_duration_seconds",
                                           "Demand fetches, from the frame to the reply.", DurationBucketsSeconds())) {}

Executor::Executor(const Parts& parts, ExecutorMetrics& metrics) : parts_(parts), metrics_(metrics) {}

Executor::~Executor() = default;

void Executor::Execute(const core::Command& command) {
  std::visit([this](const auto& c) { Do(c); }, command);
}

std::optional<DramBlock>& Executor::Resident(BlockId block) {
  if (block.value >= resident_.size()) resident_.resize(block.value + 1);
  return resident_[block.value];
}

// ---- transfers ------------------------------------------------------------------------------------------------------

void Executor::Start(Mover& mover, TransferId id, MoveClass move_class, TimeNs deadline, std::vector<MovePart> parts,
                     TransferContext context) {
  transfers_.emplace(id, std::move(context));
  const Status status =
      mover.Submit({.id = id, .move_class = move_class, .deadline = deadline, .parts = std::move(parts)});
  if (!status.ok()) {
    OnMove({.id = id, .outcome = MoveResult::Outcome::kFailed, .error = TransferError::kNoSpace});
  }
}

void Executor::Done(TransferId id, TransferStatus status, std::uint64_t bytes, DurationNs service_ns) {
  transfers_.erase(id);
  parts_.events.Add(core::TransferDone{.transfer = id, .status = status, .bytes = bytes, .service_ns = service_ns});
}

void Executor::OnMove(const MoveResult& result) {
  const auto it = transfers_.find(result.id);
  FORELOAD_CHECK(it != transfers_.end(), "a mover reported a transfer twice");
  TransferContext& context = it->second;
  switch (context.kind) {
    case Kind::kLoadToDram: EndLoadToDram(result.id, context, result); break;
    case Kind::kLoadToArena: EndLoadToArena(result.id, context, result); break;
    case Kind::kSpill: EndSpill(result.id, context, result); break;
    case Kind::kStore: EndStore(result.id, context, result); break;
  }
}

void Executor::AddDramParts(const DramBlock& place, const BlockImage::Extent& extent, RegionId other,
                            std::uint64_t other_offset, bool to_dram, std::vector<MovePart>& parts) const {
  const RegionMap there = RegionMap::Of(other, other_offset + extent.bytes);
  const std::uint64_t here = place.offset + extent.image_offset;
  const Status status = to_dram ? AppendParts(there, other_offset, parts_.dram_host, here, extent.bytes, parts)
                                : AppendParts(parts_.dram_host, here, there, other_offset, extent.bytes, parts);
  FORELOAD_CHECK(status.ok(), "a block outside the DRAM slab");
}

std::vector<MovePart> Executor::SsdParts(const std::vector<ssd::SsdPart>& from, bool to_file) const {
  std::vector<MovePart> parts;
  for (const ssd::SsdPart& part : from) {
    const RegionMap file = RegionMap::Of(part.file, part.file_offset + part.bytes);
    const bool own = part.memory_region.valid();  // the store's header buffer
    const RegionMap buffer = RegionMap::Of(part.memory_region, part.memory_offset + part.bytes);
    const RegionMap& memory = own ? buffer : *parts_.dram_file;
    const std::uint64_t offset =
        own ? part.memory_offset
            : static_cast<std::uint64_t>(reinterpret_cast<const std::uint8_t*>(part.memory) - parts_.dram.base());
    const Status status = to_file ? AppendParts(memory, offset, file, part.file_offset, part.bytes, parts)
                                  : AppendParts(file, part.file_offset, memory, offset, part.bytes, parts);
    FORELOAD_CHECK(status.ok(), "a record outside the DRAM slab");
  }
  return parts;
}

void Executor::Do(const core::LoadToDram& command) {
  if (!waiting_loads_.empty() || !TryLoadToDram(command)) {
    metrics_.loads_waited.Add();
    // Demand goes before what nobody waits for yet, behind earlier demand.
    auto at = waiting_loads_.end();
    if (command.traffic == core::Traffic::kDemand) {
      at = std::find_if(waiting_loads_.begin(), waiting_loads_.end(),
                        [](const core::LoadToDram& load) { return load.traffic != core::Traffic::kDemand; });
    }
    waiting_loads_.insert(at, command);
  }
}

void Executor::StartWaitingLoads() {
  while (!waiting_loads_.empty() && TryLoadToDram(waiting_loads_.front())) waiting_loads_.pop_front();
}

// False: too many reads are open in the store, try again when one has ended.
bool Executor::TryLoadToDram(const core::LoadToDram& command) {
  const auto refuse = [&](TransferStatus status) {
    Refuse(command.transfer, status);
    return true;
  };
  const BlockKey* key = parts_.interner.key(command.block);
  const auto record = key == nullptr || parts_.ssd == nullptr ? std::nullopt : parts_.ssd->Find(*key);
  if (!record) return refuse(TransferStatus::kGone);
  auto place = parts_.dram.Allocate(record->memory_bytes);
  if (!place.ok()) return refuse(TransferStatus::kNoSpace);
  auto plan = parts_.ssd->PrepareRead(
      {.key = *key,
       .layout = parts_.interner.layout_fingerprint(command.block),
       .memory = {reinterpret_cast<std::byte*>(parts_.dram.Data(*place)), record->memory_bytes}});
  if (!plan.ok()) {
    parts_.dram.Free(*place);
    if (plan.status().code() == StatusCode::kResourceExhausted) return false;
    return refuse(plan.status().code() == StatusCode::kNotFound ? TransferStatus::kGone : TransferStatus::kIoError);
  }
  std::vector<MovePart> parts = SsdParts(plan->parts, false);
  Start(*parts_.file, command.transfer, ClassOf(command.traffic), command.deadline, std::move(parts),
        {.kind = Kind::kLoadToDram, .block = command.block, .place = *place, .read = std::move(plan).value()});
  return true;
}

void Executor::EndLoadToDram(TransferId id, TransferContext& context, const MoveResult& result) {
  TransferStatus status = StatusOf(result);
  const Status verified = parts_.ssd->FinishRead(*context.read, ssd::IoResultOf(result));
  if (status == TransferStatus::kOk && !verified.ok()) {
    status = TransferStatus::kCorrupt;
    metrics_.checksum_failures.Add();
    spdlog::warn("ssd: a block was refused: {}", verified.message());
  }
  if (status == TransferStatus::kOk) {
    Resident(context.block) = *context.place;
  } else {
    parts_.dram.Free(*context.place);
  }
  Done(id, status, status == TransferStatus::kOk ? result.bytes : 0, result.service_ns);
  StartWaitingLoads();
}

void Executor::Do(const core::LoadToArena& command) {
  EngineInstance* engine = parts_.engines.Find(command.engine);
  const BlockKey* key = parts_.interner.key(command.block);
  const std::optional<DramBlock> place = Resident(command.block);
  // The arena may have ended in the same turn: the core hears of it with its next event.
  if (engine == nullptr || engine->grant == nullptr || key == nullptr || !place ||
      parts_.interner.layout(command.block) != engine->layout) {
    return Refuse(command.transfer, TransferStatus::kGone);
  }
  const std::shared_ptr<ArenaGrant> grant = engine->grant;
  if (command.slot.value >= grant->slot_count) return Refuse(command.transfer, TransferStatus::kStaleGeneration);
  Status started;
  if (const auto generation = grant->table->Reserve(command.slot, *key); !generation.ok()) {
    started = generation.status();
  } else {
    started = grant->table->StartLoad(command.slot);
  }
  if (!started.ok()) {
    parts_.engines.TakeArena(*engine, started.message());
    return Refuse(command.transfer, TransferStatus::kGone);
  }
  std::vector<MovePart> parts;
  for (const BlockImage::Extent& extent : engine->image->extents) {
    const RankMemory& memory = *grant->ranks[extent.rank];
    AddDramParts(*place, extent, memory.arena_region, memory.slot_stride * command.slot.value + extent.slot_offset,
                 false, parts);
  }
  Start(parts_.host, command.transfer, ClassOf(command.traffic), command.deadline, std::move(parts),
        {.kind = Kind::kLoadToArena,
         .block = command.block,
         .engine = command.engine,
         .slot = command.slot,
         .grant = grant,
         .groups = engine->image->layer_group_mask});
}

void Executor::EndLoadToArena(TransferId id, TransferContext& context, const MoveResult& result) {
  EngineInstance* engine = parts_.engines.Find(context.engine);
  const bool in_force = engine != nullptr && engine->grant == context.grant;
  TransferStatus status = StatusOf(result);
  const std::shared_ptr<ArenaGrant> grant = context.grant;  // outlives the context below
  const SlotIndex slot = context.slot;
  if (!in_force) {
    Done(id, TransferStatus::kGone, result.bytes, result.service_ns);
    return;
  }
  if (status == TransferStatus::kOk) {
    Status published = grant->table->Publish(slot, context.groups);
    if (published.ok()) published = grant->table->MarkReady(slot);
    if (!published.ok()) {
      parts_.engines.TakeArena(*engine, published.message());
      Done(id, TransferStatus::kGone, result.bytes, result.service_ns);
      return;
    }
    Done(id, status, result.bytes, result.service_ns);
    return;
  }
  Done(id, status, 0, result.service_ns);
  RetireNow(*engine, slot);
}

void Executor::Do(const core::Spill& command) {
  if (!TrySpill(command.transfer, command.block)) {
    metrics_.spills_waited.Add();
    waiting_spills_.push_back({command.transfer, command.block, parts_.clock.Now()});
  }
}

// False: the store is making its next segment, try again.
bool Executor::TrySpill(TransferId transfer, BlockId block) {
  const BlockKey* key = parts_.interner.key(block);
  const std::optional<DramBlock> place = Resident(block);
  const BlockImage* image = parts_.engines.ImageOf(parts_.interner.layout(block));
  if (key == nullptr || !place || image == nullptr || parts_.ssd == nullptr) {
    Refuse(transfer, TransferStatus::kGone);
    return true;
  }
  std::vector<ssd::ExtentData> extents;
  extents.reserve(image->extents.size());
  for (const BlockImage::Extent& extent : image->extents) {
    extents.push_back(
        {.rank = static_cast<std::uint16_t>(extent.rank),
         .layer_group = static_cast<std::uint16_t>(extent.layer_group),
         .data = {reinterpret_cast<const std::byte*>(parts_.dram.Data(*place)) + extent.image_offset, extent.bytes},
         .xxh3 = std::nullopt});
  }
  auto plan = parts_.ssd->PrepareWrite({.key = *key,
                                        .parent = parts_.interner.parent_key(block),
                                        .layout = parts_.interner.layout_fingerprint(block),
                                        .token = transfer.value,
                                        .extents = extents});
  if (!plan.ok()) {
    if (plan.status().code() == StatusCode::kUnavailable) return false;
    // The record is there already, durable or about to be: as good as written.
    const bool exists = plan.status().code() == StatusCode::kAlreadyExists;
    Done(transfer, exists ? TransferStatus::kOk : TransferStatus::kNoSpace, 0, 0);
    return true;
  }
  std::vector<MovePart> parts = SsdParts(plan->parts, true);
  Start(*parts_.file, transfer, MoveClass::kWriteBehind, kTimeNever, std::move(parts),
        {.kind = Kind::kSpill, .block = block, .write = std::move(plan).value()});
  return true;
}

void Executor::EndSpill(TransferId id, TransferContext& context, const MoveResult& result) {
  context.bytes = result.bytes;
  context.service_ns = result.service_ns;
  const Status written = parts_.ssd->FinishWrite(*context.write, ssd::IoResultOf(result));
  context.write.reset();
  if (written.ok()) return;  // goes on with OnSsdDurable
  const TransferStatus status = StatusOf(result);
  Done(id, status == TransferStatus::kOk ? TransferStatus::kIoError : status, 0, result.service_ns);
}

void Executor::OnSsdDurable(std::uint64_t token, const Status& status) {
  const TransferId id{token};
  const auto it = transfers_.find(id);
  if (it == transfers_.end()) return;
  Done(id, status.ok() ? TransferStatus::kOk : TransferStatus::kIoError, it->second.bytes, it->second.service_ns);
}

void Executor::OnSsdDropped(const BlockKey& key) {
  parts_.interner.ForEachOfKey(key, [this](BlockId block) { parts_.events.Add(core::SsdDropped{block}); });
}

void Executor::Do(const core::Promote& command) {
  const auto waiting = WaitingLoad(command.transfer);
  if (waiting != waiting_loads_.end()) {
    core::LoadToDram load = *waiting;
    waiting_loads_.erase(waiting);
    load.traffic = core::Traffic::kDemand;
    load.deadline = command.deadline;
    Do(load);
    return;
  }
  parts_.host.Promote(command.transfer, command.deadline);
  if (parts_.file != nullptr) parts_.file->Promote(command.transfer, command.deadline);
}

std::deque<core::LoadToDram>::iterator Executor::WaitingLoad(TransferId id) {
  return std::find_if(waiting_loads_.begin(), waiting_loads_.end(),
                      [id](const core::LoadToDram& load) { return load.transfer == id; });
}

void Executor::Do(const core::Cancel& command) {
  if (const auto waiting = WaitingLoad(command.transfer); waiting != waiting_loads_.end()) {
    waiting_loads_.erase(waiting);
    Refuse(command.transfer, TransferStatus::kCancelled);
    return;
  }
  parts_.host.Cancel(command.transfer);
  if (parts_.file != nullptr) parts_.file->Cancel(command.transfer);
}

// ---- slots ----------------------------------------------------------------------------------------------------------

void Executor::RetireNow(EngineInstance& engine, SlotIndex slot) {
  metrics_.slots_retired.Add();
  if (const Status status = engine.grant->table->Retire(slot); !status.ok()) {
    parts_.engines.TakeArena(engine, status.message());
    return;
  }
  engine.grant->retiring.push_back(slot);
  TryFreeSlots(engine);
}

void Executor::Do(const core::RetireSlot& command) {
  EngineInstance* engine = parts_.engines.Find(command.engine);
  if (engine == nullptr || engine->grant == nullptr || command.slot.value >= engine->grant->slot_count) return;
  RetireNow(*engine, command.slot);
}

void Executor::TryFreeSlots(EngineInstance& engine) {
  ArenaGrant& grant = *engine.grant;
  for (std::size_t i = 0; i < grant.retiring.size();) {
    const SlotIndex slot = grant.retiring[i];
    const auto freed = grant.table->TryFree(slot);
    if (!freed.ok()) {
      parts_.engines.TakeArena(engine, freed.status().message());
      return;
    }
    if (freed->newly_used) parts_.events.Add(core::SlotUsed{engine.id, slot});
    if (!freed->freed) {
      ++i;
      continue;
    }
    parts_.events.Add(core::SlotFree{engine.id, slot});
    grant.retiring[i] = grant.retiring.back();
    grant.retiring.pop_back();
  }
}

void Executor::Observe(TimeNs now) {
  std::vector<std::pair<EngineInstance*, std::string>> hostile;
  parts_.engines.ForEach([&](EngineInstance& engine) {
    if (engine.grant == nullptr) return;
    const std::shared_ptr<ArenaGrant> grant = engine.grant;
    Status status = grant->table->CollectUsed(kSlotsPerScan, [&](SlotIndex slot, std::uint32_t) {
      parts_.events.Add(core::SlotUsed{engine.id, slot});
    });
    if (status.ok()) status = grant->table->CheckIntegrity(1024);
    if (!status.ok()) {
      hostile.emplace_back(&engine, status.message());
      return;
    }
    TryFreeSlots(engine);
  });
  for (auto& [engine, why] : hostile) parts_.engines.TakeArena(*engine, why);

  StartWaitingLoads();
  while (!waiting_spills_.empty()) {
    const WaitingSpill spill = waiting_spills_.front();
    if (!TrySpill(spill.transfer, spill.block)) {
      if (now - spill.since < kSpillWaitMax) break;
      Refuse(spill.transfer, TransferStatus::kNoSpace);
    }
    waiting_spills_.pop_front();
  }
  std::vector<std::uint64_t> late;
  for (const auto& [id, store] : stores_) {
    if (store.missing > 0 && now - store.since > kStoreAssemblyMax) late.push_back(id);
  }
  for (const std::uint64_t id : late) {
    metrics_.store_incomplete.Add();
    DropStore(id);
  }
}

// ---- tiers ----------------------------------------------------------------------------------------------------------

void Executor::Do(const core::EvictDram& command) {
  std::optional<DramBlock>& place = Resident(command.block);
  FORELOAD_CHECK(place.has_value(), "evicting a block that is not in DRAM");
  parts_.dram.Free(*place);
  place.reset();
}

void Executor::Do(const core::DropSsd& command) {
  const BlockKey* key = parts_.interner.key(command.block);
  if (key != nullptr && parts_.ssd != nullptr) parts_.ssd->Drop(*key);
}

void Executor::Do(const core::ForgetBlock& command) {
  parts_.interner.Forget(command.block);
}

void Executor::AnnounceRecovered() {
  if (parts_.ssd == nullptr) return;
  std::vector<ssd::RecordInfo> records;
  parts_.ssd->ForEachRecord([&](const ssd::RecordInfo& record) { records.push_back(record); });
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  for (const ssd::RecordInfo& record : records) {
    const LayoutIndex layout = parts_.interner.InternLayout(record.layout);
    const BlockId block = parts_.interner.Intern(record.key, layout, {}).block;
    BlockId parent;
    if (record.parent.digest_bytes != 0) parent = parts_.interner.Intern(record.parent, layout, {}).block;
    parts_.events.Add(core::SsdRecovered{.block = block, .parent = parent, .bytes = record.memory_bytes});
  }
}

// ---- stores ---------------------------------------------------------------------------------------------------------

void Executor::PollStores(TimeNs now) {
  std::vector<std::pair<EngineInstance*, std::string>> hostile;
  parts_.engines.ForEach([&](EngineInstance& engine) {
    for (EngineClient& client : engine.clients) {
      const std::shared_ptr<StoreLane> lane = client.lane;
      if (lane == nullptr) continue;
      std::array<StoreCommit, kCommitsPerPoll> commits;
      while (true) {
        const auto count = lane->ring->PollCommits(commits);
        if (!count.ok()) {
          hostile.emplace_back(&engine, count.status().message());
          break;
        }
        for (std::size_t i = 0; i < *count; ++i) Collect(engine, lane, commits[i], now);
        if (*count < kCommitsPerPoll) break;
      }
    }
  });
  for (auto& [engine, why] : hostile) parts_.engines.TakeArena(*engine, why);
}

void Executor::Collect(EngineInstance& engine, const std::shared_ptr<StoreLane>& lane, const StoreCommit& commit,
                       TimeNs now) {
  if (engine.image == nullptr || commit.data.size() != engine.image->share_bytes[lane->rank]) {
    metrics_.store_bad_size.Add();
    lane->ring->Grant(commit.slot);
    return;
  }
  const AssemblyKey assembly{engine.id, commit.key};
  const auto [it, fresh] = assembling_.try_emplace(assembly, next_ticket_);
  const std::uint64_t id = it->second;
  if (fresh) {
    ++next_ticket_;
    stores_[id] = {.engine = engine.id,
                   .key = commit.key,
                   .parent = commit.parent,
                   .image = engine.image,
                   .shares = std::vector<std::optional<Share>>(engine.rank_count),
                   .missing = engine.rank_count,
                   .since = now};
  }
  PendingStore& store = stores_[id];
  std::optional<Share>& share = store.shares[lane->rank];
  if (share) {
    metrics_.store_duplicate.Add();
    lane->ring->Grant(commit.slot);
    return;
  }
  share = Share{lane, commit.slot};
  if (--store.missing > 0) return;
  assembling_.erase(it);
  const BlockId block = parts_.intake.InternKey(engine.id, store.key);
  BlockId parent;
  if (store.parent) {
    parent = parts_.intake.InternKey(engine.id, *store.parent);
    parts_.interner.SetParent(block, *store.parent);
  }
  parts_.events.Add(core::StoreOffered{
      .store = id, .engine = engine.id, .block = block, .parent = parent, .bytes = store.image->bytes});
}

void Executor::DropStore(std::uint64_t id) {
  const auto it = stores_.find(id);
  if (it == stores_.end()) return;
  for (std::optional<Share>& share : it->second.shares) {
    if (share) share->lane->ring->Grant(share->ring_slot);
  }
  assembling_.erase({it->second.engine, it->second.key});
  stores_.erase(it);
}

void Executor::Do(const core::RejectStore& command) {
  DropStore(command.store);
}

void Executor::Do(const core::AcceptStore& command) {
  const auto it = stores_.find(command.store);
  if (it == stores_.end()) return Refuse(command.transfer, TransferStatus::kGone);
  PendingStore& store = it->second;
  auto place = parts_.dram.Allocate(store.image->bytes);
  if (!place.ok()) {
    DropStore(command.store);
    return Refuse(command.transfer, TransferStatus::kNoSpace);
  }
  std::vector<MovePart> parts;
  for (const BlockImage::Extent& extent : store.image->extents) {
    const Share& share = *store.shares[extent.rank];
    const StoreRingWriter& ring = *share.lane->ring;
    AddDramParts(*place, extent, share.lane->region,
                 ring.data_offset() + ring.slot_stride() * share.ring_slot + extent.slot_offset, true, parts);
  }
  Start(parts_.host, command.transfer, MoveClass::kWriteBehind, kTimeNever, std::move(parts),
        {.kind = Kind::kStore, .block = command.block, .store = command.store, .place = *place});
}

void Executor::EndStore(TransferId id, TransferContext& context, const MoveResult& result) {
  const TransferStatus status = StatusOf(result);
  if (status == TransferStatus::kOk) {
    Resident(context.block) = *context.place;
    metrics_.store_bytes.Add(result.bytes);
    stored_.push_back(context.block);
  } else {
    parts_.dram.Free(*context.place);
  }
  DropStore(context.store);
  Done(id, status, result.bytes, result.service_ns);
}

bool Executor::PrepareSleep() {
  bool quiet = true;
  parts_.engines.ForEach([&](EngineInstance& engine) {
    for (EngineClient& client : engine.clients) {
      if (client.lane != nullptr && !client.lane->ring->PrepareSleep()) quiet = false;
    }
  });
  return quiet;
}

void Executor::OnDoorbell(ConnectionId connection) {
  EngineClient* client = parts_.engines.Client(connection);
  if (client != nullptr && client->lane != nullptr) client->lane->ring->Wake();
}

// ---- control --------------------------------------------------------------------------------------------------------

std::uint64_t Executor::NewTicket(const ControlFrame& frame, TimeNs now) {
  const std::uint64_t ticket = next_ticket_++;
  waiters_.emplace(ticket, Waiter{frame.connection, frame.message->request(), now});
  return ticket;
}

void Executor::Reply(std::uint64_t ticket, control::ControlMessage message) {
  const auto it = waiters_.find(ticket);
  if (it == waiters_.end()) return;
  message.set_request(it->second.request);
  control_->Send(it->second.connection, std::move(message));
  waiters_.erase(it);
}

bool Executor::Handle(const ControlFrame& frame, TimeNs now) {
  const control::ControlMessage& message = *frame.message;
  if (message.has_demand_fetch()) {
    const control::DemandFetch& fetch = message.demand_fetch();
    const EngineInstance* engine = parts_.engines.FindByConnection(frame.connection);
    const std::uint64_t ticket = NewTicket(frame, now);
    std::vector<BlockId> blocks;
    if (engine != nullptr && fetch.digests().size() <= kKeysPerMessageMax * kDigestBytesMax) {
      blocks = parts_.intake.InternKeys(engine->id, fetch.name_space(), fetch.digest_bytes(), fetch.digests());
    }
    if (blocks.empty()) {
      control::ControlMessage reply;
      reply.mutable_error()->set_code(static_cast<std::uint32_t>(StatusCode::kInvalidArgument));
      reply.mutable_error()->set_message(engine == nullptr ? "not registered" : "no keys, or keys of impossible size");
      Reply(ticket, std::move(reply));
      return true;
    }
    constexpr std::int64_t kDeadlineUsMax = 600LL * 1000 * 1000;
    const std::int64_t deadline_us = std::clamp<std::int64_t>(fetch.deadline_us(), 0, kDeadlineUsMax);
    parts_.events.Add(core::DemandAsked{.demand = ticket,
                                        .engine = engine->id,
                                        .request = parts_.intake.FindRequest(engine->id, fetch.request_id()),
                                        .deadline = now + deadline_us * kMicrosecond,
                                        .blocks = {}},
                      blocks);
    return true;
  }
  if (message.has_purge()) {
    const std::uint64_t ticket = NewTicket(frame, now);
    std::vector<BlockId> blocks;
    if (message.purge().name_space().size() == 16) {
      NamespaceFingerprint space;
      std::copy_n(message.purge().name_space().begin(), 16, space.bytes.begin());
      blocks = parts_.interner.BlocksOf(space);
    }
    parts_.events.Add(core::NamespacePurged{.purge = ticket, .blocks = {}}, blocks);
    return true;
  }
  if (message.has_flush()) {
    parts_.events.Add(core::FlushAsked{NewTicket(frame, now)});
    if (parts_.ssd != nullptr) parts_.ssd->RequestFlush();
    return true;
  }
  return false;
}

void Executor::Closed(ConnectionId connection) {
  std::vector<std::uint64_t> gone;
  for (const auto& [ticket, waiter] : waiters_) {
    if (waiter.connection == connection) gone.push_back(ticket);
  }
  std::sort(gone.begin(), gone.end());
  for (const std::uint64_t ticket : gone) {
    parts_.events.Add(core::DemandDropped{ticket});  // one that was no demand is counted as unknown by the core
    waiters_.erase(ticket);
  }
}

void Executor::Do(const core::DemandDone& command) {
  const auto it = waiters_.find(command.demand);
  if (it == waiters_.end()) return;
  metrics_.demand_seconds.Observe(static_cast<double>(parts_.clock.Now() - it->second.since) / 1e9);
  control::ControlMessage message;
  control::DemandFetchReply& reply = *message.mutable_demand_fetch_reply();
  reply.set_ready_blocks(command.ready_blocks);
  reply.set_absent_blocks(command.absent_blocks);
  reply.set_failed_blocks(command.failed_blocks);
  reply.set_already_ready_blocks(command.already_ready_blocks);
  reply.set_joined_blocks(command.joined_blocks);
  reply.set_bytes_from_dram(command.bytes_from_dram);
  reply.set_bytes_from_ssd(command.bytes_from_ssd);
  Reply(command.demand, std::move(message));
}

void Executor::Do(const core::PurgeDone& command) {
  control::ControlMessage message;
  message.mutable_purge_reply()->set_blocks(command.blocks);
  Reply(command.purge, std::move(message));
}

void Executor::Do(const core::FlushDone& command) {
  control::ControlMessage message;
  message.mutable_flush_reply()->set_durable_blocks(command.durable_blocks);
  Reply(command.flush, std::move(message));
}

}  // namespace foreload::service
