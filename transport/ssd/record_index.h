// Key -> where the record lies. Open addressing over 4-byte slot numbers, entries in chunks that never move, so growth
// copies no entry. About 150 bytes a record: a tier of 1 TB in 2 MiB blocks costs 75 MB.
//
// Single-threaded; the store guards it. Entry addresses stay valid until that entry is erased.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/block_key.h"
#include "transport/ssd/format.h"

namespace foreload::ssd {

struct Segment;
struct Shape;

struct RecordEntry {
  BlockKey key;
  BlockKey parent;             // digest_bytes 0: root or unknown
  Segment* segment = nullptr;  // null: the slot is free
  std::uint64_t sequence = 0;
  const Shape* shape = nullptr;     // layout and extent sizes
  std::uint32_t offset_blocks = 0;  // in the file, in 4 KiB
  bool written = false;             // false: its write is in flight
  bool durable = false;
  bool read_lately = false;  // since its segment was last looked at for reclaim

  std::uint64_t offset() const { return std::uint64_t{offset_blocks} * kBlockBytes; }
};

class RecordIndex {
 public:
  RecordIndex() : buckets_(kBucketsMin, kEmpty) {}

  RecordEntry* Find(const BlockKey& key);
  // `key` must be absent.
  RecordEntry& Insert(const BlockKey& key, Segment& segment);
  void Erase(const RecordEntry& entry);
  std::size_t size() const { return size_; }

  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const RecordEntry& entry : entries_) {
      if (entry.segment != nullptr) visit(entry);
    }
  }

 private:
  static constexpr std::uint32_t kEmpty = UINT32_MAX;
  static constexpr std::size_t kBucketsMin = 1024;

  std::size_t Home(const BlockKey& key) const;
  std::size_t BucketOf(const BlockKey& key) const;  // of the key, or of the empty bucket that ends its chain
  void Grow();

  std::deque<RecordEntry> entries_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> buckets_;  // a power of two, at most 3/4 full
  std::size_t size_ = 0;
};

}  // namespace foreload::ssd
