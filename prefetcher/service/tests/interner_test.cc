#include "prefetcher/service/interner.h"

#include <gtest/gtest.h>

namespace foreload::service {
namespace {

BlockKey KeyOf(std::uint8_t space, std::uint8_t fill, std::uint8_t low = 7) {
  std::array<std::uint8_t, 32> digest{};
  digest.fill(fill);
  for (std::size_t i = 24; i < 32; ++i) digest[i] = low;
  NamespaceFingerprint name_space;
  name_space.bytes.fill(space);
  return BlockKey::From(name_space, digest);
}

const BlockInterner::Scope kEngine{.engine = EngineId{3}};

TEST(BlockInterner, GivesOneKeyOneIdAndOtherLayoutsAnother) {
  BlockInterner interner;
  LayoutFingerprint layout;
  layout.bytes.fill(9);
  const LayoutIndex index = interner.InternLayout(layout);
  EXPECT_EQ(interner.InternLayout(layout), index);
  const BlockId plain = interner.Intern(KeyOf(1, 2), 0, {}).block;
  EXPECT_EQ(interner.Intern(KeyOf(1, 2), 0, {}).block, plain);
  EXPECT_NE(interner.Intern(KeyOf(1, 2), index, {}).block, plain);
  EXPECT_NE(interner.Intern(KeyOf(2, 2), 0, {}).block, plain) << "another namespace is another block";
}

TEST(BlockInterner, AFullKeyAdoptsWhatAnEventSaidUnderItsAlias) {
  BlockInterner interner;
  const auto provisional = interner.ResolveAlias(KeyOf(1, 2).alias(), kEngine, true);
  ASSERT_TRUE(provisional.has_value());
  EXPECT_EQ(interner.key(*provisional), nullptr);
  const auto bound = interner.Intern(KeyOf(1, 2), 0, kEngine);
  EXPECT_EQ(bound.block, *provisional);
  EXPECT_FALSE(bound.merged.valid());
  ASSERT_NE(interner.key(bound.block), nullptr);
  EXPECT_EQ(*interner.key(bound.block), KeyOf(1, 2));
}

TEST(BlockInterner, AKeyKnownFromElsewhereTakesOverTheProvisionalBlock) {
  BlockInterner interner;
  const BlockId known = interner.Intern(KeyOf(1, 2), 0, {}).block;  // recovered from disk: no engine, no alias
  const auto provisional = interner.ResolveAlias(KeyOf(1, 2).alias(), kEngine, true);
  ASSERT_NE(*provisional, known);
  const auto bound = interner.Intern(KeyOf(1, 2), 0, kEngine);
  EXPECT_EQ(bound.block, known);
  EXPECT_EQ(bound.merged, *provisional);
  EXPECT_EQ(interner.ResolveAlias(KeyOf(1, 2).alias(), kEngine, false), known);
}

TEST(BlockInterner, TwoKeysBehindOneAliasMakeItSayNothing) {
  BlockInterner interner;
  const BlockId first = interner.Intern(KeyOf(1, 2), 0, kEngine).block;
  const BlockId second = interner.Intern(KeyOf(2, 3), 0, kEngine).block;
  EXPECT_NE(first, second);
  EXPECT_EQ(interner.ResolveAlias(KeyOf(1, 2).alias(), kEngine, true), std::nullopt);
  interner.Forget(second);
  EXPECT_EQ(interner.ResolveAlias(KeyOf(1, 2).alias(), kEngine, true), first) << "unambiguous again";
}

TEST(BlockInterner, AliasesOfTwoEnginesAreStrangers) {
  BlockInterner interner;
  const auto a = interner.ResolveAlias(42, kEngine, true);
  const auto b = interner.ResolveAlias(42, {.engine = EngineId{4}}, true);
  EXPECT_NE(a, b);
}

TEST(BlockInterner, AForgottenIdIsGivenToTheNextKey) {
  BlockInterner interner;
  const BlockId first = interner.Intern(KeyOf(1, 2), 0, kEngine).block;
  interner.Forget(first);
  EXPECT_EQ(interner.Find(KeyOf(1, 2), 0), std::nullopt);
  const BlockId next = interner.Intern(KeyOf(1, 5, 8), 0, kEngine).block;
  EXPECT_EQ(next, first);
  EXPECT_EQ(*interner.key(next), KeyOf(1, 5, 8));
  EXPECT_EQ(interner.size(), 1u);
}

TEST(NameInterner, RefusesBeyondItsCapacityAndReusesReleasedIds) {
  NameInterner<RequestId> names(2);
  const auto a = names.Intern(EngineId{0}, "a");
  const auto b = names.Intern(EngineId{0}, "b");
  EXPECT_EQ(names.Intern(EngineId{0}, "a"), a);
  EXPECT_EQ(names.Intern(EngineId{0}, "c"), std::nullopt);
  names.Release(*b);
  EXPECT_EQ(names.Find(EngineId{0}, "b"), std::nullopt);
  EXPECT_EQ(names.Intern(EngineId{1}, "a"), b) << "the same name at another engine is another";
}

}  // namespace
}  // namespace foreload::service
