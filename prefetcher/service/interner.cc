#include "prefetcher/service/interner.h"

#include <algorithm>

#include "base/check.h"

namespace foreload::service {

LayoutIndex BlockInterner::InternLayout(const LayoutFingerprint& layout) {
  for (LayoutIndex i = 1; i < layouts_.size(); ++i) {
    if (layouts_[i] == layout) return i;
  }
  layouts_.push_back(layout);
  return static_cast<LayoutIndex>(layouts_.size() - 1);
}

BlockId BlockInterner::NewEntry() {
  BlockId id;
  if (free_.empty()) {
    id.value = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    id.value = free_.back();
    free_.pop_back();
  }
  entries_[id.value] = Entry{};
  entries_[id.value].used = true;
  return id;
}

void BlockInterner::BindAlias(BlockId block, const Alias& alias) {
  std::vector<Alias>& bound = entries_[block.value].aliases;
  if (std::find(bound.begin(), bound.end(), alias) != bound.end()) return;
  if (aliases_.Bind(alias.scope, alias.low64, block)) bound.push_back(alias);
}

BlockInterner::Bound BlockInterner::Intern(const BlockKey& key, LayoutIndex layout, const Scope& scope) {
  Bound bound;
  const bool aliased = scope.engine.valid();
  const Alias alias{scope, key.alias()};
  BlockId provisional;
  if (aliased) {
    const auto found = aliases_.Find(scope, alias.low64);
    if (found.match == telemetry::AliasTable::Match::kUnique && entries_[found.block.value].provisional) {
      provisional = found.block;
    }
  }
  const FullKey full{key, layout};
  if (const auto known = by_key_.find(full); known != by_key_.end()) {
    bound.block = known->second;
    bound.merged = provisional;
  } else {
    // What the engine has spoken of already is adopted, so that it stays true.
    bound.block = provisional.valid() ? provisional : NewEntry();
    Entry& entry = entries_[bound.block.value];
    entry.provisional = false;
    entry.key = key;
    entry.layout = layout;
    by_key_.emplace(full, bound.block);
  }
  if (bound.merged.valid()) {
    std::erase(entries_[bound.merged.value].aliases, alias);
    aliases_.Unbind(scope, alias.low64, bound.merged);
  }
  if (aliased) BindAlias(bound.block, alias);
  return bound;
}

std::optional<BlockId> BlockInterner::Find(const BlockKey& key, LayoutIndex layout) const {
  const auto it = by_key_.find({key, layout});
  return it == by_key_.end() ? std::nullopt : std::optional<BlockId>(it->second);
}

std::optional<BlockId> BlockInterner::ResolveAlias(std::uint64_t low64, const Scope& scope, bool create) {
  const auto found = aliases_.Find(scope, low64);
  if (found.match == telemetry::AliasTable::Match::kUnique) return found.block;
  if (found.match == telemetry::AliasTable::Match::kAmbiguous || !create) return std::nullopt;
  const BlockId id = NewEntry();
  entries_[id.value].provisional = true;
  BindAlias(id, {scope, low64});
  return id;
}

const BlockKey* BlockInterner::key(BlockId block) const {
  if (block.value >= entries_.size() || !entries_[block.value].used || entries_[block.value].provisional)
    return nullptr;
  return &entries_[block.value].key;
}

std::vector<BlockId> BlockInterner::BlocksOf(const NamespaceFingerprint& space) const {
  std::vector<BlockId> blocks;
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.used && !entry.provisional && entry.key.name_space == space) blocks.push_back(BlockId{i});
  }
  return blocks;
}

void BlockInterner::Forget(BlockId block) {
  FORELOAD_CHECK(block.value < entries_.size() && entries_[block.value].used, "forgetting a block that has no id");
  Entry& entry = entries_[block.value];
  for (const Alias& alias : entry.aliases) aliases_.Unbind(alias.scope, alias.low64, block);
  if (!entry.provisional) by_key_.erase({entry.key, entry.layout});
  entry = Entry{};
  free_.push_back(block.value);
}

}  // namespace foreload::service
