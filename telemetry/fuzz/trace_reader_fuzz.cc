// Any bytes as a trace file, after the magic: reading ends, with records or with an error that stays.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "telemetry/trace_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreload::telemetry;
  const int file = memfd_create("trace", MFD_CLOEXEC);
  FORELOAD_CHECK(file >= 0, "no memory file");
  FORELOAD_CHECK(size == 0 || write(file, data, size) == static_cast<ssize_t>(size), "cannot fill it");
  {
    auto reader = TraceReader::Open("/proc/self/fd/" + std::to_string(file));
    while (reader.ok()) {
      const auto record = reader.value()->Next();
      if (!record.ok()) FORELOAD_CHECK(!reader.value()->Next().ok(), "an error stays");
      if (!record.ok() || !record.value()) break;
    }
  }
  close(file);
  return 0;
}
