// Helpers of the telemetry tests: bytes from hex, a small MessagePack writer, and the folder of third-party data.
#pragma once

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace foreload::telemetry::testing {

using Bytes = std::vector<std::uint8_t>;

inline Bytes FromHex(std::string_view hex) {
  const auto digit = [](char c) { return static_cast<std::uint8_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10); };
  Bytes bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(digit(hex[i]) << 4 | digit(hex[i + 1])));
  }
  return bytes;
}

// $FORELOAD_DATA, else ../shared/data beside the source tree. Third-party data is no part of the tree: tests skip
// without it.
inline std::filesystem::path DataDir() {
  if (const char* dir = std::getenv("FORELOAD_DATA")) return dir;
  return std::filesystem::path(FORELOAD_SOURCE_DIR) / "../shared/data";
}

// Writes MessagePack in its widest forms (which readers must take as well as the narrow ones).
class Pack {
 public:
  Pack& Array(std::uint32_t n) { return Head(0xdd, n, 4); }
  Pack& Map(std::uint32_t n) { return Head(0xdf, n, 4); }
  Pack& Uint(std::uint64_t v) { return Head(0xcf, v, 8); }
  Pack& Int(std::int64_t v) { return Head(0xd3, static_cast<std::uint64_t>(v), 8); }
  Pack& Real(double v) { return Head(0xcb, std::bit_cast<std::uint64_t>(v), 8); }
  Pack& Nil() { return Head(0xc0, 0, 0); }
  Pack& Bool(bool v) { return Head(v ? 0xc3 : 0xc2, 0, 0); }
  Pack& Str(std::string_view s) {
    Head(0xdb, s.size(), 4);
    bytes_.insert(bytes_.end(), s.begin(), s.end());
    return *this;
  }
  Pack& Bin(const Bytes& b) {
    Head(0xc6, b.size(), 4);
    bytes_.insert(bytes_.end(), b.begin(), b.end());
    return *this;
  }
  Pack& Hashes(const std::vector<std::uint64_t>& hashes) {
    Array(static_cast<std::uint32_t>(hashes.size()));
    for (const std::uint64_t hash : hashes) Uint(hash);
    return *this;
  }
  Pack& Raw(const Bytes& b) {
    bytes_.insert(bytes_.end(), b.begin(), b.end());
    return *this;
  }

  const Bytes& bytes() const { return bytes_; }

 private:
  Pack& Head(std::uint8_t tag, std::uint64_t value, int width) {
    bytes_.push_back(tag);
    for (int i = width - 1; i >= 0; --i) bytes_.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
    return *this;
  }

  Bytes bytes_;
};

// One batch `[ts, [event], 0]` around events that are already encoded.
inline Bytes BatchOf(const std::vector<Bytes>& events) {
  Pack pack;
  pack.Array(3).Real(1.5).Array(static_cast<std::uint32_t>(events.size()));
  for (const Bytes& event : events) pack.Raw(event);
  return pack.Uint(0).bytes();
}

inline Bytes StoredEvent(const std::vector<std::uint64_t>& hashes) {
  return Pack()
      .Map(4)
      .Str("type")
      .Str("BlockStored")
      .Str("block_hashes")
      .Hashes(hashes)
      .Str("block_size")
      .Uint(16)
      .Str("token_ids")
      .Nil()
      .bytes();
}

inline Bytes RemovedEvent(const std::vector<std::uint64_t>& hashes) {
  return Pack().Map(2).Str("type").Str("BlockRemoved").Str("block_hashes").Hashes(hashes).bytes();
}

inline Bytes ClearedEvent() {
  return Pack().Map(1).Str("type").Str("AllBlocksCleared").bytes();
}

}  // namespace foreload::telemetry::testing
