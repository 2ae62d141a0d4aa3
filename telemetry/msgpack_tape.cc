#include "telemetry/msgpack_tape.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <msgpack.hpp>

namespace foreload::telemetry {
namespace {

// A tape that once held a huge message gives the memory back at the next one: 1 Mi nodes, 16 MiB.
constexpr std::size_t kKeptNodesMax = 1u << 20;

class TapeVisitor : public msgpack::null_visitor {
 public:
  TapeVisitor(std::vector<MsgpackNode>& nodes, std::vector<std::uint32_t>& open, const MsgpackLimits& limits)
      : nodes_(nodes), open_(open), limits_(limits) {}

  bool visit_nil() { return Add(MsgpackKind::kNil, 0, 0); }
  bool visit_boolean(bool value) { return Add(MsgpackKind::kBool, 0, value ? 1 : 0); }
  bool visit_positive_integer(std::uint64_t value) { return Add(MsgpackKind::kUint, 0, value); }
  bool visit_negative_integer(std::int64_t value) {
    // Signed encodings of values from 0 up are the same values.
    return Add(value < 0 ? MsgpackKind::kNegativeInt : MsgpackKind::kUint, 0, static_cast<std::uint64_t>(value));
  }
  bool visit_float32(float value) { return visit_float64(value); }
  bool visit_float64(double value) { return Add(MsgpackKind::kDouble, 0, std::bit_cast<std::uint64_t>(value)); }
  bool visit_str(const char* bytes, std::uint32_t size) { return AddBytes(MsgpackKind::kString, bytes, size); }
  bool visit_bin(const char* bytes, std::uint32_t size) { return AddBytes(MsgpackKind::kBin, bytes, size); }
  bool visit_ext(const char* bytes, std::uint32_t size) { return AddBytes(MsgpackKind::kExt, bytes, size); }
  bool start_array(std::uint32_t elements) {
    return elements <= limits_.array_elements_max ? Open(MsgpackKind::kArray, elements) : Refuse();
  }
  bool start_map(std::uint32_t pairs) {
    return pairs <= limits_.map_pairs_max ? Open(MsgpackKind::kMap, pairs) : Refuse();
  }
  bool end_array() { return Close(); }
  bool end_map() { return Close(); }
  void parse_error(std::size_t, std::size_t) { malformed_ = true; }

  bool over_limit() const { return over_limit_; }
  bool malformed() const { return malformed_; }

 private:
  bool Refuse() {
    over_limit_ = true;
    return false;
  }
  bool Add(MsgpackKind kind, std::uint32_t size, std::uint64_t word) {
    if (nodes_.size() >= limits_.nodes_max) return Refuse();
    nodes_.push_back({kind, size, word});
    return true;
  }
  bool AddBytes(MsgpackKind kind, const char* bytes, std::uint32_t size) {
    return Add(kind, size, reinterpret_cast<std::uintptr_t>(bytes));
  }
  bool Open(MsgpackKind kind, std::uint32_t size) {
    if (open_.size() >= limits_.depth_max) return Refuse();
    open_.push_back(static_cast<std::uint32_t>(nodes_.size()));
    return Add(kind, size, 0);
  }
  bool Close() {
    nodes_[open_.back()].word = nodes_.size();
    open_.pop_back();
    return true;
  }

  std::vector<MsgpackNode>& nodes_;
  std::vector<std::uint32_t>& open_;
  const MsgpackLimits& limits_;
  bool over_limit_ = false;
  bool malformed_ = false;
};

}  // namespace

MsgpackParse MsgpackTape::Parse(std::span<const std::uint8_t> payload, const MsgpackLimits& limits) {
  if (nodes_.capacity() > kKeptNodesMax) std::vector<MsgpackNode>().swap(nodes_);
  nodes_.clear();
  open_.clear();
  // Two nodes for three bytes is more than real batches have, and bounded by what was received.
  nodes_.reserve(std::min(payload.size() / 3 * 2, kKeptNodesMax));
  if (payload.empty()) return MsgpackParse::kTruncated;

  TapeVisitor visitor(nodes_, open_, limits);
  std::size_t offset = 0;
  bool complete = false;
  try {
    complete = msgpack::parse(reinterpret_cast<const char*>(payload.data()), payload.size(), offset, visitor);
  } catch (const std::exception&) {  // msgpack throws for an ext of 4 GiB
    return MsgpackParse::kMalformed;
  }
  if (visitor.over_limit()) return MsgpackParse::kLimit;
  if (visitor.malformed()) return MsgpackParse::kMalformed;
  if (!complete) return MsgpackParse::kTruncated;
  return offset == payload.size() ? MsgpackParse::kOk : MsgpackParse::kTrailingBytes;
}

}  // namespace foreload::telemetry
