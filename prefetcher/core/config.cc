#include "prefetcher/core/config.h"

#include <string>

namespace foreload::core {
namespace {

// Ceilings that keep a configuration from a hostile recording from asking for absurd memory or work.
constexpr std::uint32_t kBlocksCeiling = 1u << 28;
constexpr std::uint32_t kListCeiling = 1u << 24;
constexpr std::uint32_t kEnginesCeiling = 1u << 16;
constexpr double kBytesPerSecondCeiling = 1e15;
constexpr DurationNs kDurationCeiling = 366 * 86400 * kSecond;
constexpr std::uint64_t kBytesCeiling = 1ull << 56;

Status Bad(const char* field) {
  return InvalidArgument(std::string("core configuration: ") + field + " is out of range");
}

bool Within(double value, double low, double high) {
  return value >= low && value <= high;
}  // NaN is never within
bool CountWithin(std::uint32_t value, std::uint32_t high) {
  return value >= 1 && value <= high;
}
bool DurationWithin(DurationNs value) {
  return value >= 0 && value <= kDurationCeiling;
}

}  // namespace

Status Validate(const CoreConfig& c) {
  if (c.dram_bytes > kBytesCeiling) return Bad("dram_bytes");
  if (c.ssd_bytes > kBytesCeiling) return Bad("ssd_bytes");
  for (const LinkConfig& link : c.links) {
    if (!Within(link.bytes_per_second, 1.0, kBytesPerSecondCeiling)) return Bad("links.bytes_per_second");
    if (!DurationWithin(link.latency_ns)) return Bad("links.latency_ns");
    if (link.inflight_bytes_max == 0 || link.inflight_bytes_max > kBytesCeiling) return Bad("links.inflight_bytes_max");
  }
  if (!CountWithin(c.blocks_max, kBlocksCeiling)) return Bad("blocks_max");
  if (!CountWithin(c.requests_max, kListCeiling)) return Bad("requests_max");
  if (!CountWithin(c.request_blocks_max, kListCeiling)) return Bad("request_blocks_max");
  if (!CountWithin(c.sessions_max, kListCeiling)) return Bad("sessions_max");
  if (!CountWithin(c.plan_blocks_max, kListCeiling)) return Bad("plan_blocks_max");
  if (!CountWithin(c.plan_loads_max, kListCeiling)) return Bad("plan_loads_max");
  if (!Within(c.admission_margin, 0.0, 100.0)) return Bad("admission_margin");
  if (!Within(c.link_utilisation_max, 0.01, 1.0)) return Bad("link_utilisation_max");
  if (!Within(c.arena_prefetch_share_max, 0.0, 1.0)) return Bad("arena_prefetch_share_max");
  if (!DurationWithin(c.prefetch_ttl_ns)) return Bad("prefetch_ttl_ns");
  if (!DurationWithin(c.session_promote_horizon_ns)) return Bad("session_promote_horizon_ns");
  if (!Within(c.session_promote_probability_min, 0.0, 1.0)) return Bad("session_promote_probability_min");
  if (!DurationWithin(c.dirty_age_max_ns)) return Bad("dirty_age_max_ns");
  if (c.dirty_bytes_max > kBytesCeiling) return Bad("dirty_bytes_max");
  if (c.ssd_write_bytes_per_day > kBytesCeiling) return Bad("ssd_write_bytes_per_day");
  if (!Within(c.hold_out_fraction, 0.0, 1.0)) return Bad("hold_out_fraction");
  if (!CountWithin(c.engines_max, kEnginesCeiling)) return Bad("engines_max");
  if (!CountWithin(c.slots_max, kListCeiling)) return Bad("slots_max");
  if (!CountWithin(c.demands_max, kListCeiling)) return Bad("demands_max");
  if (!CountWithin(c.purges_max, kListCeiling)) return Bad("purges_max");
  return OkStatus();
}

}  // namespace foreload::core
