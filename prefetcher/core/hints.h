// What an engine or a router tells about the future. Hints steer; they never oblige.
//
//   expect    the session (or the session whose chain the blocks are) is back at eta, give or take sigma: replaces its
//             learned return (prediction.md 6.7), and its chain is brought to DRAM in time
//   prefetch  an announced request for the blocks, or the session's chain: loads into HBM
//   retain    worth a certain return until ttl (0: until used once)
//   pin       as retain, and spared by everything but demand
//   demote    worth nothing until used
#pragma once

#include <span>
#include <vector>

#include "prefetcher/core/admission.h"
#include "prefetcher/core/event.h"
#include "prefetcher/core/planner.h"
#include "prefetcher/core/state.h"

namespace foreload::core {

class Hints {
 public:
  Hints(State& state, Admission& admission, Planner& planner)
      : state_(state), admission_(admission), planner_(planner) {}

  void Given(const HintGiven& event, std::span<const BlockId> blocks);

 private:
  // The hinted blocks that are known: those given, else the session's chain, root first.
  std::span<const BlockId> Chain(const HintGiven& event, std::span<const BlockId> blocks);
  void Expect(const HintGiven& event, std::span<const BlockId> chain);
  void Protect(const HintGiven& event, BlockId block);

  State& state_;
  Admission& admission_;
  Planner& planner_;
  std::vector<BlockId> chain_;
};

}  // namespace foreload::core
