#include "telemetry/kv_event_fields.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace foreload::telemetry {
namespace {

using enum EventField;

// Every name on record; docs/wire.md says who sends which.
constexpr std::pair<std::string_view, EventField> kNames[] = {
    {"additional_salt", kSalt},
    {"backend_id", kEnvelope},
    {"base_block_idx", kEnvelope},
    {"block_hashes", kHashes},
    {"block_size", kBlockSize},
    {"cache_salt", kSalt},
    {"dp_rank", kIgnored},
    {"event_id", kEnvelope},
    {"event_type", kType},
    {"extra_keys", kExtraKeys},
    {"group_id", kIgnored},
    {"group_idx", kGroup},
    {"hash_algo", kIgnored},
    {"kv_cache_spec_kind", kSpecKind},
    {"kv_cache_spec_sliding_window", kSlidingWindow},
    {"layer_group_id", kGroup},
    {"locality", kLocality},
    {"lora_id", kLoraId},
    {"lora_name", kLoraName},
    {"medium", kMedium},
    {"model_name", kIgnored},
    {"object_key", kObjectKey},
    {"ownership", kOwnership},
    {"parent_block_hash", kParent},
    {"parent_hash", kParent},
    {"seq_hashes", kHashes},
    {"session_id", kSessionId},
    {"sliding_window", kSlidingWindow},
    {"storage_medium", kMedium},
    {"tenant_id", kEnvelope},
    {"timestamp", kIgnored},
    {"token_ids", kTokens},
    {"type", kType},
    {"window_size", kSlidingWindow},
};

constexpr std::array kStoredPositions{kType,     kHashes,        kParent,   kTokens,    kBlockSize,
                                      kLoraId,   kMedium,        kLoraName, kExtraKeys, kGroup,
                                      kSpecKind, kSlidingWindow, kLocality, kOwnership, kSessionId};
constexpr std::array kRemovedPositions{kType, kHashes, kMedium, kGroup, kLocality, kOwnership};
// SGLang from 0.5.18 on puts named fields of a salted store here, where vLLM has the LoRA name.
constexpr std::uint32_t kNamedFieldsPosition = 7;

// Open addressing over the names, filled at compile time: a look-up is one or two comparisons. Length and outer letters
// tell nearly all of them apart.
constexpr std::size_t kSlots = 128;
constexpr std::uint8_t kNoName = 0xff;

constexpr std::size_t SlotOf(std::string_view name) {
  const auto letter = [&](std::size_t i) { return static_cast<unsigned char>(name[i]); };
  return (name.size() * 31 + letter(0) * 7u + letter(name.size() / 2) * 3u + letter(name.size() - 1)) % kSlots;
}

constexpr std::array<std::uint8_t, kSlots> kNameAt = [] {
  std::array<std::uint8_t, kSlots> slots{};
  slots.fill(kNoName);
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    std::size_t slot = SlotOf(kNames[i].first);
    while (slots[slot] != kNoName) slot = (slot + 1) % kSlots;
    slots[slot] = static_cast<std::uint8_t>(i);
  }
  return slots;
}();

EventField FieldOf(std::string_view name) {
  if (name.empty()) return kUnknown;
  for (std::size_t slot = SlotOf(name); kNameAt[slot] != kNoName; slot = (slot + 1) % kSlots) {
    const auto& [known, field] = kNames[kNameAt[slot]];
    if (known == name) return field;
  }
  return kUnknown;
}

bool IsEmptyArray(const MsgpackNode& node) {
  return node.kind == MsgpackKind::kArray && node.size == 0;
}

void Set(const MsgpackTape& tape, EventField field, std::uint32_t node, EventFields& out) {
  if (field == kUnknown) {
    ++out.unknown_fields;
    return;
  }
  if (tape[node].kind == MsgpackKind::kNil) return;
  std::uint32_t& slot = out.node[static_cast<std::size_t>(field)];
  // Mooncake names its hashes twice, and either list may be the empty one.
  if (slot != kAbsent && IsEmptyArray(tape[node])) return;
  slot = node;
}

void CollectNamed(const MsgpackTape& tape, std::uint32_t map, EventFields& out) {
  std::uint32_t key = map + 1;
  for (std::uint32_t i = 0; i < tape[map].size; ++i) {
    const std::uint32_t value = tape.Next(key);
    Set(tape, tape[key].kind == MsgpackKind::kString ? FieldOf(tape[key].text()) : kUnknown, value, out);
    key = tape.Next(value);
  }
}

template <std::size_t N>
void CollectPositions(const MsgpackTape& tape, std::uint32_t array, const std::array<EventField, N>& positions,
                      EventFields& out) {
  std::uint32_t node = array + 1;
  for (std::uint32_t i = 0; i < tape[array].size; ++i, node = tape.Next(node)) {
    if (i == kNamedFieldsPosition && tape[node].kind == MsgpackKind::kMap) {
      CollectNamed(tape, node, out);
    } else {
      Set(tape, i < N ? positions[i] : kUnknown, node, out);
    }
  }
}

bool IsRemoved(std::string_view type) {
  return type == "BlockRemoved" || type == "removed";
}

}  // namespace

EventFields CollectFields(const MsgpackTape& tape, std::uint32_t event) {
  EventFields out;
  std::fill(std::begin(out.node), std::end(out.node), kAbsent);
  const MsgpackNode& node = tape[event];
  if (node.kind == MsgpackKind::kMap) {
    CollectNamed(tape, event, out);
  } else if (node.kind == MsgpackKind::kArray) {
    const bool tagged = node.size > 0 && tape[event + 1].kind == MsgpackKind::kString;
    if (tagged && IsRemoved(tape[event + 1].text())) {
      CollectPositions(tape, event, kRemovedPositions, out);
    } else {
      CollectPositions(tape, event, kStoredPositions, out);
    }
  } else {
    out.shape_ok = false;
    return out;
  }
  if (out.has(kType) && tape[out[kType]].kind == MsgpackKind::kString) out.type = tape[out[kType]].text();
  return out;
}

}  // namespace foreload::telemetry
