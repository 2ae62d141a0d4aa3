#include "telemetry/access_validate.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/block_key.h"
#include "proto/limits.h"

namespace foreload::telemetry {
namespace {

constexpr std::size_t kPublisherIdBytes = 16;
constexpr std::size_t kNamespaceBytes = sizeof(NamespaceFingerprint);
constexpr std::size_t kCodeBytes = 16;
constexpr std::size_t kCodesMin = 2;
constexpr std::size_t kCodesMax = 4;

using Verdict = std::optional<AccessError>;  // nothing: good

// Counts the events before any is built: an empty one takes two bytes on the wire and a hundred in memory.
bool CountEvents(std::span<const std::uint8_t> payload, std::size_t& events) {
  using google::protobuf::internal::WireFormatLite;
  google::protobuf::io::CodedInputStream input(payload.data(), static_cast<int>(payload.size()));
  events = 0;
  while (const std::uint32_t tag = input.ReadTag()) {
    if (WireFormatLite::GetTagFieldNumber(tag) == AccessBatch::kEventsFieldNumber) ++events;
    if (!WireFormatLite::SkipField(&input, tag)) return false;
  }
  return input.ConsumedEntireMessage();
}

bool GoodId(const std::string& id) {
  return !id.empty() && id.size() <= kIdBytesMax;
}
bool GoodOptionalId(const std::string& id) {
  return id.size() <= kIdBytesMax;
}
bool GoodNamespace(const std::string& bytes) {
  return bytes.size() == kNamespaceBytes;
}

// A list may be absent; then its namespace and size do not matter.
bool GoodDigests(const std::string& name_space, std::uint32_t digest_bytes, const std::string& digests) {
  if (digests.empty()) return name_space.empty() || GoodNamespace(name_space);
  if (!GoodNamespace(name_space)) return false;
  if (digest_bytes < kDigestBytesMin || digest_bytes > kDigestBytesMax) return false;
  return digests.size() % digest_bytes == 0 && digests.size() / digest_bytes <= kKeysPerMessageMax;
}

Verdict CheckRequest(const RequestEvent& event) {
  if (!GoodId(event.request_id()) || !GoodOptionalId(event.session_id()) ||
      !GoodOptionalId(event.parent_request_id())) {
    return AccessError::kId;
  }
  if (event.state() == REQUEST_STATE_UNSPECIFIED || !RequestState_IsValid(event.state())) return AccessError::kState;
  if (!GoodDigests(event.name_space(), event.digest_bytes(), event.digests())) return AccessError::kDigests;
  return std::nullopt;
}

Verdict CheckLive(const LiveRequest& event) {
  if (!GoodId(event.request_id())) return AccessError::kId;
  if (event.state() == REQUEST_STATE_UNSPECIFIED || !RequestState_IsValid(event.state())) return AccessError::kState;
  if (event.key_count() > kKeysPerMessageMax) return AccessError::kDigests;
  return std::nullopt;
}

Verdict CheckStep(const StepAccess& event) {
  if (!GoodId(event.request_id())) return AccessError::kId;
  const int blocks = event.block_ordinal_deltas_size();
  if (static_cast<std::size_t>(blocks) > kBlocksPerStepAccessMax) return AccessError::kOrdinals;
  std::uint64_t ordinal = 0;
  for (int i = 0; i < blocks; ++i) {
    const std::uint32_t delta = event.block_ordinal_deltas(i);
    if (i > 0 && delta == 0) return AccessError::kOrdinals;
    ordinal += delta;
  }
  if (ordinal > std::numeric_limits<std::uint32_t>::max()) return AccessError::kOrdinals;
  if (!event.scores().empty() && event.scores().size() != static_cast<std::size_t>(blocks))
    return AccessError::kOrdinals;
  if (!event.query_sketch().empty() && event.query_sketch().size() != kCodeBytes) return AccessError::kSketch;
  return std::nullopt;
}

Verdict CheckSketch(const BlockSketch& event) {
  if (!GoodNamespace(event.name_space()) || event.digest().size() < kDigestBytesMin ||
      event.digest().size() > kDigestBytesMax) {
    return AccessError::kDigests;
  }
  const std::size_t codes = event.codes().size() / kCodeBytes;
  if (event.codes().size() % kCodeBytes != 0 || codes < kCodesMin || codes > kCodesMax) return AccessError::kSketch;
  if (!std::isfinite(event.norm())) return AccessError::kState;
  return std::nullopt;
}

Verdict CheckHint(const Hint& event) {
  if (!GoodOptionalId(event.session_id())) return AccessError::kId;
  if (event.action() == Hint::ACTION_UNSPECIFIED || !Hint::Action_IsValid(event.action())) return AccessError::kState;
  if (event.sigma_ms() < 0 || event.ttl_ms() < 0) return AccessError::kState;
  if (event.session_id().empty() && event.digests().empty()) return AccessError::kEmpty;
  if (!GoodDigests(event.name_space(), event.digest_bytes(), event.digests())) return AccessError::kDigests;
  return std::nullopt;
}

Verdict Check(const AccessEvent& event) {
  switch (event.event_case()) {
    case AccessEvent::kRequest: return CheckRequest(event.request());
    case AccessEvent::kStepAccess: return CheckStep(event.step_access());
    case AccessEvent::kBlockSketch: return CheckSketch(event.block_sketch());
    case AccessEvent::kHint: return CheckHint(event.hint());
    case AccessEvent::kLiveRequest: return CheckLive(event.live_request());
    case AccessEvent::EVENT_NOT_SET: break;
  }
  return AccessError::kEmpty;
}

// Keeps the order of the events that stay.
void RemoveBadEvents(AccessBatch& batch, AccessReport& report) {
  auto& events = *batch.mutable_events();
  int kept = 0;
  for (int i = 0; i < events.size(); ++i) {
    if (const Verdict bad = Check(events.Get(i))) {
      report.Count(*bad);
    } else {
      events.SwapElements(kept++, i);
    }
  }
  events.DeleteSubrange(kept, events.size() - kept);
}

Status BatchError(AccessError error, std::string message, AccessReport& report) {
  report.Count(error);
  return InvalidArgument("access batch: " + std::move(message));
}

}  // namespace

Result<std::unique_ptr<AccessBatch>> DecodeAccessBatch(std::span<const std::uint8_t> payload, AccessReport* report) {
  AccessReport unused;
  AccessReport& counts = report != nullptr ? *report : unused;
  if (payload.size() > kAccessBatchBytesMax) {
    return BatchError(AccessError::kLimit, "larger than " + std::to_string(kAccessBatchBytesMax) + " bytes", counts);
  }
  std::size_t events = 0;
  if (!CountEvents(payload, events)) return BatchError(AccessError::kMalformed, "not an AccessBatch", counts);
  if (events > kAccessEventsPerBatchMax) {
    return BatchError(AccessError::kLimit, "more than " + std::to_string(kAccessEventsPerBatchMax) + " events", counts);
  }
  auto batch = std::make_unique<AccessBatch>();
  if (!batch->ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return BatchError(AccessError::kMalformed, "not an AccessBatch", counts);
  }
  if (batch->publisher_id().size() != kPublisherIdBytes || batch->engine().size() > kIdBytesMax) {
    return BatchError(AccessError::kPublisher, "publisher id or engine name of an impossible size", counts);
  }
  RemoveBadEvents(*batch, counts);
  return batch;
}

std::string_view AccessErrorName(AccessError error) {
  constexpr std::string_view kNames[kAccessErrorCount] = {"malformed", "limit",    "publisher", "empty", "id",
                                                          "digests",   "ordinals", "sketch",    "state"};
  return kNames[static_cast<std::size_t>(error)];
}

}  // namespace foreload::telemetry
