#include "cmd/drive/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

namespace foreload::drive {
namespace {

using testing::HasSubstr;

std::string File() {
  std::ifstream stream(FORELOAD_SOURCE_DIR "/bench/drive.toml");
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Scenario, LoadsEachScenarioOfTheFile) {
  for (const char* name : {"quickstart", "smoke", "mooncake", "weka"}) {
    const auto scenario = LoadScenario(FORELOAD_SOURCE_DIR "/bench/drive.toml", name);
    ASSERT_TRUE(scenario.ok()) << scenario.status().message();
  }
}

TEST(Scenario, OffersTheGeneratorsScenariosALoadOfAtMostSeventyPercent) {
  for (const char* name : {"quickstart", "smoke"}) {
    auto scenario = LoadScenario(FORELOAD_SOURCE_DIR "/bench/drive.toml", name);
    ASSERT_TRUE(scenario.ok());
    auto source = OpenWorkload(*scenario, "", true);
    ASSERT_TRUE(source.ok());
    auto profile = replay::ProfileWorkload(**source, scenario->rates());
    ASSERT_TRUE(profile.ok());
    EXPECT_LE(profile->offered_load(), 0.7) << name;
    EXPECT_LT(profile->largest_blocks, scenario->engine.cache_blocks) << name;
  }
}

TEST(Scenario, NamesTheNearestKeyAndTheLineOfAnUnknownOne) {
  const auto scenario = ParseScenario(Replaced(File(), "arena_slots", "arena_slot"), "drive.toml", "quickstart");
  ASSERT_FALSE(scenario.ok());
  EXPECT_THAT(scenario.status().message(),
              HasSubstr("unknown key `engine.arena_slot`; did you mean `engine.arena_slots`?"));
  EXPECT_THAT(scenario.status().message(), HasSubstr("`engine.arena_slots` is missing"));
  EXPECT_THAT(scenario.status().message(), testing::ContainsRegex("drive.toml:[0-9]+: unknown"));
}

TEST(Scenario, SaysWhatAValueMustBe) {
  const auto wrong = ParseScenario(Replaced(File(), "layer_groups = ", "layer_groups = -"), "f", "quickstart");
  EXPECT_THAT(wrong.status().message(), HasSubstr("`engine.layer_groups` must be a whole number >= 0"));
  EXPECT_THAT(ParseScenario("x = [", "f", "quickstart").status().message(), HasSubstr("f:1: "));
}

TEST(Scenario, ListsTheScenariosThatThereAre) {
  const auto absent = ParseScenario(File(), "f", "nonsense");
  EXPECT_EQ(absent.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(absent.status().message(), HasSubstr("quickstart"));
}

TEST(Scenario, RefusesATraceKeyForAGenerator) {
  const auto scenario =
      ParseScenario(Replaced(File(), "[quickstart.engine]", "sessions = 3\n[quickstart.engine]"), "f", "quickstart");
  EXPECT_THAT(scenario.status().message(), HasSubstr("`workload.sessions` has no meaning for a generator"));
}

TEST(Scenario, DescribesEveryValueForTheReport) {
  auto scenario = ParseScenario(File(), "f", "quickstart");
  ASSERT_TRUE(scenario.ok());
  bool found = false;
  for (const auto& [key, value] : DescribeScenario(*scenario)) {
    EXPECT_FALSE(value.empty()) << key;
    found = found || key == "sidecar.ssd_rate";
    EXPECT_NE(key, "workload.trace");
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace foreload::drive
