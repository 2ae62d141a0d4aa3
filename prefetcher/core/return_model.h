// How soon sessions come back: discrete hazards over the logarithm of idle time (prediction.md 6.4), aware of censoring
// (a session that is still idle counts as at risk in the bins that it has lived through), per class and shrunk to the
// parent class: (kind, turn, length) -> (kind, turn) -> (kind) -> all, n0 = 20.
//
// P_ret(a, W | c) = [S_c(a) - S_c(a + W)] / S_c(a).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "prefetcher/core/event.h"

namespace foreload::core {

// Half octaves from 0.1 s: the last edge is 0.1 s x 2^20, about 29 hours.
inline constexpr std::uint32_t kReturnBins = 40;

// Idle time at which bin `bin` ends; bin 0 starts at 0.
DurationNs ReturnBinEnd(std::uint32_t bin);
// The bin that contains `idle`; kReturnBins when beyond the last.
std::uint32_t ReturnBin(DurationNs idle);

// Index of a class, 0 <= index < kReturnClasses.
std::uint16_t ReturnClass(RequestKind kind, std::uint32_t turn, std::uint32_t blocks);
inline constexpr std::uint32_t kTurnBuckets = 5;    // unknown, 1, 2, 3-4, 5 and more
inline constexpr std::uint32_t kLengthBuckets = 4;  // < 16, < 64, < 256 blocks, more
inline constexpr std::uint32_t kReturnClasses = kRequestKindCount * kTurnBuckets * kLengthBuckets;

class ReturnModel {
 public:
  ReturnModel();

  // A session of the class has entered the bin: it became idle (bin 0) or outlived the bin before.
  void Entered(std::uint16_t return_class, std::uint32_t bin);
  // It came back in this bin, which it had entered.
  void Returned(std::uint16_t return_class, std::uint32_t bin);

  double ReturnProbability(std::uint16_t return_class, DurationNs idle, DurationNs within) const;

 private:
  struct Bins {
    std::array<double, kReturnBins> at_risk{};
    std::array<double, kReturnBins> returned{};
    mutable std::array<double, kReturnBins + 1> survival{};  // at each bin's start, and after the last
    mutable std::uint64_t computed_at = UINT64_MAX;          // changes_ when `survival` was computed
    mutable bool stale = true;                               // own counts have changed since
  };
  // Nodes of the four levels in one array.
  static std::array<std::uint32_t, 4> Path(std::uint16_t return_class);
  const Bins& Refreshed(std::uint16_t return_class) const;
  static double Survival(const Bins& bins, DurationNs idle);

  std::vector<Bins> nodes_;
  std::uint64_t changes_ = 0;
};

}  // namespace foreload::core
