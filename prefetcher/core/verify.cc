// The core's invariants, and a block's story in words. Every counter that the parts keep is counted anew from what it
// counts.
#include <array>
#include <string>
#include <vector>

#include "base/check.h"
#include "prefetcher/core/core_impl.h"
#include "prefetcher/core/keep_value.h"

namespace foreload::core {
namespace {

struct Counted {
  std::uint32_t request_refs = 0;
  std::uint32_t wanted = 0;
  std::uint32_t demand_refs = 0;
  std::uint32_t transfers = 0;
  std::uint32_t slots = 0;
  std::uint32_t children = 0;
  std::uint32_t dram_children = 0;
};

class Verifier {
 public:
  explicit Verifier(const CoreParts& core) : core_(core), state_(core.state) {}

  void Run() {
    CountRequests();
    CountTransfers();
    CountArenas();
    CheckDemands();
    CheckCopies();
    CheckBlocks();
    CheckLedger();
  }

 private:
  Counted& At(BlockId id) {
    if (id.value >= counted_.size()) counted_.resize(id.value + 1);
    return counted_[id.value];
  }
  void CountLive(Tier tier, const PrefetchMark& mark) {
    if (mark.live) ++live_[static_cast<std::size_t>(tier)];
  }

  void CountRequests() {
    const Slab<Request>& requests = core_.admission.all();
    for (std::uint32_t i = 0; i < requests.end(); ++i) {
      if (!requests.Live(i)) continue;
      const Request& request = requests[i];
      const bool queued = state_.EngineAt(request.engine).queue.count(request.key) == 1;
      FORELOAD_CHECK(queued == (request.phase == RequestPhase::kQueued), "a request is in the wrong queue");
      for (const BlockId id : request.blocks) {
        ++At(id).request_refs;
        if (request.waits) ++At(id).wanted;
      }
    }
  }

  void CountTransfers() {
    const Slab<Transfer>& transfers = core_.transfers.all();
    std::array<std::uint64_t, kLinkCount> outstanding{};
    std::array<std::uint64_t, kLinkCount> speculative{};
    for (std::uint32_t i = 0; i < transfers.end(); ++i) {
      if (!transfers.Live(i)) continue;
      const Transfer& transfer = transfers[i];
      ++At(transfer.block).transfers;
      const Block& block = state_.catalog.At(transfer.block);
      FORELOAD_CHECK(block.known && block.dram != DramState::kAbsent, "a transfer touches a DRAM copy that is gone");
      FORELOAD_CHECK(block.bytes == transfer.bytes, "a block changed its size under a transfer");
      CountLive(transfer.kind == TransferKind::kLoadToArena ? Tier::kHbm : Tier::kDram, transfer.mark);
      if (transfer.kind == TransferKind::kStore) continue;
      const Link link = transfer.kind == TransferKind::kLoadToArena  ? Link::kDramToHbm
                        : transfer.kind == TransferKind::kLoadToDram ? Link::kSsdToDram
                                                                     : Link::kDramToSsd;
      outstanding[static_cast<std::size_t>(link)] += transfer.bytes;
      if (transfer.speculative) speculative[static_cast<std::size_t>(link)] += transfer.bytes;
    }
    for (std::size_t i = 0; i < kLinkCount; ++i) {
      FORELOAD_CHECK(state_.links[i].outstanding_bytes() == outstanding[i], "a link's bytes in flight are wrong");
      FORELOAD_CHECK(state_.links[i].speculative_bytes() == speculative[i], "a link's prefetch in flight is wrong");
    }
  }

  void CountArenas() {
    for (const auto& engine : state_.engines) {
      if (engine == nullptr) continue;
      const Arena& arena = engine->arena;
      std::array<std::uint32_t, 4> states{};
      std::uint32_t speculative = 0;
      for (std::uint32_t i = 0; i < arena.size(); ++i) {
        const Slot& slot = arena[i];
        ++states[static_cast<std::size_t>(slot.state)];
        speculative += slot.speculative ? 1 : 0;
        CountLive(Tier::kHbm, slot.mark);
        if (slot.state == SlotState::kFree) continue;
        ++At(slot.block).slots;
        if (slot.state == SlotState::kRetiring) continue;
        const std::uint32_t copy = state_.catalog.FindCopy(state_.catalog.At(slot.block), engine->id);
        FORELOAD_CHECK(copy != kNone && state_.catalog.copy(copy).slot == i, "two slots hold one block, or none knows");
        if (slot.state == SlotState::kLoading) {
          FORELOAD_CHECK(core_.transfers.all().Live(slot.transfer), "a slot waits for a transfer that is over");
          FORELOAD_CHECK(core_.transfers.all()[slot.transfer].slot == i, "a transfer writes to another's slot");
        }
      }
      FORELOAD_CHECK(states[0] == arena.free() && states[1] == arena.loading(), "free or loading slots are miscounted");
      FORELOAD_CHECK(states[2] == arena.ready().size() && states[3] == arena.retiring(), "ready slots are miscounted");
      FORELOAD_CHECK(speculative == arena.speculative(), "speculative slots are miscounted");
    }
  }

  void CheckCopies() {
    const Slab<Copy>& copies = state_.catalog.copies();
    for (std::uint32_t i = 0; i < copies.end(); ++i) {
      if (!copies.Live(i)) continue;
      const Copy& copy = copies[i];
      FORELOAD_CHECK(state_.catalog.FindCopy(state_.catalog.At(copy.block), copy.engine) == i, "a copy is not listed");
      const bool empty = !copy.in_view_list && copy.slot == kNone && copy.wanted == 0 && copy.demand_refs == 0 &&
                         copy.arena_children == 0;
      FORELOAD_CHECK(!empty, "an empty copy was kept");
      FORELOAD_CHECK(!copy.in_view_list || copy.view_refs > 0, "a view holds a block that nobody announced");
      if (copy.slot == kNone) continue;
      const Slot& slot = state_.EngineAt(copy.engine).arena[copy.slot];
      FORELOAD_CHECK(slot.block == copy.block, "a copy names another block's slot");
    }
  }

  void CheckBlocks() {
    std::uint64_t known = 0;
    std::uint64_t dram_bytes = 0;
    std::uint64_t dirty_bytes = 0;
    std::uint64_t ssd_bytes = 0;
    state_.catalog.blocks().ForEach([&](std::uint32_t, const Block& block) {
      if (!block.known) return;
      ++known;
      CountLive(Tier::kDram, block.dram_mark);
      if (block.dram != DramState::kAbsent) dram_bytes += block.bytes;
      if (block.dram == DramState::kDirty || block.dram == DramState::kSpilling) dirty_bytes += block.bytes;
      if (block.ssd) ssd_bytes += block.bytes;
      FORELOAD_CHECK((block.dram == DramState::kAbsent) == (block.list != BlockList::kDram),
                     "DRAM list and state differ");
      if (!block.parent.valid()) return;
      FORELOAD_CHECK(state_.catalog.Find(block.parent) != nullptr, "a parent was forgotten before its child");
      ++At(block.parent).children;
      if (block.dram != DramState::kAbsent) ++At(block.parent).dram_children;
    });
    FORELOAD_CHECK(known == state_.catalog.size() && known <= state_.catalog.blocks_max(), "the catalog is miscounted");
    FORELOAD_CHECK(dram_bytes == state_.stats.dram_bytes_used, "DRAM bytes are miscounted");
    FORELOAD_CHECK(dram_bytes <= state_.dram.budget(), "DRAM is over its budget");
    FORELOAD_CHECK(dirty_bytes == state_.stats.dram_bytes_dirty, "dirty bytes are miscounted");
    FORELOAD_CHECK(ssd_bytes == state_.stats.ssd_bytes_used, "SSD bytes are miscounted");
    state_.catalog.blocks().ForEach([&](std::uint32_t i, const Block& block) {
      if (block.known) CheckBlock(block, At(BlockId{i}));
    });
  }

  static void CheckBlock(const Block& block, const Counted& counted) {
    FORELOAD_CHECK(block.request_refs == counted.request_refs, "request references are miscounted");
    FORELOAD_CHECK(block.wanted == counted.wanted, "wants are miscounted");
    FORELOAD_CHECK(block.demand_refs == counted.demand_refs, "demand references are miscounted");
    FORELOAD_CHECK(block.transfers == counted.transfers && block.dram_transfers == counted.transfers,
                   "transfers miscounted");
    FORELOAD_CHECK(block.slots == counted.slots, "slots of a block are miscounted");
    FORELOAD_CHECK(block.children == counted.children, "children are miscounted");
    FORELOAD_CHECK(block.dram_children == counted.dram_children, "children in DRAM are miscounted");
    FORELOAD_CHECK(!block.dram_mark.live || block.dram >= DramState::kClean, "a landed prefetch lies nowhere");
    const bool idle = block.first_copy == kNone && block.dram == DramState::kAbsent && !block.ssd &&
                      block.request_refs == 0 && block.transfers == 0 && block.slots == 0 && block.children == 0 &&
                      block.purge_refs == 0;
    FORELOAD_CHECK(idle == (block.list == BlockList::kIdle), "an idle block is not listed, or a used one is");
  }

  void CheckDemands() {
    const Slab<Demand>& demands = core_.demands.all();
    for (std::uint32_t i = 0; i < demands.end(); ++i) {
      if (!demands.Live(i)) continue;
      const Demand& demand = demands[i];
      std::uint32_t open = 0;
      std::uint32_t places = 0;
      for (std::uint32_t k = 0; k < demand.limit; ++k) {
        open += demand.waits[k] != Wait::kReady ? 1 : 0;
        places += demand.waits[k] == Wait::kPlace ? 1 : 0;
        if (demand.waits[k] != Wait::kReady) ++At(demand.blocks[k]).demand_refs;
      }
      FORELOAD_CHECK(open == demand.open && open > 0, "a demand that is done was not answered");
      FORELOAD_CHECK(places == demand.places, "a demand's waits for places are miscounted");
    }
  }

  void CheckLedger() const {
    state_.ledger.Verify();
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      FORELOAD_CHECK(state_.stats.prefetch[tier].live == live_[tier], "a live prefetch is nowhere, or in two places");
    }
    const CoreStats& s = state_.stats;
    const std::uint64_t found =
        s.needed_in_engine + s.needed_ready + s.needed_in_flight + s.needed_dram + s.needed_ssd + s.needed_absent;
    FORELOAD_CHECK(found == s.needed_blocks, "needed blocks do not add up");
  }

  const CoreParts& core_;
  const State& state_;
  std::vector<Counted> counted_;
  std::array<std::uint64_t, kTierCount> live_{};
};

std::string_view DramStateName(DramState state) {
  switch (state) {
    case DramState::kAbsent: return "not in DRAM";
    case DramState::kLoading: return "loading into DRAM";
    case DramState::kStoring: return "being stored";
    case DramState::kClean: return "in DRAM";
    case DramState::kDirty: return "in DRAM, not durable yet";
    case DramState::kSpilling: return "in DRAM, being written to SSD";
  }
  return "?";
}

std::string_view SlotStateName(SlotState state) {
  switch (state) {
    case SlotState::kFree: return "free";
    case SlotState::kLoading: return "loading";
    case SlotState::kReady: return "ready";
    case SlotState::kRetiring: return "retiring";
  }
  return "?";
}

}  // namespace

void VerifyParts(const CoreParts& core) {
  Verifier(core).Run();
}

std::string ExplainBlock(const CoreParts& core, BlockId id) {
  const State& state = core.state;
  const Block* block = state.catalog.Find(id);
  if (block == nullptr) return "unknown block";
  std::string text = "block " + std::to_string(id.value) + ", " + std::to_string(block->bytes) + " bytes; parent " +
                     (block->parent.valid() ? std::to_string(block->parent.value) : "unknown") + "; ";
  text += DramStateName(block->dram);
  if (block->dram_doomed) text += " (to be dropped)";
  text += block->ssd ? "; on SSD" : "; not on SSD";
  for (std::uint32_t i = block->first_copy; i != kNone; i = state.catalog.copy(i).next) {
    const Copy& copy = state.catalog.copy(i);
    const Engine& engine = state.EngineAt(copy.engine);
    text += "; engine " + std::to_string(copy.engine.value) + ":";
    text += engine.Holds(copy) ? " holds it itself," : engine.view_known ? " does not hold it," : " own cache unknown,";
    if (copy.slot == kNone) {
      text += " no slot";
    } else {
      text += " slot " + std::to_string(copy.slot) + " " + std::string(SlotStateName(engine.arena[copy.slot].state));
    }
    if (copy.slot != kNone && block->bytes > 0) {
      text += ", worth " + std::to_string(ArenaKeepValue(state, engine, copy, ArenaResidency(engine)) * 1e9) +
              " ns of stall per byte";
    }
    text += ", wanted by " + std::to_string(copy.wanted) + " requests";
  }
  text += "; named by " + std::to_string(block->request_refs) + " live requests, waited for by " +
          std::to_string(block->demand_refs) + " demands; used " + std::to_string(block->uses) + " times";
  if (block->dram >= DramState::kClean && block->bytes > 0) {
    text += "; in DRAM worth " + std::to_string(DramKeepValue(state, *block, DramResidency(state)) * 1e9) +
            " ns of stall per byte";
  }
  if (block->retry_at > state.now) text += "; no prefetch for a while after failures";
  if (block->pin_until > state.now) text += "; pinned";
  if (block->purge_refs > 0) text += "; being purged";
  return text;
}

}  // namespace foreload::core
