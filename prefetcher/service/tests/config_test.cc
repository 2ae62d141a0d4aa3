#include "prefetcher/service/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "prefetcher/service/config_schema.h"

namespace foreload::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Result<LoadedConfig> Parse(std::string_view toml, ConfigSources sources = {}) {
  return ParseConfig(toml, "foreload.toml", sources);
}

std::string Faults(std::string_view toml, ConfigSources sources = {}) {
  auto parsed = Parse(toml, std::move(sources));
  EXPECT_FALSE(parsed.ok());
  EXPECT_TRUE(parsed.ok() || parsed.status().code() == StatusCode::kInvalidArgument);
  return parsed.ok() ? "" : parsed.status().message();
}

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Config, NothingGivenIsTheDefault) {
  auto loaded = Parse("");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->config, ServiceConfig{});
  EXPECT_EQ(loaded->config.mode, Mode::kObserve);
  for (const ConfigOrigin& entry : loaded->origins) EXPECT_EQ(entry.origin, "default") << entry.key;
}

TEST(Config, AWholeFileReadsAsWritten) {
  auto loaded = Parse(R"(
mode = "on"
[service]
http_listen = "0.0.0.0:0"
log_format = "json"
drain_timeout = "1.5s"
[dram]
capacity = "64GiB"
huge_pages = false
[ssd]
directory = "/var/lib/foreload/ssd"
capacity = 1073741824
segment_size = "64MiB"
io = "threads"
throttle = "2.5GB/s"
[links.dram_to_hbm]
bandwidth = "25GB/s"
latency = "10us"
[prefetch]
admission_margin = 0.25
hold_out = 0
[limits]
blocks_max = 100_000
[[engine]]
name = "vllm-0"
kv_events = "ipc:///run/vllm/kv.sock"
dialect = "vllm"
[[engine]]
name = "sglang-0"
access = "tcp://127.0.0.1:5560"
recompute_seconds_per_token = 1.5e-4
)");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const ServiceConfig& c = loaded->config;
  EXPECT_EQ(c.mode, Mode::kOn);
  EXPECT_EQ(c.service.http_listen, "0.0.0.0:0");
  EXPECT_EQ(c.service.log_format, LogFormat::kJson);
  EXPECT_EQ(c.service.drain_timeout_ns, 1500 * kMillisecond);
  EXPECT_EQ(c.dram.capacity_bytes, 64ull << 30);
  EXPECT_FALSE(c.dram.huge_pages);
  EXPECT_EQ(c.ssd.capacity_bytes, 1ull << 30);
  EXPECT_EQ(c.ssd.io, SsdIo::kThreads);
  EXPECT_EQ(c.ssd.throttle_bytes_per_second, 2.5e9);
  EXPECT_EQ(c.links.dram_to_hbm.bytes_per_second, 25e9);
  EXPECT_EQ(c.links.dram_to_hbm.latency_ns, 10 * kMicrosecond);
  EXPECT_EQ(c.prefetch.admission_margin, 0.25);
  EXPECT_EQ(c.prefetch.hold_out, 0);
  EXPECT_EQ(c.limits.blocks_max, 100'000u);
  ASSERT_EQ(c.engines.size(), 2u);
  EXPECT_EQ(c.engines[0].dialect, Dialect::kVllm);
  EXPECT_EQ(c.engines[1].recompute_seconds_per_token, 1.5e-4);
}

TEST(Config, ATypoNamesItsPlaceAndTheNearestKey) {
  EXPECT_EQ(Faults("\n[dram]\n  capcity = \"1GiB\"\n"),
            "foreload.toml:3:3: dram.capcity: unknown key; did you mean \"dram.capacity\"?");
  EXPECT_THAT(Faults("[drm]\ncapacity = 1\n"), HasSubstr("unknown section; did you mean \"dram\"?"));
  EXPECT_THAT(Faults("[service]\nmode = \"on\"\n"), HasSubstr("service.mode: unknown key; did you mean \"mode\"?"));
  EXPECT_THAT(Faults("[[engine]]\nname = \"a\"\nkv_event = \"ipc:///a\"\n"),
              HasSubstr("engine.kv_event: unknown key; did you mean \"kv_events\"?"));
  EXPECT_THAT(Faults("[[engines]]\nname = \"a\"\n"), HasSubstr("did you mean \"engine\"?"));
}

TEST(Config, ANameLikeNothingGetsNoSuggestion) {
  EXPECT_THAT(Faults("zzzzzzzzzz = 1\n"), Not(HasSubstr("did you mean")));
}

TEST(Config, EveryFaultIsReportedAtOnceInOrder) {
  const std::string faults = Faults(R"(mode = "fast"
[dram]
capacity = "64gb"
huge_page = true
[prefetch]
hold_out = 1.5
ttl = 60
[ssd]
directory = "relative"
)");
  std::istringstream lines(faults);
  std::vector<std::string> starts;
  for (std::string line; std::getline(lines, line);) starts.push_back(line.substr(0, line.find(": ")));
  EXPECT_THAT(starts, ElementsAre("foreload.toml:1:8", "foreload.toml:3:12", "foreload.toml:4:1", "foreload.toml:6:12",
                                  "foreload.toml:7:7", "foreload.toml:9:13"));
  EXPECT_THAT(faults, HasSubstr("mode: expects one of \"off\", \"observe\", \"on\", got \"fast\""));
  EXPECT_THAT(faults, HasSubstr("prefetch.hold_out: must be from 0 to 1, got 1.5"));
  EXPECT_THAT(faults, HasSubstr("prefetch.ttl: expects a duration such as \"500ms\""));
  EXPECT_THAT(faults, HasSubstr("ssd.directory: expects an absolute path"));
}

TEST(Config, ASyntaxErrorNamesItsPlace) {
  EXPECT_THAT(Faults("[/dram]\n"), StartsWith("foreload.toml:1:2: "));
  EXPECT_THAT(Faults("[[/dram]]\n"), StartsWith("foreload.toml:1:3: "));
  EXPECT_THAT(Faults("dram./x = 1\n"), StartsWith("foreload.toml:1:6: "));
  EXPECT_THAT(Faults("/x = 1\n"), StartsWith("foreload.toml:1:1: "));
  EXPECT_THAT(Faults("[ssd\xd2\x81\n"), StartsWith("foreload.toml:1:5: "));
  EXPECT_THAT(Faults("\xc3\xa9 = 1\n"), StartsWith("foreload.toml:1:1: "));
  EXPECT_THAT(Faults("[dram]\ncapacity = \n"), StartsWith("foreload.toml:2:"));
}

TEST(Config, ABinaryFileIsNamedAsSuch) {
  EXPECT_THAT(Faults(std::string("[dram]\ncapacity = \"1GiB\"\n[\0ssd]\n", 29)),
              AllOf(StartsWith("foreload.toml:3:2: a control character (byte 0)"), HasSubstr("text file")));
  EXPECT_TRUE(Parse("[dram]\t# a tab\r\n").ok());
}

TEST(Config, AValueOfAnotherShapeIsNamed) {
  EXPECT_THAT(Faults("[dram]\ncapacity = [1]\n"), HasSubstr("expects one value, got an array"));
  EXPECT_THAT(Faults("dram = 1\n"), HasSubstr("write it as [dram]"));
  EXPECT_THAT(Faults("engine = 1\n"), HasSubstr("write it as [[engine]]"));
  EXPECT_THAT(Faults("engine = [1]\n"), HasSubstr("expects [[engine]] sections"));
  EXPECT_THAT(Faults("[prefetch]\nenabled = \"true\"\n"), HasSubstr("expects true or false, got \"true\""));
  EXPECT_THAT(Faults("[limits]\nblocks_max = -1\n"), HasSubstr("expects a whole number, got -1"));
  EXPECT_THAT(Faults("[limits]\nblocks_max = 5000000000\n"), HasSubstr("must be from 1024 to"));
  EXPECT_THAT(Faults("[prefetch]\nadmission_margin = nan\n"), HasSubstr("expects a number"));
  EXPECT_THAT(Faults("mode = 1979-05-27\n"), HasSubstr("got a date or time"));
}

TEST(Config, KeysThatMustAgreeAreChecked) {
  const auto ssd = Faults("[ssd]\ndirectory = \"/x\"\nsegment_size = \"256MiB\"\ncapacity = \"300MiB\"\n");
  EXPECT_THAT(ssd, StartsWith("foreload.toml:4:12: ssd.capacity: must hold at least two segments"));
  EXPECT_THAT(Faults("[ssd]\ndirectory = \"/x\"\nsegment_size = 2000001\n"), HasSubstr("multiple of 4KiB"));
  EXPECT_THAT(Faults("[record]\nfile = \"/x\"\n"), HasSubstr("needs record.salt_file"));
  EXPECT_THAT(Faults("[service]\ncontrol_socket = \"/" + std::string(120, 'x') + "\"\n"), HasSubstr("107 bytes"));
  EXPECT_THAT(Faults("[limits]\nblocks_max = 1024\nrequest_blocks_max = 2048\n"), HasSubstr("must not exceed"));
  EXPECT_THAT(Faults("[limits]\nengines_max = 1\n[[engine]]\nname = \"a\"\naccess = \"ipc:///a\"\n[[engine]]\n"
                     "name = \"b\"\naccess = \"ipc:///b\"\n"),
              HasSubstr("limits.engines_max: there are 2"));
}

TEST(Config, AnSsdThatIsOffIsNotChecked) {
  EXPECT_TRUE(Parse("[ssd]\nsegment_size = \"60GiB\"\n").ok());
}

TEST(Config, EnginesAreCheckedOneByOne) {
  EXPECT_THAT(Faults("[[engine]]\naccess = \"ipc:///a\"\n"), StartsWith("foreload.toml:1:1: engine[0].name: every"));
  EXPECT_THAT(Faults("[[engine]]\nname = \"a b\"\naccess = \"ipc:///a\"\n"), HasSubstr("needs a name of letters"));
  EXPECT_THAT(Faults("[[engine]]\nname = \"a\"\n"), HasSubstr("nothing to subscribe to"));
  EXPECT_THAT(Faults("[[engine]]\nname = \"a\"\naccess = \"ipc:///a\"\nkv_replay = \"ipc:///r\"\n"),
              HasSubstr("replay needs kv_events"));
  EXPECT_THAT(Faults("[[engine]]\nname = \"a\"\nkv_events = \"http://x:1\"\n"), HasSubstr("ZeroMQ endpoint"));
  EXPECT_THAT(Faults("[[engine]]\nname=\"a\"\naccess=\"ipc:///a\"\n[[engine]]\nname=\"a\"\naccess=\"ipc:///b\"\n"),
              HasSubstr("two engines are called \"a\""));
}

TEST(Config, ClearTextBeyondLoopbackNeedsAWord) {
  const std::string far = "[[engine]]\nname = \"a\"\nkv_events = \"tcp://10.0.0.5:5557\"\n";
  EXPECT_THAT(Faults(far), HasSubstr("allow it with service.insecure = true"));
  EXPECT_THAT(Faults("[[engine]]\nname = \"a\"\nkv_events = \"tcp://*:5557\"\nkv_bind = true\n"),
              HasSubstr("service.insecure"));
  EXPECT_TRUE(Parse("[service]\ninsecure = true\n" + far).ok());
  for (const char* near : {"tcp://127.0.0.1:5557", "tcp://localhost:5557", "tcp://[::1]:5557", "ipc:///run/a"}) {
    EXPECT_TRUE(Parse("[[engine]]\nname = \"a\"\nkv_events = \"" + std::string(near) + "\"\n").ok()) << near;
  }
}

TEST(Config, FlagsGoBeforeEnvironmentBeforeFile) {
  const char* file = "[dram]\ncapacity = \"1GiB\"\n[prefetch]\nttl = \"1s\"\nhold_out = 0.5\n";
  auto loaded = Parse(file, {.environment = {{"FORELOAD_DRAM_CAPACITY", "2GiB"}, {"FORELOAD_PREFETCH_TTL", "2s"}},
                             .flags = {{"dram.capacity", "3GiB"}, {"prefetch.enabled", "false"}}});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->config.dram.capacity_bytes, 3ull << 30);
  EXPECT_EQ(loaded->config.prefetch.ttl_ns, 2 * kSecond);
  EXPECT_EQ(loaded->config.prefetch.hold_out, 0.5);
  EXPECT_FALSE(loaded->config.prefetch.enabled);
  const std::string printed = PrintConfig(*loaded);
  EXPECT_THAT(printed, ::testing::ContainsRegex("capacity = \"3GiB\" +# --set\n"));
  EXPECT_THAT(printed, ::testing::ContainsRegex("ttl = \"2s\" +# FORELOAD_PREFETCH_TTL\n"));
  EXPECT_THAT(printed, ::testing::ContainsRegex("hold_out = 0.5 +# foreload.toml:5\n"));
  EXPECT_THAT(printed, ::testing::ContainsRegex("enabled = false +# --set\n"));
  EXPECT_THAT(printed, ::testing::ContainsRegex("huge_pages = true +# default\n"));
}

TEST(Config, FlagsAndEnvironmentAreCheckedToo) {
  EXPECT_THAT(Faults("", {.flags = {{"dram.capcity", "1GiB"}}}),
              HasSubstr("--set dram.capcity: unknown key; did you mean \"dram.capacity\"?"));
  EXPECT_THAT(Faults("", {.flags = {{"engine.name", "x"}}}), HasSubstr("[[engine]] sections"));
  EXPECT_THAT(Faults("", {.environment = {{"FORELOAD_DRAM_CAPACITY", "much"}}}),
              HasSubstr("FORELOAD_DRAM_CAPACITY: expects a size"));
  EXPECT_THAT(Faults("", {.environment = {{"FORELOAD_DRAM_CAPCITY", "1GiB"}}}),
              HasSubstr("did you mean \"FORELOAD_DRAM_CAPACITY\"?"));
}

TEST(Config, VariablesOfOthersAreLeftAlone) {
  // Kubernetes sets the first three for a service that is called "foreload".
  auto loaded = Parse("", {.environment = {{"FORELOAD_SERVICE_HOST", "10.0.0.1"},
                                           {"FORELOAD_SERVICE_PORT_METRICS", "9464"},
                                           {"FORELOAD_PORT", "tcp://10.0.0.1:9464"},
                                           {"FORELOAD_DATA", "/data"}}});
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
}

TEST(Config, WhatIsPrintedReadsBackAsTheSame) {
  auto loaded = Parse(R"(mode = "on"
[ssd]
directory = "/a \"b\" \\ \u00e9"
[links.ssd_to_dram]
bandwidth = "3.3333333GB/s"
[[engine]]
name = "a"
kv_events = "ipc:///a"
[[engine]]
name = "b"
access = "ipc:///b"
block_bytes = "2MiB"
)");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  auto again = Parse(PrintConfig(*loaded));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->config, loaded->config);
}

TEST(Config, AFileThatIsMissingOrHugeIsSaid) {
  auto missing = LoadConfigWithOrigins({.path = "/nonexistent/foreload.toml"});
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("/nonexistent/foreload.toml"));
  const std::string path = ::testing::TempDir() + "foreload_huge.toml";
  std::ofstream(path) << std::string(kConfigFileBytesMax + 1, '#');
  EXPECT_THAT(LoadConfigWithOrigins({.path = path}).status().message(), HasSubstr("larger than 1MiB"));
  std::remove(path.c_str());
}

TEST(Config, ReportsAreBounded) {
  std::string toml;
  for (int i = 0; i < 500; ++i) toml += "unknown" + std::to_string(i) + " = 1\n";
  const std::string faults = Faults(toml);
  EXPECT_THAT(faults, HasSubstr("and 450 more"));
}

TEST(Schema, NamesAreUniqueInEverySpelling) {
  std::set<std::string> environment;
  for (const auto& spec : ServiceKeys())
    EXPECT_TRUE(environment.insert(EnvironmentName(spec.name)).second) << spec.name;
}

TEST(Schema, EveryDefaultIsAllowed) {
  auto loaded = Parse("");
  ASSERT_TRUE(loaded.ok());
  auto again = Parse(PrintConfig(*loaded));
  EXPECT_TRUE(again.ok()) << again.status().message();
}

TEST(Schema, EveryFieldIsReachableByItsKey) {
  // A key that wrote another key's field would leave its own printed value at the default.
  // By ValueKind; no default is one of these, except where a second choice is given below.
  const std::string text_of_kind[] = {"false", "2000", "3GiB", "3GB/s", "3s", "0.5", "x", "/x", "ipc:///x", "h:1", ""};
  for (const auto& spec : ServiceKeys()) {
    ServiceConfig config;
    std::string text = text_of_kind[static_cast<std::size_t>(spec.kind)];
    if (spec.kind == ValueKind::kChoice) text = spec.choices.back();
    if (PrintKey(spec, config) == text) text = "true";
    if (spec.name == "limits.engines_max") text = "7";
    if (spec.name == "service.core_tick") text = "7ms";
    ASSERT_EQ(SetKey(spec, RawValue(text), true, config), std::nullopt) << spec.name << " " << text;
    for (const auto& other : ServiceKeys()) {
      const bool same = PrintKey(other, config) == PrintKey(other, ServiceConfig{});
      EXPECT_EQ(same, other.name != spec.name) << spec.name << " against " << other.name;
    }
  }
}

TEST(Reload, OnlyWhatCanChangeWhileRunningIsTaken) {
  ServiceConfig old;
  old.engines.push_back({.name = "a", .kv_events = "ipc:///a"});
  ServiceConfig now = old;
  now.service.log_level = LogLevel::kDebug;
  now.prefetch.enabled = false;
  now.links.ssd_to_dram.throttle_bytes_per_second = 1e6;
  now.engines.insert(now.engines.begin(), {.name = "b", .access = "ipc:///b"});
  std::vector<std::string> needs_restart{"stale"};
  EXPECT_TRUE(DiffReloadable(old, now, &needs_restart).ok());
  EXPECT_TRUE(needs_restart.empty());

  now.dram.capacity_bytes *= 2;
  now.engines[1].kv_events = "ipc:///c";
  const Status status = DiffReloadable(old, now, &needs_restart);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(needs_restart, ElementsAre("dram.capacity", "engine \"a\" kv_events"));
  EXPECT_THAT(status.message(), HasSubstr("dram.capacity, engine \"a\" kv_events"));

  now = old;
  now.engines.clear();
  EXPECT_THAT(DiffReloadable(old, now, nullptr).message(), HasSubstr("engine \"a\" (removed)"));
}

TEST(CoreConfig, TakesThrottlesAsBandwidth) {
  ServiceConfig config;
  config.ssd.directory = "/x";
  config.ssd.throttle_bytes_per_second = 5e6;
  config.links.dram_to_hbm.throttle_bytes_per_second = 7e6;
  const core::CoreConfig core = ToCoreConfig(config);
  EXPECT_EQ(core.links[static_cast<std::size_t>(core::Link::kSsdToDram)].bytes_per_second, 5e6);
  EXPECT_EQ(core.links[static_cast<std::size_t>(core::Link::kDramToHbm)].bytes_per_second, 7e6);
  EXPECT_EQ(core.ssd_bytes, config.ssd.capacity_bytes);
  config.ssd.directory.clear();
  EXPECT_EQ(ToCoreConfig(config).ssd_bytes, 0u);
  EXPECT_EQ(ToCoreConfig(config).hold_out_fraction, 0.02);
}

TEST(ConfigDocs, TheReferencePageIsTheLoadersTable) {
  EXPECT_EQ(Slurp(FORELOAD_SOURCE_DIR "/docs/configuration.md"), ConfigReference())
      << "write it anew: foreload serve --print-reference > docs/configuration.md";
}

TEST(ConfigDocs, TheExampleIsAccepted) {
  auto loaded = LoadConfigWithOrigins({.path = FORELOAD_SOURCE_DIR "/deploy/foreload.toml"});
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
}

}  // namespace
}  // namespace foreload::service
