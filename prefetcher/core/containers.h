// Containers of the core: everything is named by a 32-bit index, stays where it is when the container grows, and gives
// the same order on every machine. Nothing here allocates per element once it has reached its working size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"

namespace foreload::core {

inline constexpr std::uint32_t kNone = UINT32_MAX;  // no index

// Elements by index in chunks of 4096, made when first touched; references stay valid. Sparse ids cost one chunk each.
template <typename T>
class Chunks {
 public:
  static constexpr std::uint32_t kChunkBits = 12;

  T& operator[](std::uint32_t i) { return chunks_[i >> kChunkBits][i & kMask]; }
  const T& operator[](std::uint32_t i) const { return chunks_[i >> kChunkBits][i & kMask]; }

  bool Has(std::uint32_t i) const { return (i >> kChunkBits) < chunks_.size() && chunks_[i >> kChunkBits] != nullptr; }

  T& Touch(std::uint32_t i) {
    const std::size_t chunk = i >> kChunkBits;
    if (chunk >= chunks_.size()) chunks_.resize(chunk + 1);
    if (chunks_[chunk] == nullptr) chunks_[chunk] = std::make_unique<T[]>(std::size_t{1} << kChunkBits);
    return (*this)[i];
  }

  // Every index of every chunk there is, ascending. For checks.
  template <typename F>
  void ForEach(F&& visit) const {
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      if (chunks_[c] == nullptr) continue;
      for (std::uint32_t k = 0; k <= kMask; ++k) visit(static_cast<std::uint32_t>(c << kChunkBits) + k, chunks_[c][k]);
    }
  }

 private:
  static constexpr std::uint32_t kMask = (1u << kChunkBits) - 1;
  std::vector<std::unique_ptr<T[]>> chunks_;
};

// Elements with a free list. `Add` gives back the most recently freed one, as its last user left it; T::Clear makes it
// new (and may keep the memory of its vectors).
template <typename T>
class Slab {
 public:
  std::uint32_t Add() {
    std::uint32_t index = 0;
    if (free_.empty()) {
      index = end_++;
      items_.Touch(index);
      live_flags_.push_back(true);
    } else {
      index = free_.back();
      free_.pop_back();
      live_flags_[index] = true;
    }
    items_[index].Clear();
    ++live_;
    return index;
  }
  void Remove(std::uint32_t index) {
    FORELOAD_CHECK(Live(index), "removed twice");
    live_flags_[index] = false;
    free_.push_back(index);
    --live_;
  }
  bool Live(std::uint32_t index) const { return index < end_ && live_flags_[index]; }
  T& operator[](std::uint32_t i) { return items_[i]; }
  const T& operator[](std::uint32_t i) const { return items_[i]; }
  std::uint32_t live() const { return live_; }
  std::uint32_t end() const { return end_; }  // every index ever given is below

 private:
  Chunks<T> items_;
  std::vector<bool> live_flags_;
  std::vector<std::uint32_t> free_;
  std::uint32_t end_ = 0;
  std::uint32_t live_ = 0;
};

struct ListLink {
  std::uint32_t prev = kNone;
  std::uint32_t next = kNone;
};

// A doubly linked list through the ListLink member `kLink` of elements that lie in `items`. An element is in at most
// one list per link; who owns the element knows whether it is.
template <auto kLink>
class IndexList {
 public:
  std::uint32_t front() const { return head_; }
  std::uint32_t back() const { return tail_; }
  bool empty() const { return head_ == kNone; }
  std::uint32_t size() const { return size_; }

  template <typename Items>
  std::uint32_t Next(const Items& items, std::uint32_t i) const {
    return (items[i].*kLink).next;
  }
  template <typename Items>
  void PushBack(Items& items, std::uint32_t i) {
    items[i].*kLink = {tail_, kNone};
    (tail_ == kNone ? head_ : (items[tail_].*kLink).next) = i;
    tail_ = i;
    ++size_;
  }
  template <typename Items>
  void PushFront(Items& items, std::uint32_t i) {
    items[i].*kLink = {kNone, head_};
    (head_ == kNone ? tail_ : (items[head_].*kLink).prev) = i;
    head_ = i;
    ++size_;
  }
  template <typename Items>
  void Remove(Items& items, std::uint32_t i) {
    const ListLink link = items[i].*kLink;
    (link.prev == kNone ? head_ : (items[link.prev].*kLink).next) = link.next;
    (link.next == kNone ? tail_ : (items[link.next].*kLink).prev) = link.prev;
    items[i].*kLink = ListLink{};
    --size_;
  }
  template <typename Items>
  void MoveToBack(Items& items, std::uint32_t i) {
    if (tail_ == i) return;
    Remove(items, i);
    PushBack(items, i);
  }
  // Takes every element of `other`, behind its own.
  template <typename Items>
  void Splice(Items& items, IndexList& other) {
    if (other.empty()) return;
    if (empty()) {
      std::swap(*this, other);
      return;
    }
    (items[tail_].*kLink).next = other.head_;
    (items[other.head_].*kLink).prev = tail_;
    tail_ = other.tail_;
    size_ += other.size_;
    other = IndexList{};
  }

 private:
  std::uint32_t head_ = kNone;
  std::uint32_t tail_ = kNone;
  std::uint32_t size_ = 0;
};

// 64-bit key -> index, open addressing with backward-shift deletion. Never iterated: no decision can depend on its
// order.
class FlatMap {
 public:
  FlatMap() : cells_(64) {}

  std::uint32_t Find(std::uint64_t key) const {
    for (std::size_t i = Home(key);; i = (i + 1) & Mask()) {
      if (cells_[i].value == kNone) return kNone;
      if (cells_[i].key == key) return cells_[i].value;
    }
  }
  // `key` must be absent, `value` not kNone.
  void Insert(std::uint64_t key, std::uint32_t value) {
    if ((size_ + 1) * 4 > cells_.size() * 3) Grow();
    std::size_t i = Home(key);
    while (cells_[i].value != kNone) i = (i + 1) & Mask();
    cells_[i] = {key, value};
    ++size_;
  }
  bool Erase(std::uint64_t key) {
    std::size_t i = Home(key);
    while (cells_[i].value != kNone && cells_[i].key != key) i = (i + 1) & Mask();
    if (cells_[i].value == kNone) return false;
    for (std::size_t j = (i + 1) & Mask(); cells_[j].value != kNone; j = (j + 1) & Mask()) {
      // The cell at j may fill the hole at i unless its home lies behind the hole.
      if (((j - Home(cells_[j].key)) & Mask()) >= ((j - i) & Mask())) {
        cells_[i] = cells_[j];
        i = j;
      }
    }
    cells_[i].value = kNone;
    --size_;
    return true;
  }
  std::size_t size() const { return size_; }

 private:
  struct Cell {
    std::uint64_t key = 0;
    std::uint32_t value = kNone;
  };
  std::size_t Mask() const { return cells_.size() - 1; }
  // SplitMix64's finisher: hostile keys gain little, consecutive ones spread.
  std::size_t Home(std::uint64_t key) const {
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9ull;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBull;
    return static_cast<std::size_t>(key ^ (key >> 31)) & Mask();
  }
  void Grow() {
    std::vector<Cell> old(cells_.size() * 2);
    old.swap(cells_);
    size_ = 0;
    for (const Cell& cell : old) {
      if (cell.value != kNone) Insert(cell.key, cell.value);
    }
  }

  std::vector<Cell> cells_;
  std::size_t size_ = 0;
};

}  // namespace foreload::core
