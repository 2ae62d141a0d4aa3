#include "transport/host/stream_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "transport/tests/transport_testing.h"

namespace foreload::testing {
namespace {

TEST(StreamCopyTest, EveryLengthAndAlignmentIsExactAndTouchesNothingElse) {
  constexpr std::size_t kRoom = 3 * kStreamCopyBytesMin;
  const std::vector<std::uint8_t> source = Pattern(1, kRoom);
  Rng rng(5);
  for (int round = 0; round < 300; ++round) {
    const std::size_t from = rng.Below(300);
    const std::size_t to = rng.Below(300);
    const std::size_t around = rng.Below(2) == 0 ? kStreamCopyBytesMin : 2 * kStreamCopyBytesMin;
    const std::size_t bytes = around - 300 + rng.Below(600);
    SCOPED_TRACE("from " + std::to_string(from) + " to " + std::to_string(to) + " bytes " + std::to_string(bytes));
    std::vector<std::uint8_t> got(kRoom, 0xA5);
    std::vector<std::uint8_t> expected(kRoom, 0xA5);
    std::memcpy(expected.data() + to, source.data() + from, bytes);
    StreamCopy(got.data() + to, source.data() + from, bytes);
    ASSERT_EQ(got, expected);
  }
}

}  // namespace
}  // namespace foreload::testing
