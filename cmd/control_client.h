// A blocking client of the control socket for one question and its answer. It never registers: it is no engine.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace foreload::control {
class ControlMessage;
}

namespace foreload::cmd {

// Sends `request` and waits for the message that answers it. Unavailable: no sidecar on `socket`; DeadlineExceeded; an
// Error of the sidecar becomes the status that it names.
Status Ask(const std::string& socket, const control::ControlMessage& request, DurationNs timeout,
           control::ControlMessage& reply);

}  // namespace foreload::cmd
