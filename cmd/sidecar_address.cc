#include "cmd/sidecar_address.h"

#include <CLI/CLI.hpp>
#include <fstream>

#include "prefetcher/service/config.h"
#include "prefetcher/service/http_server.h"

namespace foreload::cmd {

void AddAddressOptions(CLI::App& command, SidecarAddress& address) {
  command.add_option("-c,--config", address.config, "Configuration of the sidecar; says where it listens")
      ->envname("FORELOAD_CONFIG");
  command.add_option("--socket", address.socket, "Control socket of the sidecar");
  command.add_option("--http", address.http, "host:port of its HTTP page");
}

Status ResolveAddress(SidecarAddress& address) {
  if (!address.socket.empty() && !address.http.empty()) return OkStatus();
  FORELOAD_ASSIGN_OR_RETURN(const service::ServiceConfig config, service::LoadConfig(address.config));
  if (address.socket.empty()) address.socket = config.service.control_socket;
  if (!address.http.empty() || config.service.http_listen.empty()) return OkStatus();
  FORELOAD_ASSIGN_OR_RETURN(auto place, service::SplitListen(config.service.http_listen));
  std::string& host = place.first;
  if (host == "0.0.0.0" || host == "::") host = "127.0.0.1";
  std::string bound;
  std::ifstream(config.service.state_dir + "/http.port") >> bound;
  if (place.second != "0") bound = place.second;
  if (!bound.empty()) address.http = host + ":" + bound;
  return OkStatus();
}

}  // namespace foreload::cmd
