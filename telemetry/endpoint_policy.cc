#include "telemetry/endpoint_policy.h"

#include <string>
#include <string_view>

namespace foreload::telemetry {
namespace {

constexpr std::string_view kTcp = "tcp://";

bool IsLoopback(std::string_view tcp_endpoint) {
  const std::string_view address = tcp_endpoint.substr(kTcp.size());
  return address.starts_with("127.") || address.starts_with("localhost:") || address.starts_with("[::1]:");
}

Status CheckEndpoint(const SourceConfig& source, const std::string& endpoint) {
  const auto error = [&](std::string_view message) {
    return InvalidArgument("source " + source.name + ": " + endpoint + ": " + std::string(message));
  };
  if (endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://")) return OkStatus();
  if (!endpoint.starts_with(kTcp)) return error("an endpoint starts with tcp://, ipc:// or inproc://");
  if (IsLoopback(endpoint) || !source.curve.empty() || source.insecure) return OkStatus();
  return error("TCP beyond loopback needs CURVE keys, or insecure = true on a network that you trust");
}

}  // namespace

Status CheckSource(const SourceConfig& source) {
  FORELOAD_RETURN_IF_ERROR(CheckEndpoint(source, source.endpoint));
  if (source.bind && !source.curve.empty()) {
    return InvalidArgument("source " + source.name + ": CURVE works on connecting sources only");
  }
  if (source.replay_endpoint.empty()) return OkStatus();
  if (source.kind != SourceKind::kKvEvents) {
    return InvalidArgument("source " + source.name + ": an access stream has no replay endpoint");
  }
  if (source.dialect == Dialect::kMooncake) {
    return InvalidArgument("source " + source.name + ": Mooncake's publisher has no replay socket");
  }
  return CheckEndpoint(source, source.replay_endpoint);
}

}  // namespace foreload::telemetry
