#include "telemetry/kv_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/block_key.h"
#include "telemetry/kv_event_fields.h"
#include "telemetry/msgpack_tape.h"

namespace foreload::telemetry {
namespace {

using enum EventField;

// A time that is an integer above this is in milliseconds (Mooncake); as seconds it would be the year 5138.
constexpr std::uint64_t kSecondsMax = 100'000'000'000;
// Plain strings among the extra keys of a block that cannot be told apart are joined by this byte (unit separator).
constexpr char kSaltSeparator = '\x1f';
constexpr std::uint32_t kRankMax = std::numeric_limits<std::int32_t>::max();

enum class EventKind : std::uint8_t { kStored, kRemoved, kCleared, kUnknownTag };

EventKind KindOf(std::string_view type) {
  if (type == "BlockStored" || type == "stored") return EventKind::kStored;
  if (type == "BlockRemoved" || type == "removed") return EventKind::kRemoved;
  if (type == "AllBlocksCleared" || type == "cleared") return EventKind::kCleared;
  return EventKind::kUnknownTag;
}

// Reads the judged values of one event. The first violation is kept; the getters return defaults after it.
class EventReader {
 public:
  EventReader(const MsgpackTape& tape, const EventFields& fields, Dialect dialect, const DecodeLimits& limits)
      : tape_(tape), fields_(fields), dialect_(dialect), limits_(limits) {}

  const std::optional<DecodeError>& error() const { return error_; }

  std::vector<BlockHash> Hashes() {
    std::vector<BlockHash> hashes;
    const std::uint32_t list = fields_[kHashes];
    if (list == kAbsent || tape_[list].kind != MsgpackKind::kArray) {
      Fail(DecodeError::kHash);
      return hashes;
    }
    const std::uint32_t count = tape_[list].size;
    if (count > limits_.hashes_per_event_max) {
      Fail(DecodeError::kHash);
      return hashes;
    }
    hashes.resize(count);
    std::uint32_t node = list + 1;
    for (BlockHash& hash : hashes) {
      ReadHash(tape_[node], hash);
      if (error_) break;
      node = tape_.Next(node);
    }
    return hashes;
  }

  std::optional<BlockHash> Parent() {
    if (!fields_.has(kParent)) return std::nullopt;
    BlockHash hash;
    ReadHash(tape_[fields_[kParent]], hash);
    return hash;
  }

  std::uint32_t BlockSize() {
    const bool optional = dialect_ == Dialect::kMooncake || fields_.has(kEnvelope);
    if (!fields_.has(kBlockSize)) {
      if (!optional) Fail(DecodeError::kBlockSize);
      return 0;
    }
    return Uint32(kBlockSize, DecodeError::kBlockSize);
  }

  std::optional<std::uint32_t> Group() {
    if (!fields_.has(kGroup)) return std::nullopt;
    return Uint32(kGroup, DecodeError::kField);
  }

  std::optional<std::int64_t> LoraId() {
    if (!fields_.has(kLoraId)) return std::nullopt;
    const MsgpackNode& node = tape_[fields_[kLoraId]];
    if (node.kind != MsgpackKind::kUint && node.kind != MsgpackKind::kNegativeInt) Fail(DecodeError::kField);
    return static_cast<std::int64_t>(node.word);
  }

  std::string Text(EventField field) {
    if (!fields_.has(field)) return {};
    const MsgpackNode& node = tape_[fields_[field]];
    if (node.kind != MsgpackKind::kString || node.size > limits_.string_bytes_max) {
      Fail(DecodeError::kField);
      return {};
    }
    return std::string(node.text());
  }

  Medium MediumOf() {
    if (!fields_.has(kMedium)) return Medium::kGpu;
    const MsgpackNode& node = tape_[fields_[kMedium]];
    if (node.kind != MsgpackKind::kString) {
      Fail(DecodeError::kField);
      return Medium::kOther;
    }
    return MediumFromName(node.text());
  }

  struct Tokens {
    std::uint32_t span = 0;   // tokens that the blocks cover
    std::uint32_t count = 0;  // of plain ids; 0 where the list holds pairs (EAGLE)
  };
  Tokens TokensOf() {
    if (!fields_.has(kTokens)) return {};
    const MsgpackNode& node = tape_[fields_[kTokens]];
    if (node.kind != MsgpackKind::kArray) {
      Fail(DecodeError::kField);
      return {};
    }
    const bool pairs = node.size > 0 && tape_[fields_[kTokens] + 1].kind == MsgpackKind::kArray;
    return {node.size, pairs ? 0 : node.size};
  }

  // The salt in the extra keys of a root's first block. Keys of multi-modal inputs are lists and the LoRA name is
  // known; what else is there cannot be told from a salt, so that all of it keeps the namespace apart.
  std::string Salt(const std::string& lora_name, bool root) {
    if (fields_.has(kSalt)) return Text(kSalt);
    if (!root || !fields_.has(kExtraKeys)) return {};
    const std::uint32_t blocks = fields_[kExtraKeys];
    if (tape_[blocks].kind != MsgpackKind::kArray || tape_[blocks].size == 0) return {};
    const std::uint32_t first = blocks + 1;
    if (tape_[first].kind != MsgpackKind::kArray) return {};

    std::string salt;
    bool lora_seen = lora_name.empty();
    std::uint32_t node = first + 1;
    for (std::uint32_t i = 0; i < tape_[first].size; ++i, node = tape_.Next(node)) {
      if (tape_[node].kind != MsgpackKind::kString) continue;
      if (!lora_seen && tape_[node].text() == lora_name) {
        lora_seen = true;
        continue;
      }
      if (salt.size() + tape_[node].size >= limits_.string_bytes_max) {
        Fail(DecodeError::kField);
        return {};
      }
      if (!salt.empty()) salt += kSaltSeparator;
      salt += tape_[node].text();
    }
    return salt;
  }

 private:
  void Fail(DecodeError error) {
    if (!error_) error_ = error;
  }

  std::uint32_t Uint32(EventField field, DecodeError error) {
    const MsgpackNode& node = tape_[fields_[field]];
    if (node.kind != MsgpackKind::kUint || node.word > std::numeric_limits<std::uint32_t>::max()) {
      Fail(error);
      return 0;
    }
    return static_cast<std::uint32_t>(node.word);
  }

  void ReadHash(const MsgpackNode& node, BlockHash& hash) {
    switch (node.kind) {
      case MsgpackKind::kUint: hash.low64 = node.word; return;
      case MsgpackKind::kNegativeInt:
        if (dialect_ == Dialect::kVllm) break;
        hash.low64 = node.word;
        return;
      case MsgpackKind::kBin:
        if (node.size == 0 || node.size > kDigestBytesMax) break;
        for (const std::uint8_t byte : node.bin().last(std::min<std::size_t>(node.size, 8))) {
          hash.low64 = (hash.low64 << 8) | byte;
        }
        if (node.size >= kDigestBytesMin) {  // a shorter one names no stored bytes
          hash.digest_bytes = static_cast<std::uint8_t>(node.size);
          std::memcpy(hash.digest.data(), node.bin().data(), node.size);
        }
        return;
      default: break;
    }
    Fail(DecodeError::kHash);
  }

  const MsgpackTape& tape_;
  const EventFields& fields_;
  const Dialect dialect_;
  const DecodeLimits& limits_;
  std::optional<DecodeError> error_;
};

std::optional<DecodeError> AddStored(EventReader& reader, KvEventBatch& batch) {
  BlockStored event;
  event.hashes = reader.Hashes();
  event.parent = reader.Parent();
  event.block_size = reader.BlockSize();
  const EventReader::Tokens tokens = reader.TokensOf();
  event.token_count = tokens.count;
  event.medium = reader.MediumOf();
  event.group = reader.Group();
  event.lora_id = reader.LoraId();
  event.lora_name = reader.Text(kLoraName);
  event.cache_salt = reader.Salt(event.lora_name, !event.parent.has_value());
  event.spec_kind = reader.Text(kSpecKind);
  event.locality = reader.Text(kLocality);
  event.ownership = reader.Text(kOwnership);
  event.session_id = reader.Text(kSessionId);
  // Placeholders of offload tiers have no tokens and no parent, whatever their place in the chain.
  event.chain_known = tokens.span == 0 ? event.parent.has_value()
                                       : tokens.span <= std::uint64_t{event.block_size} * event.hashes.size();
  if (!reader.error()) batch.events.emplace_back(std::move(event));
  return reader.error();
}

std::optional<DecodeError> AddRemoved(EventReader& reader, KvEventBatch& batch) {
  BlockRemoved event;
  event.hashes = reader.Hashes();
  event.medium = reader.MediumOf();
  event.group = reader.Group();
  event.locality = reader.Text(kLocality);
  event.ownership = reader.Text(kOwnership);
  if (!reader.error()) batch.events.emplace_back(std::move(event));
  return reader.error();
}

// Mooncake may name an object by its key alone; such an event tells nothing about blocks.
bool IsKeyless(const MsgpackTape& tape, const EventFields& fields) {
  const std::uint32_t list = fields[kHashes];
  const bool no_hashes = list == kAbsent || (tape[list].kind == MsgpackKind::kArray && tape[list].size == 0);
  return no_hashes && fields.has(kObjectKey);
}

void DecodeEvent(const MsgpackTape& tape, std::uint32_t node, Dialect dialect, const DecodeLimits& limits,
                 KvEventBatch& batch, DecodeReport& report) {
  const EventFields fields = CollectFields(tape, node);
  std::optional<DecodeError> error;
  if (!fields.shape_ok) {
    error = DecodeError::kEventShape;
  } else if (fields.type.empty()) {
    error = DecodeError::kEventType;
  } else {
    const EventKind kind = KindOf(fields.type);
    if (kind == EventKind::kUnknownTag || (kind != EventKind::kCleared && IsKeyless(tape, fields))) {
      ++batch.unknown_events;
      return;
    }
    batch.unknown_fields += fields.unknown_fields;
    EventReader reader(tape, fields, dialect, limits);
    if (kind == EventKind::kStored) error = AddStored(reader, batch);
    if (kind == EventKind::kRemoved) error = AddRemoved(reader, batch);
    if (kind == EventKind::kCleared) batch.events.emplace_back(AllBlocksCleared{});
  }
  if (error) {
    ++batch.bad_events;
    report.Count(*error);
  }
}

struct BatchNodes {
  std::uint32_t time = kAbsent;
  std::uint32_t events = kAbsent;
  std::uint32_t rank = kAbsent;
  std::uint32_t unknown = 0;
};

// False when the value is neither array nor map.
bool FindBatchNodes(const MsgpackTape& tape, BatchNodes& out) {
  const MsgpackNode& root = tape[0];
  std::uint32_t node = 1;
  if (root.kind == MsgpackKind::kArray) {
    std::uint32_t* const slots[] = {&out.time, &out.events, &out.rank};
    for (std::uint32_t i = 0; i < root.size; ++i, node = tape.Next(node)) {
      if (i < std::size(slots)) *slots[i] = node;
    }
    out.unknown = root.size > std::size(slots) ? root.size - static_cast<std::uint32_t>(std::size(slots)) : 0;
    return true;
  }
  if (root.kind != MsgpackKind::kMap) return false;
  for (std::uint32_t i = 0; i < root.size; ++i) {
    const std::uint32_t value = tape.Next(node);
    const std::string_view name = tape[node].kind == MsgpackKind::kString ? tape[node].text() : std::string_view();
    if (name == "ts") {
      out.time = value;
    } else if (name == "events") {
      out.events = value;
    } else if (name == "data_parallel_rank" || name == "attn_dp_rank" || name == "dp_rank") {
      out.rank = value;
    } else {
      ++out.unknown;
    }
    node = tape.Next(value);
  }
  return true;
}

std::optional<double> TimeOf(const MsgpackNode& node) {
  if (node.kind == MsgpackKind::kDouble && std::isfinite(node.real())) return node.real();
  if (node.kind != MsgpackKind::kUint) return std::nullopt;
  const double value = static_cast<double>(node.word);
  return node.word > kSecondsMax ? value / 1000 : value;
}

Status BatchError(DecodeError error, std::string message, DecodeReport& report) {
  report.Count(error);
  return InvalidArgument("KV event batch: " + std::move(message));
}

Status ParseTape(MsgpackTape& tape, std::span<const std::uint8_t> payload, const DecodeLimits& limits,
                 DecodeReport& report) {
  if (payload.size() > limits.payload_bytes_max) {
    return BatchError(DecodeError::kLimit, "larger than " + std::to_string(limits.payload_bytes_max) + " bytes",
                      report);
  }
  const MsgpackLimits tape_limits{.depth_max = limits.depth_max,
                                  .array_elements_max = limits.array_elements_max,
                                  .map_pairs_max = limits.map_pairs_max,
                                  .nodes_max = limits.nodes_max};
  switch (tape.Parse(payload, tape_limits)) {
    case MsgpackParse::kOk: return OkStatus();
    case MsgpackParse::kTruncated: return BatchError(DecodeError::kTruncated, "ends inside a value", report);
    case MsgpackParse::kMalformed: return BatchError(DecodeError::kMalformed, "not MessagePack", report);
    case MsgpackParse::kLimit: return BatchError(DecodeError::kLimit, "over a limit of depth or count", report);
    case MsgpackParse::kTrailingBytes: break;
  }
  return BatchError(DecodeError::kTrailingBytes, "trailing bytes after the batch", report);
}

}  // namespace

Result<KvEventBatch> DecodeKvBatch(std::span<const std::uint8_t> payload, Dialect dialect, const DecodeLimits& limits,
                                   DecodeReport* report) {
  DecodeReport unused;
  DecodeReport& counts = report != nullptr ? *report : unused;
  thread_local MsgpackTape tape;  // its memory serves every batch of this thread
  FORELOAD_RETURN_IF_ERROR(ParseTape(tape, payload, limits, counts));

  BatchNodes nodes;
  if (!FindBatchNodes(tape, nodes)) return BatchError(DecodeError::kBatchShape, "neither array nor map", counts);
  if (nodes.events == kAbsent || tape[nodes.events].kind != MsgpackKind::kArray) {
    return BatchError(DecodeError::kBatchShape, "no list of events", counts);
  }
  const std::optional<double> time = TimeOf(tape[nodes.time == kAbsent ? nodes.events : nodes.time]);
  if (!time) return BatchError(DecodeError::kBatchShape, "no time", counts);
  if (tape[nodes.events].size > limits.events_max) {
    return BatchError(DecodeError::kLimit, "more than " + std::to_string(limits.events_max) + " events", counts);
  }

  KvEventBatch batch;
  batch.wall_time_seconds = *time;
  batch.unknown_fields = nodes.unknown;
  if (nodes.rank != kAbsent && tape[nodes.rank].kind != MsgpackKind::kNil) {
    const MsgpackNode& rank = tape[nodes.rank];
    if (rank.kind != MsgpackKind::kUint || rank.word > kRankMax) {
      return BatchError(DecodeError::kBatchShape, "the data-parallel rank is not a rank", counts);
    }
    batch.data_parallel_rank = static_cast<std::uint32_t>(rank.word);
  }

  const std::uint32_t count = tape[nodes.events].size;
  batch.events.reserve(count);  // bounded by events_max and by the bytes that were read
  std::uint32_t event = nodes.events + 1;
  for (std::uint32_t i = 0; i < count; ++i, event = tape.Next(event)) {
    DecodeEvent(tape, event, dialect, limits, batch, counts);
  }
  return batch;
}

std::string_view DecodeErrorName(DecodeError error) {
  constexpr std::string_view kNames[kDecodeErrorCount] = {"truncated",   "malformed",   "trailing_bytes", "limit",
                                                          "batch_shape", "event_shape", "event_type",     "hash",
                                                          "block_size",  "field"};
  return kNames[static_cast<std::size_t>(error)];
}

Medium MediumFromName(std::string_view name) {
  constexpr std::pair<std::string_view, Medium> kMedia[] = {
      {"gpu", Medium::kGpu},     {"hbm", Medium::kGpu},           {"device", Medium::kGpu},
      {"cpu", Medium::kCpu},     {"cpu_pinned", Medium::kCpu},    {"host_pinned", Medium::kCpu},
      {"dram", Medium::kCpu},    {"storage", Medium::kStorage},   {"disk", Medium::kStorage},
      {"ssd", Medium::kStorage}, {"external", Medium::kExternal}, {"remote", Medium::kExternal},
  };
  const auto same_letter = [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); };
  for (const auto& [known, medium] : kMedia) {
    if (std::equal(known.begin(), known.end(), name.begin(), name.end(), same_letter)) return medium;
  }
  return Medium::kOther;
}

}  // namespace foreload::telemetry
