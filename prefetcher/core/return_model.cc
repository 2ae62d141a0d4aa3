#include "prefetcher/core/return_model.h"

#include <algorithm>

#include "base/exp_log.h"

namespace foreload::core {
namespace {

constexpr double kShrink = 20.0;           // n0 of 6.4
constexpr double kPriorHazard = 0.02;      // per half octave, with nothing learned: about half return within a day
constexpr double kCountMax = 1 << 14;      // then every count is halved: the past fades
constexpr std::uint32_t kRefreshMax = 64;  // changes of other classes that may wait before survival is computed again

struct Edges {
  std::array<DurationNs, kReturnBins> end;
  Edges() {
    for (std::uint32_t i = 0; i < kReturnBins; ++i) {
      end[i] = static_cast<DurationNs>(1e8 * Exp2(static_cast<double>(i + 1) * 0.5));
    }
  }
};

const Edges& AllEdges() {
  static const Edges edges;
  return edges;
}

}  // namespace

DurationNs ReturnBinEnd(std::uint32_t bin) {
  return AllEdges().end[std::min(bin, kReturnBins - 1)];
}

std::uint32_t ReturnBin(DurationNs idle) {
  const auto& end = AllEdges().end;
  return static_cast<std::uint32_t>(std::upper_bound(end.begin(), end.end(), idle) - end.begin());
}

std::uint16_t ReturnClass(RequestKind kind, std::uint32_t turn, std::uint32_t blocks) {
  const std::uint32_t turn_bucket = turn <= 2 ? turn : turn <= 4 ? 3u : 4u;
  const std::uint32_t length_bucket = blocks < 16 ? 0u : blocks < 64 ? 1u : blocks < 256 ? 2u : 3u;
  return static_cast<std::uint16_t>((static_cast<std::uint32_t>(kind) * kTurnBuckets + turn_bucket) * kLengthBuckets +
                                    length_bucket);
}

ReturnModel::ReturnModel() : nodes_(1 + kRequestKindCount + kRequestKindCount * kTurnBuckets + kReturnClasses) {}

std::array<std::uint32_t, 4> ReturnModel::Path(std::uint16_t return_class) {
  constexpr std::uint32_t kKindBase = 1;
  constexpr std::uint32_t kTurnBase = kKindBase + kRequestKindCount;
  constexpr std::uint32_t kLeafBase = kTurnBase + kRequestKindCount * kTurnBuckets;
  const std::uint32_t turn = return_class / kLengthBuckets;
  return {0u, kKindBase + turn / kTurnBuckets, kTurnBase + turn, kLeafBase + return_class};
}

void ReturnModel::Entered(std::uint16_t return_class, std::uint32_t bin) {
  if (bin >= kReturnBins) return;
  ++changes_;
  for (const std::uint32_t node : Path(return_class)) {
    Bins& bins = nodes_[node];
    bins.at_risk[bin] += 1;
    bins.stale = true;
    if (bins.at_risk[bin] < kCountMax) continue;
    for (double& n : bins.at_risk) n *= 0.5;
    for (double& n : bins.returned) n *= 0.5;
  }
}

void ReturnModel::Returned(std::uint16_t return_class, std::uint32_t bin) {
  if (bin >= kReturnBins) return;
  ++changes_;
  for (const std::uint32_t node : Path(return_class)) {
    nodes_[node].returned[bin] += 1;
    nodes_[node].stale = true;
  }
}

const ReturnModel::Bins& ReturnModel::Refreshed(std::uint16_t return_class) const {
  const std::array<std::uint32_t, 4> path = Path(return_class);
  const Bins& leaf = nodes_[path[3]];
  if (!leaf.stale && changes_ - leaf.computed_at < kRefreshMax) return leaf;
  double survival = 1.0;
  for (std::uint32_t bin = 0; bin < kReturnBins; ++bin) {
    double hazard = kPriorHazard;
    for (const std::uint32_t node : path) {
      hazard = (nodes_[node].returned[bin] + kShrink * hazard) / (nodes_[node].at_risk[bin] + kShrink);
    }
    leaf.survival[bin] = survival;
    // Decay halves both counts at different moments; a hazard stays one.
    survival *= 1.0 - std::clamp(hazard, 0.0, 0.999999);
  }
  leaf.survival[kReturnBins] = survival;
  leaf.stale = false;
  leaf.computed_at = changes_;
  return leaf;
}

double ReturnModel::Survival(const Bins& bins, DurationNs idle) {
  const std::uint32_t bin = ReturnBin(idle);
  if (bin >= kReturnBins) return bins.survival[kReturnBins];
  const DurationNs start = bin == 0 ? 0 : ReturnBinEnd(bin - 1);
  const double part = static_cast<double>(idle - start) / static_cast<double>(ReturnBinEnd(bin) - start);
  return bins.survival[bin] + part * (bins.survival[bin + 1] - bins.survival[bin]);
}

double ReturnModel::ReturnProbability(std::uint16_t return_class, DurationNs idle, DurationNs within) const {
  idle = std::max<DurationNs>(idle, 0);
  within = std::max<DurationNs>(within, 0);
  const Bins& bins = Refreshed(return_class);
  const double now = Survival(bins, idle);
  const DurationNs end = idle > kTimeNever - within ? kTimeNever : idle + within;
  return now <= 0 ? 0.0 : (now - Survival(bins, end)) / now;
}

}  // namespace foreload::core
