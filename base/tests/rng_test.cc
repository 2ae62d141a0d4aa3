#include "base/rng.h"

#include <array>
#include <cstdint>

#include <gtest/gtest.h>

namespace foreload {
namespace {

TEST(Rng, GivesThePublishedSplitMix64Sequence) {
  // The reference values for seed 1234567 that implementations of SplitMix64 quote.
  Rng rng(1234567);
  for (const std::uint64_t expected : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                       4593380528125082431u, 16408922859458223821u}) {
    EXPECT_EQ(rng.Next(), expected);
  }
}

TEST(Rng, BelowStaysBelowAndReachesEveryValue) {
  Rng rng(1);
  std::array<int, 7> seen{};
  for (int i = 0; i < 7000; ++i) {
    const std::uint64_t value = rng.Below(seen.size());
    ASSERT_LT(value, seen.size());
    ++seen[value];
  }
  // 1,000 expected each; the standard deviation is 29, so 200 is far outside chance and the seed is fixed anyway.
  for (const int count : seen) EXPECT_NEAR(count, 1000, 200);
  EXPECT_EQ(rng.Below(1), 0u);
}

TEST(Rng, BelowSpansTheWholeRangeOfLargeBounds) {
  Rng rng(2);
  std::uint64_t largest = 0;
  for (int i = 0; i < 100; ++i) largest = std::max(largest, rng.Below(UINT64_MAX));
  EXPECT_GT(largest, UINT64_MAX / 2);
}

TEST(Rng, UniformIsInTheHalfOpenUnitInterval) {
  Rng rng(3);
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double value = rng.Uniform();
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);
}

}  // namespace
}  // namespace foreload
