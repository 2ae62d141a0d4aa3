// Access batches (proto/telemetry.proto) from the wire, checked before anyone relies on their sizes.
//
// A batch that is no AccessBatch, is too large or does not say whose it is, is an error; an event that breaks a rule is
// taken out of its batch and counted. Limits: proto/limits.h. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "proto/telemetry.pb.h"

namespace foreload::telemetry {

enum class AccessError : std::uint8_t {
  // the whole batch
  kMalformed,  // not an AccessBatch
  kLimit,      // too many bytes or events
  kPublisher,  // publisher id or engine name of an impossible size
  // one event
  kEmpty,     // none of the known kinds
  kId,        // request, session or parent id of an impossible size
  kDigests,   // namespace, digest size or count
  kOrdinals,  // block ordinals not ascending, too many, or with another number of scores
  kSketch,    // sketch or code of a wrong size
  kState,     // state, action or number out of range
};
inline constexpr std::size_t kAccessErrorCount = 9;
std::string_view AccessErrorName(AccessError error);  // snake_case, for metric labels

struct AccessReport {
  std::array<std::uint64_t, kAccessErrorCount> errors{};
  void Count(AccessError error) { ++errors[static_cast<std::size_t>(error)]; }
};

Result<std::unique_ptr<AccessBatch>> DecodeAccessBatch(std::span<const std::uint8_t> payload,
                                                       AccessReport* report = nullptr);

}  // namespace foreload::telemetry
