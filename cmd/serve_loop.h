// The life of a serving process: start the runtime and its HTTP page, tell systemd, follow signals, drain.
//
//   SIGTERM, SIGINT   drain within service.drain_timeout and end with 0; a second one ends at once with 1
//   SIGHUP            read the configuration again
//
// Thread: the main thread, before any other exists (signals are blocked for all of them).
#pragma once

#include "prefetcher/service/config.h"

namespace foreload::cmd {

// Returns the exit code. `sources` is read again at a reload.
int ServeLoop(const service::ConfigSources& sources, service::ServiceConfig config);

}  // namespace foreload::cmd
