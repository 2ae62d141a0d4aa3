#include "prefetcher/service/http_client.h"

#include <httplib.h>

#include "prefetcher/service/config_value.h"
#include "prefetcher/service/http_server.h"

namespace foreload::service {

Result<std::string> HttpFetch(const std::string& address, const std::string& method, const std::string& path,
                              DurationNs timeout) {
  FORELOAD_ASSIGN_OR_RETURN(const auto place, SplitListen(address));
  const auto port = ParseInteger(place.second);
  if (!port || *port <= 0 || *port > 65535) return InvalidArgument(address + ": no port");
  httplib::Client client(place.first, static_cast<int>(*port));
  const auto seconds = static_cast<time_t>(timeout / kSecond);
  const auto micros = static_cast<time_t>(timeout % kSecond / kMicrosecond);
  client.set_connection_timeout(seconds, micros);
  client.set_read_timeout(seconds, micros);
  client.set_write_timeout(seconds, micros);
  const httplib::Result result = method == "POST" ? client.Post(path.c_str()) : client.Get(path.c_str());
  if (!result) return Unavailable("nothing answers on http://" + address + ": " + httplib::to_string(result.error()));
  if (result->status < 200 || result->status >= 300) {
    std::string body = result->body;
    while (!body.empty() && body.back() == '\n') body.pop_back();
    return InvalidArgument(body.empty() ? "http status " + std::to_string(result->status) : body);
  }
  return result->body;
}

}  // namespace foreload::service
