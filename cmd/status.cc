#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cmd/commands.h"
#include "cmd/control_client.h"
#include "cmd/sidecar_address.h"
#include "cmd/status_words.h"
#include "cmd/terminal.h"
#include "prefetcher/service/http_client.h"
#include "proto/control.pb.h"

namespace foreload::cmd {
namespace {

constexpr DurationNs kTimeout = 5 * kSecond;

struct StatusOptions {
  SidecarAddress address;
  bool json = false;
};

constexpr char kStatusFooter[] = R"(Examples:
  foreload status
  foreload status --config foreload.toml
  foreload status --http 127.0.0.1:9464 --json

Asks the control socket, else the HTTP page. Exit code 1 when no sidecar answers.)";

Result<std::string> FetchStatus(const SidecarAddress& address, bool http_wanted) {
  control::ControlMessage request;
  control::ControlMessage reply;
  request.mutable_status_request();
  if (!http_wanted) {
    const Status asked = Ask(address.socket, request, kTimeout, reply);
    if (asked.ok()) return reply.status_reply().json();
    if (address.http.empty()) return asked;
    auto page = service::HttpFetch(address.http, "GET", "/statusz", kTimeout);
    return page.ok() ? page : Result<std::string>(Unavailable(asked.message() + "; " + page.status().message()));
  }
  return service::HttpFetch(address.http, "GET", "/statusz", kTimeout);
}

int PrintStatus(StatusOptions& options) {
  const bool http_wanted = !options.address.http.empty() && options.address.socket.empty();
  if (!http_wanted) {
    if (const Status status = ResolveAddress(options.address); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      return kExitUsage;
    }
  }
  auto json = FetchStatus(options.address, http_wanted);
  if (!json.ok()) {
    std::fprintf(stderr, "foreload: %s\n", json.status().message().c_str());
    return kExitFailed;
  }
  if (options.json) {
    std::printf("%s\n", json->c_str());
    return kExitOk;
  }
  auto words = StatusWords(*json, Terminal(stdout));
  if (!words.ok()) {
    std::fprintf(stderr, "foreload: the sidecar's status cannot be read: %s\n", words.status().message().c_str());
    return kExitFailed;
  }
  std::fputs(words->c_str(), stdout);
  return kExitOk;
}

}  // namespace

void AddStatus(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* status = app.add_subcommand("status", "Say in words what the sidecar is doing");
  status->footer(kStatusFooter);
  AddAddressOptions(*status, options->address);
  status->add_flag("--json", options->json, "The document of /statusz");
  status->callback([options, &exit_code] { exit_code = PrintStatus(*options); });
}

}  // namespace foreload::cmd
