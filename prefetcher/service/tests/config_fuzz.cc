// Any bytes as a configuration file: an answer, never a crash; what is accepted prints as a file that reads the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "prefetcher/service/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using foreload::service::ParseConfig;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto loaded = ParseConfig(text, "fuzz.toml", {});
  if (!loaded.ok()) {
    if (loaded.status().message().empty()) std::abort();
    return 0;
  }
  auto again = ParseConfig(foreload::service::PrintConfig(*loaded), "printed.toml", {});
  if (!again.ok() || !(again->config == loaded->config)) std::abort();
  return 0;
}
