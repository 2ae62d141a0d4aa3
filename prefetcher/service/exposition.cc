#include "prefetcher/service/exposition.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>

#include "prefetcher/service/process_metrics.h"

#ifndef FORELOAD_VERSION
#define FORELOAD_VERSION "0.0.0"
#endif

namespace foreload::service {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricType TypeOf(MetricRegistry::Type type) {
  switch (type) {
    case MetricRegistry::Type::kCounter: return MetricType::Counter;
    case MetricRegistry::Type::kGauge: return MetricType::Gauge;
    case MetricRegistry::Type::kHistogram: return MetricType::Histogram;
  }
  return MetricType::Untyped;
}

// The count is the sum of the buckets that were read, so that the page agrees with itself while others observe.
ClientMetric::Histogram ToHistogram(const Histogram& cell) {
  ClientMetric::Histogram histogram;
  std::uint64_t cumulative = 0;
  for (std::size_t i = 0; i <= cell.upper_bounds().size(); ++i) {
    cumulative += cell.bucket(i);
    const bool last = i == cell.upper_bounds().size();
    const double bound = last ? std::numeric_limits<double>::infinity() : cell.upper_bounds()[i];
    histogram.bucket.push_back({cumulative, bound});
  }
  histogram.sample_count = cumulative;
  histogram.sample_sum = cell.sum();
  return histogram;
}

ClientMetric ToMetric(const MetricRegistry::Series& series) {
  ClientMetric metric;
  for (const auto& [name, value] : series.labels) metric.label.push_back({name, value});
  if (series.counter != nullptr) metric.counter.value = static_cast<double>(series.counter->value());
  if (series.gauge != nullptr) metric.gauge.value = series.gauge->value();
  if (series.histogram != nullptr) metric.histogram = ToHistogram(*series.histogram);
  return metric;
}

MetricFamily OneValue(const char* name, const char* help, MetricType type, double value) {
  MetricFamily family{name, help, type, {}};
  ClientMetric metric;
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  family.metric.push_back(std::move(metric));
  return family;
}

MetricFamily BuildInfo() {
  MetricFamily family = OneValue("foreload_build_info", "The running build; always 1.", MetricType::Gauge, 1);
  family.metric.front().label = {{"version", FORELOAD_VERSION}, {"compiler", __VERSION__}};
  return family;
}

void AppendProcess(std::vector<MetricFamily>& families) {
  const ProcessUsage usage = ReadProcessUsage();
  constexpr auto kGauge = MetricType::Gauge;
  families.push_back(
      OneValue("process_cpu_seconds_total", "User and system CPU time.", MetricType::Counter, usage.cpu_seconds));
  families.push_back(OneValue("process_resident_memory_bytes", "Resident memory.", kGauge, usage.resident_bytes));
  families.push_back(OneValue("process_virtual_memory_bytes", "Virtual memory.", kGauge, usage.virtual_bytes));
  families.push_back(OneValue("process_open_fds", "Open file descriptors.", kGauge, usage.open_fds));
  families.push_back(OneValue("process_max_fds", "Limit of open file descriptors.", kGauge, usage.max_fds));
  families.push_back(OneValue("process_threads", "Threads.", kGauge, usage.threads));
  families.push_back(
      OneValue("process_start_time_seconds", "Start of the process as Unix time.", kGauge, usage.start_time_seconds));
}

}  // namespace

std::string VersionString() {
  return FORELOAD_VERSION;
}

std::string ExposeMetrics(const MetricRegistry& registry) {
  std::vector<MetricFamily> families;
  for (const MetricRegistry::Family& own : registry.Families()) {
    MetricFamily family{own.name, own.help, TypeOf(own.type), {}};
    for (const MetricRegistry::Series& series : own.series) family.metric.push_back(ToMetric(series));
    families.push_back(std::move(family));
  }
  families.push_back(BuildInfo());
  AppendProcess(families);
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace foreload::service
