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

BlockInterner::Bound BlockInterner::Intern(const BlockKey& key, LayoutIndex layout, const Scope& scope) {
  Bound bound;
  const FullKey full{key, layout};
  const auto known = by_key_.find(full);
  const bool aliased = scope.engine.valid();
  const AliasKey alias_key{key.alias(), scope};
  const auto alias = aliased ? by_alias_.find(alias_key) : by_alias_.end();
  const bool provisional =
      alias != by_alias_.end() && alias->second.valid() && entries_[alias->second.value].provisional;

  if (known != by_key_.end()) {
    bound.block = known->second;
  } else if (provisional) {
    bound.block = alias->second;  // adopt: the engine has spoken of it already
    entries_[bound.block.value].provisional = false;
  } else {
    bound.block = NewEntry();
  }
  if (known == by_key_.end()) {
    entries_[bound.block.value].key = key;
    entries_[bound.block.value].layout = layout;
    by_key_.emplace(full, bound.block);
  }

  if (!aliased) return bound;
  if (alias == by_alias_.end()) {
    by_alias_.emplace(alias_key, bound.block);
    entries_[bound.block.value].aliases.push_back(alias_key);
  } else if (alias->second.valid() && alias->second != bound.block) {
    if (provisional) {
      bound.merged = alias->second;
      std::erase(entries_[bound.merged.value].aliases, alias_key);
      alias->second = bound.block;
      entries_[bound.block.value].aliases.push_back(alias_key);
    } else {  // two full keys behind one alias
      std::erase(entries_[alias->second.value].aliases, alias_key);
      alias->second = BlockId{};
      ++ambiguous_;
    }
  }
  return bound;
}

std::optional<BlockId> BlockInterner::Find(const BlockKey& key, LayoutIndex layout) const {
  const auto it = by_key_.find({key, layout});
  return it == by_key_.end() ? std::nullopt : std::optional<BlockId>(it->second);
}

std::optional<BlockId> BlockInterner::ResolveAlias(std::uint64_t low64, const Scope& scope, bool create) {
  const AliasKey alias_key{low64, scope};
  if (const auto it = by_alias_.find(alias_key); it != by_alias_.end()) {
    return it->second.valid() ? std::optional<BlockId>(it->second) : std::nullopt;
  }
  if (!create) return std::nullopt;
  const BlockId id = NewEntry();
  entries_[id.value].provisional = true;
  entries_[id.value].aliases.push_back(alias_key);
  by_alias_.emplace(alias_key, id);
  return id;
}

const BlockKey* BlockInterner::key(BlockId block) const {
  if (block.value >= entries_.size() || !entries_[block.value].used || entries_[block.value].provisional) return nullptr;
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
  for (const AliasKey& alias : entry.aliases) by_alias_.erase(alias);
  if (!entry.provisional) by_key_.erase({entry.key, entry.layout});
  entry = Entry{};
  free_.push_back(block.value);
}

}  // namespace foreload::service
