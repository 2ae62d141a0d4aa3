// The DRAM tier's book-keeping: bytes against the budget, the list of copies from cold to hot, the queue of dirty ones.
// It knows no policy: who is evicted is decided by eviction.h, when something is written by store_path.h.
#pragma once

#include <cstdint>

#include "prefetcher/core/catalog.h"
#include "prefetcher/core/stats.h"

namespace foreload::core {

class DramTier {
 public:
  DramTier(Catalog& catalog, CoreStats& stats, std::uint64_t budget)
      : catalog_(catalog), stats_(stats), budget_(budget) {}

  bool Fits(std::uint64_t bytes) const { return bytes <= budget_ && used() <= budget_ - bytes; }
  std::uint64_t used() const { return stats_.dram_bytes_used; }
  std::uint64_t budget() const { return budget_; }

  // Absent -> kLoading or kStoring. The place must fit.
  void Reserve(BlockId id, DramState state);
  // Loading or storing -> kClean, at the hot end.
  void Landed(BlockId id);
  // Any state -> absent; no transfer may run on it (the caller checks and settles marks).
  void Free(BlockId id);

  // Clean -> dirty, behind every earlier dirty block; a storing block may be queued before it lands.
  void QueueDirty(BlockId id, TimeNs now);
  void MarkDirty(BlockId id);  // queued and landed: counts from now on
  void MarkSpilling(BlockId id) { catalog_.At(id).dram = DramState::kSpilling; }
  // Dirty or spilling -> clean, or a store that failed: leaves the queue.
  void LeaveDirty(BlockId id);

  void Touch(BlockId id) {
    if (catalog_.At(id).list == BlockList::kDram) list_.MoveToBack(catalog_.blocks(), id.value);
  }

  IndexList<&Block::link>& list() { return list_; }
  IndexList<&Block::dirty_link>& dirty() { return dirty_; }
  const IndexList<&Block::dirty_link>& dirty() const { return dirty_; }
  // Of the stores queued so far; a flush waits for the queue's front to be later.
  std::uint64_t last_dirty_serial() const { return dirty_serial_; }

 private:
  Catalog& catalog_;
  CoreStats& stats_;
  const std::uint64_t budget_;
  IndexList<&Block::link> list_;         // every block with a DRAM state other than absent
  IndexList<&Block::dirty_link> dirty_;  // by serial
  std::uint64_t dirty_serial_ = 0;
};

}  // namespace foreload::core
