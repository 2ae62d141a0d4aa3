#include "prefetcher/core/link_model.h"

#include <algorithm>

#include "base/exp_log.h"

namespace foreload::core {
namespace {

constexpr double kLearningRate = 1.0 / 16;
constexpr DurationNs kWindowNs = 50 * kMillisecond;  // of the utilisation average (level control period, 6.6)
constexpr double kUtilisationRate = 0.2;
constexpr double kShadowStep = 0.1;                // of 1 / BW per window
constexpr double kUtilisationTarget = 0.8;         // 6.5
constexpr std::uint64_t kBusyBytesMin = 1u << 20;  // a busy window smaller than this says nothing about bandwidth
constexpr double kNsPerSecond = 1e9;
constexpr double kBytesPerSecondMin = 1.0;
constexpr double kBytesPerSecondMax = 1e15;
constexpr double kFinishNsMax = 4e18;  // keeps sums of time within 64 bits

double Average(double old, double sample, double rate) {
  return old + rate * (sample - old);
}

}  // namespace

void LinkModel::Configure(const LinkConfig& config) {
  bytes_per_second_ = config.bytes_per_second;
  latency_ns_ = static_cast<double>(config.latency_ns);
  inflight_bytes_max_ = config.inflight_bytes_max;
}

bool LinkModel::Issued(TimeNs now, std::uint64_t bytes, bool speculative) {
  const bool idle = outstanding_++ == 0;
  if (idle) {
    busy_since_ = now;
    busy_bytes_ = 0;
  }
  outstanding_bytes_ += bytes;
  if (speculative) speculative_bytes_ += bytes;
  return idle;
}

void LinkModel::Ended(TimeNs now, std::uint64_t bytes, bool speculative) {
  outstanding_bytes_ -= bytes;
  if (speculative) speculative_bytes_ -= bytes;
  if (--outstanding_ == 0) CloseBusyWindow(now);
}

void LinkModel::Promoted(std::uint64_t bytes) {
  speculative_bytes_ -= bytes;
}

void LinkModel::CloseBusyWindow(TimeNs now) {
  window_busy_ns_ += now - std::max(busy_since_, window_start_);
  const double seconds = static_cast<double>(now - busy_since_) / kNsPerSecond;
  if (busy_bytes_ >= kBusyBytesMin && seconds > 0) {
    const double rate = static_cast<double>(busy_bytes_) / seconds;
    busy_rate_ = busy_rate_ == 0 ? rate : Average(busy_rate_, rate, kLearningRate);
  }
  busy_bytes_ = 0;
  busy_since_ = now;
}

void LinkModel::Learn(TimeNs now, const Sample& sample) {
  if (sample.bytes == 0 || sample.service_ns <= 0) return;
  const auto bytes = static_cast<double>(sample.bytes);
  const auto service_ns = static_cast<double>(sample.service_ns);
  busy_bytes_ += sample.bytes;
  const double rate = bytes * kNsPerSecond / service_ns;
  per_transfer_rate_ = per_transfer_rate_ == 0 ? rate : Average(per_transfer_rate_, rate, kLearningRate);
  // A window that never closes under constant load would never teach: cut it.
  if (busy_bytes_ >= 64 * kBusyBytesMin && outstanding_ > 1) CloseBusyWindow(now);
  bytes_per_second_ = std::clamp(std::max(per_transfer_rate_, busy_rate_), kBytesPerSecondMin, kBytesPerSecondMax);
  if (sample.alone && outstanding_ == 1) {  // still only this one: it had the link for itself
    const double beyond = service_ns - bytes / bytes_per_second_ * kNsPerSecond;
    latency_ns_ = Average(latency_ns_, std::max(0.0, beyond), kLearningRate);
  }
  const TimeNs predicted = sample.predicted;
  const double error = static_cast<double>(now > predicted ? now - predicted : predicted - now);
  error_ns_ = Average(error_ns_, error, kLearningRate);
}

void LinkModel::Tick(TimeNs now) {
  if (now - window_start_ < kWindowNs) return;
  DurationNs busy = window_busy_ns_;
  if (outstanding_ > 0) busy += now - std::max(busy_since_, window_start_);
  const double used = static_cast<double>(busy) / static_cast<double>(now - window_start_);
  utilisation_ = std::clamp(Average(utilisation_, used, kUtilisationRate), 0.0, 1.0);
  shadow_price_ = std::max(0.0, shadow_price_ + kShadowStep * (utilisation_ - kUtilisationTarget) / bytes_per_second_);
  window_start_ = now;
  window_busy_ns_ = 0;
}

TimeNs LinkModel::Finish(TimeNs now, std::uint64_t bytes) const {
  const double queue = static_cast<double>(outstanding_bytes_) + static_cast<double>(bytes);
  const double ns = latency_ns_ + queue / bytes_per_second_ * kNsPerSecond;
  return ns > kFinishNsMax ? kTimeNever : now + static_cast<DurationNs>(ns);
}

double LinkModel::Seconds(std::uint64_t bytes) const {
  return latency_ns_ / kNsPerSecond + static_cast<double>(bytes) / bytes_per_second_;
}

double LinkModel::OnTime(TimeNs finish, TimeNs deadline) const {
  if (deadline == kTimeNever) return 1.0;
  if (finish == kTimeNever) return 0.0;
  const double x = (static_cast<double>(deadline) - static_cast<double>(finish)) / std::max(error_ns_, 1e3);
  return 1.0 / (1.0 + Exp(-1.702 * std::clamp(x, -40.0, 40.0)));  // |error| < 0.01
}

bool LinkModel::Feasible(TimeNs now, std::uint64_t bytes, TimeNs deadline, double utilisation_max) const {
  if (deadline == kTimeNever) return true;
  if (deadline <= now) return false;
  const double due = static_cast<double>(outstanding_bytes_) + static_cast<double>(bytes);
  return due <= utilisation_max * bytes_per_second_ * (static_cast<double>(deadline - now) / kNsPerSecond);
}

double LinkModel::WastePrice() const {
  const double u = std::min(utilisation_, 0.99);
  return u / (1.0 - u) / bytes_per_second_;
}

}  // namespace foreload::core
