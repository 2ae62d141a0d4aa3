// The one HTTP thread: /metrics, /livez, /readyz, /statusz, /-/reload on one port, over HTTP/1.1.
//
// One poll loop reads every connection; a request is handed to the router only when it is whole, so a slow or silent
// peer holds nothing but its buffer. Bounds (HttpLimits): connections (beyond them the one that has been silent longest
// is closed), bytes of a request, seconds for a request to arrive and for a reply to be taken, requests a connection.
// When the process has no descriptor left, connections wait in the kernel's backlog until there is one.
//
// Handlers run on this thread and should take milliseconds; they must outlive the server.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/metric.h"
#include "base/status.h"
#include "prefetcher/service/http_router.h"

namespace foreload::service {

struct HttpLimits {
  std::size_t connections_max = 128;
  std::size_t request_bytes_max = 16u << 10;       // header and body
  DurationNs request_timeout_ns = 5 * kSecond;     // from the first byte, or from the last reply, to a whole request
  DurationNs reply_timeout_ns = 10 * kSecond;      // to take the whole reply
  std::size_t requests_per_connection_max = 1000;  // keep-alive
  int backlog = 128;
};

class HttpServer {
 public:
  // Binds `listen` ("host:port", "[::1]:port"; port 0 takes a free one) and starts the thread.
  static Result<std::unique_ptr<HttpServer>> Start(const std::string& listen, HttpHandlers handlers,
                                                   MetricRegistry& metrics, const HttpLimits& limits = {});
  // Closes every connection and joins the thread.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Splits "host:port" and "[v6]:port"; InvalidArgument when it is neither.
Result<std::pair<std::string, std::string>> SplitListen(const std::string& listen);

}  // namespace foreload::service
