// What a run of the drive found, as a table for people and as JSON. Pure: values in, text out.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cmd/drive/engine_model.h"
#include "cmd/drive/live_port.h"
#include "cmd/drive/scenario.h"
#include "replay/workload_profile.h"

namespace foreload::drive {

enum class Phase : std::uint8_t { kDemand, kPrefetch, kObserve };
std::string PhaseName(Phase phase);

// One phase against one sidecar.
struct PhaseRun {
  Phase phase = Phase::kDemand;
  std::uint32_t repeat = 0;
  double wall_seconds = 0;
  std::vector<RequestRecord> records;
  EngineCounts engine;
  LiveCounts live;
  fl_counters client{};
  std::map<std::string, double> status;  // the sidecar's status document, what this run added to it
  std::string status_json;
};

// Several runs of one phase, pooled.
struct PhaseSummary {
  Phase phase = Phase::kDemand;
  std::uint32_t runs = 0;
  std::uint64_t requests = 0;
  double ttft_p50 = 0, ttft_p99 = 0;      // seconds, arrival to first token
  double queue_p50 = 0, queue_p99 = 0;    // arrival to scheduled
  double stall_total = 0;                 // per run
  double stall_p50 = 0, stall_p99 = 0;    // per request
  double demand_p50 = 0, demand_p99 = 0;  // demand fetches that moved bytes
  std::uint64_t demand_loads = 0;
  double own = 0, arena = 0, demand_dram = 0, demand_ssd = 0, joined = 0, recomputed = 0, recomputed_stored = 0;
  std::uint64_t blocks = 0;  // the shares above are of these
  // Outcomes of prefetches into HBM and into DRAM; -1: the status document does not say.
  struct Ledger {
    double issued = -1, useful = -1, late = -1, wasted = -1, cancelled = -1, failed = -1, live = -1;
    double accuracy() const { return issued - live > 0 ? useful / (issued - live) : -1; }
  };
  Ledger hbm;
  Ledger dram;
  EngineCounts engine;
  std::uint64_t verified_blocks = 0;
  std::uint64_t verified_bytes = 0;
  std::uint64_t mismatches = 0;
};

// Nearest-rank quantile; 0 of nothing.
double Quantile(std::vector<double> values, double q);

PhaseSummary Summarise(const std::vector<const PhaseRun*>& runs);

struct Report {
  Scenario scenario;
  std::string workload;  // in words: generator, or the trace's path
  replay::WorkloadProfile profile;
  std::vector<std::string> notes;  // of the trace reader
  std::uint64_t skipped = 0;
  std::vector<PhaseRun> runs;
  bool own_sidecar = true;  // else the scenario's memory and throttles are not in force
};

std::string ReportText(const Report& report);
std::string ReportJson(const Report& report);

// Wrong bytes in any run.
std::uint64_t Mismatches(const Report& report);

}  // namespace foreload::drive
