#include "prefetcher/service/status_document.h"

#include "prefetcher/service/core_metrics.h"
#include "prefetcher/service/json_writer.h"

namespace foreload::service {
namespace {

void AddLedger(JsonWriter& json, const core::PrefetchLedger& ledger) {
  json.BeginObject().Field("issued", ledger.issued).Field("issued_bytes", ledger.issued_bytes);
  for (std::size_t i = 0; i < core::kOutcomeCount; ++i) {
    const std::string name = OutcomeName(static_cast<core::Outcome>(i));
    json.Field(name, ledger.ended[i]).Field(name + "_bytes", ledger.ended_bytes[i]);
  }
  json.Field("live", ledger.live).Field("live_bytes", ledger.live_bytes).EndObject();
}

void AddMover(JsonWriter& json, const char* name, const Mover* mover) {
  if (mover == nullptr) return;
  const Mover::Counters counters = mover->counters();
  static constexpr const char* kClasses[kMoveClassCount] = {"demand", "prefetch", "write_behind"};
  json.Key(name).BeginObject();
  for (std::size_t i = 0; i < kMoveClassCount; ++i) {
    json.Key(kClasses[i])
        .BeginObject()
        .Field("jobs_ok", counters.jobs_ok[i])
        .Field("jobs_failed", counters.jobs_failed[i])
        .Field("jobs_cancelled", counters.jobs_cancelled[i])
        .Field("bytes", counters.bytes[i])
        .EndObject();
  }
  json.Field("inflight_bytes", counters.inflight_bytes).Field("queued_jobs", counters.queued_jobs).EndObject();
}

void AddEngine(JsonWriter& json, const EngineInstance& engine) {
  json.BeginObject()
      .Field("name", engine.name)
      .Field("ranks", engine.rank_count)
      .Field("processes", engine.clients.size())
      .Field("block_bytes", engine.image == nullptr ? std::uint64_t{0} : engine.image->bytes)
      .Field("slots", engine.grant == nullptr ? 0u : engine.grant->slot_count)
      .Field("arena", engine.grant == nullptr ? engine.arena_reason : std::string("in force"))
      .Field("policy", engine.policy == core::EnginePolicy::kDemandOnly ? "demand_only" : "predict")
      .Field("namespace", engine.namespace_text);
  if (engine.grant != nullptr) {
    const ReaderCounters readers = engine.grant->table->CollectCounters();
    json.Field("lookups", readers.lookups)
        .Field("hit_blocks", readers.hit_blocks)
        .Field("miss_blocks", readers.miss_blocks);
  }
  json.EndObject();
}

}  // namespace

std::string StatusDocument(const StatusInputs& in) {
  const core::CoreStats& stats = in.stats;
  JsonWriter json;
  json.BeginObject()
      .Field("mode", ModeName(in.config.mode))
      .Field("draining", in.draining)
      .Field("boot_token", ToHex({reinterpret_cast<const std::uint8_t*>(&in.boot_token), sizeof in.boot_token}))
      .Field("uptime_seconds", static_cast<double>(in.now - in.started) / 1e9)
      .Field("prefetch_enabled", in.config.prefetch.enabled);
  json.Key("engines").BeginArray();
  in.engines.ForEach([&](const EngineInstance& engine) { AddEngine(json, engine); });
  json.EndArray();

  json.Key("prefetch").BeginObject();
  json.Key("hbm");
  AddLedger(json, stats.prefetch[static_cast<std::size_t>(core::Tier::kHbm)]);
  json.Key("dram");
  AddLedger(json, stats.prefetch[static_cast<std::size_t>(core::Tier::kDram)]);
  json.Key("suppressed").BeginObject();
  for (std::size_t i = 0; i < core::kSuppressReasonCount; ++i) {
    json.Field(SuppressReasonName(static_cast<core::SuppressReason>(i)), stats.suppressed[i]);
  }
  json.EndObject();
  json.Field("mean_lead_seconds",
             stats.lead_count == 0 ? 0.0 : stats.lead_seconds_sum / static_cast<double>(stats.lead_count));
  json.EndObject();

  json.Key("needed_blocks")
      .BeginObject()
      .Field("total", stats.needed_blocks)
      .Field("engine", stats.needed_in_engine)
      .Field("arena_ready", stats.needed_ready)
      .Field("arena_in_flight", stats.needed_in_flight)
      .Field("dram", stats.needed_dram)
      .Field("ssd", stats.needed_ssd)
      .Field("absent", stats.needed_absent)
      .EndObject();
  json.Key("demand")
      .BeginObject()
      .Field("requests", stats.demand_requests)
      .Field("ready_blocks", stats.demand_blocks_ready)
      .Field("absent_blocks", stats.demand_blocks_absent)
      .Field("failed_blocks", stats.demand_blocks_failed)
      .Field("joined_blocks", stats.demand_blocks_joined)
      .Field("dram_bytes", stats.demand_bytes_dram)
      .Field("ssd_bytes", stats.demand_bytes_ssd)
      .EndObject();
  json.Key("stores").BeginObject().Field("accepted", stats.stores_accepted);
  for (std::size_t i = 0; i < core::kStoreRefusalCount; ++i) {
    json.Field(StoreRefusalName(static_cast<core::StoreRefusal>(i)), stats.store_refused[i]);
  }
  json.EndObject();
  json.Key("ignored").BeginObject();
  for (std::size_t i = 0; i < core::kIgnoredReasonCount; ++i) {
    json.Field(IgnoredReasonName(static_cast<core::IgnoredReason>(i)), stats.ignored[i]);
  }
  json.EndObject();

  json.Key("tiers").BeginObject();
  json.Key("dram")
      .BeginObject()
      .Field("capacity_bytes", in.config.dram.capacity_bytes)
      .Field("used_bytes", stats.dram_bytes_used)
      .Field("dirty_bytes", stats.dram_bytes_dirty)
      .Field("memory", in.dram_summary)
      .EndObject();
  json.Key("ssd")
      .BeginObject()
      .Field("directory", in.config.ssd.directory)
      .Field("capacity_bytes", in.config.ssd.directory.empty() ? std::uint64_t{0} : in.config.ssd.capacity_bytes)
      .Field("used_bytes", in.ssd_used_bytes)
      .Field("records", in.ssd_records)
      .Field("state", in.ssd_state)
      .Field("io", in.file_io)
      .Field("spills_issued", stats.spills_issued)
      .Field("spills_durable", stats.spills_durable)
      .Field("spills_failed", stats.spills_failed)
      .EndObject();
  json.EndObject();

  json.Key("links").BeginObject();
  for (std::size_t i = 0; i < core::kLinkCount; ++i) {
    json.Key(LinkName(static_cast<core::Link>(i)))
        .BeginObject()
        .Field("bytes_per_second", stats.link_bytes_per_second[i])
        .Field("latency_seconds", static_cast<double>(stats.link_latency_ns[i]) / 1e9)
        .EndObject();
  }
  json.EndObject();
  json.Key("movers").BeginObject();
  AddMover(json, "host", in.host);
  AddMover(json, "file", in.file);
  json.EndObject();
  json.Key("core")
      .BeginObject()
      .Field("blocks", stats.blocks)
      .Field("live_requests", stats.requests_live)
      .Field("sessions", stats.sessions)
      .EndObject();
  json.EndObject();
  return json.Take();
}

}  // namespace foreload::service
