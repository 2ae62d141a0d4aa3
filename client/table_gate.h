// The residency table that look-ups use now, exchanged under them without a lock.
//
// Look-ups, unpins and validity checks come from any thread and never wait. One thread (the control thread) opens and
// exchanges tables; a table goes only after its last pin was dropped and every thread has left it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "residency/table_reader.h"

namespace foreload::client {

class TableGate {
 public:
  // --- any thread ---
  std::uint32_t LookupPin(const KeyListView& keys, PinnedBlock* pinned);
  std::uint32_t Lookup(const KeyListView& keys);
  bool Unpin(std::uint32_t slot, std::uint32_t generation, bool used);
  bool StillValid(std::uint32_t slot, std::uint32_t generation);

  // --- control thread ---
  bool has_table() const { return owner_ != nullptr; }
  // While closed every look-up misses; pins can still be dropped.
  void CloseLookups() { open_.store(false); }
  void OpenLookups() { open_.store(true); }
  // With look-ups closed: puts `next` (null: none) in place of the table, or returns false while it is in use.
  bool TryReplace(std::unique_ptr<TableReader>& next);

 private:
  class Visit;

  std::atomic<std::uint32_t> inside_{0};  // threads that may hold the pointer
  std::atomic<bool> open_{true};
  std::atomic<TableReader*> table_{nullptr};  // all three sequentially consistent: the order of the steps is the proof
  std::unique_ptr<TableReader> owner_;
  std::unique_ptr<TableReader> leaving_;  // replaced; a late visitor may still be inside
};

}  // namespace foreload::client
