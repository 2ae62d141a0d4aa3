// From what engines say to what the core hears: names become ids, digests become block ids, batches become events.
//
// Thread: the core thread. Everything here is bounded by the limits of the configuration; what does not fit is counted.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/metric.h"
#include "prefetcher/service/engine_registry.h"
#include "prefetcher/service/event_builder.h"
#include "prefetcher/service/interner.h"
#include "telemetry/kv_event.h"
#include "telemetry/sink.h"

namespace foreload::control {
class KeyListChunk;
}

namespace foreload::service {

struct IntakeMetrics {
  explicit IntakeMetrics(MetricRegistry& registry);
  Counter& kv_blocks;  // block accesses in KV events
  Counter& request_events;
  Counter& ambiguous_aliases;  // KV events that named a block by an alias of several
  Counter& engines_full;
  Counter& requests_full;
  Counter& sessions_full;
  Counter& bad_keys;  // digests of impossible size, unknown request ids
  Counter& key_lists_asked;
  Counter& key_lists_healed;
  Counter& requests_lost;        // announced no more: taken as aborted
  Counter& step_access_records;  // received; decode-time prediction does not read them yet
  Counter& block_sketch_records;
};

class Intake {
 public:
  struct Options {
    std::uint32_t requests_max = 65536;
    std::uint32_t sessions_max = 1u << 20;
    std::uint32_t request_blocks_max = 1u << 16;
  };
  // A live request that no announcement has named for this long has ended unseen.
  static constexpr DurationNs kRequestSilenceMax = 10 * kSecond;

  // `in_engine`: whether the core knows the block to be in that engine's own cache.
  // `ask_key_list`: a request was announced whose keys were lost.
  Intake(const Options& options, BlockInterner& interner, EngineRegistry& engines, EventBuilder& events,
         MetricRegistry& metrics, std::function<bool(EngineId, BlockId)> in_engine,
         std::function<void(EngineId, const std::string& request_id)> ask_key_list);

  // Which configured engine a source speaks for.
  void BindSource(telemetry::SourceIndex source, EngineId engine);

  void OnKvBatch(telemetry::SourceIndex source, const telemetry::KvEventBatch& batch);
  void OnAccessBatch(telemetry::SourceIndex source, TimeNs now, const telemetry::AccessBatch& batch);
  void OnViewState(telemetry::SourceIndex source, telemetry::ViewState state);
  void OnKeyListChunk(EngineId engine, TimeNs now, const control::KeyListChunk& chunk);
  // All its requests are gone (the core was told EngineDown).
  void OnEngineDown(EngineId engine);
  // Ends requests that fell silent. Call about once a second.
  void Sweep(TimeNs now);

  // Block ids of `digests` (count x digest_bytes) for this engine; empty when malformed.
  std::vector<BlockId> InternKeys(EngineId engine, std::string_view name_space, std::uint32_t digest_bytes,
                                  std::string_view digests);
  // As InternKeys for one key that the engine stores.
  BlockId InternKey(EngineId engine, const BlockKey& key);
  // Of a live request.
  std::string_view RequestName(RequestId request) const { return request_ids_.Name(request); }
  // Invalid when unknown.
  RequestId FindRequest(EngineId engine, const std::string& request_id) const;

 private:
  struct LiveRequest {
    EngineId engine;
    TimeNs last_seen = 0;
    bool announced_by_engine = false;  // has appeared in an announcement: silence means the end
  };
  struct PendingKeyList {  // chunks of one request, until complete
    std::string digests;
    std::uint32_t total = 0;
  };

  EngineId EngineOf(telemetry::SourceIndex source, std::uint32_t data_parallel_rank);
  LayoutIndex LayoutOf(EngineId engine);
  void ApplyStored(EngineId engine, const telemetry::BlockStored& stored);
  void ApplyRemoved(EngineId engine, const telemetry::BlockRemoved& removed);
  std::optional<BlockId> Resolve(const telemetry::BlockHash& hash, const BlockInterner::Scope& scope,
                                 const NamespaceFingerprint& space, bool create);
  NamespaceFingerprint SpaceOf(EngineId engine, const telemetry::BlockStored& stored,
                               std::optional<BlockId> parent) const;
  void MoveView(EngineId engine, const BlockInterner::Bound& bound);
  void ApplyRequest(EngineId engine, TimeNs now, const telemetry::RequestEvent& request);
  void Queue(EngineId engine, TimeNs now, const telemetry::RequestEvent& request, std::span<const BlockId> blocks);
  void ApplyLive(EngineId engine, TimeNs now, const telemetry::LiveRequest& live);
  void ApplyHint(EngineId engine, const telemetry::Hint& hint);
  void EndRequest(RequestId request);

  const Options options_;
  BlockInterner& interner_;
  EngineRegistry& engines_;
  EventBuilder& events_;
  IntakeMetrics metrics_;
  std::function<bool(EngineId, BlockId)> in_engine_;
  std::function<void(EngineId, const std::string&)> ask_key_list_;
  std::vector<EngineId> sources_;                         // by SourceIndex
  std::vector<bool> told_up_;                             // by EngineId: the core has heard of it
  std::unordered_map<EngineId, std::string> publishers_;  // access stream: last publisher id
  NameInterner<RequestId> request_ids_;
  NameInterner<SessionId> session_ids_;
  std::unordered_map<RequestId, LiveRequest> live_;
  std::unordered_map<std::string, PendingKeyList> key_lists_;  // by engine and request id
};

}  // namespace foreload::service
