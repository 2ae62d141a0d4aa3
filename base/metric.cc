#include "base/metric.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/check.h"

namespace foreload {

Histogram::Histogram(std::span<const double> upper_bounds)
    : bounds_(upper_bounds.begin(), upper_bounds.end()),
      buckets_(std::make_unique<std::atomic<std::uint64_t>[]>(upper_bounds.size() + 1)) {
  FORELOAD_CHECK(std::adjacent_find(bounds_.begin(), bounds_.end(), std::greater_equal<>()) == bounds_.end(),
                 "histogram bounds must ascend");
}

void Histogram::Observe(double value) {
  if (value != value) return;  // a NaN would stay in the sum for ever
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  buckets_[static_cast<std::size_t>(at)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::span<const double> DurationBucketsSeconds() {
  static constexpr std::array<double, 19> kBounds = {1e-5,   2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2,
                                                     2.5e-2, 5e-2,   0.1,  0.25, 0.5,    1,    2.5,  5,      10};
  return kBounds;
}

MetricRegistry::Family& MetricRegistry::FamilyFor(std::string_view name, std::string_view help, Type type) {
  for (Family& family : families_) {
    if (family.name != name) continue;
    FORELOAD_CHECK(family.type == type, "one metric name, two types");
    return family;
  }
  families_.push_back({std::string(name), std::string(help), type, {}});
  return families_.back();
}

namespace {

void CheckNew(const MetricRegistry::Family& family, const MetricLabels& labels) {
  for (const MetricRegistry::Series& series : family.series) {
    FORELOAD_CHECK(series.labels != labels, family.name.c_str());
  }
}

}  // namespace

Counter& MetricRegistry::AddCounter(std::string_view name, std::string_view help, MetricLabels labels) {
  const std::lock_guard lock(mutex_);
  Family& family = FamilyFor(name, help, Type::kCounter);
  CheckNew(family, labels);
  Counter& cell = counters_.emplace_back();
  family.series.push_back({.labels = std::move(labels), .counter = &cell});
  return cell;
}

Gauge& MetricRegistry::AddGauge(std::string_view name, std::string_view help, MetricLabels labels) {
  const std::lock_guard lock(mutex_);
  Family& family = FamilyFor(name, help, Type::kGauge);
  CheckNew(family, labels);
  Gauge& cell = gauges_.emplace_back();
  family.series.push_back({.labels = std::move(labels), .gauge = &cell});
  return cell;
}

Histogram& MetricRegistry::AddHistogram(std::string_view name, std::string_view help,
                                        std::span<const double> upper_bounds, MetricLabels labels) {
  const std::lock_guard lock(mutex_);
  Family& family = FamilyFor(name, help, Type::kHistogram);
  CheckNew(family, labels);
  Histogram& cell = histograms_.emplace_back(upper_bounds);
  family.series.push_back({.labels = std::move(labels), .histogram = &cell});
  return cell;
}

std::vector<MetricRegistry::Family> MetricRegistry::Families() const {
  const std::lock_guard lock(mutex_);
  return families_;
}

}  // namespace foreload
