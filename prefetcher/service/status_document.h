// What /statusz, `foreload status` and the engines' status call say: one JSON document about the sidecar now.
#pragma once

#include <string>

#include "base/clock.h"
#include "prefetcher/core/stats.h"
#include "prefetcher/service/config.h"
#include "prefetcher/service/engine_registry.h"
#include "transport/mover.h"

namespace foreload::service {

struct StatusInputs {
  const ServiceConfig& config;
  const core::CoreStats& stats;
  EngineRegistry& engines;
  std::uint64_t boot_token = 0;
  TimeNs started = 0;
  TimeNs now = 0;
  bool draining = false;
  std::string dram_summary;
  std::string file_io;    // which backend serves the disk, and why; "": no SSD tier
  std::string ssd_state;  // in words
  std::uint64_t ssd_used_bytes = 0;
  std::uint64_t ssd_records = 0;
  const Mover* host = nullptr;
  const Mover* file = nullptr;
};

std::string StatusDocument(const StatusInputs& in);

}  // namespace foreload::service
