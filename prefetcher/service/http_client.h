// One HTTP request to a sidecar on this host, for the command line.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace foreload::service {

// `address` is "host:port". Unavailable when nobody answers in time; for a status other than 2xx InvalidArgument with
// the body. Blocks up to `timeout` for each step.
Result<std::string> HttpFetch(const std::string& address, const std::string& method, const std::string& path,
                              DurationNs timeout);

}  // namespace foreload::service
