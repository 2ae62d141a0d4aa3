// Where the sidecar is that a command talks to: said by flags, else read from its configuration.
#pragma once

#include <string>

#include "base/status.h"

namespace CLI {
class App;
}

namespace foreload::cmd {

struct SidecarAddress {
  std::string config;  // --config
  std::string socket;  // --socket
  std::string http;    // --http
};

void AddAddressOptions(CLI::App& command, SidecarAddress& address);

// Fills what was not said from the configuration (its file, the environment, the defaults); a port 0 is looked up in
// state_dir/http.port. `http` stays empty when the sidecar serves none.
Status ResolveAddress(SidecarAddress& address);

}  // namespace foreload::cmd
