#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cmd/commands.h"
#include "cmd/terminal.h"
#include "prefetcher/service/json_writer.h"
#include "transport/probe.h"

namespace foreload::cmd {
namespace {

struct ProbeOptions {
  std::string directory;
  bool json = false;
};

constexpr char kProbeFooter[] = R"(Examples:
  foreload probe
  foreload probe --directory /var/lib/foreload/ssd
  foreload probe --json

Exit code 0 whatever works: what is missing has a fallback, and the text says which.)";

void PrintJson(const std::vector<ProbeLine>& lines) {
  service::JsonWriter json;
  json.BeginArray();
  for (const ProbeLine& line : lines) {
    json.BeginObject().Field("name", line.name).Field("works", line.works).Field("why", line.why).EndObject();
  }
  json.EndArray();
  std::printf("%s\n", json.Take().c_str());
}

void PrintTable(const std::vector<ProbeLine>& lines) {
  std::size_t width = 0;
  for (const ProbeLine& line : lines) width = std::max(width, line.name.size());
  const Terminal terminal(stdout);
  for (const ProbeLine& line : lines) {
    const std::string mark = line.works ? terminal.Green("yes") : terminal.Yellow("no ");
    std::printf("%-*s  %s  %s\n", static_cast<int>(width), line.name.c_str(), mark.c_str(), line.why.c_str());
  }
}

}  // namespace

void AddProbe(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ProbeOptions>();
  CLI::App* probe = app.add_subcommand("probe", "Say which backends work on this machine, and why the others do not");
  probe->footer(kProbeFooter);
  probe->add_option("-d,--directory", options->directory, "Folder of the SSD tier, to try direct I/O there")
      ->check(CLI::ExistingDirectory);
  probe->add_flag("--json", options->json, "One JSON array");
  probe->callback([options, &exit_code] {
    const std::vector<ProbeLine> lines = ProbeBackends(options->directory);
    options->json ? PrintJson(lines) : PrintTable(lines);
    exit_code = kExitOk;
  });
}

}  // namespace foreload::cmd
