#include "residency/table_reader.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>

#include "proto/limits.h"
#include "proto/xxh3.h"
#include "residency/atomic_word.h"

namespace foreload {

using namespace residency;  // NOLINT(google-build-using-namespace): words of the layout

namespace {

// Enough that a chunk's cache misses overlap, few enough that what was prefetched is still in L1 when it is used.
constexpr std::uint32_t kChunkKeys = 32;
constexpr std::uint32_t kNoSlot = UINT32_MAX;
constexpr std::uint32_t kBusy = UINT32_MAX;
// Beyond these the look-up reports a miss: it never waits for another thread or process.
constexpr int kBusySpinsMax = 256;
constexpr int kExchangeTriesMax = 64;

inline void Prefetch(const void* address) {
  __builtin_prefetch(address, 0, 3);
}
inline void PrefetchForWrite(const void* address) {
  __builtin_prefetch(address, 1, 3);
}

Status CheckHeader(const fl_table_header& header, std::uint64_t mapped, std::uint64_t boot_token) {
  if (header.magic != FL_TABLE_MAGIC) return InvalidArgument("residency table: not a table");
  if (header.version != FL_TABLE_VERSION || header.header_bytes != sizeof header) {
    return InvalidArgument("residency table: version " + std::to_string(header.version) + ", this library reads " +
                           std::to_string(FL_TABLE_VERSION) + ": install matching versions");
  }
  if (header.checksum != Xxh3(&header, offsetof(fl_table_header, checksum))) {
    return InvalidArgument("residency table: its header does not match its checksum");
  }
  if (header.boot_token != boot_token) return InvalidArgument("residency table: of another sidecar");
  const auto fits = [&](std::uint64_t offset, std::uint64_t count, std::uint64_t size, std::uint64_t alignment) {
    return offset % alignment == 0 && offset >= sizeof header && offset <= mapped && count <= (mapped - offset) / size;
  };
  const bool ok = header.total_bytes <= mapped && header.slot_count >= 1 && header.slot_count <= kArenaSlotsMax &&
                  std::has_single_bit(header.bucket_count) &&
                  header.bucket_count >= 2 * std::uint64_t{header.slot_count} &&
                  fits(header.buckets_offset, header.bucket_count, sizeof(std::uint64_t), sizeof(std::uint64_t)) &&
                  fits(header.slots_offset, header.slot_count, sizeof(fl_slot), 64) &&
                  fits(header.readers_offset, FL_READERS_MAX, sizeof(fl_reader), 64) && header.layer_group_mask != 0;
  return ok ? OkStatus() : InvalidArgument("residency table: its header names memory outside the table");
}

}  // namespace

struct TableReader::Probe {
  BlockKey key;
  std::uint64_t hash = 0;
  std::uint32_t slot = kNoSlot;  // first candidate
  std::uint32_t probe = 0;       // where to go on when it is another key
};

Result<std::unique_ptr<TableReader>> TableReader::Open(UniqueFd table, std::uint64_t boot_token,
                                                       std::uint32_t reader_bit) {
  if (reader_bit >= FL_READERS_MAX) return InvalidArgument("residency table: no such reader bit");
  FORELOAD_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Adopt(std::move(table), sizeof(fl_table_header)));
  fl_table_header header;
  std::memcpy(&header, memory.data(), sizeof header);
  FORELOAD_RETURN_IF_ERROR(CheckHeader(header, memory.bytes(), boot_token));
  // Fewer TLB misses where the machine allows it for shared memory; nothing depends on it.
  (void)::madvise(memory.data(), memory.bytes(), MADV_HUGEPAGE);
  return std::unique_ptr<TableReader>(new TableReader(std::move(memory), header, reader_bit));
}

TableReader::TableReader(SharedMemory memory, const fl_table_header& header, std::uint32_t reader_bit)
    : memory_(std::move(memory)),
      header_(header),
      shared_header_(reinterpret_cast<fl_table_header*>(memory_.data())),
      buckets_(reinterpret_cast<std::uint64_t*>(memory_.data() + header.buckets_offset)),
      slots_(reinterpret_cast<fl_slot*>(memory_.data() + header.slots_offset)),
      record_(reinterpret_cast<fl_reader*>(memory_.data() + header.readers_offset) + reader_bit),
      holder_bit_(std::uint64_t{1} << reader_bit),
      local_pins_(new std::atomic<std::uint32_t>[header.slot_count]()) {}

fl_slot& TableReader::Slot(std::uint32_t slot) const {
  return slots_[slot];
}

bool TableReader::open() const {
  return Word(shared_header_->mode_word).load(std::memory_order_acquire) == 1;
}

// --- finding ---------------------------------------------------------------------------------------------------------

std::uint32_t TableReader::NextCandidate(std::uint64_t hash, std::uint32_t* probe) const {
  const std::uint64_t mask = header_.bucket_count - 1;
  while (*probe < FL_PROBE_MAX) {
    const std::uint64_t bucket = Word(buckets_[(hash + *probe) & mask]).load(std::memory_order_acquire);
    if (bucket == 0) break;
    ++*probe;
    const std::uint32_t slot = SlotPlusOne(bucket) - 1;
    if (SameTag(bucket, hash) && slot < header_.slot_count) return slot;
  }
  *probe = FL_PROBE_MAX;
  return kNoSlot;
}

// Three passes, so that the misses of one level overlap before the next level needs them.
void TableReader::PrepareChunk(const KeyListView& keys, std::uint32_t first, std::uint32_t count, Probe* probes) const {
  const std::uint64_t mask = header_.bucket_count - 1;
  for (std::uint32_t i = 0; i < count; ++i) {
    probes[i].key = keys.key(first + i);
    probes[i].hash = Xxh3(&probes[i].key, sizeof(BlockKey));
    probes[i].probe = 0;
    Prefetch(&buckets_[probes[i].hash & mask]);
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    probes[i].slot = NextCandidate(probes[i].hash, &probes[i].probe);
    if (probes[i].slot == kNoSlot) continue;
    const fl_slot& slot = Slot(probes[i].slot);
    PrefetchForWrite(&slot.word);
    Prefetch(&slot.ready_mask);
    PrefetchForWrite(&local_pins_[probes[i].slot]);
  }
}

std::uint32_t TableReader::LookupPinPrefix(const KeyListView& keys, PinnedBlock* pinned) {
  std::uint32_t hits = 0;
  if (open()) {
    std::array<Probe, kChunkKeys> probes;
    bool prefix = true;
    for (std::uint32_t first = 0; prefix && first < keys.count; first += kChunkKeys) {
      const std::uint32_t count = std::min(kChunkKeys, keys.count - first);
      PrepareChunk(keys, first, count, probes.data());
      for (std::uint32_t i = 0; prefix && i < count; ++i) {
        Probe& probe = probes[i];
        while (probe.slot != kNoSlot && !Pin(probe.slot, probe.key, &pinned[hits])) {
          probe.slot = NextCandidate(probe.hash, &probe.probe);
        }
        prefix = probe.slot != kNoSlot;
        hits += prefix ? 1 : 0;
      }
    }
  }
  pins_.fetch_add(hits, std::memory_order_acq_rel);
  Count(hits, keys.count - hits);
  return hits;
}

std::uint32_t TableReader::CountPrefix(const KeyListView& keys) const {
  if (!open()) return 0;
  std::array<Probe, kChunkKeys> probes;
  for (std::uint32_t first = 0; first < keys.count; first += kChunkKeys) {
    const std::uint32_t count = std::min(kChunkKeys, keys.count - first);
    PrepareChunk(keys, first, count, probes.data());
    for (std::uint32_t i = 0; i < count; ++i) {
      Probe& probe = probes[i];
      while (probe.slot != kNoSlot && !IsReadyUnpinned(probe.slot, probe.key)) {
        probe.slot = NextCandidate(probe.hash, &probe.probe);
      }
      if (probe.slot == kNoSlot) return first + i;
    }
  }
  return keys.count;
}

void TableReader::Count(std::uint32_t hits, std::uint32_t misses) {
  Word(record_->lookups).fetch_add(1, std::memory_order_relaxed);
  Word(record_->hit_blocks).fetch_add(hits, std::memory_order_relaxed);
  Word(record_->miss_blocks).fetch_add(misses, std::memory_order_relaxed);
}

// --- pinning ---------------------------------------------------------------------------------------------------------

// The count of a slot leaves 0 and returns to 0 only through kBusy, held by the one thread that sets or clears the
// shared bit: so the bit stands whenever the count is above 0.
bool TableReader::Pin(std::uint32_t slot, const BlockKey& key, PinnedBlock* pinned) {
  std::atomic<std::uint32_t>& local = local_pins_[slot];
  for (int spins = 0; spins < kBusySpinsMax; ++spins) {
    std::uint32_t count = local.load(std::memory_order_relaxed);
    if (count == kBusy) {
      __builtin_ia32_pause();
      continue;
    }
    if (count == 0) {
      if (local.compare_exchange_weak(count, kBusy, std::memory_order_acquire)) return PinFirst(slot, key, pinned);
      continue;
    }
    if (count == kBusy - 1) return false;
    if (!local.compare_exchange_weak(count, count + 1, std::memory_order_acquire)) continue;
    if (Matches(slot, key, pinned)) return true;
    DropLocal(slot);
    return false;
  }
  return false;
}

bool TableReader::PinFirst(std::uint32_t slot, const BlockKey& key, PinnedBlock* pinned) {
  std::atomic<std::uint32_t>& local = local_pins_[slot];
  const auto shared = Word(Slot(slot).word);
  std::uint64_t word = shared.load(std::memory_order_relaxed);
  bool held = false;
  // The exchange succeeds only on a word that is pinnable, so FREE, RESERVED and RETIRED slots never gain a holder.
  for (int tries = 0; !held && tries < kExchangeTriesMax && Pinnable(word); ++tries) {
    held = shared.compare_exchange_weak(word, word | holder_bit_, std::memory_order_acq_rel, std::memory_order_relaxed);
  }
  const bool hit = held && Matches(slot, key, pinned);
  if (held && !hit) shared.fetch_and(~holder_bit_, std::memory_order_release);
  local.store(hit ? 1 : 0, std::memory_order_release);
  return hit;
}

bool TableReader::Matches(std::uint32_t slot, const BlockKey& key, PinnedBlock* pinned) const {
  fl_slot& shared = Slot(slot);
  const std::uint64_t word = Word(shared.word).load(std::memory_order_relaxed);
  if (!Pinnable(word) || !KeyEquals(shared.key, &key)) return false;
  const std::uint64_t mask = Word(shared.ready_mask).load(std::memory_order_acquire);
  if ((mask & header_.layer_group_mask) != header_.layer_group_mask) return false;
  *pinned = {.slot = slot, .generation = GenerationOf(word), .ready_mask = mask};
  return true;
}

// Like a sequence lock: the word must be the same before and after, holder bits aside.
bool TableReader::IsReadyUnpinned(std::uint32_t slot, const BlockKey& key) const {
  fl_slot& shared = Slot(slot);
  const std::uint64_t before = Word(shared.word).load(std::memory_order_acquire);
  if (!Pinnable(before) || !KeyEquals(shared.key, &key)) return false;
  const std::uint64_t mask = Word(shared.ready_mask).load(std::memory_order_acquire);
  if ((mask & header_.layer_group_mask) != header_.layer_group_mask) return false;
  const std::uint64_t after = Word(shared.word).load(std::memory_order_acquire);
  return Pinnable(after) && GenerationOf(before) == GenerationOf(after);
}

bool TableReader::DropLocal(std::uint32_t slot) {
  std::atomic<std::uint32_t>& local = local_pins_[slot];
  std::uint32_t count = local.load(std::memory_order_relaxed);
  for (;;) {
    // A caller with a pin can see neither: both mean that this process holds nothing here.
    if (count == 0 || count == kBusy) return false;
    const std::uint32_t next = count == 1 ? kBusy : count - 1;
    if (local.compare_exchange_weak(count, next, std::memory_order_acq_rel, std::memory_order_relaxed)) break;
  }
  if (count == 1) {
    Word(Slot(slot).word).fetch_and(~holder_bit_, std::memory_order_release);
    local.store(0, std::memory_order_release);
  }
  return true;
}

bool TableReader::Unpin(std::uint32_t slot, std::uint32_t generation, bool used) {
  if (slot >= header_.slot_count) return false;
  const std::uint32_t count = local_pins_[slot].load(std::memory_order_acquire);
  if (count == 0 || count == kBusy) return false;
  fl_slot& shared = Slot(slot);
  if (GenerationOf(Word(shared.word).load(std::memory_order_relaxed)) != generation) return false;
  if (used) Word(shared.used).store(generation, std::memory_order_relaxed);  // ordered by the release of the drop
  if (!DropLocal(slot)) return false;
  pins_.fetch_sub(1, std::memory_order_acq_rel);
  return true;
}

bool TableReader::StillValid(std::uint32_t slot, std::uint32_t generation) const {
  if (slot >= header_.slot_count) return false;
  const std::uint64_t word = Word(Slot(slot).word).load(std::memory_order_acquire);
  return GenerationOf(word) == generation && StateOf(word) != FL_SLOT_FREE && StateOf(word) != FL_SLOT_RESERVED;
}

}  // namespace foreload
