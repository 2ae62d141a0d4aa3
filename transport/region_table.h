// The regions that a backend knows, and the one check that every transfer passes before it is performed.
//
// A region's slot counts the transfers that name it, so that Unregister can refuse while one is outstanding. Ids carry
// a generation: a stale id never names the region that took its slot.
//
// Thread: any (one short lock per call).
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "transport/backend.h"

namespace foreload {

inline constexpr std::uint64_t kDirectAlignment = 4096;  // of offsets, lengths and addresses under O_DIRECT
inline constexpr std::uint32_t kRegionsMax = 4096;       // live at once, per backend

// One side of a checked transfer.
struct TransferEnd {
  Region::Kind kind = Region::Kind::kHostMemory;
  std::uint8_t* memory = nullptr;  // kHostMemory: first byte of the transfer; null in a region that is only modelled
  int fd = -1;                     // kFile
  bool direct = false;             // kFile
  std::uint64_t offset = 0;        // inside the region
  std::uint32_t slot = 0;          // RegionTable::SlotOf(id), for a backend's own per-region data
};

struct RegionTableOptions {
  bool memory_to_memory = false;
  bool file_to_memory = false;
  bool memory_to_file = false;
  bool model_only_memory = false;  // accept kHostMemory without a base (simulation)
};

class RegionTable {
 public:
  explicit RegionTable(RegionTableOptions options) : options_(options) {}

  // InvalidArgument: what is wrong with the region. ResourceExhausted: kRegionsMax are live.
  Result<RegionId> Add(const Region& region);

  // Two steps, so that a backend can undo its own registration between them: after BeginRemove no transfer may name
  // the region; after FinishRemove its slot may be taken again. FailedPrecondition while transfers are outstanding.
  Result<Region> BeginRemove(RegionId id);
  void FinishRemove(RegionId id);

  // Checks kinds, bounds, alignment and overlap. True: both regions count one more outstanding transfer, until Release.
  bool Acquire(const Transfer& transfer, TransferEnd& source, TransferEnd& destination);
  void Release(const Transfer& transfer);

  static std::uint32_t SlotOf(RegionId id) { return id.value % kRegionsMax; }

 private:
  enum class State : std::uint8_t { kFree, kLive, kRemoving };
  struct Slot {
    Region region;
    RegionId id;
    std::uint32_t outstanding = 0;
    std::uint32_t generation = 0;
    State state = State::kFree;
  };

  Slot* Find(RegionId id);
  static bool Inside(const Region& region, std::uint64_t offset, std::uint64_t bytes);

  const RegionTableOptions options_;
  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace foreload
