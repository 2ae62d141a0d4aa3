// The DRAM tier: one arena, mapped and touched once at start, cut into slabs of uniform slots.
//
// A block's size is rounded up to 4 KiB and names its size class. A slab serves one class while any of its slots is in
// use, and returns to the common pool when the last one is freed, so that classes may come and go: nothing is lost
// beyond the tails of partly used slabs. A block larger than a slab takes whole adjacent slabs. Offsets are 4
// KiB-aligned.
//
// A block is a plain handle; freeing one twice, or one of another store, stops the process.
//
// Thread: one owner; Data, base, bytes and Summary from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"

namespace foreload {

inline constexpr std::uint64_t kDramAlignment = 4096;

struct DramStoreOptions {
  std::uint64_t bytes = 0;       // of the arena; rounded down to whole slabs
  bool huge_pages = true;        // ask for them; without any, the store works with small ones and says so
  bool lock_memory = true;       // ask for it; refused: not locked, and Summary says so
  int numa_node = -1;            // prefer this node's memory; -1: where the kernel likes
  std::uint64_t slab_bytes = 0;  // a power of two; 0: bytes / 128, rounded to one within 256 KiB .. 32 MiB
};

struct DramBlock {
  std::uint64_t offset = 0;  // in the arena
  std::uint64_t bytes = 0;   // as asked for
};

class DramStore {
 public:
  // InvalidArgument: options that cannot be met. ResourceExhausted: the machine has no such memory.
  static Result<std::unique_ptr<DramStore>> Create(const DramStoreOptions& options);
  ~DramStore();
  DramStore(const DramStore&) = delete;
  DramStore& operator=(const DramStore&) = delete;

  // ResourceExhausted: no free slot and no free slab; free something of that size, or a whole slab. Content is
  // whatever was there.
  Result<DramBlock> Allocate(std::uint64_t bytes);
  void Free(const DramBlock& block);

  std::uint8_t* Data(const DramBlock& block) const { return base_ + block.offset; }

  std::uint8_t* base() const { return base_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t bytes_used() const { return bytes_used_; }  // slots in use, rounded up to 4 KiB each
  std::uint64_t slab_bytes() const { return slab_bytes_; }
  std::uint64_t free_slabs() const { return free_slabs_.size(); }

  // How many blocks of this size an empty store holds.
  std::uint64_t BlocksThatFit(std::uint64_t bytes) const;

  // Size, page size, locking and NUMA placement, in words.
  const std::string& Summary() const { return summary_; }

 private:
  // State of one slab. A large block's first slab carries it; the others of its run only say that they are taken.
  struct Slab {
    enum class Use : std::uint8_t { kFree, kSlots, kLarge, kLargeTail };
    Use use = Use::kFree;
    std::uint64_t slot_bytes = 0;  // kSlots: of the class; kLarge: of the whole block
    std::uint32_t used = 0;        // slots
    std::uint32_t slots = 0;
    std::vector<std::uint64_t> free_bits;  // 1: free
  };

  DramStore() = default;
  Result<DramBlock> AllocateSlot(std::uint64_t slot_bytes, std::uint64_t bytes);
  Result<DramBlock> AllocateLarge(std::uint64_t slot_bytes, std::uint64_t bytes);
  void FreeSlot(std::uint32_t index, Slab& slab, std::uint64_t offset);
  void FreeLarge(std::uint32_t index, Slab& slab);

  std::uint8_t* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint64_t mapped_bytes_ = 0;
  std::uint64_t slab_bytes_ = 0;
  std::uint64_t bytes_used_ = 0;
  std::string summary_;
  std::vector<Slab> slabs_;
  std::set<std::uint32_t> free_slabs_;                        // lowest first: used memory stays together
  std::map<std::uint64_t, std::set<std::uint32_t>> partial_;  // by slot bytes: slabs with free and used slots
};

}  // namespace foreload
