#include "cmd/drive/drive.h"

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "cmd/drive/report.h"
#include "cmd/drive/runner.h"
#include "cmd/drive/scenario.h"

namespace foreload::drive {
namespace {

std::atomic<bool> g_interrupted{false};  // set by the signal handler alone
static_assert(std::atomic<bool>::is_always_lock_free);

void OnSignal(int) {
  g_interrupted.store(true);
}

std::string OwnExecutable() {
  std::array<char, PATH_MAX> path{};
  const ssize_t n = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return n > 0 ? std::string(path.data(), static_cast<std::size_t>(n)) : "";
}

bool ParsePhases(const std::string& list, std::vector<Phase>& phases) {
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string one = list.substr(begin, end - begin);
    if (one == "demand")
      phases.push_back(Phase::kDemand);
    else if (one == "prefetch")
      phases.push_back(Phase::kPrefetch);
    else if (one == "observe")
      phases.push_back(Phase::kObserve);
    else
      return false;
    begin = end + 1;
  }
  return !phases.empty();
}

void PrintLeftRunning(const LeftRunning& left) {
  if (left.pid <= 0) return;
  std::printf("\nThe last sidecar is still serving.\n");
  if (!left.http_address.empty()) {
    std::printf("  metrics   http://%s/metrics\n  status    http://%s/statusz\n", left.http_address.c_str(),
                left.http_address.c_str());
  }
  std::printf("  stop it   kill %d && rm -r %s\n", left.pid, left.folder.c_str());
}

}  // namespace

int DriveMain(int argc, char** argv) {
  CLI::App app{
      "Plays an engine against a sidecar: same requests with demand-only loading and with prefetching, every byte "
      "verified.",
      "foreload drive"};
  RunOptions options;
  std::string scenario_name = "quickstart";
  std::string scenario_file = "bench/drive.toml";
  std::string phases = "demand,prefetch";
  bool json = false;
  std::string json_file;
  app.add_option("--scenario", scenario_name, "Scenario of the file")->capture_default_str();
  app.add_option("--scenarios", scenario_file, "File of scenarios")->capture_default_str();
  app.add_option("--trace", options.trace, "Another trace than the scenario's (Mooncake or Weka; may be .gz, .zst)");
  app.add_flag("--strict", options.strict, "A wrong line of the trace is an error");
  app.add_option("--phases", phases, "Any of demand, prefetch, observe, in order")->capture_default_str();
  app.add_option("--repeat", options.repeat, "Runs of each phase, interleaved")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  app.add_flag("--json", json, "Print the report as JSON");
  app.add_option("--json-file", json_file, "Also write the report as JSON here");
  app.add_option("--serve", options.serve, "Executable whose `serve` is the sidecar (default: this one)");
  app.add_option("--work-dir", options.work_folder, "Where each sidecar's folder and SSD tier go (default: TMPDIR)");
  app.add_flag("--keep-serving", options.keep_serving, "Leave the last sidecar running");
  auto* connect = app.add_option("--connect", options.connect, "Control socket of a sidecar that runs already");
  app.add_option("--engine", options.engine, "With --connect: this engine's name in its configuration")->needs(connect);
  app.add_option("--kv-endpoint", options.kv_endpoint, "With --connect: where KV events are published")->needs(connect);
  app.add_option("--kv-replay-endpoint", options.kv_replay_endpoint, "With --connect: their replay socket")
      ->needs(connect);
  app.add_option("--access-endpoint", options.access_endpoint, "With --connect: the access stream")->needs(connect);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!ParsePhases(phases, options.phases)) {
    std::fprintf(stderr, "--phases %s: a list of demand, prefetch and observe is expected\n", phases.c_str());
    return 2;
  }
  auto scenario = LoadScenario(scenario_file, scenario_name);
  if (!scenario.ok()) {
    std::fprintf(stderr, "%s\n", scenario.status().message().c_str());
    return 2;
  }
  options.scenario = *scenario;
  if (options.serve.empty()) options.serve = OwnExecutable();
  std::error_code error;
  if (options.work_folder.empty()) options.work_folder = std::filesystem::temp_directory_path(error).string();
  options.work_folder = std::filesystem::absolute(options.work_folder, error).string();
  if (!options.connect.empty()) {
    const std::string folder = std::filesystem::absolute(options.connect, error).parent_path().string();
    if (options.kv_endpoint.empty()) options.kv_endpoint = "ipc://" + folder + "/engine.kv";
    if (options.kv_replay_endpoint.empty()) options.kv_replay_endpoint = "ipc://" + folder + "/engine.replay";
    if (options.access_endpoint.empty()) options.access_endpoint = "ipc://" + folder + "/engine.access";
  }

  g_interrupted.store(false);
  struct sigaction action {};
  action.sa_handler = OnSignal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  options.interrupted = &g_interrupted;

  Report report;
  LeftRunning left;
  const Status status = RunPhases(options, report, left);
  if (!report.runs.empty()) {
    const std::string as_json = ReportJson(report);
    std::fputs((json ? as_json : ReportText(report)).c_str(), stdout);
    if (!json_file.empty()) {
      std::FILE* file = std::fopen(json_file.c_str(), "we");
      const bool written = file != nullptr && std::fputs(as_json.c_str(), file) >= 0;
      const bool closed = file != nullptr && std::fclose(file) == 0;
      if (!written || !closed) {
        std::fprintf(stderr, "cannot write %s\n", json_file.c_str());
        return 1;
      }
    }
  }
  if (!json) PrintLeftRunning(left);
  std::fflush(stdout);
  if (!status.ok()) {
    std::fprintf(stderr, "drive: %s\n", status.ToString().c_str());
    return 1;
  }
  return Mismatches(report) == 0 ? 0 : 1;
}

}  // namespace foreload::drive
