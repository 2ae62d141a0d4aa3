#include "telemetry/alias_table.h"

#include <algorithm>

namespace foreload::telemetry {

bool AliasTable::Bind(const AliasScope& scope, std::uint64_t low64, BlockId block) {
  const auto in_scope = scopes_.find(scope);
  if (size_ >= aliases_max_ && (in_scope == scopes_.end() || !in_scope->second.contains(low64))) return false;
  Aliases& aliases = in_scope != scopes_.end() ? in_scope->second : scopes_[scope];
  const auto [it, added] = aliases.try_emplace(low64);
  if (added) ++size_;
  Entry& entry = it->second;
  const auto end = entry.blocks.begin() + entry.count;
  if (std::find(entry.blocks.begin(), end, block) != end) return true;
  if (entry.count == kBlocksPerAliasMax) {
    entry.overflowed = true;
  } else {
    entry.blocks[entry.count++] = block;
  }
  return true;
}

void AliasTable::Unbind(const AliasScope& scope, std::uint64_t low64, BlockId block) {
  const auto in_scope = scopes_.find(scope);
  if (in_scope == scopes_.end()) return;
  const auto it = in_scope->second.find(low64);
  if (it == in_scope->second.end()) return;
  Entry& entry = it->second;
  const auto end = entry.blocks.begin() + entry.count;
  const auto found = std::find(entry.blocks.begin(), end, block);
  if (found == end) return;
  *found = entry.blocks[--entry.count];
  if (entry.count > 0 || entry.overflowed) return;
  in_scope->second.erase(it);
  --size_;
  if (in_scope->second.empty()) scopes_.erase(in_scope);
}

AliasTable::Found AliasTable::Find(const AliasScope& scope, std::uint64_t low64) const {
  const auto in_scope = scopes_.find(scope);
  if (in_scope == scopes_.end()) return {};
  const auto it = in_scope->second.find(low64);
  if (it == in_scope->second.end()) return {};
  if (it->second.count == 1 && !it->second.overflowed) return {Match::kUnique, it->second.blocks[0]};
  return {Match::kAmbiguous, BlockId{}};
}

void AliasTable::DropScope(const AliasScope& scope) {
  const auto in_scope = scopes_.find(scope);
  if (in_scope == scopes_.end()) return;
  size_ -= in_scope->second.size();
  scopes_.erase(in_scope);
}

void AliasTable::DropEngine(EngineId engine) {
  for (auto it = scopes_.begin(); it != scopes_.end();) {
    if (it->first.engine == engine) {
      size_ -= it->second.size();
      it = scopes_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace foreload::telemetry
