// Names to small ids, in order of arrival: the core sees ids only.
//
// A block is (key, layout): bytes are shared only where both agree. A KV event that carries only 8 bytes of a digest
// gets a provisional id, bound to that engine's alias; when a full key with those bytes turns up at the same engine, it
// adopts the id, so that what the event said stays true. A second full key with the same alias makes it ambiguous, and
// then the alias says nothing any more.
//
// Thread: the core thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/block_key.h"
#include "base/ids.h"
#include "telemetry/alias_table.h"

namespace foreload::service {

// Interned layout fingerprint; 0 is "no layout": engines that only publish events.
using LayoutIndex = std::uint32_t;

class BlockInterner {
 public:
  // One engine (each data-parallel rank of it is one of its own here) and one KV-cache group.
  using Scope = telemetry::AliasScope;
  static constexpr std::size_t kAliasesMax = 16u << 20;

  struct Bound {
    BlockId block;
    // Set when an alias's provisional block turned out to be this one although both had ids already: the caller moves
    // what it knows of the engine's cache from `merged` to `block`.
    BlockId merged;
  };

  LayoutIndex InternLayout(const LayoutFingerprint& layout);

  // The id of (key, layout), new when unseen; binds the key's alias in `scope`.
  Bound Intern(const BlockKey& key, LayoutIndex layout, const Scope& scope);
  std::optional<BlockId> Find(const BlockKey& key, LayoutIndex layout) const;

  // The block that an 8-byte hash means at this engine: bound, provisional (made when unseen and `create`), or nothing
  // when it is ambiguous.
  std::optional<BlockId> ResolveAlias(std::uint64_t low64, const Scope& scope, bool create);

  // Null for a provisional id.
  const BlockKey* key(BlockId block) const;
  LayoutIndex layout(BlockId block) const { return entries_[block.value].layout; }
  const LayoutFingerprint& layout_fingerprint(BlockId block) const { return layouts_[entries_[block.value].layout]; }
  // The parent's key as its engine gave it; digest_bytes 0: root or unknown.
  const BlockKey& parent_key(BlockId block) const { return entries_[block.value].parent; }
  void SetParent(BlockId block, const BlockKey& parent) { entries_[block.value].parent = parent; }

  // Every block with this key, whatever its layout.
  template <typename Fn>
  void ForEachOfKey(const BlockKey& key, Fn&& fn) const {
    for (LayoutIndex layout = 0; layout < layouts_.size(); ++layout) {
      if (const auto block = Find(key, layout)) fn(*block);
    }
  }
  // Every block of a namespace, by id. In proportion to the whole table: for purges.
  std::vector<BlockId> BlocksOf(const NamespaceFingerprint& space) const;

  // The id may be given to another block.
  void Forget(BlockId block);

  std::size_t size() const { return entries_.size() - free_.size(); }

 private:
  struct Alias {
    Scope scope;
    std::uint64_t low64 = 0;
    friend bool operator==(const Alias&, const Alias&) = default;
  };
  struct FullKey {
    BlockKey key;
    LayoutIndex layout;
    friend bool operator==(const FullKey&, const FullKey&) = default;
  };
  struct FullHash {
    std::size_t operator()(const FullKey& k) const noexcept {
      return std::hash<BlockKey>{}(k.key) + k.layout * 0x9E3779B97F4A7C15ull;
    }
  };
  struct Entry {
    BlockKey key;
    BlockKey parent;
    LayoutIndex layout = 0;
    bool used = false;
    bool provisional = false;
    std::vector<Alias> aliases;  // bound to this entry: rarely more than one
  };

  BlockId NewEntry();
  void BindAlias(BlockId block, const Alias& alias);

  std::unordered_map<FullKey, BlockId, FullHash> by_key_;
  telemetry::AliasTable aliases_{kAliasesMax};
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
  std::vector<LayoutFingerprint> layouts_{LayoutFingerprint{}};
};

// Strings of one engine to dense ids. An id is free again after Release.
template <typename IdType>
class NameInterner {
 public:
  explicit NameInterner(std::size_t capacity) : capacity_(capacity) {}

  std::optional<IdType> Find(EngineId engine, std::string_view name) const {
    const auto it = ids_.find(Key(engine, name));
    return it == ids_.end() ? std::nullopt : std::optional<IdType>(it->second);
  }

  // Nothing when the table is full.
  std::optional<IdType> Intern(EngineId engine, std::string_view name) {
    std::string key = Key(engine, name);
    if (const auto it = ids_.find(key); it != ids_.end()) return it->second;
    if (ids_.size() >= capacity_) return std::nullopt;
    IdType id;
    if (free_.empty()) {
      id.value = static_cast<typename IdType::rep>(names_.size());
      names_.emplace_back();
    } else {
      id.value = free_.back();
      free_.pop_back();
    }
    names_[id.value] = key;
    ids_.emplace(std::move(key), id);
    return id;
  }

  void Release(IdType id) {
    ids_.erase(names_[id.value]);
    names_[id.value].clear();
    free_.push_back(id.value);
  }

  // As it was interned.
  std::string_view Name(IdType id) const {
    const std::string_view key = names_[id.value];
    return key.substr(key.find('/') + 1);
  }

  std::size_t size() const { return ids_.size(); }

 private:
  static std::string Key(EngineId engine, std::string_view name) {
    std::string key = std::to_string(engine.value);
    key += '/';
    key += name;
    return key;
  }

  std::size_t capacity_;
  std::unordered_map<std::string, IdType> ids_;
  std::vector<std::string> names_;
  std::vector<typename IdType::rep> free_;
};

}  // namespace foreload::service
