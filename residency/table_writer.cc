#include "residency/table_writer.h"

#include <bit>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/units.h"
#include "proto/limits.h"
#include "proto/xxh3.h"
#include "residency/atomic_word.h"

namespace foreload {

using namespace residency;  // NOLINT(google-build-using-namespace): words of the layout

namespace {

// At most a third full: the longest run of a million keys then stays far below FL_PROBE_MAX.
constexpr std::uint64_t kBucketsPerSlot = 3;
// More look-ups than any reader can do between two collections; a larger step is not a count.
constexpr std::uint64_t kCounterStepMax = 1ull << 40;

fl_table_header MakeHeader(const TableOptions& options) {
  fl_table_header header{};
  header.magic = FL_TABLE_MAGIC;
  header.version = FL_TABLE_VERSION;
  header.header_bytes = sizeof header;
  header.boot_token = options.boot_token;
  header.engine_id = options.engine_id;
  header.slot_count = options.slot_count;
  header.bucket_count = std::bit_ceil(kBucketsPerSlot * options.slot_count);
  header.buckets_offset = sizeof header;
  header.slots_offset = AlignUp(header.buckets_offset + header.bucket_count * sizeof(std::uint64_t), 64);
  header.readers_offset = header.slots_offset + std::uint64_t{options.slot_count} * sizeof(fl_slot);
  header.total_bytes = header.readers_offset + FL_READERS_MAX * sizeof(fl_reader);
  header.layer_group_mask = options.layer_group_mask;
  header.checksum = Xxh3(&header, offsetof(fl_table_header, checksum));
  header.mode_word = 1;
  return header;
}

}  // namespace

Result<TableWriter> TableWriter::Create(const TableOptions& options) {
  if (options.slot_count == 0 || options.slot_count > kArenaSlotsMax) {
    return InvalidArgument("a residency table has 1 to " + std::to_string(kArenaSlotsMax) + " slots");
  }
  if (options.layer_group_mask == 0) return InvalidArgument("a block needs at least one layer group");
  FORELOAD_ASSIGN_OR_RETURN(SharedMemory memory,
                            SharedMemory::Create("foreload-table", MakeHeader(options).total_bytes));
  return TableWriter(std::move(memory), options);
}

TableWriter::TableWriter(SharedMemory memory, const TableOptions& options)
    : memory_(std::move(memory)),
      header_(MakeHeader(options)),
      slots_(options.slot_count),
      buckets_(header_.bucket_count) {
  std::memcpy(memory_.data(), &header_, sizeof header_);
}

TableWriter::Slot& TableWriter::Own(SlotIndex slot) {
  FORELOAD_CHECK(slot.value < slots_.size(), "no such slot");
  return slots_[slot.value];
}

fl_slot& TableWriter::Shared(SlotIndex slot) const {
  return reinterpret_cast<fl_slot*>(memory_.data() + header_.slots_offset)[slot.value];
}

fl_reader& TableWriter::Reader(std::uint32_t bit) const {
  return reinterpret_cast<fl_reader*>(memory_.data() + header_.readers_offset)[bit];
}

// --- readers ---------------------------------------------------------------------------------------------------------

Result<std::uint32_t> TableWriter::AddReader() {
  const auto bit = static_cast<std::uint32_t>(std::countr_one(readers_));
  if (bit >= FL_READERS_MAX) return ResourceExhausted("all reader bits of the residency table are in use");
  readers_ |= 1u << bit;
  // A former owner's counts stay in totals_; the new owner goes on from what stands there.
  fl_reader& reader = Reader(bit);
  seen_[bit] = {Word(reader.lookups).load(std::memory_order_relaxed),
                Word(reader.hit_blocks).load(std::memory_order_relaxed),
                Word(reader.miss_blocks).load(std::memory_order_relaxed)};
  return bit;
}

Status TableWriter::ClearReader(std::uint32_t bit) {
  FORELOAD_CHECK(bit < FL_READERS_MAX && (readers_ & (1u << bit)) != 0, "no such reader");
  AddCounters(bit);
  const std::uint64_t mask = std::uint64_t{1} << bit;
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    const SlotIndex slot{i};
    const auto word = Word(Shared(slot).word);
    // `used` of a reader that died between reading and unpinning is unknown; it counts as not used.
    if (word.load(std::memory_order_relaxed) & mask) word.fetch_and(~mask, std::memory_order_acq_rel);
  }
  readers_ &= ~(1u << bit);
  return CheckIntegrity(0);
}

void TableWriter::AddCounters(std::uint32_t bit) {
  fl_reader& reader = Reader(bit);
  const auto add = [this](std::uint64_t& word, std::uint64_t& seen, std::uint64_t& total) {
    const std::uint64_t now = Word(word).load(std::memory_order_relaxed);
    if (now - seen > kCounterStepMax) {  // also when it went back
      ++hostile_values_;
    } else {
      total += now - seen;
    }
    seen = now;
  };
  add(reader.lookups, seen_[bit].lookups, totals_.lookups);
  add(reader.hit_blocks, seen_[bit].hit_blocks, totals_.hit_blocks);
  add(reader.miss_blocks, seen_[bit].miss_blocks, totals_.miss_blocks);
}

ReaderCounters TableWriter::CollectCounters() {
  for (std::uint32_t bit = 0; bit < FL_READERS_MAX; ++bit) {
    if (readers_ & (1u << bit)) AddCounters(bit);
  }
  return totals_;
}

// --- slot states -----------------------------------------------------------------------------------------------------

Status TableWriter::CheckWord(SlotIndex slot, std::uint64_t word) const {
  const Slot& own = slots_[slot.value];
  std::uint64_t allowed = 0;  // only what was pinned while it could be found may be held
  if (own.state == FL_SLOT_IN_FLIGHT || own.state == FL_SLOT_READY || own.state == FL_SLOT_RETIRED) allowed = readers_;
  const std::uint64_t expected = MakeWord(own.generation, own.state);
  if (WithoutHolders(word) == expected && (word & kHolderMask & ~allowed) == 0) return OkStatus();
  return DataLoss("residency table: slot " + std::to_string(slot.value) + " holds " + std::to_string(word) +
                  ", which no honest reader writes");
}

// One atomic add moves state and generation whatever the holder bits do meanwhile; what it returns tells whether the
// word was still ours.
Status TableWriter::Move(SlotIndex slot, fl_slot_state to, std::uint32_t generation_step) {
  Slot& own = Own(slot);
  const std::uint64_t step = MakeWord(own.generation + generation_step, to) - MakeWord(own.generation, own.state);
  const std::uint64_t before = Word(Shared(slot).word).fetch_add(step, std::memory_order_acq_rel);
  const Status status = CheckWord(slot, before);
  own.generation += generation_step;
  own.state = to;
  return status;
}

Result<std::uint32_t> TableWriter::Reserve(SlotIndex slot, const BlockKey& key) {
  Slot& own = Own(slot);
  FORELOAD_CHECK(own.state == FL_SLOT_FREE, "only a free slot is reserved");
  FORELOAD_RETURN_IF_ERROR(Move(slot, FL_SLOT_RESERVED, 1));
  fl_slot& shared = Shared(slot);
  StoreKey(shared.key, &key);
  Word(shared.ready_mask).store(0, std::memory_order_relaxed);
  own.hash = Xxh3(&key, sizeof key);
  own.ready_mask = 0;
  own.used_reported = false;
  return own.generation;
}

Status TableWriter::StartLoad(SlotIndex slot) {
  FORELOAD_CHECK(Own(slot).state == FL_SLOT_RESERVED, "only a reserved slot is loaded");
  FORELOAD_RETURN_IF_ERROR(Move(slot, FL_SLOT_IN_FLIGHT, 0));
  InsertIndex(slot);
  return OkStatus();
}

Status TableWriter::Publish(SlotIndex slot, std::uint64_t groups) {
  Slot& own = Own(slot);
  FORELOAD_CHECK(own.state == FL_SLOT_IN_FLIGHT, "groups land while the slot is in flight");
  FORELOAD_CHECK((groups & ~header_.layer_group_mask) == 0, "a layer group that blocks do not have");
  own.ready_mask |= groups;
  Word(Shared(slot).ready_mask).store(own.ready_mask, std::memory_order_release);
  return CheckWord(slot, Word(Shared(slot).word).load(std::memory_order_relaxed));
}

Status TableWriter::MarkReady(SlotIndex slot) {
  FORELOAD_CHECK(Own(slot).state == FL_SLOT_IN_FLIGHT, "only a slot in flight becomes ready");
  FORELOAD_CHECK(Own(slot).ready_mask == header_.layer_group_mask, "ready before every layer group has landed");
  return Move(slot, FL_SLOT_READY, 0);
}

Status TableWriter::Retire(SlotIndex slot) {
  const Slot& own = Own(slot);
  FORELOAD_CHECK(own.state == FL_SLOT_RESERVED || own.state == FL_SLOT_IN_FLIGHT || own.state == FL_SLOT_READY,
                 "only a slot in use is retired");
  RemoveIndex(slot);
  return Move(slot, FL_SLOT_RETIRED, 0);
}

Result<TableWriter::FreeResult> TableWriter::TryFree(SlotIndex slot) {
  FORELOAD_CHECK(Own(slot).state == FL_SLOT_RETIRED, "only a retired slot is freed");
  // Acquire: whatever the last holder read from the slot happened before it is written again.
  const std::uint64_t word = Word(Shared(slot).word).load(std::memory_order_acquire);
  FORELOAD_RETURN_IF_ERROR(CheckWord(slot, word));
  if (word & kHolderMask) return FreeResult{};
  const bool newly_used = TakeUsed(slot);  // nobody holds it, so nobody can still set it
  // A bit that appears now is hostile (nothing pins RETIRED); the check in Move sees it.
  const Status moved = Move(slot, FL_SLOT_FREE, 0);
  if (!moved.ok()) return moved;
  FORELOAD_RETURN_IF_ERROR(CheckWord(slot, Word(Shared(slot).word).load(std::memory_order_acquire)));
  return FreeResult{.freed = true, .newly_used = newly_used};
}

std::uint32_t TableWriter::holders(SlotIndex slot) const {
  return static_cast<std::uint32_t>(Word(Shared(slot).word).load(std::memory_order_acquire) & kHolderMask);
}

void TableWriter::Close() {
  header_.mode_word = 0;
  Word(reinterpret_cast<fl_table_header*>(memory_.data())->mode_word).store(0, std::memory_order_release);
}

// --- observation -----------------------------------------------------------------------------------------------------

bool TableWriter::TakeUsed(SlotIndex slot) {
  Slot& own = slots_[slot.value];
  if (own.used_reported) return false;
  const std::uint64_t used = Word(Shared(slot).used).load(std::memory_order_acquire);
  if (used > own.generation) {  // a generation that never was; older ones are left-overs
    ++hostile_values_;
    return false;
  }
  own.used_reported = used == own.generation;
  return own.used_reported;
}

Status TableWriter::CollectUsed(std::size_t slots_max, const std::function<void(SlotIndex, std::uint32_t)>& used) {
  for (std::size_t n = 0; n < slots_max && n < slots_.size(); ++n) {
    const SlotIndex slot{used_cursor_};
    used_cursor_ = used_cursor_ + 1 == slots_.size() ? 0 : used_cursor_ + 1;
    const Slot& own = slots_[slot.value];
    if (own.state == FL_SLOT_FREE || own.state == FL_SLOT_RESERVED || own.used_reported) continue;
    if (TakeUsed(slot)) used(slot, own.generation);
  }
  return OkStatus();
}

Status TableWriter::CheckIntegrity(std::size_t slots_max) {
  if (std::memcmp(memory_.data(), &header_, offsetof(fl_table_header, mode_word)) != 0) {
    return DataLoss("residency table: its header was overwritten");
  }
  for (std::size_t n = 0; n < slots_max && n < slots_.size(); ++n) {
    const SlotIndex slot{check_cursor_};
    check_cursor_ = check_cursor_ + 1 == slots_.size() ? 0 : check_cursor_ + 1;
    FORELOAD_RETURN_IF_ERROR(CheckWord(slot, Word(Shared(slot).word).load(std::memory_order_acquire)));
  }
  return OkStatus();
}

// --- index -----------------------------------------------------------------------------------------------------------

void TableWriter::SetBucket(std::uint64_t bucket, std::uint32_t slot_plus_one) {
  buckets_[bucket] = slot_plus_one;
  std::uint64_t value = 0;
  if (slot_plus_one != 0) {
    slots_[slot_plus_one - 1].bucket = bucket;
    value = MakeBucket(slots_[slot_plus_one - 1].hash, slot_plus_one - 1);
  }
  auto* const buckets = reinterpret_cast<std::uint64_t*>(memory_.data() + header_.buckets_offset);
  Word(buckets[bucket]).store(value, std::memory_order_release);
}

void TableWriter::InsertIndex(SlotIndex slot) {
  const std::uint64_t mask = header_.bucket_count - 1;
  for (std::uint64_t probe = 0; probe < FL_PROBE_MAX; ++probe) {
    const std::uint64_t bucket = (slots_[slot.value].hash + probe) & mask;
    if (buckets_[bucket] != 0) continue;
    SetBucket(bucket, slot.value + 1);
    return;
  }
  ++index_overflows_;
}

// Closes the gap by moving later entries of the run back, so that no tombstones pile up. A look-up that passes the gap
// meanwhile may miss an entry on its way: a false miss, which is allowed.
void TableWriter::RemoveIndex(SlotIndex slot) {
  const std::uint64_t mask = header_.bucket_count - 1;
  std::uint64_t gap = slots_[slot.value].bucket;
  if (gap == kNoBucket) return;
  slots_[slot.value].bucket = kNoBucket;
  for (std::uint64_t next = (gap + 1) & mask; buckets_[next] != 0; next = (next + 1) & mask) {
    const std::uint64_t home = slots_[buckets_[next] - 1].hash & mask;
    // The entry may move to the gap unless its home lies after the gap on the way to `next`.
    if (((next - home) & mask) < ((next - gap) & mask)) continue;
    SetBucket(gap, buckets_[next]);
    gap = next;
  }
  SetBucket(gap, 0);
}

}  // namespace foreload
