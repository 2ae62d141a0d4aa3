#include "cmd/status_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "cmd/json_fields.h"

namespace foreload::cmd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(JsonFields, FlattensByPath) {
  auto fields = JsonFields(R"( {"a": 1.5e3, "b": {"c": [true, {"d": "x\"\n\u0041"}], "e": {}}, "f": null} )");
  ASSERT_TRUE(fields.ok());
  EXPECT_THAT(*fields,
              ElementsAre(Pair("a", "1.5e3"), Pair("b.c.0", "true"), Pair("b.c.1.d", "x\"\nA"), Pair("f", "null")));
}

TEST(JsonFields, RefusesWhatIsNoJson) {
  for (const char* text :
       {"", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "[1 2]", "{\"a\":tru}", "\"\\x\"", "1 2", "\"a"}) {
    EXPECT_FALSE(JsonFields(text).ok()) << text;
  }
  EXPECT_FALSE(JsonFields(std::string(100, '[') + std::string(100, ']')).ok());
}

class Words : public ::testing::Test {
 protected:
  std::string Say(const std::string& json) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
    auto words = StatusWords(json, Terminal(file.get()));
    EXPECT_TRUE(words.ok()) << words.status().message();
    return words.ok() ? *words : "";
  }
};

TEST_F(Words, AnIdleObserverIsDescribed) {
  const std::string words = Say(R"({"mode":"observe","draining":false,"uptime_seconds":7261,"prefetch_enabled":true,
    "engines":[],"tiers":{"dram":{"capacity_bytes":4294967296,"used_bytes":0,"dirty_bytes":0},"ssd":{"capacity_bytes":0}}})");
  EXPECT_THAT(words, HasSubstr("The sidecar observes: it predicts and counts, and moves nothing, up for 2 h 1 min.\n"));
  EXPECT_THAT(words, HasSubstr("No engine is registered.\n"));
  EXPECT_THAT(words, HasSubstr("into arenas: none yet\n"));
  EXPECT_THAT(words, HasSubstr("DRAM: 0 B of 4.0 GiB used"));
  EXPECT_THAT(words, HasSubstr("SSD: not configured.\n"));
}

TEST_F(Words, ABusySidecarIsDescribed) {
  const std::string words = Say(R"({"mode":"on","draining":false,"uptime_seconds":59,"prefetch_enabled":false,
    "engines":[{"name":"vllm-0","processes":2,"slots":100,"block_bytes":2097152,"arena":"in force","policy":"predict",
                "hit_blocks":30,"miss_blocks":10},
               {"name":"b","processes":1,"slots":0,"arena":"rank 1 has not granted","policy":"demand_only"}],
    "prefetch":{"hbm":{"issued":10,"issued_bytes":20971520,"useful":6,"late":1,"wasted":1,"cancelled":1,"failed":0,"live":1},
                "dram":{"issued":0}},
    "needed_blocks":{"total":200,"engine":100,"arena_ready":50,"arena_in_flight":10,"dram":20,"ssd":10,"absent":10},
    "tiers":{"dram":{"capacity_bytes":1024,"used_bytes":512,"dirty_bytes":256},
             "ssd":{"capacity_bytes":1048576,"used_bytes":1024,"records":3,"state":"on","io":"io_uring"}}})");
  EXPECT_THAT(words, HasSubstr("prefetch is switched off"));
  EXPECT_THAT(words, HasSubstr("2 engines:\n"));
  EXPECT_THAT(words, HasSubstr("vllm-0: 2 processes, 100 slots of 2.0 MiB, 75.0 % of 40 blocks looked up were ready"));
  EXPECT_THAT(words, HasSubstr("b: 1 process, no arena (rank 1 has not granted), demand only"));
  EXPECT_THAT(words, HasSubstr("10 issued (20.0 MiB), 6 useful, 1 late, 1 wasted, 1 cancelled, 0 failed, 1 under way"));
  EXPECT_THAT(words, HasSubstr("Of 200 blocks that scheduled requests needed, the engine held 50.0 %"));
  EXPECT_THAT(words, HasSubstr("3 blocks, state on, io_uring.\n"));
}

TEST_F(Words, ADocumentWithoutAModeIsRefused) {
  EXPECT_FALSE(StatusWords("{}", Terminal(stdout)).ok());
  EXPECT_FALSE(StatusWords("nonsense", Terminal(stdout)).ok());
}

TEST(HumanText, IsRounded) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(200.0 * 1024 * 1024), "200 MiB");
  EXPECT_EQ(HumanDuration(5), "5 s");
  EXPECT_EQ(HumanDuration(90000), "1 d 1 h");
}

}  // namespace
}  // namespace foreload::cmd
