// Metric cells: plain atomics that any thread may bump without a lock, and the registry that names them.
//
// A module declares its metrics once, in a struct built from a `MetricRegistry` (its probe), so every series exists at
// 0 from the start and no label is looked up afterwards. Names follow foreload_<module>_<noun>_<unit>[_total], base
// units (seconds, bytes, ratio); labels come from closed sets. Serialisation lives in prefetcher/service.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foreload {

class Counter {
 public:
  void Add(std::uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// Cumulative buckets with fixed upper bounds; one writer or many.
class Histogram {
 public:
  explicit Histogram(std::span<const double> upper_bounds);

  void Observe(double value);

  std::span<const double> upper_bounds() const { return bounds_; }
  // Observations in bucket `i`, not cumulative; i == upper_bounds().size() is the overflow bucket.
  std::uint64_t bucket(std::size_t i) const { return buckets_[i].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> buckets_;
  std::atomic<double> sum_{0};
};

// 10 us to 10 s in steps 1, 2.5, 5.
std::span<const double> DurationBucketsSeconds();

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Owns every cell of the process. Declaring is for construction time (it locks); cells live as long as the registry.
// Declaring one name with two types, or one (name, labels) twice, is a bug and stops the process.
class MetricRegistry {
 public:
  enum class Type : unsigned char { kCounter, kGauge, kHistogram };

  struct Series {
    MetricLabels labels;
    const Counter* counter = nullptr;  // exactly one of the three is set, by the family's type
    const Gauge* gauge = nullptr;
    const Histogram* histogram = nullptr;
  };
  struct Family {
    std::string name;
    std::string help;
    Type type;
    std::vector<Series> series;
  };

  Counter& AddCounter(std::string_view name, std::string_view help, MetricLabels labels = {});
  Gauge& AddGauge(std::string_view name, std::string_view help, MetricLabels labels = {});
  Histogram& AddHistogram(std::string_view name, std::string_view help, std::span<const double> upper_bounds,
                          MetricLabels labels = {});

  // A copy of the declarations in order of declaration; the cells are read by the caller. Any thread.
  std::vector<Family> Families() const;

 private:
  Family& FamilyFor(std::string_view name, std::string_view help, Type type);

  mutable std::mutex mutex_;
  std::deque<Counter> counters_;
  std::deque<Gauge> gauges_;
  std::deque<Histogram> histograms_;
  std::vector<Family> families_;
};

}  // namespace foreload
