// Ids and block keys: what names things.
#include <array>
#include <cstdint>
#include <set>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include <gtest/gtest.h>

#include "base/block_key.h"
#include "base/ids.h"

namespace foreload {
namespace {

static_assert(!std::is_convertible_v<BlockId, SessionId>);
static_assert(!std::is_convertible_v<BlockId, std::uint32_t>);
static_assert(std::has_unique_object_representations_v<BlockKey>, "keys are compared and hashed as memory");

TEST(Id, IsInvalidUntilSet) {
  EXPECT_FALSE(BlockId{}.valid());
  EXPECT_TRUE(BlockId{0}.valid());
  EXPECT_FALSE(TransferId{UINT64_MAX}.valid());
  EXPECT_TRUE(TransferId{UINT32_MAX}.valid());
}

TEST(Id, OrdersByValue) {
  EXPECT_LT(BlockId{1}, BlockId{2});
  EXPECT_EQ(BlockId{3}, BlockId{3});
}

TEST(Id, ConsecutiveIdsDifferInTheHighBitsOfTheirHash) {
  std::set<std::size_t> high_bytes;
  for (std::uint32_t i = 0; i < 256; ++i) high_bytes.insert(std::hash<BlockId>{}(BlockId{i}) >> 56);
  EXPECT_GT(high_bytes.size(), 200u);
}

std::vector<std::uint8_t> Counting(std::size_t size) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i + 1);
  return bytes;
}

TEST(BlockKey, AliasIsTheLastEightBytesOfTheDigestBigEndian) {
  EXPECT_EQ(BlockKey::From({}, Counting(16)).alias(), 0x090A0B0C0D0E0F10u);
  EXPECT_EQ(BlockKey::From({}, Counting(32)).alias(), 0x191A1B1C1D1E1F20u);
}

TEST(BlockKey, ShortDigestIsNotItsZeroExtension) {
  std::vector<std::uint8_t> longer = Counting(16);
  longer.resize(32, 0);
  const BlockKey short_key = BlockKey::From({}, Counting(16));
  const BlockKey long_key = BlockKey::From({}, longer);
  EXPECT_EQ(short_key.digest, long_key.digest);
  EXPECT_NE(short_key, long_key);
}

TEST(BlockKey, SameDigestInTwoNamespacesIsTwoKeysWithTwoHashes) {
  NamespaceFingerprint other;
  other.bytes[0] = 1;
  const BlockKey a = BlockKey::From({}, Counting(32));
  const BlockKey b = BlockKey::From(other, Counting(32));
  EXPECT_NE(a, b);
  EXPECT_NE(std::hash<BlockKey>{}(a), std::hash<BlockKey>{}(b));
}

TEST(BlockKey, DigestSpanGivesBackExactlyTheDigest) {
  const std::vector<std::uint8_t> digest = Counting(20);
  const BlockKey key = BlockKey::From({}, digest);
  EXPECT_TRUE(std::equal(digest.begin(), digest.end(), key.digest_span().begin(), key.digest_span().end()));
}

TEST(ToHex, WritesTwoLowerCaseDigitsAByte) {
  EXPECT_EQ(ToHex({}), "");
  EXPECT_EQ(ToHex(std::array<std::uint8_t, 3>{0x00, 0x9F, 0xFA}), "009ffa");
}

}  // namespace
}  // namespace foreload
