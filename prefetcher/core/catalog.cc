#include "prefetcher/core/catalog.h"

namespace foreload::core {

Block* Catalog::Obtain(BlockId id, std::vector<Command>& commands) {
  if (id.value >= id_limit()) return nullptr;
  Block& block = blocks_.Touch(id.value);
  if (block.known) return &block;
  if (size_ >= blocks_max_) {
    if (idle_.empty()) return nullptr;
    Forget(BlockId{idle_.front()}, commands);
  }
  block = Block{};
  block.known = true;
  ++size_;
  UpdateIdle(id);
  return &block;
}

LinkResult Catalog::SetParent(BlockId child, BlockId parent) {
  if (child == parent) return LinkResult::kSelf;
  Block& block = At(child);
  if (block.parent == parent) return LinkResult::kOk;
  if (block.parent.valid()) return LinkResult::kConflict;
  if (block.children > 0) {
    // Only a block with children can be an ancestor of its new parent. A chain that is too long to tell is refused too.
    BlockId ancestor = parent;
    for (std::uint32_t steps = 0; ancestor.valid(); ancestor = At(ancestor).parent) {
      if (ancestor == child || ++steps > walk_max_) return LinkResult::kCycle;
    }
  }
  block.parent = parent;
  Block& above = At(parent);
  ++above.children;
  if (block.dram != DramState::kAbsent) ++above.dram_children;
  for (std::uint32_t i = block.first_copy; i != kNone; i = copies_[i].next) {
    if (copies_[i].slot != kNone) ++copies_[ObtainCopy(parent, copies_[i].engine)].arena_children;
  }
  UpdateIdle(parent);
  return LinkResult::kOk;
}

std::uint32_t Catalog::ObtainCopy(BlockId id, EngineId engine) {
  Block& block = At(id);
  const std::uint32_t found = FindCopy(block, engine);
  if (found != kNone) return found;
  const std::uint32_t index = copies_.Add();
  Copy& copy = copies_[index];
  copy.block = id;
  copy.engine = engine;
  copy.next = block.first_copy;
  block.first_copy = index;
  UpdateIdle(id);
  return index;
}

void Catalog::ReleaseCopyIfEmpty(std::uint32_t index) {
  Copy& copy = copies_[index];
  if (copy.in_view_list || copy.slot != kNone || copy.wanted > 0 || copy.demand_refs > 0 || copy.arena_children > 0)
    return;
  Block& block = At(copy.block);
  if (block.first_copy == index) {
    block.first_copy = copy.next;
  } else {
    std::uint32_t before = block.first_copy;
    while (copies_[before].next != index) before = copies_[before].next;
    copies_[before].next = copy.next;
  }
  const BlockId id = copy.block;
  copies_.Remove(index);
  UpdateIdle(id);
}

void Catalog::UpdateIdle(BlockId id) {
  Block& block = At(id);
  const bool idle = IsIdle(block);
  if (idle && block.list == BlockList::kNotListed) {
    block.list = BlockList::kIdle;
    idle_.PushBack(blocks_, id.value);
  } else if (!idle && block.list == BlockList::kIdle) {
    block.list = BlockList::kNotListed;
    idle_.Remove(blocks_, id.value);
  }
}

bool Catalog::Forget(BlockId id, std::vector<Command>& commands) {
  Block* block = Find(id);
  if (block == nullptr || block->list != BlockList::kIdle) return false;
  idle_.Remove(blocks_, id.value);
  const BlockId parent = block->parent;
  *block = Block{};
  --size_;
  commands.push_back(ForgetBlock{id});
  if (parent.valid()) {
    Block& above = At(parent);
    --above.children;
    UpdateIdle(parent);
    // It was used no later than its last child: next to go.
    if (above.list == BlockList::kIdle) {
      idle_.Remove(blocks_, parent.value);
      idle_.PushFront(blocks_, parent.value);
    }
  }
  return true;
}

}  // namespace foreload::core
