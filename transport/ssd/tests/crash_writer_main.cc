// Writes records into a store until it is killed, and reports on stdout what the store said, one line each: "D id" a
// record became durable, "G id" it was reclaimed, "F id" it was dropped and the drop flushed. The sinks write at once,
// so what the pipe holds was true when the process died.
//   ssd_crash_writer DIRECTORY FIRST_ID CAPACITY_MIB
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "transport/ssd/tests/crash_records.h"
#include "transport/ssd/tests/test_support.h"

namespace foreload::ssd::testing {
namespace {

void Say(char what, std::uint64_t id) {
  char line[32];
  const int n = std::snprintf(line, sizeof line, "%c %llu\n", what, static_cast<unsigned long long>(id));
  if (::write(STDOUT_FILENO, line, static_cast<std::size_t>(n)) != n) std::_Exit(3);
}

int Run(const std::string& directory, std::uint64_t id, std::uint64_t capacity_mib) {
  StoreBench bench(directory);
  bench.on_durable = [](std::uint64_t record) { Say('D', record); };
  bench.on_dropped = [](std::uint64_t record) { Say('G', record); };
  bench.options.capacity_bytes = capacity_mib << 20;
  bench.options.sync_interval_ns = kMillisecond;
  bench.options.direct_io = DirectIo::kAuto;
  if (const Status status = bench.Open(); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 2;
  }
  for (;; ++id) {
    if (!bench.Write(id, CrashRecordSizes(id)).ok()) return 2;
    if (id % 37 == 0 && bench.store->Drop(KeyOf(id)) && bench.store->Flush().ok()) Say('F', id);
  }
}

}  // namespace
}  // namespace foreload::ssd::testing

int main(int argc, char** argv) {
  if (argc != 4) return 1;
  return foreload::ssd::testing::Run(argv[1], std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10));
}
