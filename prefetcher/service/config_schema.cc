#include "prefetcher/service/config_schema.h"

#include <array>
#include <cctype>

namespace foreload::service {
namespace {

constexpr double kKiB = 1024.0;
constexpr double kMiB = kKiB * 1024;
constexpr double kGiB = kMiB * 1024;
constexpr double kTiB = kGiB * 1024;
constexpr double kMs = static_cast<double>(kMillisecond);
constexpr double kSec = static_cast<double>(kSecond);
constexpr double kHour = 3600 * kSec;
constexpr double kRateMax = 1e13;  // 10 TB/s: above any link of a host
constexpr double kCountMax = 4294967295.0;

constexpr std::array<std::string_view, 3> kModes = {"off", "observe", "on"};
constexpr std::array<std::string_view, 5> kLogLevels = {"trace", "debug", "info", "warn", "error"};
constexpr std::array<std::string_view, 2> kLogFormats = {"text", "json"};
constexpr std::array<std::string_view, 3> kSsdIo = {"auto", "uring", "threads"};
constexpr std::array<std::string_view, 5> kDialects = {"auto", "vllm", "sglang", "trtllm", "mooncake"};

// A member of the owner as a function that finds it; enumerations as an index into their choices.
#define FIELD(Type, Owner, member) static_cast<Type& (*)(Owner&)>([](Owner& owner) -> Type& { return owner.member; })
#define CHOICE(Owner, member)                                                                                        \
  ChoiceAccess<Owner> {                                                                                              \
    [](const Owner& owner) { return static_cast<std::size_t>(owner.member); }, [](Owner& owner, std::size_t index) { \
      owner.member = static_cast<decltype(owner.member)>(static_cast<std::uint8_t>(index));                          \
    }                                                                                                                \
  }
#define BOOL(m) FIELD(bool, ServiceConfig, m)
#define U32(m) FIELD(std::uint32_t, ServiceConfig, m)
#define U64(m) FIELD(std::uint64_t, ServiceConfig, m)
#define I64(m) FIELD(std::int64_t, ServiceConfig, m)
#define REAL(m) FIELD(double, ServiceConfig, m)
#define TEXT(m) FIELD(std::string, ServiceConfig, m)

using S = KeySpec<ServiceConfig>;
using E = KeySpec<EngineSettings>;
using K = ValueKind;

// Four keys of one link.
#define LINK_KEYS(link, label)                                                                                   \
  S{.name = "links." #link ".bandwidth",                                                                         \
    .kind = K::kRate,                                                                                            \
    .field = REAL(links.link.bytes_per_second),                                                                  \
    .meaning = "First guess of the " label " bandwidth; learned from completions afterwards.",                   \
    .min = 1e3,                                                                                                  \
    .max = kRateMax},                                                                                            \
      S{.name = "links." #link ".latency",                                                                       \
        .kind = K::kDuration,                                                                                    \
        .field = I64(links.link.latency_ns),                                                                     \
        .meaning = "First guess of the " label " latency of one transfer; learned afterwards.",                  \
        .max = 10 * kSec},                                                                                       \
      S{.name = "links." #link ".inflight_max",                                                                  \
        .kind = K::kBytes,                                                                                       \
        .field = U64(links.link.inflight_bytes_max),                                                             \
        .meaning = "Bytes issued on this link and not ended, at most.",                                          \
        .min = 64 * kKiB,                                                                                        \
        .max = kTiB},                                                                                            \
      S {                                                                                                        \
    .name = "links." #link ".throttle", .kind = K::kRate, .field = REAL(links.link.throttle_bytes_per_second),   \
    .meaning = "Pace the link to this rate, for rehearsals; 0: full speed.", .max = kRateMax, .reloadable = true \
  }

const std::array kServiceKeys = {
    S{.name = "mode",
      .kind = K::kChoice,
      .field = CHOICE(ServiceConfig, mode),
      .meaning = "off: nothing is predicted or moved. observe: predictions and would-be outcomes are counted, nothing "
                 "moves; the first step of every deployment. on: blocks are loaded into granted slots.",
      .choices = kModes},
    S{.name = "service.control_socket",
      .kind = K::kPath,
      .field = TEXT(service.control_socket),
      .meaning = "UNIX socket that engines register on, mode 0600; its folder must be 0700. At most 107 bytes.",
      .empty_allowed = false},
    S{.name = "service.http_listen",
      .kind = K::kListen,
      .field = TEXT(service.http_listen),
      .meaning = "host:port of /metrics, /livez, /readyz and /statusz; port 0 takes a free one (its number is written "
                 "to state_dir/http.port); empty: no HTTP. POST /-/reload is taken from loopback addresses alone."},
    S{.name = "service.state_dir",
      .kind = K::kPath,
      .field = TEXT(service.state_dir),
      .meaning = "Folder of small state, such as http.port. Created with mode 0700.",
      .empty_allowed = false},
    S{.name = "service.log_level",
      .kind = K::kChoice,
      .field = CHOICE(ServiceConfig, service.log_level),
      .meaning = "Least severe level that is logged to stderr.",
      .choices = kLogLevels,
      .reloadable = true},
    S{.name = "service.log_format",
      .kind = K::kChoice,
      .field = CHOICE(ServiceConfig, service.log_format),
      .meaning = "text for people, json (one object a line) for collectors.",
      .choices = kLogFormats},
    S{.name = "service.drain_timeout",
      .kind = K::kDuration,
      .field = I64(service.drain_timeout_ns),
      .meaning = "How long SIGTERM waits for transfers in flight and dirty blocks; keep it below the orchestrator's "
                 "grace period.",
      .max = kHour,
      .reloadable = true},
    S{.name = "service.insecure",
      .kind = K::kBool,
      .field = BOOL(service.insecure),
      .meaning = "Allow telemetry over plain TCP beyond loopback. Telemetry says what tenants ask for: prefer ipc://."},
    S{.name = "service.core_tick",
      .kind = K::kDuration,
      .field = I64(service.core_tick_ns),
      .meaning = "Longest pause between two steps of the core while anything is live.",
      .min = kMs,
      .max = kSec},
    S{.name = "dram.capacity",
      .kind = K::kBytes,
      .field = U64(dram.capacity_bytes),
      .meaning = "Size of the DRAM tier, allocated at start.",
      .min = kMiB,
      .max = 64 * kTiB},
    S{.name = "dram.huge_pages",
      .kind = K::kBool,
      .field = BOOL(dram.huge_pages),
      .meaning = "Ask for huge pages; small ones are used where the kernel has none."},
    S{.name = "dram.lock_memory",
      .kind = K::kBool,
      .field = BOOL(dram.lock_memory),
      .meaning = "Lock the tier in memory as far as RLIMIT_MEMLOCK allows."},
    S{.name = "ssd.directory",
      .kind = K::kPath,
      .field = TEXT(ssd.directory),
      .meaning = "Folder of segment files, owned by one sidecar; empty: no SSD tier."},
    S{.name = "ssd.capacity",
      .kind = K::kBytes,
      .field = U64(ssd.capacity_bytes),
      .meaning = "Bytes of segment files, at most; at least two segments.",
      .min = kMiB,
      .max = 1024 * kTiB},
    S{.name = "ssd.segment_size",
      .kind = K::kBytes,
      .field = U64(ssd.segment_bytes),
      .meaning = "Size of one segment file, a multiple of 4KiB; also the unit of reclaim.",
      .min = kMiB,
      .max = 64 * kGiB},
    S{.name = "ssd.io",
      .kind = K::kChoice,
      .field = CHOICE(ServiceConfig, ssd.io),
      .meaning = "auto: io_uring where the kernel allows it, else threads. uring: refuse to start without it.",
      .choices = kSsdIo},
    S{.name = "ssd.direct_io",
      .kind = K::kBool,
      .field = BOOL(ssd.direct_io),
      .meaning = "O_DIRECT, past the page cache; buffered where the file system has none."},
    S{.name = "ssd.fsync_interval",
      .kind = K::kDuration,
      .field = I64(ssd.fsync_interval_ns),
      .meaning = "Oldest age of a written block before it is made durable.",
      .min = kMs,
      .max = kHour},
    S{.name = "ssd.write_budget_per_day",
      .kind = K::kBytes,
      .field = U64(ssd.write_budget_bytes_per_day),
      .meaning = "Bytes written a day, at most, to spare the device; 0: no budget.",
      .max = 1024 * kTiB},
    S{.name = "ssd.second_use_admission",
      .kind = K::kBool,
      .field = BOOL(ssd.second_use_admission),
      .meaning = "Write only blocks that were used a second time."},
    S{.name = "ssd.throttle",
      .kind = K::kRate,
      .field = REAL(ssd.throttle_bytes_per_second),
      .meaning = "Pace the device to this rate, reads and writes together, for rehearsals; 0: full speed.",
      .max = kRateMax,
      .reloadable = true},
    LINK_KEYS(dram_to_hbm, "DRAM to HBM"),
    LINK_KEYS(ssd_to_dram, "SSD to DRAM"),
    LINK_KEYS(dram_to_ssd, "DRAM to SSD"),
    S{.name = "prefetch.enabled",
      .kind = K::kBool,
      .field = BOOL(prefetch.enabled),
      .meaning = "false: demand loads alone, for every engine.",
      .reloadable = true},
    S{.name = "prefetch.admission_margin",
      .kind = K::kNumber,
      .field = REAL(prefetch.admission_margin),
      .meaning = "A block is loaded only when it is worth (1 + this) times its victim.",
      .max = 10,
      .reloadable = true},
    S{.name = "prefetch.link_utilisation_max",
      .kind = K::kNumber,
      .field = REAL(prefetch.link_utilisation_max),
      .meaning = "Share of a link that plans may count on.",
      .min = 0.01,
      .max = 1,
      .reloadable = true},
    S{.name = "prefetch.arena_share_max",
      .kind = K::kNumber,
      .field = REAL(prefetch.arena_share_max),
      .meaning = "Share of an engine's slots that blocks may hold before a request asked for them.",
      .max = 1,
      .reloadable = true},
    S{.name = "prefetch.ttl",
      .kind = K::kDuration,
      .field = I64(prefetch.ttl_ns),
      .meaning = "A landed prefetch whose request never came is wasted after this.",
      .min = kMs,
      .max = 24 * kHour,
      .reloadable = true},
    S{.name = "prefetch.session_horizon",
      .kind = K::kDuration,
      .field = I64(prefetch.session_horizon_ns),
      .meaning = "How far ahead a session's return moves its blocks from SSD to DRAM.",
      .max = 24 * kHour,
      .reloadable = true},
    S{.name = "prefetch.session_probability_min",
      .kind = K::kNumber,
      .field = REAL(prefetch.session_probability_min),
      .meaning = "Least probability of that return.",
      .max = 1,
      .reloadable = true},
    S{.name = "prefetch.hold_out",
      .kind = K::kNumber,
      .field = REAL(prefetch.hold_out),
      .meaning = "Share of sessions that are never prefetched for: the permanent control group.",
      .max = 1,
      .reloadable = true},
    S{.name = "limits.blocks_max",
      .kind = K::kCount,
      .field = U32(limits.blocks_max),
      .meaning = "Blocks that the catalog knows; beyond it the least useful non-resident one is forgotten.",
      .min = 1024,
      .max = 1u << 30},
    S{.name = "limits.requests_max",
      .kind = K::kCount,
      .field = U32(limits.requests_max),
      .meaning = "Live requests; further ones are counted and not tracked.",
      .min = 16,
      .max = 1u << 24},
    S{.name = "limits.request_blocks_max",
      .kind = K::kCount,
      .field = U32(limits.request_blocks_max),
      .meaning = "Blocks of one request that are looked at.",
      .min = 16,
      .max = 1u << 24},
    S{.name = "limits.sessions_max",
      .kind = K::kCount,
      .field = U32(limits.sessions_max),
      .meaning = "Sessions whose return is predicted.",
      .min = 16,
      .max = 1u << 28},
    S{.name = "limits.engines_max",
      .kind = K::kCount,
      .field = U32(limits.engines_max),
      .meaning = "Registered and configured engines.",
      .min = 1,
      .max = kConfigEnginesMax},
    S{.name = "limits.staging_items",
      .kind = K::kCount,
      .field = U32(limits.staging_items),
      .meaning = "Telemetry batches between ingest threads and the core; beyond it they are dropped and counted.",
      .min = 16,
      .max = 1u << 24},
    S{.name = "limits.staging_bytes",
      .kind = K::kBytes,
      .field = U64(limits.staging_bytes),
      .meaning = "Bytes of those batches.",
      .min = kMiB,
      .max = 64 * kGiB},
    S{.name = "observe.arena_slots",
      .kind = K::kCount,
      .field = U32(observe.arena_slots),
      .meaning = "Slots of the imaginary arena of each engine in observe mode; bandwidths are those of [links].",
      .min = 1,
      .max = 1u << 28},
    S{.name = "record.file",
      .kind = K::kPath,
      .field = TEXT(record.file),
      .meaning = "Trace of what the core was told (salted hashes, no token ids); empty: no recording."},
    S{.name = "record.salt_file",
      .kind = K::kPath,
      .field = TEXT(record.salt_file),
      .meaning = "File of 32 or more random bytes, mode 0600, that the hashes are salted with; needed to record."},
    S{.name = "record.max_bytes",
      .kind = K::kBytes,
      .field = U64(record.max_bytes),
      .meaning = "The recording stops at this size.",
      .min = kMiB,
      .max = 1024 * kTiB},
};

const std::array kEngineKeys = {
    E{.name = "name",
      .kind = K::kText,
      .field = FIELD(std::string, EngineSettings, name),
      .meaning = "Name that the engine registers under: letters, digits, '.', '_', '-'; at most 64.",
      .empty_allowed = false},
    E{.name = "kv_events",
      .kind = K::kEndpoint,
      .field = FIELD(std::string, EngineSettings, kv_events),
      .meaning = "Endpoint of its KV events, as in the engine's own configuration."},
    E{.name = "kv_replay",
      .kind = K::kEndpoint,
      .field = FIELD(std::string, EngineSettings, kv_replay),
      .meaning = "Endpoint of its replay socket; empty: a gap makes the view of this engine unknown."},
    E{.name = "kv_bind",
      .kind = K::kBool,
      .field = FIELD(bool, EngineSettings, kv_bind),
      .meaning = "true: the sidecar binds kv_events and the engine connects."},
    E{.name = "topic",
      .kind = K::kText,
      .field = FIELD(std::string, EngineSettings, topic),
      .meaning = "Subscription prefix of kv_events; empty: everything."},
    E{.name = "dialect",
      .kind = K::kChoice,
      .field = CHOICE(EngineSettings, dialect),
      .meaning = "Encoding of kv_events; auto: from the first message.",
      .choices = kDialects},
    E{.name = "access",
      .kind = K::kEndpoint,
      .field = FIELD(std::string, EngineSettings, access),
      .meaning = "Endpoint of its access stream (requests, hints), published by the client library."},
    E{.name = "model_revision",
      .kind = K::kText,
      .field = FIELD(std::string, EngineSettings, model_revision),
      .meaning = "What the tokens mean, for an engine that publishes events and does not register."},
    E{.name = "weights_epoch",
      .kind = K::kCount,
      .field = FIELD(std::uint32_t, EngineSettings, weights_epoch),
      .meaning = "Raise it when weights were reloaded in place under the same revision.",
      .max = kCountMax},
    E{.name = "data_parallel_rank",
      .kind = K::kCount,
      .field = FIELD(std::uint32_t, EngineSettings, data_parallel_rank),
      .meaning = "Rank whose events this endpoint carries.",
      .max = 65535},
    E{.name = "block_bytes",
      .kind = K::kBytes,
      .field = FIELD(std::uint64_t, EngineSettings, block_bytes),
      .meaning = "Bytes of one KV block, all ranks; needed to observe an engine that does not register.",
      .max = 64 * kGiB},
    E{.name = "recompute_seconds_per_token",
      .kind = K::kNumber,
      .field = FIELD(double, EngineSettings, recompute_seconds_per_token),
      .meaning = "Prefill time of one token; a load that would take longer is not made. 0: unknown, none is refused.",
      .max = 60},
};

#undef FIELD
#undef CHOICE
#undef BOOL
#undef U32
#undef U64
#undef I64
#undef REAL
#undef TEXT
#undef LINK_KEYS

}  // namespace

std::span<const KeySpec<ServiceConfig>> ServiceKeys() {
  return kServiceKeys;
}
std::span<const KeySpec<EngineSettings>> EngineKeys() {
  return kEngineKeys;
}

std::string EnvironmentName(std::string_view key) {
  std::string name = "FORELOAD_";
  for (const char c : key) name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace foreload::service
