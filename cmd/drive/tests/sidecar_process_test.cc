#include "cmd/drive/sidecar_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "prefetcher/service/config.h"
#include "replay/tests/temp_dir.h"

namespace foreload::drive {
namespace {

using testing::HasSubstr;

Scenario Load(const char* name) {
  auto scenario = LoadScenario(FORELOAD_SOURCE_DIR "/bench/drive.toml", name);
  EXPECT_TRUE(scenario.ok()) << scenario.status().message();
  return *scenario;
}

TEST(SidecarConfig, IsAcceptedByTheSidecarsOwnLoaderWithTheScenariosValues) {
  for (const char* name : {"quickstart", "smoke", "mooncake", "weka"}) {
    const Scenario scenario = Load(name);
    for (const bool observe : {false, true}) {
      auto loaded = service::ParseConfig(SidecarConfig(scenario, "/tmp/x", observe), "generated", {});
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      const service::ServiceConfig& config = loaded->config;
      EXPECT_EQ(config.mode, observe ? service::Mode::kObserve : service::Mode::kOn);
      EXPECT_EQ(config.dram.capacity_bytes, scenario.dram_bytes);
      EXPECT_EQ(config.ssd.capacity_bytes, scenario.ssd_bytes);
      EXPECT_DOUBLE_EQ(config.links.dram_to_hbm.throttle_bytes_per_second, scenario.dram_to_hbm_bytes_per_second);
      EXPECT_DOUBLE_EQ(config.links.ssd_to_dram.throttle_bytes_per_second, scenario.ssd_bytes_per_second);
      EXPECT_EQ(config.prefetch.hold_out, 0);
      ASSERT_EQ(config.engines.size(), 1u);
      EXPECT_EQ(config.engines[0].name, "drive");
    }
  }
}

// A program that plays the sidecar badly.
std::string Script(const replay::TempDir& dir, const std::string& body) {
  const std::string path = dir.Write("fake", "#!/bin/sh\n" + body);
  EXPECT_EQ(chmod(path.c_str(), 0700), 0);
  return path;
}

TEST(SidecarProcess, SaysHowASidecarEndedAndWhatItWrote) {
  const replay::TempDir dir;
  auto process = SidecarProcess::Start(
      Load("smoke"),
      {.executable = Script(dir, "echo 'no such directory: /dev/null/x' >&2\nexit 3\n"), .parent_folder = dir.path()});
  ASSERT_TRUE(process.ok()) << process.status().ToString();
  const TimeNs until = MonotonicNow() + 20 * kSecond;
  Status status = OkStatus();
  while ((status = (*process)->Alive()).ok() && MonotonicNow() < until) {
  }
  EXPECT_THAT(status.message(), HasSubstr("ended with status 3"));
  EXPECT_THAT(status.message(), HasSubstr("no such directory: /dev/null/x"));
}

TEST(SidecarProcess, StopsItAndRemovesItsFolder) {
  const replay::TempDir dir;
  std::string folder;
  {
    auto process = SidecarProcess::Start(
        Load("smoke"), {.executable = Script(dir, "exec tail -f /dev/null\n"), .parent_folder = dir.path()});
    ASSERT_TRUE(process.ok());
    folder = (*process)->folder();
    struct stat info {};
    ASSERT_EQ(stat(folder.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u) << "sockets in it are nobody else's";
    EXPECT_TRUE(std::filesystem::exists(folder + "/foreload.toml"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(SidecarProcess, ReportsAnExecutableThatIsNotThere) {
  const replay::TempDir dir;
  auto process =
      SidecarProcess::Start(Load("smoke"), {.executable = "/nonexistent/foreload", .parent_folder = dir.path()});
  ASSERT_TRUE(process.ok());
  const TimeNs until = MonotonicNow() + 20 * kSecond;
  Status status = OkStatus();
  while ((status = (*process)->Alive()).ok() && MonotonicNow() < until) {
  }
  EXPECT_THAT(status.message(), HasSubstr("ended with status 127"));
}

}  // namespace
}  // namespace foreload::drive
