#include "replay/readers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "replay/tests/temp_dir.h"
#include "replay/trace_json.h"

namespace foreload::replay {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

struct Loaded {
  std::vector<TraceRequest> requests;
  TraceStats stats;
  Status status = OkStatus();
};

Loaded LoadAll(const std::string& path, const TraceOptions& options = {}) {
  Loaded loaded;
  auto source = OpenTrace(path, options);
  if (!source.ok()) {
    loaded.status = source.status();
    return loaded;
  }
  TraceRequest request;
  while (true) {
    auto more = (*source)->Next(request);
    if (!more.ok()) loaded.status = more.status();
    if (!more.ok() || !*more) break;
    loaded.requests.push_back(request);
  }
  loaded.stats = (*source)->stats();
  return loaded;
}

// --- Mooncake
// ---------------------------------------------------------------------------------------------------------

TEST(Mooncake, ReadsTheConversationTraceWithItsPublishedCounts) {
  const std::string path = DataFile("mooncake/conversation_trace.jsonl.gz");
  if (path.empty()) GTEST_SKIP() << "no trace data: set FORELOAD_DATA";
  const Loaded loaded = LoadAll(path, {.strict = true});
  ASSERT_TRUE(loaded.status.ok()) << loaded.status.ToString();
  EXPECT_EQ(loaded.requests.size(), 12'031u);
  std::uint64_t accesses = 0;
  std::unordered_set<std::uint64_t> unique;
  TimeNs last = 0;
  for (const TraceRequest& request : loaded.requests) {
    accesses += request.blocks.size();
    unique.insert(request.blocks.begin(), request.blocks.end());
    ASSERT_GE(request.arrival, last);
    last = request.arrival;
    ASSERT_EQ(request.block_tokens, 512u);
    // The last block of a prompt is full only when the length says so.
    ASSERT_EQ(request.full_blocks(), request.input_tokens / 512);
  }
  EXPECT_EQ(accesses, 288'500u);
  EXPECT_EQ(unique.size(), 182'790u);
  EXPECT_EQ(loaded.stats.skipped, 0u);
}

constexpr char kGoodLine[] = R"({"timestamp": 5, "input_length": 1024, "output_length": 3, "hash_ids": [7, 8]})";

TEST(Mooncake, SkipsAWrongLineAndNamesFileLineKeyAndReason) {
  const TempDir dir;
  const std::string path = dir.Write(
      "t.jsonl", std::string(kGoodLine) + "\nnot json\n" +
                     R"({"timestamp": 5, "input_length": 1024, "output_length": 3, "hash_ids": null})" + "\n" +
                     R"({"timestamp": 5, "input_length": -1, "output_length": 3, "hash_ids": []})" + "\n" +
                     R"({"timestamp": 5, "input_length": 512, "output_length": 3, "hash_ids": [1, 2]})" + "\n" +
                     R"({"timestamp": 5, "input_length": 512, "output_length": 3, "hash_ids": ["x"]})" + "\n" +
                     R"({"timestamp": 5, "input_length": 512, "hash_ids": [1]})" + "\n" + kGoodLine + "\n");
  const Loaded loaded = LoadAll(path);
  ASSERT_TRUE(loaded.status.ok());
  EXPECT_EQ(loaded.requests.size(), 2u);
  EXPECT_EQ(loaded.stats.skipped, 6u);
  ASSERT_EQ(loaded.stats.problems.size(), 6u);
  EXPECT_THAT(loaded.stats.problems[0], HasSubstr(path + ":2: not JSON"));
  EXPECT_THAT(loaded.stats.problems[1], HasSubstr(":3: `hash_ids` is null"));
  EXPECT_THAT(loaded.stats.problems[2], HasSubstr(":4: `input_length` is not a whole number"));
  EXPECT_THAT(loaded.stats.problems[3], HasSubstr(":5: `hash_ids` has 2 ids for 512 tokens"));
  EXPECT_THAT(loaded.stats.problems[4], HasSubstr(":6: `hash_ids` has an id"));
  EXPECT_THAT(loaded.stats.problems[5], HasSubstr(":7: `output_length` is missing"));
}

TEST(Mooncake, FailsAtTheFirstWrongLineWhenStrict) {
  const TempDir dir;
  const Loaded loaded =
      LoadAll(dir.Write("t.jsonl", std::string(kGoodLine) + "\n{}\n" + kGoodLine + "\n"), {.strict = true});
  EXPECT_EQ(loaded.requests.size(), 1u);
  EXPECT_THAT(loaded.status.message(), HasSubstr(":2: `timestamp` is missing"));
}

TEST(Mooncake, CountsALineOverTheLimitAndReadsTheNext) {
  const TempDir dir;
  const Loaded loaded =
      LoadAll(dir.Write("t.jsonl", std::string(kGoodLine) + "\n" + std::string(5000, ' ') + "\n" + kGoodLine),
              {.line_bytes_max = 1000});
  EXPECT_EQ(loaded.requests.size(), 2u);
  EXPECT_THAT(loaded.stats.problems, ElementsAre(HasSubstr(":2: longer than 1000 bytes")));
}

TEST(Mooncake, NamesAnUnknownKeyOnceAndReadsSessionAndTurn) {
  const TempDir dir;
  const std::string line =
      R"({"timestamp":1.5,"input_length":16,"output_length":2,"hash_ids":[0],"session_id":"chat-9","turn":0,"x_site":1})";
  const Loaded loaded = LoadAll(dir.Write("t.jsonl", line + "\n" + line + "\n"), {.block_tokens = 16});
  ASSERT_EQ(loaded.requests.size(), 2u);
  EXPECT_EQ(loaded.requests[0].arrival, 1'500'000);
  EXPECT_EQ(loaded.requests[0].turn, 1u);
  EXPECT_EQ(loaded.requests[0].session, loaded.requests[1].session);
  EXPECT_NE(loaded.requests[0].session, kNoSession);
  EXPECT_THAT(loaded.stats.notes, ElementsAre(HasSubstr("unknown key `x_site`")));
}

TEST(Mooncake, ReadsAgentTracesOfTheSameShape) {
  const std::string path = DataFile("lmcache_agent/magagent_o200k_b16.jsonl.gz");
  if (path.empty()) GTEST_SKIP() << "no trace data: set FORELOAD_DATA";
  const Loaded loaded = LoadAll(path, {.strict = true, .block_tokens = 16});
  ASSERT_TRUE(loaded.status.ok()) << loaded.status.ToString();
  EXPECT_EQ(loaded.requests.size(), 746u);
}

// --- Weka, delta form
// -------------------------------------------------------------------------------------------------

TEST(WekaDelta, ReadsTheCorpusWithItsPublishedCounts) {
  const std::string path = DataFile("weka/weka_cc_v6_global_delta.jsonl.gz");
  if (path.empty()) GTEST_SKIP() << "no trace data: set FORELOAD_DATA";
  auto source = OpenTrace(path, {.strict = true, .session_spread = 8 * 3600 * kSecond});
  ASSERT_TRUE(source.ok()) << source.status().ToString();
  std::vector<bool> seen(1u << 20);
  std::uint64_t requests = 0;
  std::uint64_t accesses = 0;
  std::uint64_t unique = 0;
  TimeNs last = 0;
  TraceRequest request;
  while (true) {
    auto more = (*source)->Next(request);
    ASSERT_TRUE(more.ok()) << more.status().ToString();
    if (!*more) break;
    ++requests;
    accesses += request.blocks.size();
    for (const std::uint64_t id : request.blocks) {
      ASSERT_LT(id, seen.size());
      if (!seen[id]) ++unique;
      seen[id] = true;
    }
    ASSERT_GE(request.arrival, last);
    last = request.arrival;
  }
  EXPECT_EQ(requests, 26'771u);
  EXPECT_EQ(accesses, 37'933'212u);
  EXPECT_EQ(unique, 618'422u);
}

TEST(WekaDelta, TakesTheFirstSessionsOnlyAndSpreadsTheirStartsBySeed) {
  const std::string path = DataFile("weka/weka_cc_v6_global_delta.jsonl.gz");
  if (path.empty()) GTEST_SKIP() << "no trace data: set FORELOAD_DATA";
  const TraceOptions options{.strict = true, .seed = 3, .session_spread = 600 * kSecond, .sessions_max = 10};
  const Loaded a = LoadAll(path, options);
  const Loaded b = LoadAll(path, options);
  ASSERT_EQ(a.requests.size(), 336u + 143 + 167 + 30 + 144 + 27 + 88 + 8 + 184 + 14);
  TraceOptions other = options;
  other.seed = 4;
  const Loaded c = LoadAll(path, other);
  ASSERT_EQ(c.requests.size(), a.requests.size());
  bool same_as_b = true;
  bool same_as_c = true;
  for (std::size_t i = 0; i < a.requests.size(); ++i) {
    same_as_b =
        same_as_b && a.requests[i].arrival == b.requests[i].arrival && a.requests[i].blocks == b.requests[i].blocks;
    same_as_c = same_as_c && a.requests[i].arrival == c.requests[i].arrival;
  }
  EXPECT_TRUE(same_as_b);
  EXPECT_FALSE(same_as_c);
  EXPECT_THAT(a.stats.notes, Contains(HasSubstr("session starts are synthetic: uniform over 600 s, seed 3")));
}

constexpr char kHeader[] =
    R"({"session":4,"id":"x","block_size":64,"hash_id_scope":"global","tool_tokens":0,"system_tokens":0,"requests":9,"model":"m"})";

TEST(WekaDelta, RebuildsEachStreamFromWhatItKeepsAndAdds) {
  const TempDir dir;
  const Loaded loaded = LoadAll(dir.Write(
      "w.jsonl", std::string(kHeader) + "\n" +
                     R"({"s":4,"sub":0,"t":1,"in":320,"out":9,"api":1,"think":0,"keep":0,"new":[[10,2],[20,3]]})" +
                     "\n" + R"({"s":4,"sub":1,"t":3,"in":64,"out":9,"api":1,"think":0,"keep":0,"new":[[90,1]]})" +
                     "\n" + R"({"s":4,"sub":0,"t":2,"in":256,"out":9,"api":1,"think":60,"keep":3,"new":[[30,1]]})" +
                     "\n" + R"({"s":4,"sub":0,"t":70,"in":256,"out":9,"api":1,"think":0,"keep":4,"new":[]})" + "\n"));
  ASSERT_TRUE(loaded.status.ok());
  ASSERT_EQ(loaded.requests.size(), 4u);
  EXPECT_THAT(loaded.requests[0].blocks, ElementsAre(10, 11, 20, 21, 22));
  EXPECT_THAT(loaded.requests[1].blocks, ElementsAre(10, 11, 20, 30));
  EXPECT_THAT(loaded.requests[2].blocks, ElementsAre(90));
  EXPECT_THAT(loaded.requests[3].blocks, ElementsAre(10, 11, 20, 30));
  EXPECT_EQ(loaded.requests[1].turn, 2u);
  EXPECT_EQ(loaded.requests[2].stream, 1u);
  EXPECT_EQ(loaded.requests[0].kind, RequestKind::kHuman);
  EXPECT_EQ(loaded.requests[1].kind, RequestKind::kTool);
  EXPECT_EQ(loaded.requests[3].kind, RequestKind::kHuman) << "60 s of thought";
}

TEST(WekaDelta, ShortensLongPausesInsideASession) {
  const TempDir dir;
  const auto line = [](int t, int id) {
    return R"({"s":4,"sub":0,"t":)" + std::to_string(t) + R"(,"in":64,"out":9,"keep":0,"new":[[)" + std::to_string(id) +
           ",1]]}\n";
  };
  const Loaded loaded = LoadAll(dir.Write("w.jsonl", std::string(kHeader) + "\n" + line(100, 1) + line(105, 2) +
                                                         line(90'000, 3) + line(90'007, 4)),
                                {.session_gap_max = 10 * kSecond});
  std::vector<TimeNs> seconds;
  for (const TraceRequest& request : loaded.requests) seconds.push_back(request.arrival / kSecond);
  EXPECT_THAT(seconds, ElementsAre(10, 15, 25, 32));
}

TEST(WekaDelta, NeverBuildsARequestOnOneThatWasLost) {
  const TempDir dir;
  const Loaded loaded = LoadAll(dir.Write(
      "w.jsonl",
      std::string(kHeader) + "\n" + R"({"s":4,"sub":0,"t":1,"in":320,"out":9,"think":0,"keep":0,"new":[[10,5]]})" +
          "\n" + R"({"s":4,"sub":0,"t":2,"in":384,"out":9,"think":0,"keep":2,"new":[[50,4]],)" + "\n" +  // torn
          R"({"s":4,"sub":0,"t":3,"in":448,"out":9,"think":0,"keep":5,"new":[[60,2]]})" + "\n" +         // builds on it
          R"({"s":4,"sub":0,"t":4,"in":64,"out":9,"think":0,"keep":0,"new":[[70,1]]})" + "\n" +
          R"({"s":4,"sub":0,"t":5,"in":64,"out":9,"think":0,"keep":9,"new":[]})" + "\n" +   // keeps too much
          R"({"s":5,"sub":0,"t":5,"in":64,"out":9,"think":0,"keep":0,"new":[]})" + "\n"));  // no header
  EXPECT_EQ(loaded.requests.size(), 2u);
  ASSERT_EQ(loaded.stats.problems.size(), 4u);
  EXPECT_THAT(loaded.stats.problems[0], HasSubstr(":3: not JSON"));
  EXPECT_THAT(loaded.stats.problems[1], HasSubstr(":4: keeps ids of a request that was lost"));
  EXPECT_THAT(loaded.stats.problems[2], HasSubstr(":6: keeps 9 ids of a request that has 1"));
  EXPECT_THAT(loaded.stats.problems[3], HasSubstr(":7: `s` names session 5"));
}

TEST(WekaDelta, RefusesARunThatWouldTakeTooMuchMemory) {
  const TempDir dir;
  const Loaded loaded = LoadAll(dir.Write(
      "w.jsonl", std::string(kHeader) + "\n" +
                     R"({"s":4,"sub":0,"t":1,"in":1000000000,"out":9,"keep":0,"new":[[0,4000000000]]})" + "\n"));
  EXPECT_TRUE(loaded.requests.empty());
  EXPECT_THAT(loaded.stats.problems, ElementsAre(HasSubstr(":2: `new` makes more than")));
}

// --- Weka, session files (field fault R2)
// -----------------------------------------------------------------------------

std::string SessionFile(const std::string& requests) {
  return R"({"id":"c1","models":["m"],"block_size":64,"hash_id_scope":"local","tool_tokens":10,"system_tokens":20,
  "x_site":"a","requests":[)" +
         requests + "]}\n";
}

constexpr char kNullsAndExtras[] = R"(
  {"t":0.0,"type":"n","model":"m","in":130,"out":5,"hash_ids":[1,2],"input_types":["text"],"output_types":["text"],
   "stop":null,"ttft":null,"x_site":7},
  {"type":"subagent","t":1.0,"agent_id":"a","subagent_type":"explore","duration_ms":10,"total_tokens":5,
   "tool_use_count":1,"status":"done","models":["m"],"tool_tokens":0,"system_tokens":0,
   "requests":[{"t":1.5,"type":"n","model":"m","in":64,"out":1,"hash_ids":[9],"input_types":["text"],"stop":""}]},
  {"t":4.0,"type":"n","model":"m","in":200,"out":5,"hash_ids":[1,2,3],"input_types":["tool_result"],"stop":"tool_use",
   "api_time":null,"think_time":null})";

TEST(WekaSession, LoadsNullsUnknownKeysAndSubAgentsWhole) {
  const TempDir dir;
  const Loaded loaded = LoadAll(dir.Write("s.json", SessionFile(kNullsAndExtras)), {.strict = true});
  ASSERT_TRUE(loaded.status.ok()) << loaded.status.ToString();
  ASSERT_EQ(loaded.requests.size(), 3u);
  EXPECT_EQ(loaded.stats.skipped, 0u);
  EXPECT_EQ(loaded.requests[0].stream, 0u);
  EXPECT_EQ(loaded.requests[1].stream, 1u) << "a sub-agent is a stream of its own";
  EXPECT_EQ(loaded.requests[2].turn, 2u);
  EXPECT_EQ(loaded.requests[0].kind, RequestKind::kHuman);
  EXPECT_EQ(loaded.requests[2].kind, RequestKind::kTool);
  EXPECT_EQ(loaded.requests[0].blocks[0], loaded.requests[2].blocks[0]);
  int unknown_notes = 0;
  for (const std::string& note : loaded.stats.notes) unknown_notes += note.starts_with("unknown key") ? 1 : 0;
  EXPECT_EQ(unknown_notes, 1) << "`x_site` stands at both levels and is named once";
  EXPECT_THAT(loaded.stats.notes, Contains(HasSubstr("a missing think_time counts as 0 s")));
}

TEST(WekaSession, NamesFileIndexAndKeyOfWhatIsMissingOrNull) {
  const TempDir dir;
  const std::string good = R"({"t":0,"in":64,"out":1,"hash_ids":[1]})";
  const struct {
    const char* entry;
    const char* reason;
  } cases[] = {
      {R"({"t":1,"out":1,"hash_ids":[1]})", "s.json: requests[1]: `in` is missing"},
      {R"({"t":null,"in":64,"out":1,"hash_ids":[1]})", "s.json: requests[1]: `t` is null"},
      {R"({"t":1,"in":64,"out":1,"hash_ids":null})", "s.json: requests[1]: `hash_ids` is null"},
      {R"({"type":"subagent","t":1,"requests":[{"t":1,"in":"x","out":1,"hash_ids":[]}]})",
       "s.json: requests[1].requests[0]: `in` is not a whole number"},
      {R"({"t":1,"in":64,"out":1,"hash_ids":[1,2,3]})", "s.json: requests[1]: has 3 ids for 64 input tokens"},
      {"7", "s.json: requests[1]: is not an object"},
  };
  for (const auto& c : cases) {
    const std::string path = dir.Write("s.json", SessionFile(good + "," + c.entry + "," + good));
    const Loaded lenient = LoadAll(path);
    EXPECT_TRUE(lenient.status.ok()) << c.reason;
    EXPECT_EQ(lenient.requests.size(), 2u) << c.reason;
    EXPECT_EQ(lenient.stats.skipped, 1u) << c.reason;
    EXPECT_THAT(lenient.stats.problems, ElementsAre(HasSubstr(c.reason)));
    const Loaded strict = LoadAll(path, {.strict = true});
    EXPECT_THAT(strict.status.message(), HasSubstr(c.reason));
  }
}

TEST(WekaSession, KeepsLocalIdsOfSessionsApartAndSharesGlobalOnes) {
  const TempDir dir;
  const std::string entry = R"({"t":0,"in":64,"out":1,"hash_ids":[1]})";
  dir.Write("a.json", SessionFile(entry));
  dir.Write("b.json", SessionFile(entry));
  const Loaded local = LoadAll(dir.path());
  ASSERT_EQ(local.requests.size(), 2u);
  EXPECT_NE(local.requests[0].blocks, local.requests[1].blocks);
  EXPECT_NE(local.requests[0].session, local.requests[1].session);
  for (const char* name : {"a.json", "b.json"}) {
    std::string text = SessionFile(entry);
    text.replace(text.find("\"local\""), 7, "\"global\"");
    dir.Write(name, text);
  }
  const Loaded global = LoadAll(dir.path());
  ASSERT_EQ(global.requests.size(), 2u);
  EXPECT_EQ(global.requests[0].blocks, global.requests[1].blocks);
}

TEST(WekaSession, DropsTheStreamingTwinOfARequest) {
  const TempDir dir;
  const Loaded loaded = LoadAll(dir.Write(
      "s.json",
      SessionFile(
          R"({"t":0,"type":"s","in":64,"out":1,"hash_ids":[1]},{"t":0.1,"type":"n","in":64,"out":1,"hash_ids":[1]},
                               {"t":5,"type":"s","in":130,"out":1,"hash_ids":[1,2]})")));
  EXPECT_EQ(loaded.requests.size(), 2u);
  EXPECT_EQ(loaded.stats.duplicates, 1u);
}

// --- all
// --------------------------------------------------------------------------------------------------------------

TEST(OpenTrace, RefusesWhatItDoesNotKnowInWords) {
  const TempDir dir;
  EXPECT_THAT(LoadAll(dir.Write("x", "hello\nworld\n")).status.message(),
              HasSubstr("not a trace that this build knows"));
  EXPECT_THAT(LoadAll(dir.Write("y", "")).status.message(), HasSubstr("not a trace that this build knows"));
  EXPECT_FALSE(LoadAll(dir.path() + "/absent").status.ok());
  const Loaded broken = LoadAll(dir.Write("z.json", "{\"requests\": [\n"));
  EXPECT_TRUE(broken.requests.empty());
  EXPECT_EQ(broken.stats.skipped, 1u);
}

TEST(FlattenJsonNumbers, GivesEachNumberByItsPath) {
  auto numbers = FlattenJsonNumbers(R"({"a":{"b":[1,2.5,{"c":true}]},"d":"x","e":null})");
  ASSERT_TRUE(numbers.ok());
  EXPECT_EQ(*numbers, (std::map<std::string, double>{{"a.b.0", 1}, {"a.b.1", 2.5}, {"a.b.2.c", 1}}));
  EXPECT_FALSE(FlattenJsonNumbers("{").ok());
}

}  // namespace
}  // namespace foreload::replay
