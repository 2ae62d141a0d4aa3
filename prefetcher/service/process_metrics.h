// What the kernel says of this process, from /proc/self. Any thread; what cannot be read is 0.
#pragma once

namespace foreload::service {

struct ProcessUsage {
  double cpu_seconds = 0;  // user and system
  double resident_bytes = 0;
  double virtual_bytes = 0;
  double threads = 0;
  double open_fds = 0;
  double max_fds = 0;
  double start_time_seconds = 0;  // Unix time
};

ProcessUsage ReadProcessUsage();

}  // namespace foreload::service
