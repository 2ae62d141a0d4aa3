#include "prefetcher/service/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreload::service {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Log, JsonLinesStayJsonWhateverTheyCarry) {
  ::testing::internal::CaptureStderr();
  StartLog(LogLevel::kInfo, LogFormat::kJson);
  LogWarn("a \"quoted\" \\ line\nand \x01 more {} %v");
  const std::string line = ::testing::internal::GetCapturedStderr();
  StartLog(LogLevel::kInfo, LogFormat::kText);
  EXPECT_THAT(line, ContainsRegex("^\\{\"time\":\"[0-9T:.-]+Z\",\"level\":\"warning\",\"thread\":[0-9]+,"));
  EXPECT_THAT(line, HasSubstr("\"message\":\"a \\\"quoted\\\" \\\\ line\\nand \\u0001 more {} %v\"}\n"));
}

TEST(Log, LevelsBelowTheSetOneAreSilent) {
  ::testing::internal::CaptureStderr();
  StartLog(LogLevel::kWarn, LogFormat::kText);
  LogInfo("quiet");
  LogError("loud");
  SetLogLevel(LogLevel::kDebug);
  LogInfo("now");
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, Not(HasSubstr("quiet")));
  EXPECT_THAT(lines, HasSubstr("loud\n"));
  EXPECT_THAT(lines, HasSubstr("now\n"));
}

TEST(EscapeJson, BytesThatAreNoUtf8AreReplaced) {
  EXPECT_EQ(EscapeJson("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(EscapeJson("\xFF"), "\xEF\xBF\xBD");
  EXPECT_EQ(EscapeJson("a\xC3"), "a\xEF\xBF\xBD");
  EXPECT_EQ(EscapeJson("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate
  EXPECT_EQ(EscapeJson("\xF0\x9F\x9A\x80"), "\xF0\x9F\x9A\x80");
}

}  // namespace
}  // namespace foreload::service
