#include "prefetcher/service/intake.h"

#include <algorithm>
#include <variant>

#include "proto/control.pb.h"
#include "proto/limits.h"
#include "proto/namespace.h"
#include "proto/telemetry.pb.h"

namespace foreload::service {
namespace {

using telemetry::Medium;

// A tier that this engine speaks of. Its own CPU and storage tiers are not ours: they steer nothing yet.
std::optional<core::Tier> TierOf(Medium medium) {
  switch (medium) {
    case Medium::kGpu: return core::Tier::kHbm;
    case Medium::kCpu: return core::Tier::kDram;
    case Medium::kStorage: return core::Tier::kSsd;
    case Medium::kExternal: return core::Tier::kRemote;
    case Medium::kOther: return std::nullopt;
  }
  return std::nullopt;
}

core::RequestKind KindOf(telemetry::RequestKind kind) {
  switch (kind) {
    case telemetry::REQUEST_KIND_HUMAN: return core::RequestKind::kHuman;
    case telemetry::REQUEST_KIND_TOOL: return core::RequestKind::kTool;
    case telemetry::REQUEST_KIND_WORKFLOW: return core::RequestKind::kWorkflow;
    default: return core::RequestKind::kUnknown;
  }
}

std::string PendingKey(EngineId engine, const std::string& request_id) {
  return std::to_string(engine.value) + "/" + request_id;
}

}  // namespace

IntakeMetrics::IntakeMetrics(MetricRegistry& registry)
    : kv_blocks(registry.AddCounter("foreload_intake_kv_blocks_total", "Block hashes in KV events.")),
      request_events(registry.AddCounter("foreload_intake_request_events_total", "Request events received.")),
      ambiguous_aliases(registry.AddCounter("foreload_intake_ambiguous_aliases_total",
                                            "KV events that named a block by 8 bytes that mean several.")),
      engines_full(registry.AddCounter("foreload_intake_refused_total", "What no table had room for, by reason.",
                                       {{"reason", "engines"}})),
      requests_full(registry.AddCounter("foreload_intake_refused_total", "What no table had room for, by reason.",
                                        {{"reason", "requests"}})),
      sessions_full(registry.AddCounter("foreload_intake_refused_total", "What no table had room for, by reason.",
                                        {{"reason", "sessions"}})),
      bad_keys(registry.AddCounter("foreload_intake_refused_total", "What no table had room for, by reason.",
                                   {{"reason", "bad_keys"}})),
      key_lists_asked(registry.AddCounter("foreload_intake_key_lists_asked_total", "Lost key lists asked for again.")),
      key_lists_healed(registry.AddCounter("foreload_intake_key_lists_healed_total", "Lost key lists received.")),
      requests_lost(registry.AddCounter("foreload_intake_requests_lost_total",
                                        "Requests whose end was never heard, dropped after their silence.")),
      step_access_records(registry.AddCounter("foreload_intake_step_access_records_total", "StepAccess records.")),
      block_sketch_records(registry.AddCounter("foreload_intake_block_sketch_records_total", "BlockSketch records.")) {}

Intake::Intake(const Options& options, BlockInterner& interner, EngineRegistry& engines, EventBuilder& events,
               MetricRegistry& metrics, std::function<bool(EngineId, BlockId)> in_engine,
               std::function<void(EngineId, const std::string&)> ask_key_list)
    : options_(options),
      interner_(interner),
      engines_(engines),
      events_(events),
      metrics_(metrics),
      in_engine_(std::move(in_engine)),
      ask_key_list_(std::move(ask_key_list)),
      request_ids_(options.requests_max),
      session_ids_(options.sessions_max) {}

void Intake::BindSource(telemetry::SourceIndex source, EngineId engine) {
  if (sources_.size() <= source) sources_.resize(source + 1);
  sources_[source] = engine;
}

EngineId Intake::EngineOf(telemetry::SourceIndex source, std::uint32_t data_parallel_rank) {
  if (source >= sources_.size() || !sources_[source].valid()) return EngineId{};
  EngineId engine = sources_[source];
  if (data_parallel_rank > 0) {
    const auto id = engines_.IdFor(engines_.NameOf(engine), data_parallel_rank);
    if (!id) {
      metrics_.engines_full.Add();
      return EngineId{};
    }
    engine = *id;
  }
  if (told_up_.size() <= engine.value) told_up_.resize(engine.value + 1);
  if (!told_up_[engine.value]) {
    told_up_[engine.value] = true;
    if (engines_.Find(engine) == nullptr) events_.Add(core::EngineUp{.engine = engine});
  }
  return engine;
}

LayoutIndex Intake::LayoutOf(EngineId engine) {
  const EngineInstance* instance = engines_.Find(engine);
  return instance == nullptr ? 0 : instance->layout;
}

std::optional<BlockId> Intake::Resolve(const telemetry::BlockHash& hash, const BlockInterner::Scope& scope,
                                       const NamespaceFingerprint& space, bool create) {
  if (hash.digest_bytes < kDigestBytesMin) {
    const auto block = interner_.ResolveAlias(hash.low64, scope, create);
    if (!block && create) metrics_.ambiguous_aliases.Add();
    return block;
  }
  // The whole digest is there. Its namespace may be another than the engine's default (salt, LoRA): what the engine
  // announced under this alias says which.
  if (const auto known = interner_.ResolveAlias(hash.low64, scope, false); known) {
    const BlockKey* key = interner_.key(*known);
    if (key != nullptr && key->digest_bytes == hash.digest_bytes && key->digest == hash.digest) return known;
  }
  const BlockKey key = BlockKey::From(space, {hash.digest.data(), hash.digest_bytes});
  if (!create) return interner_.Find(key, LayoutOf(scope.engine));
  const auto bound = interner_.Intern(key, LayoutOf(scope.engine), scope);
  MoveView(scope.engine, bound);
  return bound.block;
}

// What an event said under the alias alone holds for the block that turned out to be meant.
void Intake::MoveView(EngineId engine, const BlockInterner::Bound& bound) {
  if (!bound.merged.valid() || !in_engine_(engine, bound.merged)) return;
  events_.Add(core::KvRemoved{.engine = engine, .block = bound.merged});
  events_.Add(core::KvStored{.engine = engine, .block = bound.block, .parent = BlockId{}});
}

NamespaceFingerprint Intake::SpaceOf(EngineId engine, const telemetry::BlockStored& stored,
                                     std::optional<BlockId> parent) const {
  if (parent) {
    if (const BlockKey* key = interner_.key(*parent); key != nullptr) return key->name_space;
  }
  const NamespaceFingerprint space = engines_.NamespaceOf(engine);
  if (stored.cache_salt.empty() && stored.lora_name.empty() && !stored.lora_id) return space;
  // An engine that never announces keys: its events' salt and adapter still keep tenants apart.
  return FingerprintOf(NamespaceFields{
      .model_revision = "event:" + ToHex(space.bytes),
      .lora = stored.lora_name + (stored.lora_id ? "#" + std::to_string(*stored.lora_id) : std::string()),
      .cache_salt = stored.cache_salt,
      .kv_group = stored.group.value_or(0)});
}

void Intake::ApplyStored(EngineId engine, const telemetry::BlockStored& stored) {
  const auto tier = TierOf(stored.medium);
  metrics_.kv_blocks.Add(stored.hashes.size());
  if (!tier) return;
  const BlockInterner::Scope scope{.engine = engine, .group = stored.group.value_or(0)};
  std::optional<BlockId> parent;
  if (stored.parent) parent = Resolve(*stored.parent, scope, engines_.NamespaceOf(engine), true);
  const NamespaceFingerprint space = SpaceOf(engine, stored, parent);
  for (const telemetry::BlockHash& hash : stored.hashes) {
    const auto block = Resolve(hash, scope, space, true);
    if (!block) {
      parent.reset();
      continue;
    }
    events_.Add(core::KvStored{.engine = engine, .block = *block, .parent = parent.value_or(BlockId{}), .tier = *tier});
    parent = stored.chain_known ? block : std::nullopt;
  }
}

void Intake::ApplyRemoved(EngineId engine, const telemetry::BlockRemoved& removed) {
  const auto tier = TierOf(removed.medium);
  metrics_.kv_blocks.Add(removed.hashes.size());
  if (!tier) return;
  const BlockInterner::Scope scope{.engine = engine, .group = removed.group.value_or(0)};
  for (const telemetry::BlockHash& hash : removed.hashes) {
    const auto block = Resolve(hash, scope, engines_.NamespaceOf(engine), false);
    if (block) events_.Add(core::KvRemoved{.engine = engine, .block = *block, .tier = *tier});
  }
}

void Intake::OnKvBatch(telemetry::SourceIndex source, const telemetry::KvEventBatch& batch) {
  const EngineId engine = EngineOf(source, batch.data_parallel_rank.value_or(0));
  if (!engine.valid()) return;
  for (const telemetry::KvEvent& event : batch.events) {
    if (const auto* stored = std::get_if<telemetry::BlockStored>(&event)) {
      ApplyStored(engine, *stored);
    } else if (const auto* removed = std::get_if<telemetry::BlockRemoved>(&event)) {
      ApplyRemoved(engine, *removed);
    } else {
      events_.Add(core::KvCleared{engine});
    }
  }
}

void Intake::OnViewState(telemetry::SourceIndex source, telemetry::ViewState state) {
  const EngineId engine = EngineOf(source, 0);
  if (!engine.valid()) return;
  switch (state) {
    case telemetry::ViewState::kKnown: break;
    case telemetry::ViewState::kUnknown: events_.Add(core::KvUnknown{engine}); break;
    case telemetry::ViewState::kRestarted: events_.Add(core::KvCleared{engine}); break;
  }
}

std::vector<BlockId> Intake::InternKeys(EngineId engine, std::string_view name_space, std::uint32_t digest_bytes,
                                        std::string_view digests) {
  std::vector<BlockId> blocks;
  if (digest_bytes < kDigestBytesMin || digest_bytes > kDigestBytesMax || digests.size() % digest_bytes != 0 ||
      (!name_space.empty() && name_space.size() != 16)) {
    metrics_.bad_keys.Add();
    return blocks;
  }
  NamespaceFingerprint space = engines_.NamespaceOf(engine);
  if (!name_space.empty()) std::copy_n(name_space.begin(), 16, space.bytes.begin());
  const std::size_t count = std::min<std::size_t>(digests.size() / digest_bytes, options_.request_blocks_max);
  const LayoutIndex layout = LayoutOf(engine);
  blocks.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto* digest = reinterpret_cast<const std::uint8_t*>(digests.data() + i * digest_bytes);
    const auto bound = interner_.Intern(BlockKey::From(space, {digest, digest_bytes}), layout, {.engine = engine});
    MoveView(engine, bound);
    blocks.push_back(bound.block);
  }
  return blocks;
}

BlockId Intake::InternKey(EngineId engine, const BlockKey& key) {
  const auto bound = interner_.Intern(key, LayoutOf(engine), {.engine = engine});
  MoveView(engine, bound);
  return bound.block;
}

RequestId Intake::FindRequest(EngineId engine, const std::string& request_id) const {
  return request_ids_.Find(engine, request_id).value_or(RequestId{});
}

void Intake::OnAccessBatch(telemetry::SourceIndex source, TimeNs now, const telemetry::AccessBatch& batch) {
  const EngineId engine = EngineOf(source, 0);
  if (!engine.valid()) return;
  std::string& publisher = publishers_[engine];
  if (publisher != batch.publisher_id()) {
    if (!publisher.empty()) {  // the engine's process started anew: none of its requests lives on
      std::vector<RequestId> gone;
      for (const auto& [request, live] : live_) {
        if (live.engine == engine) gone.push_back(request);
      }
      std::sort(gone.begin(), gone.end());  // the order must not depend on a hash table
      for (const RequestId request : gone) {
        events_.Add(core::RequestAborted{request});
        EndRequest(request);
      }
    }
    publisher = batch.publisher_id();
  }
  for (const telemetry::AccessEvent& event : batch.events()) {
    switch (event.event_case()) {
      case telemetry::AccessEvent::kRequest: ApplyRequest(engine, now, event.request()); break;
      case telemetry::AccessEvent::kLiveRequest: ApplyLive(engine, now, event.live_request()); break;
      case telemetry::AccessEvent::kHint: ApplyHint(engine, event.hint()); break;
      case telemetry::AccessEvent::kStepAccess: metrics_.step_access_records.Add(); break;
      case telemetry::AccessEvent::kBlockSketch: metrics_.block_sketch_records.Add(); break;
      case telemetry::AccessEvent::EVENT_NOT_SET: break;
    }
  }
}

void Intake::Queue(EngineId engine, TimeNs now, const telemetry::RequestEvent& request,
                   std::span<const BlockId> blocks) {
  const auto id = request_ids_.Intern(engine, request.request_id());
  if (!id) {
    metrics_.requests_full.Add();
    return;
  }
  SessionId session;
  if (!request.session_id().empty()) {
    // Sessions are not per engine: a conversation may move.
    const auto known = session_ids_.Intern(EngineId{0}, request.session_id());
    if (known) {
      session = *known;
    } else {
      metrics_.sessions_full.Add();
    }
  }
  live_[*id] = {engine, now, false};
  events_.Add(core::RequestQueued{.engine = engine,
                                  .request = *id,
                                  .session = session,
                                  .kind = KindOf(request.kind()),
                                  .priority = request.priority(),
                                  .turn = request.turn(),
                                  .prompt_tokens = request.prompt_tokens(),
                                  .expected_start = request.expected_start_ms() < 0
                                                        ? kTimeNever
                                                        : now + request.expected_start_ms() * kMillisecond,
                                  .announced = false,
                                  .blocks = {}},
              blocks);
}

void Intake::ApplyRequest(EngineId engine, TimeNs now, const telemetry::RequestEvent& request) {
  metrics_.request_events.Add();
  if (request.request_id().empty() || request.request_id().size() > kIdBytesMax) {
    metrics_.bad_keys.Add();
    return;
  }
  if (request.state() == telemetry::REQUEST_STATE_QUEUED) {
    const auto blocks = InternKeys(engine, request.name_space(), request.digest_bytes(), request.digests());
    Queue(engine, now, request, blocks);
    return;
  }
  const RequestId id = FindRequest(engine, request.request_id());
  if (!id.valid()) return;  // queued before we listened: the announcement will name it
  if (const auto live = live_.find(id); live != live_.end()) live->second.last_seen = now;
  switch (request.state()) {
    case telemetry::REQUEST_STATE_SCHEDULED: events_.Add(core::RequestScheduled{id}); break;
    case telemetry::REQUEST_STATE_FIRST_TOKEN: events_.Add(core::RequestFirstToken{id}); break;
    case telemetry::REQUEST_STATE_FINISHED: {
      std::vector<BlockId> blocks;
      if (!request.digests().empty()) {
        blocks = InternKeys(engine, request.name_space(), request.digest_bytes(), request.digests());
      }
      events_.Add(core::RequestFinished{.request = id, .blocks = {}}, blocks);
      EndRequest(id);
      break;
    }
    case telemetry::REQUEST_STATE_ABORTED:
      events_.Add(core::RequestAborted{id});
      EndRequest(id);
      break;
    default: break;
  }
}

void Intake::EndRequest(RequestId request) {
  live_.erase(request);
  request_ids_.Release(request);
}

void Intake::ApplyLive(EngineId engine, TimeNs now, const telemetry::LiveRequest& announced) {
  if (announced.request_id().empty() || announced.request_id().size() > kIdBytesMax) return;
  const RequestId id = FindRequest(engine, announced.request_id());
  if (id.valid()) {
    LiveRequest& live = live_[id];
    live.last_seen = now;
    live.announced_by_engine = true;
    return;
  }
  if (announced.state() == telemetry::REQUEST_STATE_FINISHED || announced.state() == telemetry::REQUEST_STATE_ABORTED) {
    return;
  }
  metrics_.key_lists_asked.Add();
  ask_key_list_(engine, announced.request_id());
}

void Intake::OnKeyListChunk(EngineId engine, TimeNs now, const control::KeyListChunk& chunk) {
  const std::string key = PendingKey(engine, chunk.request_id());
  const std::uint32_t digest_bytes = chunk.digest_bytes();
  if (digest_bytes < kDigestBytesMin || digest_bytes > kDigestBytesMax || chunk.total_blocks() > kKeysPerMessageMax ||
      chunk.digests().size() % digest_bytes != 0 || key_lists_.size() > options_.requests_max) {
    metrics_.bad_keys.Add();
    key_lists_.erase(key);
    return;
  }
  PendingKeyList& pending = key_lists_[key];
  if (chunk.first_block() == 0) pending = {.digests = {}, .total = chunk.total_blocks()};
  const bool in_order = pending.digests.size() == std::size_t{chunk.first_block()} * digest_bytes &&
                        pending.total == chunk.total_blocks();
  if (in_order) pending.digests += chunk.digests();
  if (!in_order || pending.digests.size() > std::size_t{pending.total} * digest_bytes) {
    metrics_.bad_keys.Add();
    key_lists_.erase(key);
    return;
  }
  if (pending.digests.size() < std::size_t{pending.total} * digest_bytes) return;
  metrics_.key_lists_healed.Add();
  const auto blocks = InternKeys(engine, chunk.name_space(), digest_bytes, pending.digests);
  key_lists_.erase(key);
  telemetry::RequestEvent request;
  request.set_request_id(chunk.request_id());
  request.set_expected_start_ms(-1);
  Queue(engine, now, request, blocks);
}

void Intake::ApplyHint(EngineId engine, const telemetry::Hint& hint) {
  core::HintGiven given{.engine = engine};
  switch (hint.action()) {
    case telemetry::Hint::ACTION_EXPECT: given.action = core::HintAction::kExpect; break;
    case telemetry::Hint::ACTION_PREFETCH: given.action = core::HintAction::kPrefetch; break;
    case telemetry::Hint::ACTION_RETAIN: given.action = core::HintAction::kRetain; break;
    case telemetry::Hint::ACTION_DEMOTE: given.action = core::HintAction::kDemote; break;
    case telemetry::Hint::ACTION_PIN: given.action = core::HintAction::kPin; break;
    default: return;
  }
  constexpr std::int64_t kHintMsMax = 7LL * 24 * 3600 * 1000;  // a week: beyond it a hint says nothing
  given.eta_ns = std::clamp<std::int64_t>(hint.eta_ms(), 0, kHintMsMax) * kMillisecond;
  given.sigma_ns = std::clamp<std::int64_t>(hint.sigma_ms(), 0, kHintMsMax) * kMillisecond;
  given.ttl_ns = std::clamp<std::int64_t>(hint.ttl_ms(), 0, kHintMsMax) * kMillisecond;
  if (!hint.session_id().empty()) {
    given.session = session_ids_.Intern(EngineId{0}, hint.session_id()).value_or(SessionId{});
  }
  std::vector<BlockId> blocks;
  if (!hint.digests().empty()) {
    blocks = InternKeys(engine, hint.name_space(), hint.digest_bytes(), hint.digests());
  }
  events_.Add(given, blocks);
}

void Intake::OnEngineDown(EngineId engine) {
  std::vector<RequestId> gone;
  for (const auto& [request, live] : live_) {
    if (live.engine == engine) gone.push_back(request);
  }
  for (const RequestId request : gone) EndRequest(request);
  if (engine.value < told_up_.size()) told_up_[engine.value] = false;  // its events may go on
}

void Intake::Sweep(TimeNs now) {
  std::vector<RequestId> silent;
  for (const auto& [request, live] : live_) {
    if (live.announced_by_engine && now - live.last_seen > kRequestSilenceMax) silent.push_back(request);
  }
  std::sort(silent.begin(), silent.end());
  for (const RequestId request : silent) {
    metrics_.requests_lost.Add();
    events_.Add(core::RequestAborted{request});
    EndRequest(request);
  }
}

}  // namespace foreload::service
