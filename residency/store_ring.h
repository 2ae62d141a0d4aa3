// Both sides of the store ring (residency/layout.h): memory slots that the sidecar lends to one worker in advance, so
// that storing a block costs the engine neither a wait nor a system call.
//
// A slot belongs to the sidecar, is granted (Grant), taken by the engine (Begin), filled, and comes back committed
// (Commit -> PollCommits) or is kept by the engine's library for the next Begin (Abort).
//
// Sleeping, without lost wake-ups: the sidecar sets `sleeping`, fences, and looks at the commit queue once more before
// it waits for the doorbell; Commit publishes its position, fences, and looks at `sleeping`. Both fences are
// sequentially consistent, so at least one of the two sees the other (Dekker): either the sidecar finds the commit, or
// Commit finds `sleeping` and rings. Commit clears `sleeping` when it rings, so a burst rings once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/block_key.h"
#include "base/status.h"
#include "proto/unique_fd.h"
#include "residency/layout.h"
#include "residency/shared_memory.h"

namespace foreload {

struct StoreRingOptions {
  std::uint32_t slot_count = 0;  // 1 to kStoreSlotsMax
  std::uint64_t slot_bytes = 0;  // payload, 1 to kSlotBytesMax
  std::uint64_t boot_token = 0;
};

struct StoreCommit {
  std::uint32_t slot = 0;  // the sidecar's again; Grant it back when its bytes were copied or refused
  BlockKey key;
  std::optional<BlockKey> parent;   // nullopt: root or unknown
  std::span<const std::byte> data;  // shared with the engine: copy first, then checksum the copy
  std::uint64_t token = 0;
};

// The sidecar's side. One thread. Positions and records come from the engine and are checked; what no honest library
// writes is DataLoss: close this engine's ring (destroy the object) and go on.
class StoreRingWriter {
 public:
  static Result<StoreRingWriter> Create(const StoreRingOptions& options);

  int fd() const { return memory_.fd(); }
  int doorbell_fd() const { return doorbell_.get(); }
  std::uint64_t bytes() const { return memory_.bytes(); }
  std::uint32_t slot_count() const { return header_.slot_count; }
  std::uint64_t slot_bytes() const { return header_.slot_bytes; }

  // Lends the slot to the engine. The slot must be the sidecar's (all are at first).
  void Grant(std::uint32_t slot);
  void GrantAll();

  // Takes committed slots in order; returns how many of `commits` were filled.
  Result<std::size_t> PollCommits(std::span<StoreCommit> commits);

  // True: nothing is waiting and the engine will ring doorbell_fd(). False: poll commits first.
  bool PrepareSleep();
  // After waking for whatever reason: no ringing needed for now, and the doorbell is emptied.
  void Wake();

  // The memory of all slots, for registering with a mover; slot i is at data_offset() + slot_stride() * i.
  std::span<std::byte> memory() const { return {memory_.data(), memory_.bytes()}; }
  std::uint64_t data_offset() const { return header_.data_offset; }
  std::uint64_t slot_stride() const { return header_.slot_stride; }

 private:
  StoreRingWriter(SharedMemory memory, UniqueFd doorbell, const fl_ring_header& header);

  Result<StoreCommit> ReadCommit(std::uint32_t slot);

  SharedMemory memory_;
  UniqueFd doorbell_;
  fl_ring_header header_;  // as written; positions are the sidecar's own below
  std::uint64_t grant_head_ = 0;
  std::uint64_t commit_tail_ = 0;
  std::vector<bool> lent_;  // the engine may hold it
};

// The engine's side. One thread at a time (the library serialises its own). Also checks what it reads: a broken or
// hostile sidecar costs refused stores, never a write outside the mapping.
class StoreRingClient {
 public:
  // Refuses (InvalidArgument) a ring of another version or boot token, or with offsets outside the mapping.
  static Result<StoreRingClient> Open(UniqueFd ring, UniqueFd doorbell, std::uint64_t boot_token);

  std::uint64_t slot_bytes() const { return header_.slot_bytes; }
  std::uint32_t slot_count() const { return header_.slot_count; }

  // A slot to fill, or nullopt: none is free.
  std::optional<std::uint32_t> Begin();
  std::span<std::byte> data(std::uint32_t slot) const;
  // Publishes a slot of Begin: `bytes` of it under `key`. `parent` may be null.
  void Commit(std::uint32_t slot, const BlockKey& key, const BlockKey* parent, std::uint64_t bytes,
              std::uint64_t token);
  // Keeps a slot of Begin for the next one.
  void Abort(std::uint32_t slot);
  // Whether the slot was taken by Begin and neither committed nor aborted.
  bool taken(std::uint32_t slot) const { return slot < taken_.size() && taken_[slot]; }
  std::uint32_t taken_count() const { return taken_count_; }

 private:
  StoreRingClient(SharedMemory memory, UniqueFd doorbell, const fl_ring_header& header);

  SharedMemory memory_;
  UniqueFd doorbell_;
  fl_ring_header header_;  // a copy that was checked; never read again from shared memory
  std::uint64_t grant_tail_ = 0;
  std::uint64_t commit_head_ = 0;
  std::vector<std::uint32_t> spare_;  // aborted
  std::vector<bool> taken_;
  std::uint32_t taken_count_ = 0;
};

}  // namespace foreload
