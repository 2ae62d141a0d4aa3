#include "prefetcher/service/config_value.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

namespace foreload::service {
namespace {

TEST(ConfigValue, BytesReadDecimalAndBinaryUnits) {
  EXPECT_EQ(ParseBytes("64GiB"), 64ull << 30);
  EXPECT_EQ(ParseBytes("64 GB"), 64'000'000'000ull);
  EXPECT_EQ(ParseBytes("1.5KiB"), 1536u);
  EXPECT_EQ(ParseBytes("12"), 12u);
  EXPECT_EQ(ParseBytes("0"), 0u);
}

TEST(ConfigValue, BytesRefuseWhatIsNoSize) {
  for (const char* text :
       {"", "GiB", "-1GiB", "64Gib", "1e3", "0x10", "1.5", "64GiB/s", "8388608TiB", "1..5GB", "inf"}) {
    EXPECT_EQ(ParseBytes(text), std::nullopt) << text;
  }
}

TEST(ConfigValue, RatesNeedAUnitExceptForZero) {
  EXPECT_EQ(ParseRate("2.5GB/s"), 2.5e9);
  EXPECT_EQ(ParseRate("0"), 0.0);
  EXPECT_EQ(ParseRate("100MiB/s"), 100.0 * 1024 * 1024);
  for (const char* text : {"5", "5GB", "5/s", "GB/s", "-1GB/s", "5gb/s"})
    EXPECT_EQ(ParseRate(text), std::nullopt) << text;
}

TEST(ConfigValue, DurationsNeedAUnitExceptForZero) {
  EXPECT_EQ(ParseDuration("500ms"), 500 * kMillisecond);
  EXPECT_EQ(ParseDuration("1.5 s"), 1500 * kMillisecond);
  EXPECT_EQ(ParseDuration("2min"), 120 * kSecond);
  EXPECT_EQ(ParseDuration("0"), 0);
  for (const char* text : {"5", "5m", "-5s", "s", "5 sec", "300000d"})
    EXPECT_EQ(ParseDuration(text), std::nullopt) << text;
}

TEST(ConfigValue, FormattingIsShort) {
  EXPECT_EQ(FormatBytes(4ull << 30), "4GiB");
  EXPECT_EQ(FormatBytes(2'500'000'000), "2500MB");
  EXPECT_EQ(FormatBytes(7), "7B");
  EXPECT_EQ(FormatRate(2.5e9), "2.5GB/s");
  EXPECT_EQ(FormatRate(0), "0");
  EXPECT_EQ(FormatDuration(90 * kSecond), "90s");
  EXPECT_EQ(FormatDuration(0), "0s");
  EXPECT_EQ(FormatNumber(0.85), "0.85");
}

RC_GTEST_PROP(ConfigValueProperty, WhatIsFormattedReadsBackAsTheSame, ()) {
  const auto bytes = *rc::gen::inRange<std::uint64_t>(0, INT64_MAX);
  RC_ASSERT(ParseBytes(FormatBytes(bytes)) == bytes);
  const auto duration = *rc::gen::inRange<std::int64_t>(0, INT64_MAX);
  RC_ASSERT(ParseDuration(FormatDuration(duration)) == duration);
  const double rate = static_cast<double>(*rc::gen::inRange<std::uint64_t>(0, 1ull << 53)) / 128.0;
  RC_ASSERT(ParseRate(FormatRate(rate)) == rate);
}

TEST(ConfigValue, EditsAreCountedWithSwaps) {
  EXPECT_EQ(EditDistance("capacity", "capacity"), 0u);
  EXPECT_EQ(EditDistance("capcity", "capacity"), 1u);
  EXPECT_EQ(EditDistance("cpaacity", "capacity"), 1u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
}

}  // namespace
}  // namespace foreload::service
