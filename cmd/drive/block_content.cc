#include "cmd/drive/block_content.h"

#include <cstring>

#include "base/rng.h"
#include "proto/xxh3.h"

namespace foreload::drive {
namespace {

// SplitMix64's finaliser: a bijection on 64 bits.
std::uint64_t Mix(std::uint64_t value) {
  return Rng(value - 0x9E3779B97F4A7C15ull).Next();
}

}  // namespace

Digest DigestOf(const Namespace& name_space, std::uint64_t block) {
  struct {
    Namespace name_space;
    std::uint64_t block;
    std::uint64_t word;
  } input{name_space, block, 0};
  static_assert(sizeof input == 32);
  Digest digest;
  for (; input.word < 3; ++input.word) {
    const std::uint64_t hash = Xxh3(&input, sizeof input);
    std::memcpy(digest.data() + 8 * input.word, &hash, sizeof hash);
  }
  const std::uint64_t alias = Mix(block ^ Xxh3(name_space.data(), name_space.size()));
  for (std::size_t i = 0; i < 8; ++i) digest[24 + i] = static_cast<std::uint8_t>(alias >> (56 - 8 * i));
  return digest;
}

std::uint64_t ContentSeed(const Namespace& name_space, std::span<const std::uint8_t> digest, std::uint32_t rank) {
  return Xxh3(digest.data(), digest.size()) ^ Mix(Xxh3(name_space.data(), name_space.size()) + rank);
}

void FillContent(std::uint64_t seed, std::span<std::byte> bytes) {
  Rng rng(seed);
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    const std::uint64_t word = rng.Next();
    std::memcpy(bytes.data() + at, &word, sizeof word);
  }
}

std::optional<std::size_t> FindMismatch(std::uint64_t seed, std::span<const std::byte> bytes) {
  Rng rng(seed);
  std::uint64_t difference = 0;
  constexpr std::size_t kChunk = 4096;  // checked as a whole, so that the loop has no branch
  for (std::size_t begin = 0; begin < bytes.size(); begin += kChunk) {
    const std::size_t end = begin + kChunk < bytes.size() ? begin + kChunk : bytes.size();
    const Rng at_chunk = rng;
    for (std::size_t at = begin; at + 8 <= end; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, sizeof word);
      difference |= word ^ rng.Next();
    }
    if (difference == 0) continue;
    Rng again = at_chunk;
    for (std::size_t at = begin; at + 8 <= end; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, sizeof word);
      if (word != again.Next()) return at;
    }
  }
  return std::nullopt;
}

}  // namespace foreload::drive
