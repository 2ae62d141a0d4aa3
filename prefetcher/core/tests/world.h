// A core under a test's hand: events in, commands out, every invariant checked after each step.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "prefetcher/core/core.h"
#include "prefetcher/core/virtual_executor.h"

namespace foreload::core {

inline constexpr std::uint64_t kBlockBytes = 1u << 20;
inline constexpr EngineId kEngine{0};

inline CoreConfig SmallConfig() {
  CoreConfig config;
  config.dram_bytes = 64 * kBlockBytes;
  config.ssd_bytes = 1024 * kBlockBytes;
  // 1 ms a block from SSD, 0.1 ms a block into an arena.
  config.links[static_cast<std::size_t>(Link::kSsdToDram)] = {.bytes_per_second = 1048576e3, .latency_ns = 100'000};
  config.links[static_cast<std::size_t>(Link::kDramToHbm)] = {.bytes_per_second = 1048576e4, .latency_ns = 10'000};
  config.links[static_cast<std::size_t>(Link::kDramToSsd)] = {.bytes_per_second = 1048576e3, .latency_ns = 100'000};
  config.blocks_max = 4096;
  config.sessions_max = 1024;
  return config;
}

class World {
 public:
  explicit World(const CoreConfig& c = SmallConfig()) : config(c), core(c) {}

  void Send(const Event& event) { batch.events.push_back(event); }

  BlockRange Range(const std::vector<std::uint32_t>& ids) {
    const BlockRange range{static_cast<std::uint32_t>(batch.blocks.size()), static_cast<std::uint32_t>(ids.size())};
    for (const std::uint32_t id : ids) batch.blocks.push_back(BlockId{id});
    return range;
  }

  // One step; `last` has its commands.
  void Step(DurationNs by = 0) {
    now += by;
    last.clear();
    core.Step(now, batch, last);
    core.Verify();
    batch.Clear();
    all.insert(all.end(), last.begin(), last.end());
  }

  template <typename T>
  std::vector<T> Of(const std::vector<Command>& commands) const {
    std::vector<T> found;
    for (const Command& command : commands) {
      if (const T* c = std::get_if<T>(&command)) found.push_back(*c);
    }
    return found;
  }
  template <typename T>
  std::vector<T> Last() const {
    return Of<T>(last);
  }

  void EngineWith(std::uint32_t slots, EngineId engine = kEngine, EnginePolicy policy = EnginePolicy::kPredict,
                  double recompute_seconds_per_token = 0) {
    Send(EngineUp{engine, 16, kBlockBytes, recompute_seconds_per_token, policy});
    Send(ArenaGranted{engine, slots});
    Step();
  }
  // Durable blocks from start-up recovery, as one chain.
  void OnSsd(const std::vector<std::uint32_t>& chain) {
    BlockId parent;
    for (const std::uint32_t id : chain) {
      Send(SsdRecovered{BlockId{id}, parent, kBlockBytes});
      parent = BlockId{id};
    }
    Step();
  }
  // Blocks in DRAM, as one chain, through the store path.
  void InDram(const std::vector<std::uint32_t>& chain, EngineId engine = kEngine) {
    BlockId parent;
    for (const std::uint32_t id : chain) {
      Send(StoreOffered{next_store++, engine, BlockId{id}, parent, kBlockBytes});
      parent = BlockId{id};
    }
    Step();
    for (const AcceptStore& accept : Last<AcceptStore>()) Done(accept.transfer);
    Step();
  }
  RequestQueued Queue(std::uint32_t request, const std::vector<std::uint32_t>& blocks, EngineId engine = kEngine) {
    RequestQueued queued;
    queued.engine = engine;
    queued.request = RequestId{request};
    queued.blocks = Range(blocks);
    return queued;
  }
  void Done(TransferId transfer, TransferStatus status = TransferStatus::kOk) {
    const bool ok = status == TransferStatus::kOk;
    Send(TransferDone{transfer, status, ok ? kBlockBytes : 0, ok ? 100 * kMicrosecond : 0});
  }
  // Ends every load that the last step has issued.
  void LastLoadsDone() {
    for (const Command& command : last) {
      if (const auto* c = std::get_if<LoadToDram>(&command)) Done(c->transfer);
      if (const auto* c = std::get_if<LoadToArena>(&command)) Done(c->transfer);
    }
  }
  // Steps on, ending every load, until a step issues nothing more. Keeps the commands of all of them in `last`.
  void Settle() {
    std::vector<Command> collected;
    for (int rounds = 0; rounds < 100; ++rounds) {
      Step(kMillisecond);
      collected.insert(collected.end(), last.begin(), last.end());
      if (last.empty()) break;
      LastLoadsDone();
      for (const RetireSlot& c : Last<RetireSlot>()) Send(SlotFree{c.engine, c.slot});
      for (const Spill& c : Last<Spill>()) Done(c.transfer);
    }
    last = collected;
  }

  const CoreStats& stats() const { return core.stats(); }
  const PrefetchLedger& ledger(Tier tier) const { return stats().prefetch[static_cast<std::size_t>(tier)]; }
  std::uint64_t ended(Tier tier, Outcome outcome) const {
    return ledger(tier).ended[static_cast<std::size_t>(outcome)];
  }
  std::uint64_t ignored(IgnoredReason reason) const { return stats().ignored[static_cast<std::size_t>(reason)]; }
  std::uint64_t suppressed(SuppressReason reason) const { return stats().suppressed[static_cast<std::size_t>(reason)]; }
  std::uint64_t refused(StoreRefusal reason) const { return stats().store_refused[static_cast<std::size_t>(reason)]; }

  CoreConfig config;
  Core core;
  TimeNs now = kSecond;
  EventBatch batch;
  std::vector<Command> last;
  std::vector<Command> all;
  std::uint64_t next_store = 1;
};

inline std::vector<std::uint32_t> Iota(std::uint32_t first, std::uint32_t count) {
  std::vector<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < count; ++i) ids.push_back(first + i);
  return ids;
}

inline DemandAsked Ask(World& w, std::uint64_t id, const std::vector<std::uint32_t>& blocks,
                       TimeNs deadline = kTimeNever) {
  DemandAsked asked;
  asked.demand = id;
  asked.engine = kEngine;
  asked.deadline = deadline;
  asked.blocks = w.Range(blocks);
  return asked;
}

}  // namespace foreload::core
