// One MessagePack value as a flat tape of nodes in document order, so that a decoder can walk it without recursion.
//
// Limits hold before memory is taken: the tape grows with what was really read, never with a count that the input
// declares, and strings stay where they are (nodes point into the payload, which must outlive the tape). A tape is
// reused between messages; single-threaded.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace foreload::telemetry {

enum class MsgpackKind : std::uint8_t { kNil, kBool, kUint, kNegativeInt, kDouble, kString, kBin, kExt, kArray, kMap };

struct MsgpackNode {
  MsgpackKind kind = MsgpackKind::kNil;
  std::uint32_t size = 0;  // bytes of a string, bin or ext; elements of an array; pairs of a map
  // kUint, kBool: the value; kNegativeInt, kDouble: its bits; kString, kBin, kExt: address in the payload;
  // kArray, kMap: index of the node after the last descendant.
  std::uint64_t word = 0;

  double real() const { return std::bit_cast<double>(word); }
  std::string_view text() const { return {reinterpret_cast<const char*>(word), size}; }
  std::span<const std::uint8_t> bin() const { return {reinterpret_cast<const std::uint8_t*>(word), size}; }
};
static_assert(sizeof(MsgpackNode) == 16);

struct MsgpackLimits {
  std::uint32_t depth_max = 16;  // containers inside containers
  std::uint32_t array_elements_max = 1u << 20;
  std::uint32_t map_pairs_max = 1024;
  std::uint32_t nodes_max = 4u << 20;  // 64 MiB of tape
};

enum class MsgpackParse : std::uint8_t { kOk, kTruncated, kMalformed, kLimit, kTrailingBytes };

class MsgpackTape {
 public:
  // Replaces the content by the one value in `payload`. Anything but kOk leaves no usable tape.
  MsgpackParse Parse(std::span<const std::uint8_t> payload, const MsgpackLimits& limits);

  const MsgpackNode& operator[](std::uint32_t index) const { return nodes_[index]; }

  // Index of the node after `index` and all its descendants.
  std::uint32_t Next(std::uint32_t index) const {
    const MsgpackNode& node = nodes_[index];
    return node.kind == MsgpackKind::kArray || node.kind == MsgpackKind::kMap ? static_cast<std::uint32_t>(node.word)
                                                                              : index + 1;
  }

 private:
  std::vector<MsgpackNode> nodes_;
  std::vector<std::uint32_t> open_;  // indices of the containers that are not closed yet
};

}  // namespace foreload::telemetry
