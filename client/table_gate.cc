#include "client/table_gate.h"

#include <utility>

namespace foreload::client {

class TableGate::Visit {
 public:
  explicit Visit(TableGate& gate) : gate_(gate) {
    gate_.inside_.fetch_add(1);
    table_ = gate_.table_.load();
  }
  ~Visit() { gate_.inside_.fetch_sub(1); }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  TableReader* table() const { return table_; }
  TableReader* table_for_lookup() const { return gate_.open_.load() ? table_ : nullptr; }

 private:
  TableGate& gate_;
  TableReader* table_ = nullptr;
};

std::uint32_t TableGate::LookupPin(const KeyListView& keys, PinnedBlock* pinned) {
  const Visit visit(*this);
  TableReader* const table = visit.table_for_lookup();
  return table == nullptr ? 0 : table->LookupPinPrefix(keys, pinned);
}

std::uint32_t TableGate::Lookup(const KeyListView& keys) {
  const Visit visit(*this);
  const TableReader* const table = visit.table_for_lookup();
  return table == nullptr ? 0 : table->CountPrefix(keys);
}

bool TableGate::Unpin(std::uint32_t slot, std::uint32_t generation, bool used) {
  const Visit visit(*this);
  return visit.table() != nullptr && visit.table()->Unpin(slot, generation, used);
}

bool TableGate::StillValid(std::uint32_t slot, std::uint32_t generation) {
  const Visit visit(*this);
  return visit.table() != nullptr && visit.table()->StillValid(slot, generation);
}

// Look-ups are closed, so once nobody is inside no new pin can be made: whoever enters later finds them closed. Then
// the pins can only fall, and at 0 only a caller with a wrong handle can still come; that one may find the old pointer
// until it is replaced, so the old table goes when the inside is seen empty once more.
bool TableGate::TryReplace(std::unique_ptr<TableReader>& next) {
  if (inside_.load() != 0) return false;
  leaving_.reset();
  if (owner_ != nullptr && owner_->pins() > 0) return false;
  table_.store(next.get());
  leaving_ = std::exchange(owner_, std::move(next));
  if (inside_.load() == 0) leaving_.reset();
  return true;
}

}  // namespace foreload::client
