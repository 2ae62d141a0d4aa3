// Runs the phases of a comparison, each against a sidecar of its own (fresh memory, fresh SSD store) or, with
// `connect`, against one that runs already (then each phase has its own namespace, which is purged afterwards).
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "base/status.h"
#include "cmd/drive/report.h"
#include "cmd/drive/scenario.h"

namespace foreload::drive {

struct RunOptions {
  Scenario scenario;
  std::string trace;  // instead of the scenario's
  bool strict = false;
  std::vector<Phase> phases;  // in order
  std::uint32_t repeat = 1;   // of the whole order: interleaved, so that drift touches all phases alike
  std::string serve;          // executable of the sidecar
  std::string work_folder;
  bool keep_serving = false;  // of the last sidecar
  // An existing sidecar instead.
  std::string connect;           // its control socket
  std::string engine = "drive";  // its configured name for this engine
  std::string kv_endpoint;
  std::string kv_replay_endpoint;
  std::string access_endpoint;
  const std::atomic<bool>* interrupted = nullptr;
};

struct LeftRunning {
  int pid = -1;
  std::string folder;
  std::string http_address;
};

// kDataLoss when bytes were wrong: `report` then holds what was measured until then.
Status RunPhases(const RunOptions& options, Report& report, LeftRunning& left);

}  // namespace foreload::drive
