#include "prefetcher/service/exposition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <locale>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "prefetcher/service/config.h"
#include "prefetcher/service/process_metrics.h"

namespace foreload::service {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void Fill(MetricRegistry& registry) {
  registry.AddCounter("foreload_test_events_total", "Events.", {{"reason", "a \"b\" \\ c"}}).Add(1'234'567);
  registry.AddGauge("foreload_test_ratio", "A ratio.").Set(0.85);
  constexpr std::array<double, 2> kBounds = {0.5, 1.5};
  Histogram& histogram = registry.AddHistogram("foreload_test_seconds", "Times.", kBounds);
  for (const double value : {0.25, 1.0, 1.0, 9.5}) histogram.Observe(value);
}

TEST(Exposition, WritesEveryTypeWithItsLabels) {
  MetricRegistry registry;
  Fill(registry);
  const std::string page = ExposeMetrics(registry);
  EXPECT_THAT(page, HasSubstr("# TYPE foreload_test_events_total counter\n"));
  EXPECT_THAT(page, HasSubstr("foreload_test_events_total{reason=\"a \\\"b\\\" \\\\ c\"} 1234567\n"));
  EXPECT_THAT(page, HasSubstr("foreload_test_ratio 0.85\n"));
  EXPECT_THAT(page, HasSubstr("foreload_test_seconds_bucket{le=\"0.5\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("foreload_test_seconds_bucket{le=\"1.5\"} 3\n"));
  EXPECT_THAT(page, HasSubstr("foreload_test_seconds_bucket{le=\"+Inf\"} 4\n"));
  EXPECT_THAT(page, HasSubstr("foreload_test_seconds_count 4\n"));
  EXPECT_THAT(page, HasSubstr("foreload_test_seconds_sum 11.75\n"));
  EXPECT_THAT(page, HasSubstr("foreload_build_info{version=\""));
}

TEST(Exposition, EverySeriesIsThereBeforeItsFirstUse) {
  MetricRegistry registry;
  registry.AddCounter("foreload_test_drops_total", "Drops.", {{"reason", "full"}});
  EXPECT_THAT(ExposeMetrics(registry), HasSubstr("foreload_test_drops_total{reason=\"full\"} 0\n"));
}

TEST(Exposition, TheProcessIsMeasured) {
  const ProcessUsage usage = ReadProcessUsage();
  EXPECT_GT(usage.resident_bytes, 1e6);
  EXPECT_GE(usage.virtual_bytes, usage.resident_bytes);
  EXPECT_GE(usage.threads, 1);
  EXPECT_GE(usage.open_fds, 3);
  EXPECT_GT(usage.max_fds, usage.open_fds);
  EXPECT_LE(usage.start_time_seconds, static_cast<double>(WallNow()) / 1e9 + 1);
  EXPECT_GT(usage.start_time_seconds, static_cast<double>(WallNow()) / 1e9 - 86400);
}

TEST(Exposition, PromtoolHasNothingToSay) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0) GTEST_SKIP() << "promtool is not installed";
  MetricRegistry registry;
  Fill(registry);
  const std::string path = ::testing::TempDir() + "foreload_page.txt";
  std::ofstream(path, std::ios::binary) << ExposeMetrics(registry);
  EXPECT_EQ(std::system(("promtool check metrics < " + path).c_str()), 0);
  std::remove(path.c_str());
}

#ifdef __SANITIZE_ADDRESS__
using LeaksAllowed = __lsan::ScopedDisabler;
#else
struct LeaksAllowed {
  LeaksAllowed() {}
};
#endif

// A locale with a decimal comma, built into a folder of its own, set for the C and the C++ library, then put back.
class CommaLocale {
 public:
  CommaLocale() : folder_(::testing::TempDir() + "foreload_locale") {
    std::filesystem::create_directories(folder_);
    const std::string target = folder_ + "/de_DE.UTF-8";
    why_ = "localedef could not build de_DE.UTF-8";
    if (std::system(("localedef -i de_DE -f UTF-8 " + target + " >/dev/null 2>&1").c_str()) != 0) return;
    ::setenv("LOCPATH", folder_.c_str(), 1);
    const LeaksAllowed glibc_keeps_its_copy_of_locpath;
    if (std::setlocale(LC_ALL, "de_DE.UTF-8") == nullptr) return;
    std::locale::global(std::locale("de_DE.UTF-8"));
    std::array<char, 16> probe{};
    std::snprintf(probe.data(), probe.size(), "%.1f", 0.5);
    active_ = std::string(probe.data()) == "0,5";
  }
  ~CommaLocale() {
    std::locale::global(std::locale::classic());
    std::setlocale(LC_ALL, "C");
    ::unsetenv("LOCPATH");
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  bool active() const { return active_; }
  const std::string& why() const { return why_; }

 private:
  std::string folder_;
  std::string why_;
  bool active_ = false;
};

TEST(Locale, ADecimalCommaChangesNeitherThePageNorTheConfiguration) {
  MetricRegistry registry;
  Fill(registry);
  const auto stable = [](const std::string& page) { return page.substr(0, page.find("process_cpu")); };
  const std::string before = stable(ExposeMetrics(registry));
  const char* toml = "[prefetch]\nlink_utilisation_max = 0.85\n[links.dram_to_hbm]\nbandwidth = \"1.5GB/s\"\n";
  auto plain = ParseConfig(toml, "x", {});
  ASSERT_TRUE(plain.ok());
  const CommaLocale comma;
  if (!comma.active()) GTEST_SKIP() << comma.why();
  EXPECT_EQ(stable(ExposeMetrics(registry)), before);
  auto loaded = ParseConfig(toml, "x", {.flags = {{"prefetch.admission_margin", "0.25"}}});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->config.prefetch.link_utilisation_max, 0.85);
  EXPECT_EQ(loaded->config.prefetch.admission_margin, 0.25);
  EXPECT_EQ(loaded->config.links.dram_to_hbm.bytes_per_second, 1.5e9);
  EXPECT_THAT(PrintConfig(*loaded), HasSubstr("link_utilisation_max = 0.85 "));
  EXPECT_THAT(PrintConfig(*loaded), HasSubstr("bandwidth = \"1.5GB/s\" "));
  EXPECT_THAT(PrintConfig(*loaded), Not(HasSubstr("0,85")));
}

}  // namespace
}  // namespace foreload::service
