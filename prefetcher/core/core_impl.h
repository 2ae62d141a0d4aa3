// The core's parts, put together. Private to core.cc and verify.cc.
#pragma once

#include <string>

#include "prefetcher/core/admission.h"
#include "prefetcher/core/core.h"
#include "prefetcher/core/demand.h"
#include "prefetcher/core/engine_events.h"
#include "prefetcher/core/eviction.h"
#include "prefetcher/core/hints.h"
#include "prefetcher/core/planner.h"
#include "prefetcher/core/purge.h"
#include "prefetcher/core/state.h"
#include "prefetcher/core/store_path.h"
#include "prefetcher/core/transfers.h"

namespace foreload::core {

struct CoreParts {
  explicit CoreParts(const CoreConfig& config)
      : state(config),
        eviction(state),
        transfers(state, eviction),
        admission(state, transfers),
        demands(state, transfers, eviction),
        engines(state, admission, demands, transfers, eviction),
        planner(state, admission, transfers, eviction),
        store_path(state, admission, transfers, eviction),
        purge(state, transfers, eviction),
        hints(state, admission, planner) {}

  State state;
  Eviction eviction;
  Transfers transfers;
  Admission admission;
  DemandTable demands;
  EngineEvents engines;
  Planner planner;
  StorePath store_path;
  Purge purge;
  Hints hints;
  bool work_left = false;  // bounded work that the last step did not finish
  TimeNs last_plan = 0;
};

struct Core::Impl : CoreParts {
  using CoreParts::CoreParts;
};

// verify.cc
void VerifyParts(const CoreParts& core);
std::string ExplainBlock(const CoreParts& core, BlockId block);

}  // namespace foreload::core
