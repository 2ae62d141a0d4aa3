// Atomic access to the shared words of residency/layout.h, which are plain integers there, and what those words mean.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "residency/layout.h"

namespace foreload::residency {

inline constexpr std::uint64_t kHolderMask = (std::uint64_t{1} << FL_READERS_MAX) - 1;
inline constexpr unsigned kStateShift = 28;
inline constexpr std::uint64_t kStateMask = std::uint64_t{0xF} << kStateShift;
inline constexpr unsigned kGenerationShift = 32;

inline std::atomic_ref<std::uint64_t> Word(std::uint64_t& word) {
  return std::atomic_ref<std::uint64_t>(word);
}

constexpr std::uint64_t MakeWord(std::uint32_t generation, fl_slot_state state, std::uint64_t holders = 0) {
  return static_cast<std::uint64_t>(generation) << kGenerationShift | static_cast<std::uint64_t>(state) << kStateShift |
         holders;
}
constexpr std::uint64_t WithoutHolders(std::uint64_t word) {
  return word & ~kHolderMask;
}
constexpr std::uint32_t GenerationOf(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> kGenerationShift);
}
constexpr std::uint32_t StateOf(std::uint64_t word) {
  return static_cast<std::uint32_t>((word & kStateMask) >> kStateShift);
}
// States in which a look-up may pin.
constexpr bool Pinnable(std::uint64_t word) {
  return StateOf(word) == FL_SLOT_IN_FLIGHT || StateOf(word) == FL_SLOT_READY;
}

// A key is written and read word by word, relaxed: the slot word's release and acquire order it.
inline constexpr std::size_t kKeyWords = sizeof(fl_key) / sizeof(std::uint64_t);
static_assert(sizeof(fl_key) % sizeof(std::uint64_t) == 0);

inline void StoreKey(fl_key& shared, const void* key) {
  std::uint64_t words[kKeyWords];
  std::memcpy(words, key, sizeof words);
  auto* const target = reinterpret_cast<std::uint64_t*>(&shared);
  for (std::size_t i = 0; i < kKeyWords; ++i) Word(target[i]).store(words[i], std::memory_order_relaxed);
}

inline bool KeyEquals(fl_key& shared, const void* key) {
  std::uint64_t words[kKeyWords];
  std::memcpy(words, key, sizeof words);
  auto* const source = reinterpret_cast<std::uint64_t*>(&shared);
  std::uint64_t difference = 0;
  for (std::size_t i = 0; i < kKeyWords; ++i) difference |= Word(source[i]).load(std::memory_order_relaxed) ^ words[i];
  return difference == 0;
}

// Bucket: (tag << 32) | (slot + 1).
constexpr std::uint64_t MakeBucket(std::uint64_t hash, std::uint32_t slot) {
  return (hash & 0xFFFFFFFF00000000ull) | (static_cast<std::uint64_t>(slot) + 1);
}
constexpr bool SameTag(std::uint64_t bucket, std::uint64_t hash) {
  return (bucket ^ hash) >> 32 == 0;
}
constexpr std::uint32_t SlotPlusOne(std::uint64_t bucket) {
  return static_cast<std::uint32_t>(bucket);
}

}  // namespace foreload::residency
