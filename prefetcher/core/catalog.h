// Every block that the core knows: its parent, where it lies, and who needs it.
//
// Blocks form prefix chains by `parent`. A link that would make a block its own ancestor, or a second different parent,
// is refused; the first stays. A block that lies nowhere and that nobody names is *idle*; when the catalog is full the
// coldest idle leaf is forgotten (ForgetBlock). A block with residency, request, transfer or child never is.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "prefetcher/core/command.h"
#include "prefetcher/core/containers.h"
#include "prefetcher/core/ledger.h"

namespace foreload::core {

// kLoading: from SSD. kStoring: from a store ring, not visible yet. Clean, dirty and spilling copies can be read.
enum class DramState : std::uint8_t { kAbsent, kLoading, kStoring, kClean, kDirty, kSpilling };

enum class BlockList : std::uint8_t { kNotListed, kIdle, kDram };

struct Block {
  BlockId parent;
  std::uint32_t children = 0;        // known blocks whose parent this is
  std::uint32_t dram_children = 0;   // of those with a DRAM copy or one on the way
  std::uint32_t first_copy = kNone;  // list of Copy
  std::uint32_t request_refs = 0;    // live requests that name it
  std::uint32_t wanted = 0;          // of those that still wait for it, in any engine
  std::uint32_t demand_refs = 0;     // live demands that wait for it, in any engine
  std::uint32_t slots = 0;           // of any arena that hold it, retiring ones included
  std::uint32_t transfers = 0;       // running, of any kind
  std::uint32_t dram_transfers = 0;  // of those that read or write the DRAM copy
  std::uint32_t dram_load = kNone;   // the transfer that fills the DRAM copy, while kLoading or kStoring
  std::uint32_t uses = 0;            // requests that were scheduled with it
  std::uint32_t purge_refs = 0;      // purges under way: invisible while > 0
  std::uint16_t return_class = 0;    // of the request that used it last
  std::uint8_t failures = 0;         // loads that failed in a row
  DramState dram = DramState::kAbsent;
  BlockList list = BlockList::kNotListed;
  bool known = false;
  bool ssd = false;
  bool dram_doomed = false;  // corrupt or purged: freed when its last transfer ends
  bool demoted = false;      // by a hint, until used
  bool ever_used = false;
  bool retain_until_used = false;
  std::uint64_t bytes = 0;             // as stored; 0: unknown, never stored here
  std::uint64_t session = UINT64_MAX;  // key of the session that used it last
  std::uint64_t dirty_serial = 0;      // order of stores, for flush
  TimeNs dirty_since = 0;
  TimeNs last_use = 0;
  TimeNs retry_at = 0;  // no prefetch of it before
  TimeNs retain_until = 0;
  TimeNs pin_until = 0;
  PrefetchMark dram_mark;  // landed by prefetch, not consumed yet
  ListLink link;           // idle list, or DRAM list from cold to hot
  ListLink dirty_link;

  bool DramReadable() const { return dram >= DramState::kClean && !dram_doomed && purge_refs == 0; }
  bool SsdReadable() const { return ssd && purge_refs == 0; }
};

// One engine's view of one block: its own cache, its arena slot, and what waits for it.
struct Copy {
  BlockId block;
  EngineId engine;
  std::uint32_t next = kNone;   // next copy of the block
  std::uint32_t view_refs = 0;  // announcements by the engine's own cache, valid in view_epoch
  std::uint32_t view_epoch = 0;
  std::uint32_t slot = kNone;  // loading or ready
  std::uint32_t wanted = 0;    // live requests of this engine that wait for it
  std::uint32_t demand_refs = 0;
  std::uint32_t first_waiter = kNone;  // demands (demand.h)
  std::uint32_t arena_children = 0;    // children with a slot in this arena
  bool in_view_list = false;
  ListLink view_link;

  void Clear() { *this = Copy{}; }
};

enum class LinkResult : std::uint8_t { kOk, kSelf, kCycle, kConflict };

class Catalog {
 public:
  Catalog(std::uint32_t blocks_max, std::uint32_t walk_max) : blocks_max_(blocks_max), walk_max_(walk_max) {}

  // Ids at or above this are refused: the interner gives ids in order and reuses forgotten ones, so it never runs far
  // ahead of the number of blocks.
  std::uint64_t id_limit() const { return 2ull * blocks_max_ + 65536; }

  // Null when unknown.
  Block* Find(BlockId id) {
    if (id.value >= id_limit() || !blocks_.Has(id.value)) return nullptr;
    Block& block = blocks_[id.value];
    return block.known ? &block : nullptr;
  }
  const Block* Find(BlockId id) const { return const_cast<Catalog*>(this)->Find(id); }
  Block& At(BlockId id) { return blocks_[id.value]; }
  const Block& At(BlockId id) const { return blocks_[id.value]; }

  // Makes it known. Null when the id is out of range, or the catalog is full and nothing in it can be forgotten.
  Block* Obtain(BlockId id, std::vector<Command>& commands);

  // Sets the parent of a known block; the parent is made known by the caller.
  LinkResult SetParent(BlockId child, BlockId parent);

  std::uint32_t FindCopy(const Block& block, EngineId engine) const {
    std::uint32_t i = block.first_copy;
    while (i != kNone && copies_[i].engine != engine) i = copies_[i].next;
    return i;
  }
  std::uint32_t ObtainCopy(BlockId id, EngineId engine);
  // Frees the copy when nothing is left in it.
  void ReleaseCopyIfEmpty(std::uint32_t copy);
  Copy& copy(std::uint32_t i) { return copies_[i]; }
  const Copy& copy(std::uint32_t i) const { return copies_[i]; }
  Slab<Copy>& copies() { return copies_; }
  const Slab<Copy>& copies() const { return copies_; }

  // Call after anything that may have been the last thing that kept a block from being idle, or the first that does.
  void UpdateIdle(BlockId id);
  // Forgets a block that is idle; false when it is not.
  bool Forget(BlockId id, std::vector<Command>& commands);

  Chunks<Block>& blocks() { return blocks_; }
  const Chunks<Block>& blocks() const { return blocks_; }
  std::uint32_t size() const { return size_; }
  std::uint32_t blocks_max() const { return blocks_max_; }

 private:
  static bool IsIdle(const Block& block) {
    return block.known && block.first_copy == kNone && block.dram == DramState::kAbsent && !block.ssd &&
           block.request_refs == 0 && block.transfers == 0 && block.slots == 0 && block.children == 0 &&
           block.purge_refs == 0;
  }

  const std::uint32_t blocks_max_;
  const std::uint32_t walk_max_;
  std::uint32_t size_ = 0;
  Chunks<Block> blocks_;
  Slab<Copy> copies_;
  IndexList<&Block::link> idle_;  // cold to hot
};

}  // namespace foreload::core
