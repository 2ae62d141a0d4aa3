#include "cmd/drive/own_cache.h"

#include "base/check.h"

namespace foreload::drive {

std::size_t OwnCache::Match(std::span<const std::uint64_t> blocks) const {
  std::size_t n = 0;
  while (n < blocks.size() && entries_.contains(blocks[n])) ++n;
  return n;
}

bool OwnCache::Acquire(std::span<const std::uint64_t> blocks, std::size_t matched, std::size_t pages, Lease& lease,
                       std::vector<std::uint64_t>& evicted) {
  FORELOAD_CHECK(matched <= pages, "a lease holds at least what it matched");
  std::size_t matched_free = 0;  // they leave the free list without being evicted
  for (std::size_t i = 0; i < matched; ++i) matched_free += entries_.at(blocks[i]).users == 0 ? 1 : 0;
  const std::size_t fresh = pages - matched;
  if (pages_ - used_pages() + free_.size() - matched_free < fresh) return false;

  lease.blocks.assign(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(matched));
  for (const std::uint64_t block : lease.blocks) {
    Entry& entry = entries_.at(block);
    if (entry.users++ == 0) free_.erase(entry.free_place);
  }
  while (pages_ - used_pages() < fresh) {
    const std::uint64_t victim = free_.front();
    free_.pop_front();
    entries_.erase(victim);
    evicted.push_back(victim);
  }
  lease.anonymous = fresh;
  anonymous_ += fresh;
  return true;
}

bool OwnCache::Name(Lease& lease, std::uint64_t block) {
  if (lease.anonymous == 0) return false;
  const auto [it, inserted] = entries_.try_emplace(block);
  if (!inserted) return false;
  it->second.users = 1;
  --lease.anonymous;
  --anonymous_;
  lease.blocks.push_back(block);
  return true;
}

void OwnCache::Release(Lease& lease) {
  for (auto block = lease.blocks.rbegin(); block != lease.blocks.rend(); ++block) {
    Entry& entry = entries_.at(*block);
    if (--entry.users == 0) entry.free_place = free_.insert(free_.end(), *block);
  }
  anonymous_ -= lease.anonymous;
  lease = {};
}

}  // namespace foreload::drive
