// Which prefetches to issue: the exact needs of queued and announced requests, earliest predicted start first, and
// chains of sessions that are likely to come back.
//
// For a queued request the need is certain (p = 1), and what is not loaded now is loaded as demand later: a load that
// will be late is still begun early, unless recomputing would beat it. Announced, hinted and session loads are guesses:
// they must be feasible in time within eta of the link (EDF) and pay for the link's load (break-even p* = u).
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "prefetcher/core/admission.h"
#include "prefetcher/core/eviction.h"
#include "prefetcher/core/state.h"
#include "prefetcher/core/transfers.h"

namespace foreload::core {

class Planner {
 public:
  Planner(State& state, Admission& admission, Transfers& transfers, Eviction& eviction)
      : state_(state), admission_(admission), transfers_(transfers), eviction_(eviction) {}

  void Plan();
  // Sessions whose time of idleness makes a return likely now; called when one becomes idle or enters a bin.
  void Consider(std::uint32_t session);
  // A hint expects the session: considered when its window comes near.
  void ConsiderAt(TimeNs at, std::uint64_t session_key);
  bool Waiting() const { return !promotions_.empty(); }
  TimeNs NextExpected() const { return expected_.empty() ? kTimeNever : expected_.begin()->first; }

 private:
  struct Candidate {
    TimeNs start = 0;
    std::uint64_t serial = 0;
    std::uint32_t request = kNone;
    friend constexpr auto operator<=>(const Candidate&, const Candidate&) = default;
  };
  enum class Verdict : std::uint8_t { kIssued, kInFlight, kLater, kStop };

  void Collect();
  void PlanRequest(const Candidate& candidate);
  Verdict PlanBlock(Request& request, Engine& engine, std::uint32_t position, TimeNs start);
  Verdict PlanDram(Request& request, Engine& engine, std::uint32_t position, TimeNs start);
  Verdict PlanArena(Request& request, Engine& engine, std::uint32_t position, TimeNs start);
  // False, with the reason counted, when loading would not pay.
  bool Pays(Request& request, const Engine& engine, std::uint32_t position, TimeNs start, bool from_ssd);
  double Gain(const Engine& engine, const Block& block, double probability, TimeNs start, bool from_ssd) const;
  void Suppress(Request& request, std::uint32_t position, SuppressReason reason);
  bool SuppressedByPolicy(const Request& request, const Engine& engine, SuppressReason& reason) const;
  DurationNs PromotionHorizon() const;
  void Promote(std::uint64_t session_key);

  State& state_;
  Admission& admission_;
  Transfers& transfers_;
  Eviction& eviction_;
  std::vector<Candidate> candidates_;
  std::deque<std::uint64_t> promotions_;  // session keys
  std::set<std::pair<TimeNs, std::uint64_t>> expected_;
  std::vector<BlockId> chain_;
  std::uint32_t looks_left_ = 0;
  std::uint32_t loads_left_ = 0;
  bool dram_full_ = false;                // this step: no place in DRAM for a guess
  std::vector<std::uint8_t> arena_full_;  // by engine
};

}  // namespace foreload::core
