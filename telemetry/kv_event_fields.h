// One event as its fields lie on the tape, before they are judged: the bridge between the two shapes (map with names,
// array with positions) and the decoder. Internal to the decoder.
#pragma once

#include <cstdint>
#include <string_view>

#include "telemetry/msgpack_tape.h"

namespace foreload::telemetry {

enum class EventField : std::uint8_t {
  kType,
  kHashes,
  kParent,
  kTokens,
  kBlockSize,
  kLoraId,
  kMedium,
  kLoraName,
  kExtraKeys,
  kGroup,
  kSpecKind,
  kSlidingWindow,
  kLocality,
  kOwnership,
  kSessionId,
  kSalt,
  kObjectKey,
  kEnvelope,  // only Mooncake's envelope has these; their values are of no use here, their presence tells the dialect
  kIgnored,   // known and of no use here
  kCount,
  kUnknown = 0xff,
};

inline constexpr std::uint32_t kAbsent = 0xffffffff;

// Where each field's node is on the tape; nil counts as absent. `shape_ok` is false for neither map nor array.
struct EventFields {
  std::uint32_t node[static_cast<std::size_t>(EventField::kCount)];
  std::string_view type;  // empty: none
  bool shape_ok = true;
  std::uint32_t unknown_fields = 0;

  std::uint32_t operator[](EventField field) const { return node[static_cast<std::size_t>(field)]; }
  bool has(EventField field) const { return (*this)[field] != kAbsent; }
};

EventFields CollectFields(const MsgpackTape& tape, std::uint32_t event);

}  // namespace foreload::telemetry
