#include "prefetcher/service/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

namespace foreload::service {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace: return spdlog::level::trace;
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarn: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

struct Sink {
  // A private logger: the library's global registry is left alone.
  spdlog::logger logger{"foreload", std::make_shared<spdlog::sinks::stderr_sink_mt>()};
  LogFormat format = LogFormat::kText;

  Sink() { UseFormat(LogFormat::kText); }

  void UseFormat(LogFormat wanted) {
    format = wanted;
    logger.set_pattern(wanted == LogFormat::kJson
                           ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","thread":%t,"message":"%v"})"
                           : "%Y-%m-%dT%H:%M:%S.%eZ %-7l %v",
                       spdlog::pattern_time_type::utc);
    logger.flush_on(spdlog::level::trace);
  }
};

// Never destroyed: threads may log while the process ends.
Sink& TheSink() {
  static Sink* const sink = new Sink;
  return *sink;
}

// Length of the valid UTF-8 sequence at the start of `text`, 0 when there is none.
std::size_t Utf8Length(std::string_view text) {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and code points above U+10FFFF.
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;
  if (lead == 0xED && byte(1) > 0x9F) return 0;
  if (lead == 0xF0 && byte(1) < 0x90) return 0;
  if (lead == 0xF4 && byte(1) > 0x8F) return 0;
  return length;
}

}  // namespace

std::string EscapeJson(std::string_view text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  static constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = Utf8Length(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out += kReplacement;
    } else if (byte == '"' || byte == '\\') {
      out += '\\';
      out += text[0];
    } else if (byte == '\n') {
      out += "\\n";
    } else if (byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

void StartLog(LogLevel level, LogFormat format) {
  TheSink().UseFormat(format);
  SetLogLevel(level);
}

void SetLogLevel(LogLevel level) {
  TheSink().logger.set_level(ToSpdlog(level));
}

void Log(LogLevel level, std::string_view message) {
  Sink& sink = TheSink();
  const auto spdlog_level = ToSpdlog(level);
  if (!sink.logger.should_log(spdlog_level)) return;
  if (sink.format == LogFormat::kJson) {
    sink.logger.log(spdlog_level, "{}", EscapeJson(message));
  } else {
    sink.logger.log(spdlog_level, "{}", message);
  }
}

}  // namespace foreload::service
