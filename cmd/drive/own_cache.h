// The engine's own paged prefix cache: which blocks it holds, who uses them, which one goes next. Pages without a block
// (a partly filled last block, output in progress, a block that another request holds too) count against the same
// capacity. Contents are not kept: what the drive verifies is what comes out of the arena.
//
// Eviction as in vLLM: blocks that nobody uses, least recently released first, a request's last block before its first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

namespace foreload::drive {

class OwnCache {
 public:
  explicit OwnCache(std::size_t pages) : pages_(pages) {}

  // Length of the longest prefix that is held.
  std::size_t Match(std::span<const std::uint64_t> blocks) const;

  // A request's hold on pages. Ends with Release.
  struct Lease {
    std::vector<std::uint64_t> blocks;  // held under their name, in prefix order
    std::size_t anonymous = 0;
  };

  // Takes the first `matched` of `blocks` and `pages` in total, evicting what nobody uses into `evicted` (appended).
  // False, and nothing changed, when so many pages cannot be freed.
  bool Acquire(std::span<const std::uint64_t> blocks, std::size_t matched, std::size_t pages, Lease& lease,
               std::vector<std::uint64_t>& evicted);

  // Gives an anonymous page of the lease its block. False when the block is held already: the page stays anonymous.
  bool Name(Lease& lease, std::uint64_t block);

  void Release(Lease& lease);

  std::size_t pages() const { return pages_; }
  std::size_t used_pages() const { return entries_.size() + anonymous_; }

 private:
  struct Entry {
    std::uint32_t users = 0;
    std::list<std::uint64_t>::iterator free_place;  // valid while users == 0
  };

  std::size_t pages_;
  std::size_t anonymous_ = 0;
  std::unordered_map<std::uint64_t, Entry> entries_;
  std::list<std::uint64_t> free_;  // held and unused; the front goes first
};

}  // namespace foreload::drive
