// A scenario of `foreload drive`: workload, engine and sidecar, every value written down in one TOML file
// (bench/drive.toml). Strict: each key of ScenarioKeys() is needed exactly once, and no other is allowed, except that a
// generator's keys belong to generators and a trace's to traces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cmd/drive/engine_model.h"
#include "cmd/drive/kv_encoding.h"
#include "replay/generator.h"
#include "replay/trace_source.h"
#include "replay/workload_profile.h"

namespace foreload::drive {

struct Scenario {
  std::string name;
  std::string about;

  // workload
  bool generated = true;
  std::string trace;  // below the data folder, unless absolute
  std::uint64_t requests = 0;
  std::uint64_t sessions = 0;            // of a trace of sessions; 0: all
  std::uint64_t trace_block_tokens = 0;  // 0: the format's own
  DurationNs session_spread = 0;
  DurationNs session_gap_max = 0;
  std::uint64_t seed = 1;
  double speed_up = 1;
  replay::GeneratorConfig generator;

  // engine
  EngineConfig engine;
  std::uint64_t block_bytes = 0;  // of all ranks together
  std::uint32_t ranks = 1;
  std::uint32_t layer_groups = 1;
  std::uint32_t arena_slots = 0;
  std::uint32_t store_slots = 0;
  DurationNs breaker_open = 1 * kSecond;  // after a demand fetch past its deadline
  HashForm hash_form = HashForm::kInt64;

  // sidecar
  std::uint64_t dram_bytes = 0;
  std::uint64_t ssd_bytes = 0;
  std::uint64_t ssd_segment_bytes = 0;
  double dram_to_hbm_bytes_per_second = 0;  // throttles, and the sidecar's first guess
  double ssd_bytes_per_second = 0;
  DurationNs dram_to_hbm_latency = 0;  // first guess alone
  DurationNs ssd_latency = 0;

  replay::ServiceRates rates() const {
    return {engine.prefill_tokens_per_second, engine.decode_seconds_per_token, engine.sequences_max, speed_up};
  }
};

// Its value of every key, as written; for reports.
std::vector<std::pair<std::string, std::string>> DescribeScenario(const Scenario& scenario);

// kNotFound lists the scenarios that there are; kInvalidArgument is "file:line: what is wrong", one fault a line.
Result<Scenario> ParseScenario(std::string_view text, const std::string& file, const std::string& name);
Result<Scenario> LoadScenario(const std::string& file, const std::string& name);

// The scenario's workload from its beginning. `trace`: another file than the scenario's, "": its own. A trace that is
// not absolute is looked for in FORELOAD_DATA, then in ../shared/data and data/ below the working folder.
Result<std::unique_ptr<replay::TraceSource>> OpenWorkload(const Scenario& scenario, const std::string& trace,
                                                          bool strict);

}  // namespace foreload::drive
