// Outcome accounting: each issued prefetch ends as exactly one of useful, late, wasted, cancelled, failed
//.
//
// A PrefetchMark is one issued prefetch. It lies in the transfer while that runs, then in the slot or DRAM copy where
// it landed; whoever holds it live settles it once. Misuse: copying a live mark without clearing the source.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "base/clock.h"
#include "prefetcher/core/stats.h"

namespace foreload::core {

struct PrefetchMark {
  std::uint64_t bytes = 0;
  std::uint64_t serial = 0;  // of the transfer; tells a landed prefetch from a later one in the same place
  TimeNs landed_at = 0;
  bool live = false;
};

class Ledger {
 public:
  explicit Ledger(CoreStats& stats) : stats_(stats) {}

  PrefetchMark Issue(Tier tier, std::uint64_t bytes, std::uint64_t serial) {
    PrefetchLedger& ledger = stats_.prefetch[static_cast<std::size_t>(tier)];
    ++ledger.issued;
    ++ledger.live;
    ledger.issued_bytes += bytes;
    ledger.live_bytes += bytes;
    return {.bytes = bytes, .serial = serial, .landed_at = 0, .live = true};
  }

  // Does nothing when the mark is settled already.
  void Settle(Tier tier, PrefetchMark& mark, Outcome outcome) {
    if (!mark.live) return;
    mark.live = false;
    PrefetchLedger& ledger = stats_.prefetch[static_cast<std::size_t>(tier)];
    ++ledger.ended[static_cast<std::size_t>(outcome)];
    ledger.ended_bytes[static_cast<std::size_t>(outcome)] += mark.bytes;
    --ledger.live;
    ledger.live_bytes -= mark.bytes;
  }

  // The equation alone; that `live` is the number of live marks is checked where the marks are (verify.cc).
  void Verify() const {
    for (const PrefetchLedger& ledger : stats_.prefetch) {
      std::uint64_t ended = 0;
      std::uint64_t ended_bytes = 0;
      for (const std::uint64_t n : ledger.ended) ended += n;
      for (const std::uint64_t n : ledger.ended_bytes) ended_bytes += n;
      FORELOAD_CHECK(ledger.issued == ended + ledger.live, "a prefetch was lost or counted twice");
      FORELOAD_CHECK(ledger.issued_bytes == ended_bytes + ledger.live_bytes,
                     "prefetched bytes were lost or counted twice");
    }
  }

 private:
  CoreStats& stats_;
};

}  // namespace foreload::core
