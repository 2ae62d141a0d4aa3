// An engine's side of the residency table (residency/layout.h): finds READY blocks and pins them.
//
// Look-ups are shared-memory reads: no lock, no system call, no allocation; keys go through in chunks whose buckets and
// slots are prefetched, so that their cache misses overlap. A block is pinned first (compare-exchange that adds this
// process's bit to the slot word), and only then are its key and READY mask looked at: while the bit stands the slot
// cannot change its content, so a hit is never false. Misses can be: an entry on its way between buckets, a slot whose
// word is contended, another thread of this process in the middle of its own pin.
//
// Any number of threads. The shared word has one bit a process; nested pins are counted in process-local memory.
// The table's header is checked once and copied; nothing read afterwards can lead outside the mapping.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/block_key.h"
#include "base/status.h"
#include "proto/unique_fd.h"
#include "residency/layout.h"
#include "residency/shared_memory.h"

namespace foreload {

// Digests of one request in prefix order, as an engine holds them. A view.
struct KeyListView {
  NamespaceFingerprint name_space;
  const std::uint8_t* digests = nullptr;  // count x digest_bytes
  std::uint32_t digest_bytes = 0;         // kDigestBytesMin to kDigestBytesMax
  std::uint32_t count = 0;

  BlockKey key(std::uint32_t i) const {
    return BlockKey::From(name_space, {digests + std::uint64_t{i} * digest_bytes, digest_bytes});
  }
};

struct PinnedBlock {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;
  std::uint64_t ready_mask = 0;
};

class TableReader {
 public:
  // Refuses (InvalidArgument) a table that is not sealed, of another version or boot token, whose header does not match
  // its checksum, or with anything outside the mapping. `reader_bit` is what the sidecar gave this process.
  static Result<std::unique_ptr<TableReader>> Open(UniqueFd table, std::uint64_t boot_token, std::uint32_t reader_bit);

  // Pins the longest prefix whose blocks are wholly READY into pinned[0 .. n); returns n. `pinned` has room for all
  // keys.
  std::uint32_t LookupPinPrefix(const KeyListView& keys, PinnedBlock* pinned);
  // Length of that prefix now, without pins and without counting as a look-up.
  std::uint32_t CountPrefix(const KeyListView& keys) const;

  // Drops one pin. `used`: tells the sidecar that the content was read. False: this process has no such pin.
  bool Unpin(std::uint32_t slot, std::uint32_t generation, bool used);
  // Whether a pinned slot still has the content it was pinned with.
  bool StillValid(std::uint32_t slot, std::uint32_t generation) const;

  // Pins of this process now, nested ones counted.
  std::int64_t pins() const { return pins_.load(std::memory_order_acquire); }
  // False: the sidecar has closed the table for good.
  bool open() const;
  std::uint32_t slot_count() const { return header_.slot_count; }
  std::uint32_t engine_id() const { return header_.engine_id; }

 private:
  struct Probe;

  TableReader(SharedMemory memory, const fl_table_header& header, std::uint32_t reader_bit);

  fl_slot& Slot(std::uint32_t slot) const;
  // The next slot of the probe sequence with the key's tag, or kNoSlot.
  std::uint32_t NextCandidate(std::uint64_t hash, std::uint32_t* probe) const;
  void PrepareChunk(const KeyListView& keys, std::uint32_t first, std::uint32_t count, Probe* probes) const;
  bool Pin(std::uint32_t slot, const BlockKey& key, PinnedBlock* pinned);
  bool PinFirst(std::uint32_t slot, const BlockKey& key, PinnedBlock* pinned);
  // Key, state and READY mask of a slot that this process holds.
  bool Matches(std::uint32_t slot, const BlockKey& key, PinnedBlock* pinned) const;
  bool IsReadyUnpinned(std::uint32_t slot, const BlockKey& key) const;
  bool DropLocal(std::uint32_t slot);
  void Count(std::uint32_t hits, std::uint32_t misses);

  SharedMemory memory_;
  const fl_table_header header_;  // checked copy
  fl_table_header* shared_header_;
  std::uint64_t* buckets_;
  fl_slot* slots_;
  fl_reader* record_;
  const std::uint64_t holder_bit_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> local_pins_;  // per slot; kBusy: a thread is at the shared bit
  std::atomic<std::int64_t> pins_{0};
};

}  // namespace foreload
