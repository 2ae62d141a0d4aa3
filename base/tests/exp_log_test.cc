#include "base/exp_log.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace foreload {
namespace {

double RelativeErrorOfExp2(double x) {
  const long double exact = std::exp2(static_cast<long double>(x));
  return static_cast<double>(std::fabs((static_cast<long double>(Exp2(x)) - exact) / exact));
}

double ErrorOfLog2(double x) {
  return static_cast<double>(std::fabs(static_cast<long double>(Log2(x)) - std::log2(static_cast<long double>(x))));
}

TEST(Exp2, StaysWithinItsStatedErrorOverADenseGrid) {
  double worst = 0;
  for (int i = -1021 * 500; i < 1023 * 500; ++i) worst = std::max(worst, RelativeErrorOfExp2(i * 0.002 + 1e-4));
  for (int i = 0; i <= 100'000; ++i) worst = std::max(worst, RelativeErrorOfExp2(i * 1e-5));
  RecordProperty("worst", std::to_string(worst * 1e15) + "e-15");
  EXPECT_LT(worst, 1e-14);
}

TEST(Exp2, StaysWithinItsStatedErrorInTheTopBinade) {
  double worst = 0;
  for (int i = 0; i < 100'000; ++i) worst = std::max(worst, RelativeErrorOfExp2(1023.0 + i * 1e-5));
  EXPECT_LT(worst, 5e-11);
}

TEST(Exp2, IsExactAtIntegers) {
  for (int n = -1021; n <= 1023; ++n) EXPECT_EQ(Exp2(n), std::ldexp(1.0, n)) << n;
}

TEST(Exp2, SaturatesAtItsEnds) {
  EXPECT_EQ(Exp2(-1022.0), 0.0);
  EXPECT_EQ(Exp2(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_EQ(Exp2(1024.0), std::numeric_limits<double>::infinity());
  EXPECT_EQ(Exp2(std::numeric_limits<double>::infinity()), std::numeric_limits<double>::infinity());
  EXPECT_EQ(Exp2(std::numeric_limits<double>::quiet_NaN()), 0.0);
  EXPECT_TRUE(std::isfinite(Exp2(std::nextafter(1024.0, 0.0))));
  EXPECT_GT(Exp2(std::nextafter(-1022.0, 0.0)), 0.0);
}

TEST(Log2, StaysWithinItsStatedErrorOverADenseGrid) {
  double worst = 0;
  for (int i = 1; i <= 1'000'000; ++i) worst = std::max(worst, ErrorOfLog2(i * 4e-6));
  for (int exponent = -1074; exponent < 1024; ++exponent) {
    for (int i = 0; i < 100; ++i) worst = std::max(worst, ErrorOfLog2(std::ldexp(1.0 + i * 0.01, exponent)));
  }
  RecordProperty("worst", std::to_string(worst * 1e15) + "e-15");
  EXPECT_LT(worst, 3e-13);
}

TEST(Log2, IsExactAtPowersOfTwo) {
  for (int n = -1074; n <= 1023; ++n) EXPECT_EQ(Log2(std::ldexp(1.0, n)), n) << n;
}

TEST(Log2, ClampsWhatHasNoLogarithm) {
  EXPECT_EQ(Log2(0.0), -1074.0);
  EXPECT_EQ(Log2(-0.0), -1074.0);
  EXPECT_EQ(Log2(-1.0), -1074.0);
  EXPECT_EQ(Log2(std::numeric_limits<double>::quiet_NaN()), -1074.0);
  EXPECT_EQ(Log2(std::numeric_limits<double>::infinity()), 1024.0);
}

TEST(ExpLog, BothUndoEachOther) {
  for (int i = -2000; i <= 2000; ++i) EXPECT_NEAR(Log2(Exp2(i * 0.25)), i * 0.25, 1e-12);
  EXPECT_NEAR(Exp(1.0), 2.718281828459045, 1e-14);
  EXPECT_NEAR(Log(10.0), 2.302585092994046, 1e-14);
}

// Decisions are replayed from recordings, on other machines and by other compilers: a changed bit is a changed format.
TEST(ExpLog, GivesTheSameBitsOnEveryMachine) {
  EXPECT_EQ(std::bit_cast<std::uint64_t>(Exp2(0.5)), 0x3FF6A09E667F3B96u);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(Exp2(-3.14159)), 0x3FBD02353C8A53C7u);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(Log2(3.0)), 0x3FF95C01A39FBD69u);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(Log2(1e-9)), 0xC03DE5B8EAA8D7E0u);
  Rng rng(42);
  std::uint64_t digest = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double x = (rng.Uniform() - 0.5) * 2000.0;
    digest = (digest ^ std::bit_cast<std::uint64_t>(Exp2(x))) * 0x9E3779B97F4A7C15u;
    digest = (digest ^ std::bit_cast<std::uint64_t>(Log2(rng.Uniform() * 1e6))) * 0x9E3779B97F4A7C15u;
  }
  EXPECT_EQ(digest, 0x4330CD6B187812BEu);
}

}  // namespace
}  // namespace foreload
