#include "base/metric.h"

#include <array>
#include <limits>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace foreload {
namespace {

constexpr std::array<double, 3> kBounds = {1, 2, 5};

TEST(Histogram, AValueOnABoundBelongsToThatBucket) {
  Histogram histogram(kBounds);
  for (const double value : {0.0, 1.0, 1.5, 2.0, 5.0, 5.1, 1e9}) histogram.Observe(value);
  EXPECT_EQ(histogram.bucket(0), 2u);
  EXPECT_EQ(histogram.bucket(1), 2u);
  EXPECT_EQ(histogram.bucket(2), 1u);
  EXPECT_EQ(histogram.bucket(3), 2u);
  EXPECT_DOUBLE_EQ(histogram.sum(), 0.0 + 1.0 + 1.5 + 2.0 + 5.0 + 5.1 + 1e9);
}

TEST(Histogram, ANumberThatIsNoneLeavesTheSumAlone) {
  Histogram histogram(kBounds);
  histogram.Observe(1.5);
  histogram.Observe(std::numeric_limits<double>::quiet_NaN());
  EXPECT_DOUBLE_EQ(histogram.sum(), 1.5);
  EXPECT_EQ(histogram.bucket(0), 0u);
  EXPECT_EQ(histogram.bucket(1), 1u);
}

TEST(DurationBuckets, AscendFromTenMicrosecondsToTenSeconds) {
  const auto bounds = DurationBucketsSeconds();
  EXPECT_DOUBLE_EQ(bounds.front(), 1e-5);
  EXPECT_DOUBLE_EQ(bounds.back(), 10);
  for (std::size_t i = 1; i < bounds.size(); ++i) EXPECT_LT(bounds[i - 1], bounds[i]);
}

TEST(MetricRegistry, EverySeriesExistsAtZeroInOrderOfDeclaration) {
  MetricRegistry registry;
  registry.AddCounter("foreload_test_drops_total", "Drops.", {{"reason", "full"}});
  registry.AddGauge("foreload_test_depth_items", "Depth.");
  registry.AddCounter("foreload_test_drops_total", "Drops.", {{"reason", "late"}});
  registry.AddHistogram("foreload_test_wait_seconds", "Wait.", kBounds);

  const auto families = registry.Families();
  ASSERT_EQ(families.size(), 3u);
  EXPECT_EQ(families[0].name, "foreload_test_drops_total");
  ASSERT_EQ(families[0].series.size(), 2u);
  EXPECT_EQ(families[0].series[1].labels, (MetricLabels{{"reason", "late"}}));
  EXPECT_EQ(families[0].series[1].counter->value(), 0u);
  EXPECT_EQ(families[1].series[0].gauge->value(), 0.0);
  EXPECT_EQ(families[2].series[0].histogram->bucket(3), 0u);
}

TEST(MetricRegistry, CellsStayWhereTheyAreWhenMoreAreDeclared) {
  MetricRegistry registry;
  Counter& first = registry.AddCounter("foreload_test_first_total", "First.");
  for (int i = 0; i < 1000; ++i) {
    registry.AddCounter("foreload_test_other_total", "Other.", {{"i", std::to_string(i)}});
  }
  first.Add(3);
  EXPECT_EQ(registry.Families()[0].series[0].counter->value(), 3u);
}

TEST(MetricRegistry, ConcurrentAddsAreAllCounted) {
  MetricRegistry registry;
  Counter& counter = registry.AddCounter("foreload_test_events_total", "Events.");
  Histogram& histogram = registry.AddHistogram("foreload_test_wait_seconds", "Wait.", kBounds);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 10'000; ++n) {
        counter.Add();
        histogram.Observe(1.0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), 40'000u);
  EXPECT_EQ(histogram.bucket(0), 40'000u);
  EXPECT_DOUBLE_EQ(histogram.sum(), 40'000.0);
}

TEST(MetricRegistryDeathTest, OneSeriesDeclaredTwiceStopsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  MetricRegistry registry;
  registry.AddCounter("foreload_test_events_total", "Events.", {{"kind", "a"}});
  EXPECT_DEATH(registry.AddCounter("foreload_test_events_total", "Events.", {{"kind", "a"}}),
               "foreload_test_events_total");
}

TEST(MetricRegistryDeathTest, OneNameOfTwoTypesStopsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  MetricRegistry registry;
  registry.AddCounter("foreload_test_events_total", "Events.");
  EXPECT_DEATH(registry.AddGauge("foreload_test_events_total", "Events."), "two types");
}

TEST(HistogramDeathTest, BoundsThatDoNotAscendStopTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Histogram(std::array<double, 2>{2, 1}), "ascend");
}

}  // namespace
}  // namespace foreload
