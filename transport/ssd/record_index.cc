#include "transport/ssd/record_index.h"

#include <bit>

#include "base/check.h"

namespace foreload::ssd {

std::size_t RecordIndex::Home(const BlockKey& key) const {
  // std::hash<BlockKey> is multiplicative, so its high bits are the mixed ones.
  const std::uint64_t hash = std::hash<BlockKey>{}(key);
  return static_cast<std::size_t>(hash >> (64 - std::countr_zero(buckets_.size())));
}

std::size_t RecordIndex::BucketOf(const BlockKey& key) const {
  std::size_t bucket = Home(key);
  while (buckets_[bucket] != kEmpty && entries_[buckets_[bucket]].key != key) {
    bucket = (bucket + 1) & (buckets_.size() - 1);
  }
  return bucket;
}

RecordEntry* RecordIndex::Find(const BlockKey& key) {
  const std::uint32_t slot = buckets_[BucketOf(key)];
  return slot == kEmpty ? nullptr : &entries_[slot];
}

RecordEntry& RecordIndex::Insert(const BlockKey& key, Segment& segment) {
  if ((size_ + 1) * 4 > buckets_.size() * 3) Grow();
  const std::size_t bucket = BucketOf(key);
  FORELOAD_CHECK(buckets_[bucket] == kEmpty, "key is indexed already");
  std::uint32_t slot = 0;
  if (free_.empty()) {
    slot = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  buckets_[bucket] = slot;
  ++size_;
  entries_[slot] = RecordEntry{};
  entries_[slot].key = key;
  entries_[slot].segment = &segment;
  return entries_[slot];
}

void RecordIndex::Erase(const RecordEntry& entry) {
  const std::size_t mask = buckets_.size() - 1;
  std::size_t hole = BucketOf(entry.key);
  const std::uint32_t slot = buckets_[hole];
  FORELOAD_CHECK(slot != kEmpty && &entries_[slot] == &entry, "erasing an entry that is not indexed");
  // Backward shift: an entry moves into the hole unless its home lies cyclically in (hole, bucket].
  for (std::size_t bucket = (hole + 1) & mask; buckets_[bucket] != kEmpty; bucket = (bucket + 1) & mask) {
    const std::size_t home = Home(entries_[buckets_[bucket]].key);
    if (((bucket - home) & mask) >= ((bucket - hole) & mask)) {
      buckets_[hole] = buckets_[bucket];
      hole = bucket;
    }
  }
  buckets_[hole] = kEmpty;
  entries_[slot] = RecordEntry{};
  free_.push_back(slot);
  --size_;
}

void RecordIndex::Grow() {
  buckets_.assign(buckets_.size() * 2, kEmpty);
  for (std::uint32_t slot = 0; slot < entries_.size(); ++slot) {
    if (entries_[slot].segment != nullptr) buckets_[BucketOf(entries_[slot].key)] = slot;
  }
}

}  // namespace foreload::ssd
