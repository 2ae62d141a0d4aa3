// A whole world from one seed: engines that live and die, requests, stores, purges, an executor that is slow, fails and
// lies about nothing, and an enemy who sends nonsense. After every step the core checks its own invariants (Verify),
// and a second book, kept here from the commands alone, checks what the core may ask for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "base/rng.h"
#include "prefetcher/core/codec.h"
#include "prefetcher/core/tests/world.h"

namespace foreload::core {
namespace {

constexpr std::uint32_t kEngines = 3;
constexpr std::uint32_t kChains = 24;
constexpr std::uint32_t kChainBlocks = 24;

// What lies where, by the commands and completions alone.
class Book {
 public:
  struct Flight {
    Command command;
    TimeNs at = 0;
    TransferStatus status = TransferStatus::kOk;
    std::uint64_t epoch = 0;
    bool queued = true;  // still cancellable
  };
  struct SlotView {
    enum { kFree, kLoading, kReady, kRetiring } state = kFree;
    BlockId block;
  };

  explicit Book(std::uint64_t dram_blocks) : dram_blocks_(dram_blocks) {}

  void Apply(TimeNs now, const Command& command, Rng& rng) {
    std::visit([&](const auto& c) { On(now, c, rng); }, command);
  }

  void Launch(TimeNs now, TransferId id, const Command& command, Rng& rng, std::uint64_t epoch = 0) {
    ASSERT_TRUE(ids_.insert(id.value).second) << "a transfer id was used twice";
    Flight flight{command, now + static_cast<DurationNs>(rng.Below(5'000'000)), TransferStatus::kOk, epoch,
                  rng.Below(2) == 0};
    const std::uint64_t dice = rng.Below(40);
    if (dice == 0) flight.status = TransferStatus::kIoError;
    if (dice == 1) flight.status = TransferStatus::kCorrupt;
    if (dice == 2) flight.status = TransferStatus::kTimeout;
    if (dice == 3) flight.at += kSecond;
    flights[id.value] = flight;
  }

  void On(TimeNs now, const LoadToDram& c, Rng& rng) {
    EXPECT_TRUE(ssd.count(c.block) == 1 || lost.count(c.block) == 1) << "loads a block that is not on SSD";
    EXPECT_TRUE(dram.insert(c.block).second) << "loads a block that is in DRAM";
    EXPECT_LE(dram.size(), dram_blocks_) << "DRAM is over its budget";
    ++reads[c.block];
    Launch(now, c.transfer, c, rng);
  }
  void On(TimeNs now, const LoadToArena& c, Rng& rng) {
    EXPECT_TRUE(landed.count(c.block) == 1) << "loads from a DRAM copy that is not there";
    SlotView& slot = Slot(c.engine, c.slot);
    EXPECT_EQ(slot.state, SlotView::kFree) << "uses a slot twice";
    slot = {SlotView::kLoading, c.block};
    ++reads[c.block];
    Launch(now, c.transfer, c, rng, epochs[c.engine.value]);
  }
  void On(TimeNs now, const Spill& c, Rng& rng) {
    EXPECT_TRUE(landed.count(c.block) == 1) << "spills a DRAM copy that is not there";
    ++reads[c.block];
    Launch(now, c.transfer, c, rng);
  }
  void On(TimeNs now, const AcceptStore& c, Rng& rng) {
    EXPECT_TRUE(stores.erase(c.store) == 1) << "answers a store that does not wait";
    EXPECT_TRUE(dram.insert(c.block).second) << "stores over a DRAM copy";
    EXPECT_LE(dram.size(), dram_blocks_) << "DRAM is over its budget";
    ++reads[c.block];
    Launch(now, c.transfer, c, rng);
  }
  void On(TimeNs, const RejectStore& c, Rng&) {
    EXPECT_TRUE(stores.erase(c.store) == 1) << "answers a store that does not wait";
  }
  void On(TimeNs, const Promote& c, Rng&) { EXPECT_TRUE(ids_.count(c.transfer.value) == 1); }
  void On(TimeNs now, const Cancel& c, Rng&) {
    const auto found = flights.find(c.transfer.value);
    if (found == flights.end() || !found->second.queued) return;
    found->second.status = TransferStatus::kCancelled;
    found->second.at = now;
  }
  void On(TimeNs now, const RetireSlot& c, Rng& rng) {
    SlotView& slot = Slot(c.engine, c.slot);
    EXPECT_EQ(slot.state, SlotView::kReady) << "retires a slot that is not ready";
    slot.state = SlotView::kRetiring;
    FreeLater(now, c.engine, c.slot, rng);
  }
  void FreeLater(TimeNs now, EngineId engine, SlotIndex slot, Rng& rng) {
    const DurationNs held = rng.Below(8) == 0 ? 20'000'000 : 100'000;
    frees.push_back({now + static_cast<DurationNs>(rng.Below(static_cast<std::uint64_t>(held))), engine, slot,
                     epochs[engine.value]});
  }
  void On(TimeNs, const EvictDram& c, Rng&) {
    EXPECT_TRUE(landed.erase(c.block) == 1 && dram.erase(c.block) == 1) << "evicts what is not there";
    EXPECT_EQ(reads[c.block], 0) << "frees a DRAM copy under a transfer";
  }
  void On(TimeNs, const DropSsd& c, Rng&) { ssd.erase(c.block); }
  void On(TimeNs, const DemandDone& c, Rng&) {
    auto found = demands.find(c.demand);
    if (found == demands.end() && crossing.erase(c.demand) == 1) return;  // answered before it was dropped, in one step
    ASSERT_TRUE(found != demands.end()) << "answers a demand that does not wait";
    EXPECT_EQ(c.ready_blocks + c.absent_blocks + c.failed_blocks, found->second.second.size());
    if (changed.count(c.engine.value) == 1) {  // answered before its arena went, in one step
      demands.erase(found);
      return;
    }
    for (std::uint32_t k = 0; k < c.ready_blocks && k < found->second.second.size(); ++k) {
      EXPECT_TRUE(Ready(c.engine, found->second.second[k])) << "calls a block ready that is not";
    }
    demands.erase(found);
    ++answered;
  }
  void On(TimeNs, const PurgeDone& c, Rng&) {
    const auto found = purges.find(c.purge);
    ASSERT_TRUE(found != purges.end());
    for (const BlockId block : found->second) {
      EXPECT_TRUE(dram.count(block) == 0 && ssd.count(block) == 0) << "a purged block can still be read";
      for (const auto& [engine, slots] : arenas) {
        for (const SlotView& slot : slots) EXPECT_FALSE(slot.state != SlotView::kFree && slot.block == block);
      }
    }
    purges.erase(found);
  }
  void On(TimeNs, const FlushDone& c, Rng&) { EXPECT_TRUE(flushes.erase(c.flush) == 1); }
  void On(TimeNs, const ForgetBlock& c, Rng&) {
    EXPECT_TRUE(dram.count(c.block) == 0 && ssd.count(c.block) == 0) << "forgets a block that lies somewhere";
    EXPECT_EQ(reads[c.block], 0);
  }

  SlotView& Slot(EngineId engine, SlotIndex slot) {
    std::vector<SlotView>& slots = arenas[engine.value];
    EXPECT_LT(slot.value, slots.size()) << "names a slot outside the grant";
    static SlotView nowhere;
    return slot.value < slots.size() ? slots[slot.value] : nowhere;
  }
  bool Ready(EngineId engine, BlockId block) {
    for (const SlotView& slot : arenas[engine.value]) {
      if (slot.state == SlotView::kReady && slot.block == block) return true;
    }
    return false;
  }

  bool Lies(BlockId block) {
    for (const auto& [engine, slots] : arenas) {
      for (const SlotView& slot : slots) {
        if (slot.state != SlotView::kFree && slot.block == block) return true;
      }
    }
    return dram.count(block) == 1 || ssd.count(block) == 1 || reads[block] > 0;
  }

  // Ends what is due, as events. What a real executor would do to its stores is done to the book.
  void Complete(TimeNs now, Rng& rng, World& w) {
    for (auto it = flights.begin(); it != flights.end();) {
      if (it->second.at > now) {
        ++it;
        continue;
      }
      const Flight flight = it->second;
      End(now, TransferId{it->first}, flight, rng, w);
      it = flights.erase(it);
    }
    for (std::size_t i = 0; i < frees.size();) {
      const Free& free = frees[i];
      if (free.at > now) {
        ++i;
        continue;
      }
      if (free.epoch == epochs[free.engine.value]) {
        Slot(free.engine, free.slot) = {};
        w.Send(SlotFree{free.engine, free.slot});
      }
      frees.erase(frees.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void End(TimeNs now, TransferId id, const Flight& flight, Rng& rng, World& w) {
    const bool ok = flight.status == TransferStatus::kOk;
    if (const auto* c = std::get_if<LoadToDram>(&flight.command)) {
      --reads[c->block];
      ok ? (void)landed.insert(c->block) : (void)dram.erase(c->block);
    } else if (const auto* arena = std::get_if<LoadToArena>(&flight.command)) {
      --reads[arena->block];
      if (flight.epoch == epochs[arena->engine.value]) {
        Slot(arena->engine, arena->slot).state = ok ? SlotView::kReady : SlotView::kRetiring;
        if (!ok) FreeLater(now, arena->engine, arena->slot, rng);
      }
    } else if (const auto* spill = std::get_if<Spill>(&flight.command)) {
      --reads[spill->block];
      if (ok) ssd.insert(spill->block);
    } else if (const auto* store = std::get_if<AcceptStore>(&flight.command)) {
      --reads[store->block];
      ok ? (void)landed.insert(store->block) : (void)dram.erase(store->block);
    }
    w.Send(TransferDone{
        id, flight.status, ok ? kBlockBytes : 0,
        flight.status == TransferStatus::kCancelled ? 0 : static_cast<DurationNs>(1 + rng.Below(1'000'000))});
  }

  void ArenaGone(EngineId engine, std::uint32_t slots) {
    changed.insert(engine.value);
    ++epochs[engine.value];
    arenas[engine.value].assign(slots, SlotView{});
  }

  struct Free {
    TimeNs at;
    EngineId engine;
    SlotIndex slot;
    std::uint64_t epoch;
  };
  std::set<BlockId> ssd, dram, landed;
  std::map<BlockId, int> reads;
  std::map<std::uint32_t, std::vector<SlotView>> arenas;
  std::map<std::uint32_t, std::uint64_t> epochs;
  std::map<std::uint64_t, Flight> flights;
  std::vector<Free> frees;
  std::map<std::uint64_t, std::pair<EngineId, std::vector<BlockId>>> demands;
  std::set<std::uint64_t> crossing;  // dropped in the batch that is about to be stepped
  std::set<std::uint32_t> changed;   // engines whose arena went in that batch
  std::set<BlockId> recovered;       // announced in that batch
  std::set<BlockId> lost;            // dropped by the SSD store in that batch, perhaps behind a load of it
  std::set<std::uint64_t> stores, flushes;
  std::map<std::uint64_t, std::vector<BlockId>> purges;
  std::uint64_t answered = 0;

 private:
  const std::uint64_t dram_blocks_;
  std::set<std::uint64_t> ids_;
};

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : rng_(seed), w_(Config(rng_)), book_(w_.config.dram_bytes / kBlockBytes) {}

  static CoreConfig Config(Rng& rng) {
    CoreConfig c = SmallConfig();
    c.dram_bytes = (8 + rng.Below(60)) * kBlockBytes;
    c.ssd_bytes = rng.Below(5) == 0 ? 0 : 1024 * kBlockBytes;
    c.blocks_max = 300 + static_cast<std::uint32_t>(rng.Below(600));
    c.sessions_max = 4 + static_cast<std::uint32_t>(rng.Below(20));
    c.requests_max = 12;
    c.demands_max = 8;
    c.plan_blocks_max = 16 + static_cast<std::uint32_t>(rng.Below(200));
    c.plan_loads_max = 4 + static_cast<std::uint32_t>(rng.Below(60));
    c.links[0].inflight_bytes_max = (1 + rng.Below(16)) * kBlockBytes;
    c.prefetch_ttl_ns = static_cast<DurationNs>(rng.Below(200'000'000));
    c.dirty_age_max_ns = static_cast<DurationNs>(rng.Below(50'000'000));
    c.ssd_second_use_admission = rng.Below(3) == 0;
    c.ssd_write_bytes_per_day = rng.Below(3) == 0 ? 10'000 * kBlockBytes : 0;
    c.hold_out_fraction = rng.Below(2) == 0 ? 0.2 : 0.0;
    c.session_promote_probability_min = 0.05;
    return c;
  }

  void Run(int steps) {
    for (std::uint32_t e = 0; e < kEngines; ++e) EngineUpWith(EngineId{e});
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      for (std::uint64_t n = rng_.Below(6); n > 0; --n) Act();
      OneStep(static_cast<DurationNs>(rng_.Below(3'000'000)));
    }
    Drain();
  }

  // No new work: everything that was asked is answered, nothing stays in flight.
  void Drain() {
    for (int i = 0; i < 4000 && !::testing::Test::HasFailure(); ++i) OneStep(5'000'000);
    EXPECT_TRUE(book_.flights.empty());
    EXPECT_TRUE(book_.demands.empty()) << "a demand was never answered";
    EXPECT_TRUE(book_.stores.empty()) << "a store was never answered";
    EXPECT_TRUE(book_.purges.empty()) << "a purge never ended";
    EXPECT_TRUE(book_.flushes.empty()) << "a flush never ended";
    for (const PrefetchLedger& ledger : w_.stats().prefetch) {
      std::uint64_t ended = 0;
      for (const std::uint64_t n : ledger.ended) ended += n;
      EXPECT_EQ(ledger.issued, ended + ledger.live);
    }
  }

  World& world() { return w_; }
  const Book& book() const { return book_; }
  const std::vector<std::uint64_t>& digests() const { return digests_; }
  const std::vector<std::pair<TimeNs, std::vector<std::uint8_t>>>& recording() const { return recording_; }

 private:
  void OneStep(DurationNs by) {
    book_.Complete(w_.now + by, rng_, w_);
    std::vector<std::uint8_t> bytes;
    EncodeBatch(w_.batch, bytes);
    recording_.push_back({w_.now + by, std::move(bytes)});
    w_.Step(by);
    digests_.push_back(CommandDigest(w_.last));
    for (const Command& command : w_.last) book_.Apply(w_.now, command, rng_);
    w_.all.clear();
    book_.crossing.clear();
    book_.changed.clear();
    book_.lost.clear();
    // A record that the core has refused (catalog full, purge) is the store's own.
    for (const BlockId block : book_.recovered) {
      if (w_.core.Explain(block).find("; on SSD") == std::string::npos) book_.ssd.erase(block);
    }
    book_.recovered.clear();
  }

  EngineId AnyEngine() { return EngineId{static_cast<std::uint32_t>(rng_.Below(kEngines))}; }
  std::vector<std::uint32_t> AnyPrefix() {
    const auto chain = static_cast<std::uint32_t>(rng_.Below(kChains));
    // Chains come in pairs that share their first eight blocks.
    const std::uint32_t shared = (chain / 2) * 2 * kChainBlocks;
    std::vector<std::uint32_t> ids;
    const auto length = 1 + static_cast<std::uint32_t>(rng_.Below(kChainBlocks));
    for (std::uint32_t k = 0; k < length; ++k) ids.push_back(k < 8 ? shared + k : chain * kChainBlocks + k);
    return ids;
  }
  BlockId AnyBlock() {
    const std::vector<std::uint32_t> prefix = AnyPrefix();
    return BlockId{prefix.back()};
  }
  static std::vector<BlockId> Ids(const std::vector<std::uint32_t>& values) {
    std::vector<BlockId> ids;
    for (const std::uint32_t v : values) ids.push_back(BlockId{v});
    return ids;
  }

  void EngineUpWith(EngineId engine) {
    const auto slots = static_cast<std::uint32_t>(rng_.Below(40));
    const double recompute = rng_.Below(2) == 0 ? 0.0 : 1e-4;
    const EnginePolicy policy = rng_.Below(5) == 0 ? EnginePolicy::kDemandOnly : EnginePolicy::kPredict;
    w_.Send(EngineUp{engine, 16, kBlockBytes, recompute, policy});
    w_.Send(ArenaGranted{engine, slots});
    DemandsGone(engine);
    book_.ArenaGone(engine, slots);
  }
  void DemandsGone(EngineId engine) {
    for (auto it = book_.demands.begin(); it != book_.demands.end();) {
      if (it->second.first != engine) {
        ++it;
        continue;
      }
      book_.crossing.insert(it->first);
      it = book_.demands.erase(it);
    }
  }

  void Act() {
    switch (rng_.Below(32)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: return QueueSome();
      case 5:
      case 6: return w_.Send(RequestScheduled{AnyRequest()});
      case 7:
      case 8: return w_.Send(RequestFirstToken{AnyRequest()});
      case 9:
      case 10:
      case 11: return FinishSome();
      case 12: return w_.Send(RequestAborted{AnyRequest()});
      case 13:
      case 14:
      case 15:
      case 16: return StoreSome();
      case 17:
      case 18:
      case 19: return AskSome();
      case 20: return UseSome();
      case 21: return w_.Send(KvStored{AnyEngine(), AnyBlock(), BlockId{}, Tier::kHbm});
      case 22: return w_.Send(KvRemoved{AnyEngine(), AnyBlock(), Tier::kHbm});
      case 23: return rng_.Below(10) == 0 ? w_.Send(KvUnknown{AnyEngine()}) : w_.Send(KvCleared{AnyEngine()});
      case 24: return HintSome();
      case 25: return DropSome();
      case 26: return rng_.Below(12) == 0 ? PurgeSome() : RecoverSome();
      case 27: return rng_.Below(10) == 0 ? FlushSome() : UseSome();
      case 28: return rng_.Below(8) == 0 ? RestartSome() : UseSome();
      case 29: return rng_.Below(8) == 0 ? w_.Send(PolicyChanged{rng_.Below(3) != 0}) : UseSome();
      case 30: return SsdLoss();
      default: return Nonsense();
    }
  }

  RequestId AnyRequest() { return RequestId{static_cast<std::uint32_t>(rng_.Below(next_request_ + 2))}; }
  void QueueSome() {
    RequestQueued queued = w_.Queue(next_request_++, AnyPrefix(), AnyEngine());
    if (rng_.Below(3) != 0) queued.session = SessionId{static_cast<std::uint32_t>(rng_.Below(30))};
    queued.kind = static_cast<RequestKind>(rng_.Below(kRequestKindCount));
    queued.priority = static_cast<std::int32_t>(rng_.Below(3));
    queued.turn = static_cast<std::uint32_t>(rng_.Below(7));
    queued.announced = rng_.Below(6) == 0;
    if (rng_.Below(3) == 0) queued.expected_start = w_.now + static_cast<DurationNs>(rng_.Below(100'000'000));
    w_.Send(queued);
    if (next_request_ > 40 && rng_.Below(2) == 0) w_.Send(RequestAborted{RequestId{next_request_ - 30}});
  }
  void FinishSome() {
    const RequestId id = AnyRequest();
    w_.Send(RequestFinished{id, rng_.Below(2) == 0 ? BlockRange{} : w_.Range(AnyPrefix())});
  }
  void StoreSome() {
    const EngineId engine = AnyEngine();
    const std::vector<std::uint32_t> prefix = AnyPrefix();
    const BlockId parent = prefix.size() > 1 ? BlockId{prefix[prefix.size() - 2]} : BlockId{};
    w_.Send(StoreOffered{next_id_, engine, BlockId{prefix.back()}, parent, kBlockBytes});
    book_.stores.insert(next_id_++);
  }
  void AskSome() {
    DemandAsked asked;
    asked.demand = next_id_++;
    asked.engine = AnyEngine();
    asked.deadline = w_.now + static_cast<DurationNs>(rng_.Below(200'000'000));
    const std::vector<std::uint32_t> prefix = AnyPrefix();
    asked.blocks = w_.Range(prefix);
    w_.Send(asked);
    book_.demands[asked.demand] = {asked.engine, Ids(prefix)};
  }
  void DropSome() {
    if (book_.demands.empty()) return;
    const auto it = book_.demands.begin();
    w_.Send(DemandDropped{it->first});
    book_.crossing.insert(it->first);
    book_.demands.erase(it);
  }
  void UseSome() {
    const EngineId engine = AnyEngine();
    const std::vector<Book::SlotView>& slots = book_.arenas[engine.value];
    if (!slots.empty()) w_.Send(SlotUsed{engine, SlotIndex{static_cast<std::uint32_t>(rng_.Below(slots.size()))}});
  }
  void HintSome() {
    HintGiven hint;
    hint.engine = AnyEngine();
    hint.action = static_cast<HintAction>(rng_.Below(5));
    if (rng_.Below(2) == 0) hint.session = SessionId{static_cast<std::uint32_t>(rng_.Below(30))};
    hint.eta_ns = static_cast<DurationNs>(rng_.Below(500'000'000));
    hint.sigma_ns = static_cast<DurationNs>(rng_.Below(50'000'000));
    hint.ttl_ns = static_cast<DurationNs>(rng_.Below(2) * 300'000'000);
    hint.blocks = w_.Range(AnyPrefix());
    w_.Send(hint);
  }
  void RecoverSome() {
    const BlockId block = AnyBlock();
    if (book_.dram.count(block) != 0 || PurgedNow(block)) return;
    w_.Send(SsdRecovered{block, BlockId{}, kBlockBytes});
    book_.ssd.insert(block);
    book_.recovered.insert(block);
  }
  bool PurgedNow(BlockId block) const {
    for (const auto& [id, blocks] : book_.purges) {
      if (std::find(blocks.begin(), blocks.end(), block) != blocks.end()) return true;
    }
    return false;
  }
  void SsdLoss() {
    if (book_.ssd.empty()) return;
    const BlockId block = *book_.ssd.begin();
    // A record is never dropped under a read.
    if (book_.reads[block] > 0) return;
    book_.ssd.erase(block);
    book_.lost.insert(block);
    w_.Send(SsdDropped{block});
  }
  void PurgeSome() {
    const std::vector<std::uint32_t> prefix = AnyPrefix();
    const std::uint64_t id = next_id_++;
    w_.Send(NamespacePurged{id, w_.Range(prefix)});
    // A block that lies nowhere now may be stored anew behind the purge.
    book_.purges[id];
    for (const BlockId block : Ids(prefix)) {
      if (book_.Lies(block)) book_.purges[id].push_back(block);
    }
    // What the core does not know, it cannot drop: the store's own records of unknown blocks go with the namespace.
    for (const std::uint32_t v : prefix) {
      if (book_.reads[BlockId{v}] == 0 && book_.ssd.erase(BlockId{v}) == 1) book_.lost.insert(BlockId{v});
    }
  }
  void FlushSome() {
    book_.flushes.insert(next_id_);
    w_.Send(FlushAsked{next_id_++});
  }
  void RestartSome() {
    const EngineId engine = AnyEngine();
    if (rng_.Below(2) == 0) {
      w_.Send(EngineDown{engine});
      EngineUpWith(engine);
      return;
    }
    w_.Send(ArenaRevoked{engine});
    const auto slots = static_cast<std::uint32_t>(rng_.Below(30));
    w_.Send(ArenaGranted{engine, slots});
    book_.ArenaGone(engine, slots);
  }
  void Nonsense() {
    const auto big = static_cast<std::uint32_t>(rng_.Next());
    switch (rng_.Below(12)) {
      case 0: return w_.Send(SlotUsed{EngineId{big}, SlotIndex{big}});
      case 1: return w_.Send(SlotUsed{AnyEngine(), SlotIndex{1000 + big % 1000}});
      case 2: return w_.Send(TransferDone{TransferId{rng_.Next()}, TransferStatus::kOk, rng_.Next(), INT64_MAX});
      case 3: return w_.Send(RequestScheduled{RequestId{big}});
      case 4: return w_.Send(KvStored{AnyEngine(), BlockId{big}, BlockId{big}, Tier::kHbm});
      case 5: {
        const BlockId block = AnyBlock();
        return w_.Send(KvStored{AnyEngine(), block, AnyBlock(), Tier::kHbm});
      }
      case 6: return w_.Send(RequestFinished{AnyRequest(), BlockRange{big, big}});
      case 7: return w_.Send(EngineUp{EngineId{big | 0x10000}, big, rng_.Next(), -1.0, EnginePolicy::kPredict});
      case 8: return w_.Send(DemandDropped{rng_.Next()});
      case 9: return w_.Send(SlotFree{AnyEngine(), SlotIndex{1000 + big % 1000}});
      case 10: return w_.Send(KvCleared{EngineId{big}});
      default: {
        HintGiven hint;
        hint.engine = AnyEngine();
        hint.action = HintAction::kExpect;
        hint.session = SessionId{static_cast<std::uint32_t>(rng_.Below(30))};
        hint.eta_ns = INT64_MAX;
        hint.sigma_ns = INT64_MIN;
        hint.ttl_ns = INT64_MAX;
        return w_.Send(hint);
      }
    }
  }

  Rng rng_;
  World w_;
  Book book_;
  std::uint32_t next_request_ = 0;
  std::uint64_t next_id_ = 1;
  std::vector<std::uint64_t> digests_;
  std::vector<std::pair<TimeNs, std::vector<std::uint8_t>>> recording_;
};

class SimulationSeeds : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(SimulationSeeds, KeepsEveryInvariantAfterEveryStep) {
  std::uint64_t seed = GetParam();
  // A failing seed of a longer hunt can be given by hand.
  if (const char* by_hand = std::getenv("FORELOAD_SIMULATION_SEED")) seed = std::strtoull(by_hand, nullptr, 10);
  SCOPED_TRACE("seed " + std::to_string(seed));
  RecordProperty("seed", std::to_string(seed));
  Simulation simulation(seed);
  simulation.Run(2500);
  // The world was not an idle one.
  EXPECT_GT(simulation.book().answered, 100u) << "seed " << seed;
  EXPECT_GT(simulation.world().stats().stores_accepted, 20u) << "seed " << seed;
}
INSTANTIATE_TEST_SUITE_P(Seeds, SimulationSeeds, ::testing::Range<std::uint64_t>(1, 13));

TEST(Determinism, TwoRunsAndAReplayOfTheRecordingGiveTheSameCommands) {
  Simulation first(4711);
  first.Run(800);
  Simulation second(4711);
  second.Run(800);
  EXPECT_EQ(first.digests(), second.digests());

  const std::vector<std::uint8_t> config = EncodeConfig(first.world().config);
  Result<CoreConfig> decoded = DecodeConfig(config);
  ASSERT_TRUE(decoded.ok());
  Core core(*decoded);
  EventBatch batch;
  std::vector<Command> commands;
  for (std::size_t i = 0; i < first.recording().size(); ++i) {
    const auto& [now, bytes] = first.recording()[i];
    ASSERT_TRUE(DecodeBatch(bytes, batch).ok());
    commands.clear();
    core.Step(now, batch, commands);
    ASSERT_EQ(CommandDigest(commands), first.digests()[i]) << "step " << i;
  }
}

// Decisions are part of what a recording means: this changes only with a change of policy, and then on purpose.
TEST(Determinism, TheDecisionsOfASeedAreTheSameOnEveryMachine) {
  Simulation simulation(20260101);
  simulation.Run(300);
  std::uint64_t folded = 0;
  for (const std::uint64_t digest : simulation.digests()) folded = (folded ^ digest) * 0x9E3779B97F4A7C15ull;
  EXPECT_EQ(folded, 6569812132195929716ull);
}

}  // namespace
}  // namespace foreload::core
