#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cmd/commands.h"
#include "cmd/serve_loop.h"
#include "prefetcher/service/config.h"

namespace foreload::cmd {
namespace {

struct ServeOptions {
  std::string config;
  std::vector<std::string> settings;
  bool check = false;
  bool print = false;
  bool reference = false;
};

constexpr char kServeFooter[] = R"(Examples:
  foreload serve --config foreload.toml
  foreload serve --config foreload.toml --set mode=on --set dram.capacity=64GiB
  FORELOAD_SERVICE_LOG_LEVEL=debug foreload serve --config foreload.toml
  foreload serve --config foreload.toml --print-config

Signals: SIGTERM and SIGINT drain (a second one ends at once), SIGHUP reads the configuration again.)";

int Serve(const ServeOptions& options) {
  if (options.reference) {
    std::fputs(service::ConfigReference().c_str(), stdout);
    return kExitOk;
  }
  service::ConfigSources sources{.path = options.config, .environment = service::ConfigEnvironment(), .flags = {}};
  for (const std::string& setting : options.settings) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      std::fprintf(stderr, "foreload: --set %s: expects key=value, such as --set dram.capacity=64GiB\n",
                   setting.c_str());
      return kExitUsage;
    }
    sources.flags.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
  auto loaded = service::LoadConfigWithOrigins(sources);
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\nforeload: the configuration is wrong; nothing was started\n",
                 loaded.status().message().c_str());
    return kExitUsage;
  }
  if (options.print) std::fputs(service::PrintConfig(*loaded).c_str(), stdout);
  if (options.check) {
    std::fprintf(stderr, "foreload: %s is right\n",
                 options.config.empty() ? "the configuration" : options.config.c_str());
  }
  if (options.print || options.check) return kExitOk;
  return ServeLoop(sources, std::move(loaded->config));
}

}  // namespace

void AddServe(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* serve = app.add_subcommand("serve", "Run the sidecar");
  serve->footer(kServeFooter);
  serve->add_option("-c,--config", options->config, "TOML file; without it, defaults, environment and --set alone")
      ->envname("FORELOAD_CONFIG");
  serve->add_option("--set", options->settings, "key=value, goes before file and environment; may be repeated")
      ->expected(1)
      ->take_all();
  serve->add_flag("--check-config", options->check, "Say what is wrong with the configuration and end");
  serve->add_flag("--print-config", options->print, "Print every value with its source and end");
  serve->add_flag("--print-reference", options->reference, "Print the page of all keys (Markdown) and end");
  serve->callback([options, &exit_code] { exit_code = Serve(*options); });
}

}  // namespace foreload::cmd
