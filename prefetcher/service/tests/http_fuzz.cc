// Any bytes as HTTP: no crash, and a request is never said to be longer than what is there.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "prefetcher/service/http_router.h"

namespace {

using foreload::service::Health;
using foreload::service::HttpRouter;

HttpRouter& Router() {
  static foreload::MetricRegistry metrics;
  static HttpRouter router({.metrics = [] { return std::string("x 1\n"); },
                            .status_json = [] { return std::string("{}"); },
                            .livez = [] { return Health{}; },
                            .readyz = [] { return Health{}; },
                            .reload = [] { return foreload::OkStatus(); }},
                           metrics);
  return router;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kRequestBytesMax = 16u << 10;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  for (;;) {
    const std::size_t bytes = foreload::service::HttpRequestBytes(input, kRequestBytesMax);
    if (bytes == 0 || bytes == SIZE_MAX) return 0;
    if (bytes > input.size()) std::abort();
    const auto exchange = Router().Serve(input.substr(0, bytes), "127.0.0.1");
    if (exchange.consumed > bytes) std::abort();
    if (exchange.close) return 0;
    input.remove_prefix(bytes);
  }
}
