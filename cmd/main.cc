// foreload: one binary, several commands. See cmd/README.md.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>

#include "cmd/commands.h"
#include "prefetcher/service/exposition.h"
#include "prefetcher/service/log.h"

#ifdef FORELOAD_HAVE_DRIVE
#include "cmd/drive/drive.h"
#endif

namespace foreload::cmd {
namespace {

constexpr char kFooter[] = R"(Examples:
  foreload serve --config /etc/foreload/foreload.toml      run the sidecar
  foreload serve --config FILE --check-config              is this file right?
  foreload probe                                           what works on this machine?
  foreload status                                          what is the sidecar doing?
  foreload drive --help                                    play an engine against it

Exit codes: 0 done, 1 failed, 2 wrong use or wrong configuration.)";

int Run(int argc, char** argv) {
  // Commands log like the sidecar does, to stderr; `serve` sets its own level and format.
  service::StartLog(service::LogLevel::kWarn, service::LogFormat::kText);
#ifdef FORELOAD_HAVE_DRIVE
  // Drive parses its own options.
  if (argc > 1 && std::strcmp(argv[1], "drive") == 0) {
    char name[] = "foreload drive";
    argv[1] = name;
    return drive::DriveMain(argc - 1, argv + 1);
  }
#endif
  int exit_code = kExitOk;
  CLI::App app("A sidecar that loads KV-cache blocks into an engine's memory before attention asks for them.",
               "foreload");
  app.set_version_flag("--version", "foreload " + service::VersionString());
  app.require_subcommand(1);
  app.footer(kFooter);
  AddServe(app, exit_code);
  AddStatus(app, exit_code);
  AddProbe(app, exit_code);
  AddCtl(app, exit_code);
#ifdef FORELOAD_HAVE_DRIVE
  app.add_subcommand("drive", "Play an engine against a sidecar and compare demand-only with prefetch");
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version are data, and no error.
    const bool wanted = error.get_exit_code() == 0;
    app.exit(error);
    return wanted ? kExitOk : kExitUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace foreload::cmd

int main(int argc, char** argv) {
  return foreload::cmd::Run(argc, argv);
}
