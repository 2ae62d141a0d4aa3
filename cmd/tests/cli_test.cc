// The command line as a user meets it: exit codes, what goes to stdout and what to stderr.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "cmd/tests/child_process.h"

namespace foreload::cmd {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

struct Outcome {
  int exit_code;
  std::string out;
  std::string err;
};

class Cli : public ::testing::Test {
 protected:
  Outcome Run(std::vector<std::string> arguments, std::vector<std::pair<std::string, std::string>> environment = {}) {
    ChildProcess child(
        {.arguments = std::move(arguments), .environment = std::move(environment), .folder = scratch_.path()});
    const int code = child.Wait();
    return {code, child.out(), child.err()};
  }
  ScratchFolder scratch_;
};

TEST_F(Cli, VersionAndHelpAreData) {
  const Outcome version = Run({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, ContainsRegex("^foreload [0-9]+\\.[0-9]+\\.[0-9]+\n$"));
  EXPECT_THAT(version.err, IsEmpty());
  const Outcome help = Run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("Examples:"));
  for (const char* command : {"serve", "status", "probe", "ctl"}) {
    const Outcome own = Run({command, "--help"});
    EXPECT_EQ(own.exit_code, 0) << command;
    EXPECT_THAT(own.out, HasSubstr("Examples:")) << command;
    EXPECT_THAT(help.out, HasSubstr(command));
  }
}

TEST_F(Cli, WrongUseExitsWith2AndSaysSoOnStderr) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{{},
                                                                     {"srve"},
                                                                     {"serve", "--confg", "x"},
                                                                     {"ctl"},
                                                                     {"ctl", "purge"},
                                                                     {"ctl", "flush", "--timeout", "soon"},
                                                                     {"probe", "--directory", "/nonexistent"},
                                                                     {"serve", "--set", "nonsense"},
                                                                     {"ctl", "purge", "--namespace", "xyz"}}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << ::testing::PrintToString(arguments);
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, Not(IsEmpty()));
  }
}

TEST_F(Cli, AWrongConfigurationExitsWith2AndListsEveryFault) {
  const std::string file = scratch_.Write("bad.toml", "[dram]\ncapcity = \"1GiB\"\n[ssd]\nio = \"magic\"\n");
  for (const auto& arguments : std::vector<std::vector<std::string>>{{"serve", "--config", file},
                                                                     {"serve", "--config", file, "--check-config"}}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, StartsWith(file + ":2:1: dram.capcity: unknown key; did you mean \"dram.capacity\"?\n" +
                                        file + ":4:6: ssd.io: expects one of"));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
  EXPECT_EQ(Run({"serve", "--config", "/nonexistent.toml"}).exit_code, 2);
}

TEST_F(Cli, ARightConfigurationIsConfirmed) {
  const Outcome outcome = Run({"serve", "--config", FORELOAD_SOURCE_DIR "/deploy/foreload.toml", "--check-config"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, HasSubstr("is right"));
}

TEST_F(Cli, PrintConfigNamesEachSource) {
  const std::string file = scratch_.Write("a.toml", "mode = \"off\"\n[dram]\ncapacity = \"1GiB\"\n");
  const Outcome outcome = Run({"serve", "--config", file, "--print-config", "--set", "prefetch.hold_out=0.5"},
                              {{"FORELOAD_DRAM_CAPACITY", "2GiB"}});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, ContainsRegex("mode = \"off\" +# " + file + ":1\n"));
  EXPECT_THAT(outcome.out, ContainsRegex("capacity = \"2GiB\" +# FORELOAD_DRAM_CAPACITY\n"));
  EXPECT_THAT(outcome.out, ContainsRegex("hold_out = 0.5 +# --set\n"));
  EXPECT_THAT(outcome.out, ContainsRegex("ttl = \"1min\" +# default\n"));
  // What is printed is a configuration.
  EXPECT_EQ(Run({"serve", "--check-config", "--config", scratch_.Write("b.toml", outcome.out)}).exit_code, 0);
}

TEST_F(Cli, TheReferencePageIsTheOneInTheDocs) {
  const Outcome outcome = Run({"serve", "--print-reference"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, ReadFile(FORELOAD_SOURCE_DIR "/docs/configuration.md"));
}

TEST_F(Cli, ProbeSaysWhatWorksAndWhy) {
  const Outcome words = Run({"probe", "--directory", scratch_.path()});
  EXPECT_EQ(words.exit_code, 0);
  EXPECT_THAT(words.out, HasSubstr("host"));
  EXPECT_THAT(words.out, Not(HasSubstr("\x1b[")));  // no colour: stdout is a file
  const Outcome json = Run({"probe", "--json"});
  EXPECT_EQ(json.exit_code, 0);
  EXPECT_THAT(json.out, StartsWith("[{\"name\":"));
}

TEST_F(Cli, AskingASidecarThatIsNotThereFailsWith1) {
  const std::string socket = scratch_.path() + "/none.sock";
  const std::string file =
      scratch_.Write("c.toml", "[service]\nhttp_listen = \"\"\ncontrol_socket = \"" + socket + "\"\n");
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"status", "--config", file}, {"ctl", "flush", "--config", file}, {"ctl", "reload", "--config", file}}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 1) << arguments[0];
    EXPECT_THAT(outcome.err, StartsWith("foreload: "));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
  EXPECT_THAT(Run({"status", "--config", file}).err, HasSubstr(socket + " does not exist"));
}

TEST(Deploy, TheUnitIsClosedAsFarAsTheSidecarAllows) {
  if (std::system("command -v systemd-analyze >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "systemd-analyze is not installed";
  // An exposure of 2.5 of 10 at most; systemd's own name for that is "OK".
  const std::string unit = FORELOAD_SOURCE_DIR "/deploy/foreload.service";
  EXPECT_EQ(std::system(("systemd-analyze security --offline=true --threshold=25 " + unit + " >/dev/null").c_str()), 0);
}

}  // namespace
}  // namespace foreload::cmd
