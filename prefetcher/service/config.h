// What an operator may tell the sidecar: one TOML file, then environment, then flags.
//
// Absent takes the default; present but wrong refuses: the loader reports every fault at once, each as
// `file:line:col: message`, an unknown key with the nearest right one. Quantities carry their unit in the text
// ("64GiB", "500ms", "2.5GB/s"). Reading does not depend on the locale. Every key, its default and its meaning:
// config_schema.h; docs/configuration.md is generated from the same table.
//
// Precedence: flag (--set) > environment (FORELOAD_<KEY>, dots as underscores) > file > default.
//
// Thread: values; load from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "prefetcher/core/config.h"

namespace foreload::service {

inline constexpr std::size_t kConfigFileBytesMax = 1u << 20;
inline constexpr std::size_t kConfigFaultsMax = 50;  // reported; the rest are counted
inline constexpr std::size_t kConfigEnginesMax = 1024;

enum class Mode : std::uint8_t { kOff, kObserve, kOn };
enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarn, kError };
enum class LogFormat : std::uint8_t { kText, kJson };
enum class SsdIo : std::uint8_t { kAuto, kUring, kThreads };
enum class Dialect : std::uint8_t { kAuto, kVllm, kSglang, kTrtllm, kMooncake };

std::string_view ModeName(Mode mode);

struct LinkSettings {
  double bytes_per_second = 1e9;                   // first guess; learned from completions afterwards
  DurationNs latency_ns = 100 * kMicrosecond;      // first guess; learned
  std::uint64_t inflight_bytes_max = 64ull << 20;  // of loads that were issued and have not ended
  double throttle_bytes_per_second = 0;            // > 0: pace the link to this rate (rehearsals); 0: none

  friend bool operator==(const LinkSettings&, const LinkSettings&) = default;
};

// One engine whose streams are subscribed. An engine that registers on the control socket under the same name joins
// these streams; one that only publishes KV events is known by them alone.
struct EngineSettings {
  std::string name;
  std::string kv_events = {};  // ZeroMQ endpoint of its KV events; "": none
  std::string kv_replay = {};  // ZeroMQ endpoint of its replay ROUTER; "": gaps cannot be healed
  bool kv_bind = false;        // true: the sidecar binds kv_events and the engine connects
  std::string topic = {};      // subscription prefix; "": everything
  Dialect dialect = Dialect::kAuto;
  std::string access = {};          // ZeroMQ endpoint of its access stream; "": none
  std::string model_revision = {};  // namespace of an engine that only publishes: operator's revision string
  std::uint32_t weights_epoch = 0;  // raise it when weights are reloaded in place
  std::uint32_t data_parallel_rank = 0;
  std::uint64_t block_bytes = 0;           // of one KV block, for observe mode; 0: unknown until it registers
  double recompute_seconds_per_token = 0;  // 0: unknown; then no load is refused for being slower than recomputing

  friend bool operator==(const EngineSettings&, const EngineSettings&) = default;
};

struct ServiceConfig {
  Mode mode = Mode::kObserve;

  struct Service {
    std::string control_socket = "/run/foreload/control.sock";
    std::string http_listen = "127.0.0.1:9464";  // host:port, port 0 picks a free one; "": no HTTP
    std::string state_dir = "/var/lib/foreload";
    LogLevel log_level = LogLevel::kInfo;
    LogFormat log_format = LogFormat::kText;
    DurationNs drain_timeout_ns = 20 * kSecond;
    bool insecure = false;  // allows plain TCP telemetry beyond loopback
    DurationNs core_tick_ns = 10 * kMillisecond;
    friend bool operator==(const Service&, const Service&) = default;
  } service;

  struct Dram {
    std::uint64_t capacity_bytes = 4ull << 30;
    bool huge_pages = true;   // where the kernel allows it, else small pages and a log line
    bool lock_memory = true;  // within RLIMIT_MEMLOCK, else unlocked and a log line
    friend bool operator==(const Dram&, const Dram&) = default;
  } dram;

  struct Ssd {
    std::string directory;  // "": no SSD tier
    std::uint64_t capacity_bytes = 64ull << 30;
    std::uint64_t segment_bytes = 256ull << 20;
    SsdIo io = SsdIo::kAuto;
    bool direct_io = true;
    DurationNs fsync_interval_ns = 1 * kSecond;
    std::uint64_t write_budget_bytes_per_day = 0;  // 0: no budget
    bool second_use_admission = false;             // write only blocks that were used again
    double throttle_bytes_per_second = 0;          // reads and writes together; 0: none
    friend bool operator==(const Ssd&, const Ssd&) = default;
  } ssd;

  struct Links {
    LinkSettings dram_to_hbm{.bytes_per_second = 10e9, .latency_ns = 20 * kMicrosecond};
    LinkSettings ssd_to_dram{.bytes_per_second = 2e9, .latency_ns = 150 * kMicrosecond};
    LinkSettings dram_to_ssd{.bytes_per_second = 1e9, .latency_ns = 500 * kMicrosecond};
    friend bool operator==(const Links&, const Links&) = default;
  } links;

  struct Prefetch {
    bool enabled = true;
    double admission_margin = 0.1;
    double link_utilisation_max = 0.8;
    double arena_share_max = 0.9;
    DurationNs ttl_ns = 60 * kSecond;
    DurationNs session_horizon_ns = 30 * kSecond;
    double session_probability_min = 0.3;
    double hold_out = 0.02;  // share of sessions that are never prefetched for
    friend bool operator==(const Prefetch&, const Prefetch&) = default;
  } prefetch;

  struct Limits {
    std::uint32_t blocks_max = 4u << 20;
    std::uint32_t requests_max = 65536;
    std::uint32_t request_blocks_max = 1u << 16;
    std::uint32_t sessions_max = 1u << 20;
    std::uint32_t engines_max = 64;
    std::uint32_t staging_items = 65536;  // between ingest threads and the core
    std::uint64_t staging_bytes = 256ull << 20;
    friend bool operator==(const Limits&, const Limits&) = default;
  } limits;

  // What observe mode pretends to own; bandwidths are those of [links].
  struct Observe {
    std::uint32_t arena_slots = 4096;
    friend bool operator==(const Observe&, const Observe&) = default;
  } observe;

  struct Record {
    std::string file;       // "": no recording
    std::string salt_file;  // 32 or more random bytes, mode 0600; "": no recording
    std::uint64_t max_bytes = 4ull << 30;
    friend bool operator==(const Record&, const Record&) = default;
  } record;

  std::vector<EngineSettings> engines;

  friend bool operator==(const ServiceConfig&, const ServiceConfig&) = default;
};

// "dram.capacity" -> "64GiB", from --set or the environment.
using ConfigOverrides = std::vector<std::pair<std::string, std::string>>;

struct ConfigSources {
  std::string path = {};             // "": defaults and overrides alone
  ConfigOverrides environment = {};  // names as in the environment; those without a FORELOAD_ key are left alone
  ConfigOverrides flags = {};
};

// Where one value came from.
struct ConfigOrigin {
  std::string key;     // "dram.capacity", "engine[0].name"
  std::string value;   // as it would be written in the file
  std::string origin;  // "default", "foreload.toml:12", "FORELOAD_DRAM_CAPACITY", "--set"
};

struct LoadedConfig {
  ServiceConfig config;
  std::vector<ConfigOrigin> origins;  // every key, in the order of the schema
};

// kNotFound or kIoError when the file cannot be read; kInvalidArgument with one fault a line otherwise.
Result<LoadedConfig> LoadConfigWithOrigins(const ConfigSources& sources);
Result<LoadedConfig> ParseConfig(std::string_view toml, std::string_view file_name, const ConfigSources& sources);
Result<ServiceConfig> LoadConfig(const std::string& path, const ConfigOverrides& flags = {});

// The FORELOAD_* variables of this process.
ConfigOverrides ConfigEnvironment();

// One line a key: `key = value    # origin`.
std::string PrintConfig(const LoadedConfig& loaded);

// The page docs/configuration.md.
std::string ConfigReference();

// What a reload may change: ok when `now` differs from `old` in reloadable keys alone. Else kFailedPrecondition, with
// the keys that need a restart in `needs_restart` (may be null).
Status DiffReloadable(const ServiceConfig& old, const ServiceConfig& now, std::vector<std::string>* needs_restart);

// The part of the configuration that the core sees.
core::CoreConfig ToCoreConfig(const ServiceConfig& config);

}  // namespace foreload::service
