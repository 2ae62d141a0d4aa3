#include "cmd/drive/scenario.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <variant>

#include "prefetcher/service/config_value.h"
#include "prefetcher/service/toml_document.h"

namespace foreload::drive {
namespace {

using service::TomlValue;

enum class Use : std::uint8_t { kAlways, kGenerator, kTrace };

using Field = std::variant<std::string*, bool*, std::uint32_t*, std::uint64_t*, double*>;
enum class Unit : std::uint8_t { kPlain, kBytes, kRate, kDuration };  // the last three are text with a unit

struct Key {
  const char* name;
  Use use;
  Unit unit;
  Field field;
};

// DurationNs is a signed 64-bit number: its own pointer type.
struct DurationKey {
  const char* name;
  Use use;
  DurationNs* field;
};

struct Bindings {
  std::vector<Key> keys;
  std::vector<DurationKey> durations;
  std::string workload;  // "generator" or "trace"
  std::string queue;     // "fifo" or "priority"
  std::string hashes;    // "int64" or "digest"
};

void Bind(Scenario& s, Bindings& b) {
  constexpr Use kA = Use::kAlways;
  constexpr Use kG = Use::kGenerator;
  constexpr Use kT = Use::kTrace;
  constexpr Unit kP = Unit::kPlain;
  b.keys = {
      {"about", kA, kP, &s.about},
      {"workload.kind", kA, kP, &b.workload},
      {"workload.requests", kA, kP, &s.requests},
      {"workload.seed", kA, kP, &s.seed},
      {"workload.speed_up", kA, kP, &s.speed_up},
      {"workload.trace", kT, kP, &s.trace},
      {"workload.sessions", kT, kP, &s.sessions},
      {"workload.block_tokens", kA, kP, &s.trace_block_tokens},
      {"workload.sessions_per_second", kG, kP, &s.generator.sessions_per_second},
      {"workload.warm_start_seconds", kG, kP, &s.generator.warm_start_seconds},
      {"workload.length_scale", kG, kP, &s.generator.length_scale},
      {"workload.system_prompts", kG, kP, &s.generator.system_prompts},
      {"workload.system_tokens", kG, kP, &s.generator.system_tokens},
      {"engine.prefill_tokens_per_second", kA, kP, &s.engine.prefill_tokens_per_second},
      {"engine.decode_seconds_per_token", kA, kP, &s.engine.decode_seconds_per_token},
      {"engine.sequences_max", kA, kP, &s.engine.sequences_max},
      {"engine.admitted_max", kA, kP, &s.engine.admitted_max},
      {"engine.cache_blocks", kA, kP, &s.engine.cache_blocks},
      {"engine.queue", kA, kP, &b.queue},
      {"engine.session_order", kA, kP, &s.engine.session_order},
      {"engine.block_bytes", kA, Unit::kBytes, &s.block_bytes},
      {"engine.ranks", kA, kP, &s.ranks},
      {"engine.layer_groups", kA, kP, &s.layer_groups},
      {"engine.arena_slots", kA, kP, &s.arena_slots},
      {"engine.store_slots", kA, kP, &s.store_slots},
      {"engine.kv_event_hashes", kA, kP, &b.hashes},
      {"sidecar.dram", kA, Unit::kBytes, &s.dram_bytes},
      {"sidecar.ssd", kA, Unit::kBytes, &s.ssd_bytes},
      {"sidecar.ssd_segment", kA, Unit::kBytes, &s.ssd_segment_bytes},
      {"sidecar.dram_to_hbm", kA, Unit::kRate, &s.dram_to_hbm_bytes_per_second},
      {"sidecar.ssd_rate", kA, Unit::kRate, &s.ssd_bytes_per_second},
  };
  b.durations = {
      {"workload.session_spread", kT, &s.session_spread},          {"workload.session_gap_max", kT, &s.session_gap_max},
      {"engine.demand_deadline", kA, &s.engine.demand_deadline},   {"engine.breaker_open", kA, &s.breaker_open},
      {"sidecar.dram_to_hbm_latency", kA, &s.dram_to_hbm_latency}, {"sidecar.ssd_latency", kA, &s.ssd_latency},
  };
}

// "" when the value is of the right kind and in range; else what is expected.
std::string Assign(const Key& key, const TomlValue& toml) {
  const auto* text = std::get_if<std::string>(&toml.value);
  if (key.unit == Unit::kBytes) {
    const auto bytes = text != nullptr ? service::ParseBytes(*text) : std::nullopt;
    if (!bytes.has_value()) return "a size such as \"64KiB\"";
    **std::get_if<std::uint64_t*>(&key.field) = *bytes;
    return "";
  }
  if (key.unit == Unit::kRate) {
    const auto rate = text != nullptr ? service::ParseRate(*text) : std::nullopt;
    if (!rate.has_value()) return "a rate such as \"400MB/s\"";
    **std::get_if<double*>(&key.field) = *rate;
    return "";
  }
  if (auto* const* field = std::get_if<std::string*>(&key.field)) {
    if (text == nullptr) return "text";
    **field = *text;
    return "";
  }
  if (auto* const* field = std::get_if<bool*>(&key.field)) {
    const auto* flag = std::get_if<bool>(&toml.value);
    if (flag == nullptr) return "true or false";
    **field = *flag;
    return "";
  }
  const auto* whole = std::get_if<std::int64_t>(&toml.value);
  if (auto* const* field = std::get_if<double*>(&key.field)) {
    const auto* real = std::get_if<double>(&toml.value);
    const double number = real != nullptr ? *real : whole != nullptr ? static_cast<double>(*whole) : -1;
    if (!(number >= 0 && number <= 1e15)) return "a number >= 0";
    **field = number;
    return "";
  }
  if (whole == nullptr || *whole < 0) return "a whole number >= 0";
  if (auto* const* field = std::get_if<std::uint64_t*>(&key.field)) {
    **field = static_cast<std::uint64_t>(*whole);
    return "";
  }
  if (*whole > UINT32_MAX) return "a whole number below 2^32";
  **std::get_if<std::uint32_t*>(&key.field) = static_cast<std::uint32_t>(*whole);
  return "";
}

std::string AssignDuration(const DurationKey& key, const TomlValue& toml) {
  const auto* text = std::get_if<std::string>(&toml.value);
  const auto duration = text != nullptr ? service::ParseDuration(*text) : std::nullopt;
  if (!duration.has_value()) return "a duration such as \"250ms\"";
  *key.field = *duration;
  return "";
}

std::string CheckRanges(const Scenario& s, const Bindings& b) {
  if (b.queue != "fifo" && b.queue != "priority") return "engine.queue is neither \"fifo\" nor \"priority\"";
  if (b.hashes != "int64" && b.hashes != "digest") return "engine.kv_event_hashes is neither \"int64\" nor \"digest\"";
  if (s.requests == 0) return "workload.requests is 0";
  if (!(s.speed_up > 0)) return "workload.speed_up is 0";
  if (!(s.engine.prefill_tokens_per_second > 0)) return "engine.prefill_tokens_per_second is 0";
  if (s.engine.sequences_max == 0 || s.engine.admitted_max == 0) return "engine.sequences_max or admitted_max is 0";
  if (s.engine.cache_blocks == 0 || s.arena_slots == 0) return "engine.cache_blocks or arena_slots is 0";
  if (s.ranks == 0 || s.layer_groups == 0 || s.block_bytes == 0 ||
      s.block_bytes % (64ull * s.ranks * s.layer_groups) != 0) {
    return "engine.block_bytes is not a multiple of 64 x ranks x layer_groups";
  }
  return "";
}

std::string NearestKey(const Bindings& b, std::string_view wrong) {
  std::string best;
  std::size_t edits = wrong.size() / 3 + 2;
  const auto consider = [&](const char* name) {
    const std::size_t distance = service::EditDistance(wrong, name);
    if (distance >= edits) return;
    edits = distance;
    best = name;
  };
  for (const Key& key : b.keys) consider(key.name);
  for (const DurationKey& key : b.durations) consider(key.name);
  return best;
}

bool Needed(Use use, const std::string& workload) {
  return use == Use::kAlways || (use == Use::kGenerator) == (workload == "generator");
}

}  // namespace

Result<Scenario> ParseScenario(std::string_view text, const std::string& file, const std::string& name) {
  FORELOAD_ASSIGN_OR_RETURN(const std::vector<TomlValue> values, service::FlattenToml(text, file));
  Scenario scenario;
  scenario.name = name;
  Bindings bindings;
  Bind(scenario, bindings);

  std::set<std::string> scenarios;
  std::set<std::string> seen;
  std::uint32_t first_line = 0;
  std::string faults;
  const auto fault = [&](std::uint32_t line, const std::string& what) {
    faults += (faults.empty() ? "" : "\n") + file + ":" + std::to_string(line) + ": " + what;
  };
  for (const TomlValue& value : values) {
    const std::size_t dot = value.path.find('.');
    if (dot == std::string::npos) {
      fault(value.line, "`" + value.path + "` stands outside any scenario");
      continue;
    }
    scenarios.insert(value.path.substr(0, dot));
    if (value.path.substr(0, dot) != name) continue;
    if (first_line == 0) first_line = value.line;
    const std::string key_name = value.path.substr(dot + 1);
    std::string expected;
    bool known = false;
    for (const Key& key : bindings.keys) {
      if (key_name != key.name) continue;
      known = true;
      expected = Assign(key, value);
    }
    for (const DurationKey& key : bindings.durations) {
      if (key_name != key.name) continue;
      known = true;
      expected = AssignDuration(key, value);
    }
    seen.insert(key_name);
    if (!known) {
      const std::string nearest = NearestKey(bindings, key_name);
      fault(value.line,
            "unknown key `" + key_name + "`" + (nearest.empty() ? "" : "; did you mean `" + nearest + "`?"));
    } else if (!expected.empty()) {
      fault(value.line, "`" + key_name + "` must be " + expected);
    }
  }
  if (first_line == 0) {
    std::string list;
    for (const std::string& one : scenarios) list += (list.empty() ? "" : ", ") + one;
    return NotFound(file + ": no scenario \"" + name + "\"; there are: " + list);
  }
  if (bindings.workload != "generator" && bindings.workload != "trace") {
    fault(first_line, "`workload.kind` must be \"generator\" or \"trace\"");
  } else {
    const auto check = [&](const char* key, Use use) {
      const bool needed = Needed(use, bindings.workload);
      if (needed && seen.count(key) == 0) fault(first_line, "[" + name + "]: `" + key + "` is missing");
      if (!needed && seen.count(key) > 0) {
        fault(first_line, "[" + name + "]: `" + key + "` has no meaning for a " + bindings.workload);
      }
    };
    for (const Key& key : bindings.keys) check(key.name, key.use);
    for (const DurationKey& key : bindings.durations) check(key.name, key.use);
  }
  if (faults.empty()) {
    const std::string range = CheckRanges(scenario, bindings);
    if (!range.empty()) fault(first_line, "[" + name + "]: " + range);
  }
  if (!faults.empty()) return InvalidArgument(faults);

  scenario.generated = bindings.workload == "generator";
  scenario.engine.priority_queue = bindings.queue == "priority";
  scenario.engine.speed_up = scenario.speed_up;
  scenario.hash_form = bindings.hashes == "digest" ? HashForm::kDigest : HashForm::kInt64;
  scenario.generator.seed = scenario.seed;
  scenario.generator.requests = scenario.requests;
  if (scenario.generated) scenario.generator.block_tokens = static_cast<std::uint32_t>(scenario.trace_block_tokens);
  return scenario;
}

Result<Scenario> LoadScenario(const std::string& file, const std::string& name) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return NotFound("cannot read " + file + " (give it with --scenarios)");
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  return ParseScenario(text, file, name);
}

std::vector<std::pair<std::string, std::string>> DescribeScenario(const Scenario& scenario) {
  Scenario copy = scenario;
  Bindings bindings;
  bindings.workload = scenario.generated ? "generator" : "trace";
  bindings.queue = scenario.engine.priority_queue ? "priority" : "fifo";
  bindings.hashes = scenario.hash_form == HashForm::kDigest ? "digest" : "int64";
  Bind(copy, bindings);
  std::vector<std::pair<std::string, std::string>> out;
  for (const Key& key : bindings.keys) {
    if (!Needed(key.use, bindings.workload)) continue;
    std::string text;
    if (key.unit == Unit::kBytes) {
      text = service::FormatBytes(**std::get_if<std::uint64_t*>(&key.field));
    } else if (key.unit == Unit::kRate) {
      text = service::FormatRate(**std::get_if<double*>(&key.field));
    } else {
      text = std::visit(
          [](auto* field) -> std::string {
            using T = std::remove_pointer_t<decltype(field)>;
            if constexpr (std::is_same_v<T, std::string>)
              return *field;
            else if constexpr (std::is_same_v<T, bool>)
              return *field ? "true" : "false";
            else if constexpr (std::is_same_v<T, double>)
              return service::FormatNumber(*field);
            else
              return std::to_string(*field);
          },
          key.field);
    }
    out.emplace_back(key.name, text);
  }
  for (const DurationKey& key : bindings.durations) {
    if (Needed(key.use, bindings.workload)) out.emplace_back(key.name, service::FormatDuration(*key.field));
  }
  return out;
}

namespace {

std::string FindData(const std::string& name) {
  if (std::filesystem::path(name).is_absolute()) return name;
  std::vector<std::string> folders;
  if (const char* root = std::getenv("FORELOAD_DATA"); root != nullptr) folders.emplace_back(root);
  folders.insert(folders.end(), {"../shared/data", "data", "."});
  for (const std::string& folder : folders) {
    const std::string path = folder + "/" + name;
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return path;
  }
  return "";
}

}  // namespace

Result<std::unique_ptr<replay::TraceSource>> OpenWorkload(const Scenario& scenario, const std::string& trace,
                                                          bool strict) {
  if (scenario.generated && trace.empty()) return replay::MakeGenerator(scenario.generator);
  const std::string& name = trace.empty() ? scenario.trace : trace;
  const std::string path = trace.empty() ? FindData(name) : trace;
  if (path.empty()) return NotFound("no trace " + name + ": set FORELOAD_DATA to the folder that holds it, or --trace");
  replay::TraceOptions options;
  options.strict = strict;
  options.seed = scenario.seed;
  options.session_spread = scenario.session_spread;
  options.session_gap_max = scenario.session_gap_max;
  options.requests_max = scenario.requests;
  options.block_tokens = static_cast<std::uint32_t>(scenario.trace_block_tokens);
  if (scenario.sessions > 0) options.sessions_max = scenario.sessions;
  return replay::OpenTrace(path, options);
}

}  // namespace foreload::drive
