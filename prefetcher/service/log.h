// Logs to stderr, text for people or one JSON object a line for collectors. Never token ids, salts or block digests.
//
// StartLog replaces spdlog's default logger, so that lines written with spdlog itself look the same; call it before the
// first line (before it, spdlog writes to stdout). Any thread. Not for the per-event path: a line takes a lock and a
// system call.
#pragma once

#include <string>
#include <string_view>

#include "prefetcher/service/config.h"

namespace foreload::service {

void StartLog(LogLevel level, LogFormat format);
void SetLogLevel(LogLevel level);

void Log(LogLevel level, std::string_view message);
inline void LogInfo(std::string_view message) {
  Log(LogLevel::kInfo, message);
}
inline void LogWarn(std::string_view message) {
  Log(LogLevel::kWarn, message);
}
inline void LogError(std::string_view message) {
  Log(LogLevel::kError, message);
}

// `text` inside a JSON string: quotes, backslashes, control characters and invalid UTF-8 replaced.
std::string EscapeJson(std::string_view text);

}  // namespace foreload::service
