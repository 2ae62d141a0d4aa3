// The status document of a sidecar as sentences.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "cmd/terminal.h"

namespace foreload::cmd {

Result<std::string> StatusWords(std::string_view json, const Terminal& terminal);

// "1.5 GiB", "0 B": for people, rounded.
std::string HumanBytes(double bytes);
// "3 d 4 h", "12 min", "5 s"
std::string HumanDuration(double seconds);

}  // namespace foreload::cmd
