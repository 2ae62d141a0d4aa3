#include "transport/region_map.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "transport/host/host_backend.h"
#include "transport/tests/transport_testing.h"

namespace foreload::testing {
namespace {

void RunParts(Backend& backend, const std::vector<MovePart>& parts) {
  for (const MovePart& part : parts) {
    const Transfer transfer{.token = 1,
                            .source = part.source,
                            .source_offset = part.source_offset,
                            .destination = part.destination,
                            .destination_offset = part.destination_offset,
                            .bytes = part.bytes};
    ASSERT_EQ(backend.Submit({&transfer, 1}), 1u);
    Completion completion;
    ASSERT_TRUE(Eventually([&] { return backend.Poll({&completion, 1}) == 1; }));
    EXPECT_EQ(completion.error, TransferError::kNone);
  }
}

TEST(RegionMapTest, ABlockThatStraddlesPiecesOnBothSidesIsExact) {
  HostBackend backend;
  Memory source(100'000);
  Memory destination(100'000);
  const std::vector<std::uint8_t> content = Pattern(1, 100'000);
  std::memcpy(source.data(), content.data(), content.size());
  auto from = RegionMap::Register(backend, source.data(), source.size(), 7'001);
  auto to = RegionMap::Register(backend, destination.data(), destination.size(), 10'007);
  ASSERT_TRUE(from.ok() && to.ok());
  std::vector<MovePart> parts;
  ASSERT_TRUE(AppendParts(*from, 6'500, *to, 9'900, 60'000, parts).ok());
  EXPECT_GT(parts.size(), 10u);
  EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), std::uint64_t{0},
                            [](std::uint64_t sum, const MovePart& part) { return sum + part.bytes; }),
            60'000u);
  RunParts(backend, parts);
  EXPECT_EQ(std::memcmp(destination.data() + 9'900, content.data() + 6'500, 60'000), 0);
  EXPECT_EQ(destination.data()[9'899], 0);
  EXPECT_EQ(destination.data()[69'900], 0);
  EXPECT_TRUE(from->Release(backend).ok());
  EXPECT_TRUE(to->Release(backend).ok());
}

TEST(RegionMapTest, ABlockInsideOnePieceIsOnePart) {
  HostBackend backend;
  Memory memory(64 << 10);
  auto map = RegionMap::Register(backend, memory.data(), memory.size(), 32 << 10);
  ASSERT_TRUE(map.ok());
  std::vector<MovePart> parts;
  ASSERT_TRUE(AppendParts(*map, 0, *map, 32 << 10, 32 << 10, parts).ok());
  EXPECT_EQ(parts.size(), 1u);
  EXPECT_TRUE(map->Release(backend).ok());
}

TEST(RegionMapTest, RangesOutsideTheMapAreRefused) {
  const RegionMap map = RegionMap::Of(RegionId{3}, 1000);
  std::vector<MovePart> parts;
  EXPECT_FALSE(AppendParts(map, 0, map, 500, 501, parts).ok());
  EXPECT_FALSE(AppendParts(map, 1001, map, 0, 0, parts).ok());
  EXPECT_FALSE(AppendParts(map, UINT64_MAX - 1, map, 0, 4, parts).ok());
  EXPECT_FALSE(AppendParts(map, 1, map, 0, UINT64_MAX, parts).ok());
  EXPECT_TRUE(parts.empty());
  EXPECT_TRUE(AppendParts(map, 500, map, 0, 500, parts).ok());
}

TEST(RegionMapTest, AFailedRegistrationLeavesNothingBehind) {
  HostBackend backend;
  Memory memory(1 << 20);
  // One byte a piece needs more regions than a backend has.
  EXPECT_EQ(RegionMap::Register(backend, memory.data(), memory.size(), 1).status().code(),
            StatusCode::kResourceExhausted);
  auto map = RegionMap::Register(backend, memory.data(), 4000, 1);
  EXPECT_TRUE(map.ok()) << "the first attempt gave its regions back";
  EXPECT_TRUE(map->Release(backend).ok());
}

}  // namespace
}  // namespace foreload::testing
