#include "telemetry/alias_table.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>
#include <tuple>

namespace foreload::telemetry {
namespace {

using Match = AliasTable::Match;

constexpr AliasScope kScope{EngineId{1}, 0, 0};

TEST(AliasTable, OneBlockIsUniqueTwoAreAmbiguous) {
  AliasTable table(100);
  EXPECT_EQ(table.Find(kScope, 7).match, Match::kUnknown);
  EXPECT_TRUE(table.Bind(kScope, 7, BlockId{10}));
  EXPECT_TRUE(table.Bind(kScope, 7, BlockId{10}));
  EXPECT_EQ(table.Find(kScope, 7).match, Match::kUnique);
  EXPECT_EQ(table.Find(kScope, 7).block, BlockId{10});
  EXPECT_TRUE(table.Bind(kScope, 7, BlockId{11}));
  EXPECT_EQ(table.Find(kScope, 7).match, Match::kAmbiguous);
  table.Unbind(kScope, 7, BlockId{10});
  EXPECT_EQ(table.Find(kScope, 7).block, BlockId{11});
  table.Unbind(kScope, 7, BlockId{11});
  EXPECT_EQ(table.Find(kScope, 7).match, Match::kUnknown);
  EXPECT_EQ(table.size(), 0u);
}

TEST(AliasTable, ScopesDoNotSeeEachOther) {
  AliasTable table(100);
  const AliasScope other_rank{EngineId{1}, 1, 0}, other_group{EngineId{1}, 0, 1}, other_engine{EngineId{2}, 0, 0};
  table.Bind(kScope, 7, BlockId{1});
  for (const AliasScope& scope : {other_rank, other_group, other_engine}) {
    EXPECT_EQ(table.Find(scope, 7).match, Match::kUnknown);
    table.Bind(scope, 7, BlockId{2});
  }
  EXPECT_EQ(table.Find(kScope, 7).block, BlockId{1});
  table.DropScope(other_rank);
  EXPECT_EQ(table.Find(other_rank, 7).match, Match::kUnknown);
  table.DropEngine(EngineId{1});
  EXPECT_EQ(table.Find(kScope, 7).match, Match::kUnknown);
  EXPECT_EQ(table.Find(other_engine, 7).match, Match::kUnique);
  EXPECT_EQ(table.size(), 1u);
}

TEST(AliasTable, FullTableRefusesNewAliasesOnly) {
  AliasTable table(2);
  EXPECT_TRUE(table.Bind(kScope, 1, BlockId{1}));
  EXPECT_TRUE(table.Bind(kScope, 2, BlockId{2}));
  EXPECT_FALSE(table.Bind(kScope, 3, BlockId{3}));
  EXPECT_FALSE(table.Bind({EngineId{9}, 0, 0}, 3, BlockId{3}));
  EXPECT_TRUE(table.Bind(kScope, 2, BlockId{4}));
  EXPECT_EQ(table.Find(kScope, 2).match, Match::kAmbiguous);
  table.Unbind(kScope, 1, BlockId{1});
  EXPECT_TRUE(table.Bind(kScope, 3, BlockId{3}));
}

TEST(AliasTable, OverflowedAliasStaysAmbiguous) {
  AliasTable table(100);
  for (std::uint32_t i = 0; i <= AliasTable::kBlocksPerAliasMax; ++i) table.Bind(kScope, 7, BlockId{i});
  for (std::uint32_t i = 0; i <= AliasTable::kBlocksPerAliasMax; ++i) table.Unbind(kScope, 7, BlockId{i});
  EXPECT_EQ(table.Find(kScope, 7).match, Match::kAmbiguous) << "one of them was never written down";
  table.DropScope(kScope);
  EXPECT_EQ(table.Find(kScope, 7).match, Match::kUnknown);
}

RC_GTEST_PROP(AliasTable, AgreesWithAMapOfSets,
              (const std::vector<std::tuple<bool, std::uint8_t, std::uint8_t>>& script)) {
  AliasTable table(1000);
  std::map<std::uint64_t, std::set<std::uint32_t>> model;
  for (const auto& [bind, alias, block] : script) {
    const std::uint64_t low64 = alias % 4;
    const std::uint32_t id = block % AliasTable::kBlocksPerAliasMax;
    if (bind) {
      RC_ASSERT(table.Bind(kScope, low64, BlockId{id}));
      model[low64].insert(id);
    } else {
      table.Unbind(kScope, low64, BlockId{id});
      model[low64].erase(id);
    }
    const auto found = table.Find(kScope, low64);
    const auto& expected = model[low64];
    RC_ASSERT(found.match == (expected.empty()       ? Match::kUnknown
                              : expected.size() == 1 ? Match::kUnique
                                                     : Match::kAmbiguous));
    if (expected.size() == 1) RC_ASSERT(found.block == BlockId{*expected.begin()});
  }
}

}  // namespace
}  // namespace foreload::telemetry
