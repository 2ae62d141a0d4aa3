// Aliases: the 64-bit block hashes of KV events, and the blocks that they may mean.
//
// Two digests can share their low 64 bits, and engines without salt in their hashes give one hash to several tenants'
// blocks; so an alias names a set. An alias of one block is as good as its key for steering predictions, an alias of
// several says nothing. Aliases never identify bytes.
//
// Bounded: beyond `aliases_max` Bind refuses, and an alias of more than kBlocksPerAliasMax blocks stays ambiguous until
// its scope is dropped. Single-threaded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "base/ids.h"

namespace foreload::telemetry {

// Aliases are comparable only within one engine, one of its data-parallel ranks and one KV-cache group.
struct AliasScope {
  EngineId engine;
  std::uint32_t data_parallel_rank = 0;
  std::uint32_t group = 0;

  friend bool operator==(const AliasScope&, const AliasScope&) = default;
};

class AliasTable {
 public:
  static constexpr std::size_t kBlocksPerAliasMax = 4;

  enum class Match : std::uint8_t { kUnknown, kUnique, kAmbiguous };
  struct Found {
    Match match = Match::kUnknown;
    BlockId block;  // valid when unique
  };

  explicit AliasTable(std::size_t aliases_max) : aliases_max_(aliases_max) {}

  // Adds `block` to what the alias may mean; binding it again changes nothing. False when the table is full.
  bool Bind(const AliasScope& scope, std::uint64_t low64, BlockId block);
  // Takes `block` away again; nothing happens when it is not bound.
  void Unbind(const AliasScope& scope, std::uint64_t low64, BlockId block);
  Found Find(const AliasScope& scope, std::uint64_t low64) const;

  // Forgets everything of one scope, or of all scopes of one engine.
  void DropScope(const AliasScope& scope);
  void DropEngine(EngineId engine);

  std::size_t size() const { return size_; }

 private:
  struct Entry {
    std::array<BlockId, kBlocksPerAliasMax> blocks;
    std::uint8_t count = 0;
    bool overflowed = false;
  };
  struct ScopeHash {
    std::size_t operator()(const AliasScope& scope) const {
      const std::uint64_t word = (std::uint64_t{scope.engine.value} << 32 | scope.group) * 0x9E3779B97F4A7C15ull;
      return static_cast<std::size_t>((word ^ scope.data_parallel_rank) * 0x9E3779B97F4A7C15ull);
    }
  };
  // Hashes are uniform already, but a publisher may choose them; the multiplication keeps runs apart.
  struct AliasHash {
    std::size_t operator()(std::uint64_t low64) const {
      return static_cast<std::size_t>((low64 ^ (low64 >> 32)) * 0x9E3779B97F4A7C15ull);
    }
  };
  using Aliases = std::unordered_map<std::uint64_t, Entry, AliasHash>;

  const std::size_t aliases_max_;
  std::size_t size_ = 0;
  std::unordered_map<AliasScope, Aliases, ScopeHash> scopes_;  // a scope without aliases is not kept
};

}  // namespace foreload::telemetry
