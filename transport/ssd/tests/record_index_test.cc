#include "transport/ssd/record_index.h"

#include <gtest/gtest.h>

#include <map>

#include "transport/ssd/segment.h"
#include "transport/ssd/tests/test_support.h"

namespace foreload::ssd::testing {
namespace {

TEST(RecordIndexTest, BehavesAsAMapUnderRandomInsertsAndErases) {
  Rng rng(42);
  Segment segment;
  RecordIndex index;
  std::map<std::uint64_t, std::uint64_t> model;
  for (int step = 0; step < 200000; ++step) {
    const std::uint64_t id = rng.Below(6000);
    RecordEntry* found = index.Find(KeyOf(id));
    ASSERT_EQ(found != nullptr, model.count(id) == 1) << step;
    if (found != nullptr) {
      ASSERT_EQ(found->sequence, model[id]);
      if (rng.Below(2) == 0) {
        index.Erase(*found);
        model.erase(id);
      }
    } else {
      index.Insert(KeyOf(id), segment).sequence = model[id] = static_cast<std::uint64_t>(step);
    }
    ASSERT_EQ(index.size(), model.size());
  }
  std::size_t visited = 0;
  index.ForEach([&](const RecordEntry& entry) {
    ++visited;
    EXPECT_EQ(model.at(IdOf(entry.key)), entry.sequence);
  });
  EXPECT_EQ(visited, model.size());
}

TEST(RecordIndexTest, EntriesDoNotMoveWhenItGrows) {
  Segment segment;
  RecordIndex index;
  const RecordEntry* first = &index.Insert(KeyOf(0), segment);
  for (std::uint64_t id = 1; id < 20000; ++id) index.Insert(KeyOf(id), segment);
  EXPECT_EQ(index.Find(KeyOf(0)), first);
}

}  // namespace
}  // namespace foreload::ssd::testing
