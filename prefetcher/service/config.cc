#include "prefetcher/service/config.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "prefetcher/service/config_schema.h"

namespace foreload::service {
namespace {

constexpr std::size_t kSocketPathMax = 107;  // sizeof(sockaddr_un::sun_path) - 1
constexpr std::size_t kEngineNameMax = 64;
constexpr std::uint64_t kPage = 4096;

bool IsLoopback(std::string_view host) {
  return host == "localhost" || host == "[::1]" || host == "::1" || host.starts_with("127.");
}

bool NeedsInsecure(std::string_view endpoint) {
  constexpr std::string_view kTcp = "tcp://";
  if (!endpoint.starts_with(kTcp)) return false;
  endpoint.remove_prefix(kTcp.size());
  return !IsLoopback(endpoint.substr(0, endpoint.rfind(':')));
}

bool IsEngineName(std::string_view name) {
  if (name.empty() || name.size() > kEngineNameMax) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return letter || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  });
}

void ValidateEngine(const ServiceConfig& config, std::size_t index, FaultSink& faults) {
  const EngineSettings& engine = config.engines[index];
  const std::string prefix = "engine[" + std::to_string(index) + "].";
  if (!IsEngineName(engine.name)) {
    faults.Add(prefix + "name", "every [[engine]] needs a name of letters, digits, '.', '_' and '-', at most 64");
  }
  for (std::size_t other = 0; other < index; ++other) {
    if (config.engines[other].name != engine.name || engine.name.empty()) continue;
    faults.Add(prefix + "name", "two engines are called \"" + engine.name + "\"; names are unique");
    break;
  }
  if (engine.kv_events.empty() && engine.access.empty()) {
    faults.Add(prefix + "name", "give kv_events or access: there is nothing to subscribe to");
  }
  if (engine.kv_events.empty() && !engine.kv_replay.empty()) {
    faults.Add(prefix + "kv_replay", "replay needs kv_events");
  }
  if (engine.kv_events.empty() && engine.kv_bind) faults.Add(prefix + "kv_bind", "there is no kv_events to bind");
  const std::array<std::pair<const char*, const std::string*>, 3> endpoints = {
      {{"kv_events", &engine.kv_events}, {"kv_replay", &engine.kv_replay}, {"access", &engine.access}}};
  for (const auto& [key, endpoint] : endpoints) {
    if (config.service.insecure || !NeedsInsecure(*endpoint)) continue;
    faults.Add(prefix + key,
               *endpoint +
                   " leaves this host in clear text, and telemetry says what tenants ask for: use ipc:// or "
                   "127.0.0.1, or allow it with service.insecure = true");
  }
}

void ValidateSsd(const ServiceConfig& config, FaultSink& faults) {
  const ServiceConfig::Ssd& ssd = config.ssd;
  if (ssd.directory.empty()) return;
  if (ssd.segment_bytes % kPage != 0) faults.Add("ssd.segment_size", "must be a multiple of 4KiB");
  if (ssd.capacity_bytes / 2 < ssd.segment_bytes) {
    faults.Add("ssd.capacity",
               "must hold at least two segments (ssd.segment_size), since one is reclaimed while another is written");
  }
}

// One engine's keys by name, in file syntax.
std::map<std::string, std::string> EngineValues(const EngineSettings& engine) {
  std::map<std::string, std::string> values;
  for (const auto& spec : EngineKeys()) values[std::string(spec.name)] = PrintKey(spec, engine);
  return values;
}

const EngineSettings* FindEngine(const ServiceConfig& config, std::string_view name) {
  for (const EngineSettings& engine : config.engines) {
    if (engine.name == name) return &engine;
  }
  return nullptr;
}

}  // namespace

void ValidateConfig(const ServiceConfig& config, FaultSink& faults) {
  if (config.service.control_socket.size() > kSocketPathMax) {
    faults.Add("service.control_socket", "a socket path has at most 107 bytes");
  }
  ValidateSsd(config, faults);
  if (config.limits.request_blocks_max > config.limits.blocks_max) {
    faults.Add("limits.request_blocks_max", "must not exceed limits.blocks_max: one request would not fit the catalog");
  }
  if (!config.record.file.empty() && config.record.salt_file.empty()) {
    faults.Add("record.file", "a recording needs record.salt_file: block hashes are never written unsalted");
  }
  if (config.engines.size() > config.limits.engines_max) {
    faults.Add("limits.engines_max", "there are " + std::to_string(config.engines.size()) + " [[engine]] sections");
  }
  for (std::size_t i = 0; i < config.engines.size(); ++i) ValidateEngine(config, i, faults);
}

std::string_view ModeName(Mode mode) {
  switch (mode) {
    case Mode::kOff: return "off";
    case Mode::kObserve: return "observe";
    case Mode::kOn: return "on";
  }
  return "unknown";
}

Result<ServiceConfig> LoadConfig(const std::string& path, const ConfigOverrides& flags) {
  FORELOAD_ASSIGN_OR_RETURN(LoadedConfig loaded,
                            LoadConfigWithOrigins({.path = path, .environment = ConfigEnvironment(), .flags = flags}));
  return std::move(loaded.config);
}

ConfigOverrides ConfigEnvironment() {
  constexpr std::string_view kPrefix = "FORELOAD_";
  ConfigOverrides variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (!text.starts_with(kPrefix) || equals == std::string_view::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

Status DiffReloadable(const ServiceConfig& old, const ServiceConfig& now, std::vector<std::string>* needs_restart) {
  std::vector<std::string> keys;
  for (const auto& spec : ServiceKeys()) {
    if (!spec.reloadable && PrintKey(spec, old) != PrintKey(spec, now)) keys.emplace_back(spec.name);
  }
  for (const EngineSettings& engine : old.engines) {
    const EngineSettings* same = FindEngine(now, engine.name);
    if (same == nullptr) {
      keys.push_back("engine \"" + engine.name + "\" (removed)");
      continue;
    }
    const auto before = EngineValues(engine);
    const auto after = EngineValues(*same);
    for (const auto& [key, value] : before) {
      if (after.at(key) != value) keys.push_back("engine \"" + engine.name + "\" " + key);
    }
  }
  if (needs_restart != nullptr) *needs_restart = keys;
  if (keys.empty()) return OkStatus();
  std::string message = "restart to change";
  for (std::size_t i = 0; i < keys.size(); ++i) message += (i == 0 ? " " : ", ") + keys[i];
  return FailedPrecondition(std::move(message));
}

core::CoreConfig ToCoreConfig(const ServiceConfig& config) {
  core::CoreConfig out;
  out.dram_bytes = config.dram.capacity_bytes;
  out.ssd_bytes = config.ssd.directory.empty() ? 0 : config.ssd.capacity_bytes;
  // A throttle is slower than the first guess by intent; learning would find it, but the first loads would be late.
  const auto link = [](const LinkSettings& settings, double device_throttle) {
    core::LinkConfig result{.bytes_per_second = settings.bytes_per_second,
                            .latency_ns = settings.latency_ns,
                            .inflight_bytes_max = settings.inflight_bytes_max};
    for (const double throttle : {settings.throttle_bytes_per_second, device_throttle}) {
      if (throttle > 0) result.bytes_per_second = std::min(result.bytes_per_second, throttle);
    }
    return result;
  };
  const double device = config.ssd.throttle_bytes_per_second;
  out.links[static_cast<std::size_t>(core::Link::kSsdToDram)] = link(config.links.ssd_to_dram, device);
  out.links[static_cast<std::size_t>(core::Link::kDramToHbm)] = link(config.links.dram_to_hbm, 0);
  out.links[static_cast<std::size_t>(core::Link::kDramToSsd)] = link(config.links.dram_to_ssd, device);
  out.prefetch = config.prefetch.enabled && config.mode != Mode::kOff;
  out.blocks_max = config.limits.blocks_max;
  out.requests_max = config.limits.requests_max;
  out.request_blocks_max = config.limits.request_blocks_max;
  out.sessions_max = config.limits.sessions_max;
  out.admission_margin = config.prefetch.admission_margin;
  out.link_utilisation_max = config.prefetch.link_utilisation_max;
  out.arena_prefetch_share_max = config.prefetch.arena_share_max;
  out.prefetch_ttl_ns = config.prefetch.ttl_ns;
  out.session_promote_horizon_ns = config.prefetch.session_horizon_ns;
  out.session_promote_probability_min = config.prefetch.session_probability_min;
  out.ssd_write_bytes_per_day = config.ssd.write_budget_bytes_per_day;
  out.ssd_second_use_admission = config.ssd.second_use_admission;
  out.hold_out_fraction = config.prefetch.hold_out;
  return out;
}

}  // namespace foreload::service
