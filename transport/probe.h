// What of the transport works on this machine, and why the rest does not: the text behind `foreload probe`.
#pragma once

#include <string>
#include <vector>

namespace foreload {

struct ProbeLine {
  std::string name;  // "host", "io_uring", "thread pool", "huge pages", "memlock", "O_DIRECT"
  bool works = false;
  std::string why;  // in words, with what to change when it does not work
};

// Tries each thing for real and undoes it. `directory`: where the SSD tier would lie; empty: O_DIRECT is not tried.
std::vector<ProbeLine> ProbeBackends(const std::string& directory);

}  // namespace foreload
