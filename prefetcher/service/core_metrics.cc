#include "prefetcher/service/core_metrics.h"

namespace foreload::service {

using core::CoreStats;

const char* OutcomeName(core::Outcome outcome) {
  switch (outcome) {
    case core::Outcome::kUseful: return "useful";
    case core::Outcome::kLate: return "late";
    case core::Outcome::kWasted: return "wasted";
    case core::Outcome::kCancelled: return "cancelled";
    case core::Outcome::kFailed: return "failed";
  }
  return "unknown";
}

const char* SuppressReasonName(core::SuppressReason reason) {
  switch (reason) {
    case core::SuppressReason::kRecomputeFaster: return "recompute_faster";
    case core::SuppressReason::kTooLate: return "too_late";
    case core::SuppressReason::kNoSlot: return "no_slot";
    case core::SuppressReason::kVictimWarmer: return "victim_warmer";
    case core::SuppressReason::kLinkBusy: return "link_busy";
    case core::SuppressReason::kNoDram: return "no_dram";
    case core::SuppressReason::kHoldOut: return "hold_out";
    case core::SuppressReason::kPolicy: return "policy";
  }
  return "unknown";
}

const char* IgnoredReasonName(core::IgnoredReason reason) {
  switch (reason) {
    case core::IgnoredReason::kUnknownEngine: return "unknown_engine";
    case core::IgnoredReason::kUnknownRequest: return "unknown_request";
    case core::IgnoredReason::kUnknownTransfer: return "unknown_transfer";
    case core::IgnoredReason::kUnknownBlock: return "unknown_block";
    case core::IgnoredReason::kSelfParent: return "self_parent";
    case core::IgnoredReason::kParentCycle: return "parent_cycle";
    case core::IgnoredReason::kParentConflict: return "parent_conflict";
    case core::IgnoredReason::kTooManyRequests: return "too_many_requests";
    case core::IgnoredReason::kTooManyBlocks: return "too_many_blocks";
    case core::IgnoredReason::kBadSlot: return "bad_slot";
    case core::IgnoredReason::kUnknownDemand: return "unknown_demand";
    case core::IgnoredReason::kDuplicate: return "duplicate";
    case core::IgnoredReason::kBadRange: return "bad_range";
  }
  return "unknown";
}

const char* StoreRefusalName(core::StoreRefusal reason) {
  switch (reason) {
    case core::StoreRefusal::kExists: return "exists";
    case core::StoreRefusal::kNoSpace: return "no_space";
    case core::StoreRefusal::kUnknownEngine: return "unknown_engine";
    case core::StoreRefusal::kPurged: return "purged";
  }
  return "unknown";
}

const char* TierName(core::Tier tier) {
  switch (tier) {
    case core::Tier::kHbm: return "hbm";
    case core::Tier::kDram: return "dram";
    case core::Tier::kSsd: return "ssd";
    case core::Tier::kRemote: return "remote";
  }
  return "unknown";
}

const char* LinkName(core::Link link) {
  switch (link) {
    case core::Link::kSsdToDram: return "ssd_to_dram";
    case core::Link::kDramToHbm: return "dram_to_hbm";
    case core::Link::kDramToSsd: return "dram_to_ssd";
  }
  return "unknown";
}

CoreMetrics::CoreMetrics(MetricRegistry& registry) {
  for (const core::Tier tier : {core::Tier::kHbm, core::Tier::kDram}) {
    const std::string tier_name = TierName(tier);
    const auto counter = [&](const char* name, const char* help, MetricLabels labels) {
      labels.emplace_back("tier", tier_name);
      return CounterMirror(registry.AddCounter(name, help, std::move(labels)));
    };
    const auto ended = [&](const char* name, const char* help) {
      return std::array<CounterMirror, core::kOutcomeCount>{
          counter(name, help, {{"outcome", "useful"}}), counter(name, help, {{"outcome", "late"}}),
          counter(name, help, {{"outcome", "wasted"}}), counter(name, help, {{"outcome", "cancelled"}}),
          counter(name, help, {{"outcome", "failed"}})};
    };
    ledgers_.emplace_back(
        tier,
        Ledger{.issued = counter("foreload_prefetch_issued_blocks_total", "Prefetches issued, by destination.", {}),
               .issued_bytes = counter("foreload_prefetch_issued_bytes_total", "Bytes of prefetches issued.", {}),
               .ended = ended("foreload_prefetch_blocks_total", "Prefetches that ended, by what became of them."),
               .ended_bytes = ended("foreload_prefetch_bytes_total", "Bytes of prefetches that ended."),
               .live = &registry.AddGauge("foreload_prefetch_live_blocks",
                                          "Prefetches under way, or landed and not yet used.", {{"tier", tier_name}})});
  }
  for (std::size_t i = 0; i < core::kSuppressReasonCount; ++i) {
    suppressed_.emplace_back(
        registry.AddCounter("foreload_prefetch_suppressed_blocks_total", "Prefetches that were not issued, by reason.",
                            {{"reason", SuppressReasonName(static_cast<core::SuppressReason>(i))}}));
  }
  for (std::size_t i = 0; i < core::kIgnoredReasonCount; ++i) {
    ignored_.emplace_back(registry.AddCounter("foreload_core_ignored_events_total",
                                              "Events that named something impossible or unknown, by reason.",
                                              {{"reason", IgnoredReasonName(static_cast<core::IgnoredReason>(i))}}));
  }
  for (std::size_t i = 0; i < core::kStoreRefusalCount; ++i) {
    store_refused_.emplace_back(registry.AddCounter(
        "foreload_store_refused_blocks_total", "Blocks that an engine offered and that were not stored, by reason.",
        {{"reason", StoreRefusalName(static_cast<core::StoreRefusal>(i))}}));
  }
  const auto mirror = [&](std::uint64_t CoreStats::*field, const char* name, const char* help,
                          MetricLabels labels = {}) {
    counters_.push_back({field, CounterMirror(registry.AddCounter(name, help, std::move(labels)))});
  };
  mirror(&CoreStats::stores_accepted, "foreload_store_accepted_blocks_total", "Blocks that engines stored.");
  mirror(&CoreStats::demand_requests, "foreload_demand_requests_total", "Demand fetches asked for.");
  const char* demand_help = "Blocks of demand fetches, by how they ended.";
  mirror(&CoreStats::demand_blocks_ready, "foreload_demand_blocks_total", demand_help, {{"result", "ready"}});
  mirror(&CoreStats::demand_blocks_absent, "foreload_demand_blocks_total", demand_help, {{"result", "absent"}});
  mirror(&CoreStats::demand_blocks_failed, "foreload_demand_blocks_total", demand_help, {{"result", "failed"}});
  mirror(&CoreStats::demand_blocks_joined, "foreload_demand_joined_blocks_total",
         "Blocks of demand fetches that were under way as prefetch.");
  mirror(&CoreStats::demand_bytes_dram, "foreload_demand_bytes_total", "Bytes that requests waited for, by source.",
         {{"tier", "dram"}});
  mirror(&CoreStats::demand_bytes_ssd, "foreload_demand_bytes_total", "Bytes that requests waited for, by source.",
         {{"tier", "ssd"}});
  const char* needed_help =
      "Blocks that requests needed when they were scheduled, by where they were. Sums to the needed.";
  mirror(&CoreStats::needed_in_engine, "foreload_needed_blocks_total", needed_help, {{"found", "engine"}});
  mirror(&CoreStats::needed_ready, "foreload_needed_blocks_total", needed_help, {{"found", "arena_ready"}});
  mirror(&CoreStats::needed_in_flight, "foreload_needed_blocks_total", needed_help, {{"found", "arena_in_flight"}});
  mirror(&CoreStats::needed_dram, "foreload_needed_blocks_total", needed_help, {{"found", "dram"}});
  mirror(&CoreStats::needed_ssd, "foreload_needed_blocks_total", needed_help, {{"found", "ssd"}});
  mirror(&CoreStats::needed_absent, "foreload_needed_blocks_total", needed_help, {{"found", "absent"}});
  mirror(&CoreStats::spills_issued, "foreload_spill_issued_blocks_total", "Blocks handed to the SSD.");
  mirror(&CoreStats::spills_durable, "foreload_spill_durable_blocks_total", "Blocks that became durable.");
  mirror(&CoreStats::spills_failed, "foreload_spill_failed_blocks_total", "Blocks that the SSD did not take.");
  const auto gauge = [&](std::uint64_t CoreStats::*field, const char* name, const char* help) {
    gauges_.push_back({field, &registry.AddGauge(name, help)});
  };
  gauge(&CoreStats::dram_bytes_used, "foreload_dram_used_bytes", "DRAM tier: bytes of blocks.");
  gauge(&CoreStats::dram_bytes_dirty, "foreload_dram_dirty_bytes", "DRAM tier: bytes that are not durable yet.");
  gauge(&CoreStats::ssd_bytes_used, "foreload_ssd_used_bytes",
        "SSD tier: bytes of blocks, as the planner counts them.");
  gauge(&CoreStats::blocks, "foreload_core_catalog_blocks", "Blocks that the catalog knows.");
  gauge(&CoreStats::requests_live, "foreload_core_live_requests", "Requests queued or running.");
  gauge(&CoreStats::sessions, "foreload_core_known_sessions", "Sessions that the return model knows.");
  for (std::size_t i = 0; i < core::kLinkCount; ++i) {
    const std::string link = LinkName(static_cast<core::Link>(i));
    link_bandwidth_[i] = &registry.AddGauge("foreload_link_bandwidth_bytes_per_second", "Learned bandwidth of a link.",
                                            {{"link", link}});
    link_latency_[i] =
        &registry.AddGauge("foreload_link_latency_seconds", "Learned latency of a link.", {{"link", link}});
  }
  lead_seconds_ = &registry.AddGauge("foreload_prefetch_lead_seconds",
                                     "Mean time from landing to first use of prefetches that were used.");
}

void CoreMetrics::Publish(const CoreStats& stats) {
  for (auto& [tier, ledger] : ledgers_) {
    const core::PrefetchLedger& from = stats.prefetch[static_cast<std::size_t>(tier)];
    ledger.issued.Publish(from.issued);
    ledger.issued_bytes.Publish(from.issued_bytes);
    for (std::size_t i = 0; i < core::kOutcomeCount; ++i) {
      ledger.ended[i].Publish(from.ended[i]);
      ledger.ended_bytes[i].Publish(from.ended_bytes[i]);
    }
    ledger.live->Set(static_cast<double>(from.live));
  }
  for (std::size_t i = 0; i < core::kSuppressReasonCount; ++i) suppressed_[i].Publish(stats.suppressed[i]);
  for (std::size_t i = 0; i < core::kIgnoredReasonCount; ++i) ignored_[i].Publish(stats.ignored[i]);
  for (std::size_t i = 0; i < core::kStoreRefusalCount; ++i) store_refused_[i].Publish(stats.store_refused[i]);
  for (Mirrored& counter : counters_) counter.mirror.Publish(stats.*counter.field);
  for (Gauged& gauge : gauges_) gauge.gauge->Set(static_cast<double>(stats.*gauge.field));
  for (std::size_t i = 0; i < core::kLinkCount; ++i) {
    link_bandwidth_[i]->Set(stats.link_bytes_per_second[i]);
    link_latency_[i]->Set(static_cast<double>(stats.link_latency_ns[i]) / 1e9);
  }
  lead_seconds_->Set(stats.lead_count == 0 ? 0 : stats.lead_seconds_sum / static_cast<double>(stats.lead_count));
}

}  // namespace foreload::service
