#include "residency/store_ring.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/units.h"
#include "proto/limits.h"
#include "proto/xxh3.h"
#include "residency/atomic_word.h"

namespace foreload {

using residency::Word;

namespace {

constexpr std::uint64_t kPage = 4096;

fl_ring_header MakeHeader(const StoreRingOptions& options) {
  fl_ring_header header{};
  header.magic = FL_RING_MAGIC;
  header.version = FL_TABLE_VERSION;
  header.header_bytes = sizeof header;
  header.boot_token = options.boot_token;
  header.slot_count = options.slot_count;
  header.queue_entries = std::bit_ceil(options.slot_count);
  header.slot_bytes = options.slot_bytes;
  header.slot_stride = AlignUp(options.slot_bytes, kPage);
  header.grant_queue_offset = AlignUp(sizeof header, 64);
  header.commit_queue_offset = AlignUp(header.grant_queue_offset + header.queue_entries * sizeof(std::uint32_t), 64);
  header.records_offset = AlignUp(header.commit_queue_offset + header.queue_entries * sizeof(std::uint32_t), 64);
  header.data_offset = AlignUp(header.records_offset + header.slot_count * sizeof(fl_store_record), kPage);
  header.total_bytes = header.data_offset + header.slot_count * header.slot_stride;
  header.checksum = Xxh3(&header, offsetof(fl_ring_header, checksum));
  return header;
}

Status CheckHeader(const fl_ring_header& header, std::uint64_t mapped, std::uint64_t boot_token) {
  if (header.magic != FL_RING_MAGIC || header.version != FL_TABLE_VERSION || header.header_bytes != sizeof header) {
    return InvalidArgument("store ring: not a ring of this version");
  }
  if (header.checksum != Xxh3(&header, offsetof(fl_ring_header, checksum))) {
    return InvalidArgument("store ring: its header does not match its checksum");
  }
  if (header.boot_token != boot_token) return InvalidArgument("store ring: of another sidecar");
  const auto fits = [&](std::uint64_t offset, std::uint64_t count, std::uint64_t size, std::uint64_t alignment) {
    return offset % alignment == 0 && offset >= sizeof header && offset <= mapped && count <= (mapped - offset) / size;
  };
  const bool ok = header.slot_count >= 1 && header.slot_count <= kStoreSlotsMax &&
                  header.queue_entries >= header.slot_count && std::has_single_bit(header.queue_entries) &&
                  header.slot_bytes >= 1 && header.slot_bytes <= header.slot_stride &&
                  header.slot_stride <= AlignUp(kSlotBytesMax, kPage) && header.slot_stride % kPage == 0 &&
                  fits(header.grant_queue_offset, header.queue_entries, sizeof(std::uint32_t), 4) &&
                  fits(header.commit_queue_offset, header.queue_entries, sizeof(std::uint32_t), 4) &&
                  fits(header.records_offset, header.slot_count, sizeof(fl_store_record), 8) &&
                  fits(header.data_offset, header.slot_count, header.slot_stride, kPage);
  return ok ? OkStatus() : InvalidArgument("store ring: its header names memory outside the ring");
}

fl_ring_header& Shared(const SharedMemory& memory) {
  return *reinterpret_cast<fl_ring_header*>(memory.data());
}

std::atomic_ref<std::uint32_t> Entry(const SharedMemory& memory, const fl_ring_header& header, std::uint64_t offset,
                                     std::uint64_t position) {
  auto* const queue = reinterpret_cast<std::uint32_t*>(memory.data() + offset);
  return std::atomic_ref<std::uint32_t>(queue[position & (header.queue_entries - 1)]);
}

fl_store_record& Record(const SharedMemory& memory, const fl_ring_header& header, std::uint32_t slot) {
  return reinterpret_cast<fl_store_record*>(memory.data() + header.records_offset)[slot];
}

bool GoodKey(const BlockKey& key) {
  if (key.digest_bytes < kDigestBytesMin || key.digest_bytes > kDigestBytesMax) return false;
  return std::all_of(key.digest.begin() + static_cast<std::ptrdiff_t>(key.digest_bytes), key.digest.end(),
                     [](std::uint8_t byte) { return byte == 0; });
}

}  // namespace

// --- sidecar ---------------------------------------------------------------------------------------------------------

Result<StoreRingWriter> StoreRingWriter::Create(const StoreRingOptions& options) {
  if (options.slot_count == 0 || options.slot_count > kStoreSlotsMax || options.slot_bytes == 0 ||
      options.slot_bytes > kSlotBytesMax) {
    return InvalidArgument("store ring: " + std::to_string(options.slot_count) + " slots of " +
                           std::to_string(options.slot_bytes) + " bytes");
  }
  const fl_ring_header header = MakeHeader(options);
  FORELOAD_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Create("foreload-store", header.total_bytes));
  UniqueFd doorbell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell.valid()) return Status::FromErrno(errno, "store ring: eventfd");
  std::memcpy(memory.data(), &header, sizeof header);
  return StoreRingWriter(std::move(memory), std::move(doorbell), header);
}

StoreRingWriter::StoreRingWriter(SharedMemory memory, UniqueFd doorbell, const fl_ring_header& header)
    : memory_(std::move(memory)), doorbell_(std::move(doorbell)), header_(header), lent_(header.slot_count, false) {}

void StoreRingWriter::Grant(std::uint32_t slot) {
  FORELOAD_CHECK(slot < header_.slot_count && !lent_[slot], "a store slot is granted that is not ours");
  lent_[slot] = true;
  // Never full: a slot is in the queue at most once, and there are as many entries as slots.
  Entry(memory_, header_, header_.grant_queue_offset, grant_head_).store(slot, std::memory_order_relaxed);
  ++grant_head_;
  Word(Shared(memory_).grant_head).store(grant_head_, std::memory_order_release);
}

void StoreRingWriter::GrantAll() {
  for (std::uint32_t slot = 0; slot < header_.slot_count; ++slot) {
    if (!lent_[slot]) Grant(slot);
  }
}

Result<StoreCommit> StoreRingWriter::ReadCommit(std::uint32_t slot) {
  fl_store_record record;  // read once, then checked: the engine could change it in between
  std::memcpy(&record, &Record(memory_, header_, slot), sizeof record);
  StoreCommit commit{.slot = slot, .key = {}, .parent = std::nullopt, .data = {}, .token = record.token};
  static_assert(sizeof(BlockKey) == sizeof(fl_key));
  std::memcpy(static_cast<void*>(&commit.key), &record.key, sizeof commit.key);
  if (!GoodKey(commit.key)) return DataLoss("store ring: a commit without a well-formed key");
  if (record.parent.digest_bytes != 0) {
    commit.parent.emplace();
    std::memcpy(static_cast<void*>(&*commit.parent), &record.parent, sizeof *commit.parent);
    if (!GoodKey(*commit.parent)) return DataLoss("store ring: a commit with a malformed parent key");
  }
  if (record.bytes == 0 || record.bytes > header_.slot_bytes) {
    return DataLoss("store ring: a commit of " + std::to_string(record.bytes) + " bytes");
  }
  commit.data = {memory_.data() + header_.data_offset + slot * header_.slot_stride, record.bytes};
  return commit;
}

Result<std::size_t> StoreRingWriter::PollCommits(std::span<StoreCommit> commits) {
  const std::uint64_t head = Word(Shared(memory_).commit_head).load(std::memory_order_acquire);
  const std::uint64_t waiting = head - commit_tail_;
  if (waiting > header_.queue_entries) return DataLoss("store ring: impossible commit position");
  std::size_t taken = 0;
  while (taken < commits.size() && taken < waiting) {
    const std::uint32_t slot =
        Entry(memory_, header_, header_.commit_queue_offset, commit_tail_).load(std::memory_order_relaxed);
    if (slot >= header_.slot_count || !lent_[slot])
      return DataLoss("store ring: a commit of a slot that was not granted");
    FORELOAD_ASSIGN_OR_RETURN(commits[taken], ReadCommit(slot));
    lent_[slot] = false;
    ++commit_tail_;
    ++taken;
  }
  Word(Shared(memory_).commit_tail).store(commit_tail_, std::memory_order_release);
  return taken;
}

bool StoreRingWriter::PrepareSleep() {
  fl_ring_header& shared = Shared(memory_);
  Word(shared.sleeping).store(1, std::memory_order_seq_cst);
  if (Word(shared.commit_head).load(std::memory_order_seq_cst) == commit_tail_) return true;
  Word(shared.sleeping).store(0, std::memory_order_relaxed);
  return false;
}

void StoreRingWriter::Wake() {
  Word(Shared(memory_).sleeping).store(0, std::memory_order_relaxed);
  std::uint64_t rings = 0;
  (void)!::read(doorbell_.get(), &rings, sizeof rings);  // empty is fine
}

// --- engine ----------------------------------------------------------------------------------------------------------

Result<StoreRingClient> StoreRingClient::Open(UniqueFd ring, UniqueFd doorbell, std::uint64_t boot_token) {
  FORELOAD_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Adopt(std::move(ring), sizeof(fl_ring_header)));
  fl_ring_header header;
  std::memcpy(&header, memory.data(), sizeof header);
  FORELOAD_RETURN_IF_ERROR(CheckHeader(header, memory.bytes(), boot_token));
  return StoreRingClient(std::move(memory), std::move(doorbell), header);
}

StoreRingClient::StoreRingClient(SharedMemory memory, UniqueFd doorbell, const fl_ring_header& header)
    : memory_(std::move(memory)), doorbell_(std::move(doorbell)), header_(header), taken_(header.slot_count, false) {
  spare_.reserve(header.slot_count);
}

std::optional<std::uint32_t> StoreRingClient::Begin() {
  std::uint32_t slot = 0;
  if (!spare_.empty()) {
    slot = spare_.back();
    spare_.pop_back();
  } else {
    const std::uint64_t head = Word(Shared(memory_).grant_head).load(std::memory_order_acquire);
    if (head == grant_tail_ || head - grant_tail_ > header_.queue_entries) return std::nullopt;
    slot = Entry(memory_, header_, header_.grant_queue_offset, grant_tail_).load(std::memory_order_relaxed);
    ++grant_tail_;
    Word(Shared(memory_).grant_tail).store(grant_tail_, std::memory_order_release);
    if (slot >= header_.slot_count || taken_[slot]) return std::nullopt;  // a sidecar gone wrong
  }
  taken_[slot] = true;
  ++taken_count_;
  return slot;
}

std::span<std::byte> StoreRingClient::data(std::uint32_t slot) const {
  FORELOAD_CHECK(slot < header_.slot_count, "no such store slot");
  return {memory_.data() + header_.data_offset + slot * header_.slot_stride, header_.slot_bytes};
}

void StoreRingClient::Commit(std::uint32_t slot, const BlockKey& key, const BlockKey* parent, std::uint64_t bytes,
                             std::uint64_t token) {
  FORELOAD_CHECK(taken(slot) && bytes >= 1 && bytes <= header_.slot_bytes, "a commit of a slot that was not begun");
  fl_store_record record{};
  std::memcpy(&record.key, &key, sizeof record.key);
  if (parent != nullptr) std::memcpy(&record.parent, parent, sizeof record.parent);
  record.bytes = bytes;
  record.token = token;
  std::memcpy(&Record(memory_, header_, slot), &record, sizeof record);
  taken_[slot] = false;
  --taken_count_;
  fl_ring_header& shared = Shared(memory_);
  Entry(memory_, header_, header_.commit_queue_offset, commit_head_).store(slot, std::memory_order_relaxed);
  ++commit_head_;
  Word(shared.commit_head).store(commit_head_, std::memory_order_seq_cst);  // releases record and data as well
  if (Word(shared.sleeping).load(std::memory_order_seq_cst) == 0) return;
  Word(shared.sleeping).store(0, std::memory_order_relaxed);
  const std::uint64_t ring = 1;
  (void)!::write(doorbell_.get(), &ring, sizeof ring);  // non-blocking; a full counter has rung already
}

void StoreRingClient::Abort(std::uint32_t slot) {
  FORELOAD_CHECK(taken(slot), "an abort of a slot that was not begun");
  taken_[slot] = false;
  --taken_count_;
  spare_.push_back(slot);
}

}  // namespace foreload
