// From the bytes of one HTTP request to the bytes of its reply: routes and parsing, no sockets.
//
//   GET  /metrics            the Prometheus page
//   GET  /livez, /readyz     200 or 503; ?verbose lists the checks
//   GET  /statusz            one JSON document
//   POST /-/reload           from loopback alone; 200, or 400 with what is wrong
//
// Thread: one at a time. Handlers are called on the caller's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/metric.h"
#include "base/status.h"
#include "prefetcher/service/health.h"

namespace foreload::service {

struct HttpHandlers {
  std::function<std::string()> metrics;
  std::function<std::string()> status_json;
  std::function<Health()> livez;
  std::function<Health()> readyz;
  std::function<Status()> reload;
};

struct HttpExchange {
  std::string reply;
  std::size_t consumed = 0;  // bytes of the input that belong to this request
  bool close = false;        // no further request may follow on this connection
};

class HttpRouter {
 public:
  HttpRouter(HttpHandlers handlers, MetricRegistry& metrics);
  ~HttpRouter();
  HttpRouter(const HttpRouter&) = delete;
  HttpRouter& operator=(const HttpRouter&) = delete;

  // `input` begins with a whole request, headers and body; what follows is left. `peer` is its numeric address.
  HttpExchange Serve(std::string_view input, const std::string& peer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Bytes of the first request in `input` once it is whole, 0 before that. SIZE_MAX when it can never be: its header or
// body is larger than `bytes_max`, or its length is no number.
std::size_t HttpRequestBytes(std::string_view input, std::size_t bytes_max);

}  // namespace foreload::service
