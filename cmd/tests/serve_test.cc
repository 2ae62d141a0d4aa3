// A serving process from start to end: pages, signals, reload, systemd, drain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>

#include "cmd/tests/child_process.h"
#include "prefetcher/service/tests/http_client.h"
#include "proto/unique_fd.h"

namespace foreload::cmd {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class Serve : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(scratch_.path() + "/log");
    std::filesystem::create_directory(scratch_.path() + "/cli");
    config_ = scratch_.Write("foreload.toml", Config(""));
  }

  std::string Config(const std::string& more) const {
    const std::string& at = scratch_.path();
    return "mode = \"observe\"\n[service]\nhttp_listen = \"127.0.0.1:0\"\ncontrol_socket = \"" + at +
           "/control.sock\"\nstate_dir = \"" + at + "/state\"\n[dram]\ncapacity = \"16MiB\"\nlock_memory = false\n" +
           "huge_pages = false\n" + more;
  }

  void Start(std::vector<std::pair<std::string, std::string>> environment = {}, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"serve", "--config", config_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    child_ = std::make_unique<ChildProcess>(ChildOptions{
        .arguments = arguments, .environment = std::move(environment), .folder = scratch_.path() + "/log"});
    ASSERT_TRUE(child_->WaitForErr("runs, mode")) << child_->err();
    port_ = std::stoi(ReadFile(scratch_.path() + "/state/http.port"));
  }

  std::string Page(const std::string& path) const { return service::HttpGet(port_, path); }

  std::string Cli(std::vector<std::string> arguments, int wanted) {
    arguments.insert(arguments.end(), {"--config", config_});
    ChildProcess command({.arguments = arguments, .folder = scratch_.path() + "/cli"});
    EXPECT_EQ(command.Wait(), wanted) << command.err();
    return command.out() + command.err();
  }

  ScratchFolder scratch_;
  std::string config_;
  std::unique_ptr<ChildProcess> child_;
  int port_ = 0;
};

TEST_F(Serve, ShowsItselfAndDrainsOnSigterm) {
  Start();
  EXPECT_THAT(Page("/livez"), HasSubstr("200 OK"));
  EXPECT_THAT(Page("/readyz?verbose"), HasSubstr("200 OK"));
  EXPECT_THAT(Page("/statusz"), HasSubstr("\"mode\":\"observe\""));
  const std::string metrics = Page("/metrics");
  EXPECT_THAT(metrics, HasSubstr("\nforeload_config_last_reload_successful 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\nforeload_build_info{version="));
  EXPECT_THAT(Cli({"status"}, 0), HasSubstr("The sidecar observes"));
  EXPECT_THAT(Cli({"status", "--json"}, 0), HasSubstr("\"mode\":\"observe\""));
  EXPECT_THAT(Cli({"ctl", "flush"}, 0), HasSubstr("blocks are on disk"));
  EXPECT_THAT(Cli({"ctl", "purge", "--model-revision", "r1"}, 0), HasSubstr("0 blocks forgotten"));
  child_->Signal(SIGTERM);
  EXPECT_EQ(child_->Wait(), 0) << child_->err();
  EXPECT_THAT(child_->err(), HasSubstr("stopped"));
  EXPECT_EQ(child_->out(), "");
  EXPECT_FALSE(std::filesystem::exists(scratch_.path() + "/state/http.port"));
}

TEST_F(Serve, SighupTakesWhatCanChangeAndKeepsTheOldOnAnyFault) {
  Start();
  scratch_.Write("foreload.toml", Config("[prefetch]\nenabled = false\n"));
  child_->Signal(SIGHUP);
  ASSERT_TRUE(child_->WaitForErr("read again and taken")) << child_->err();
  EXPECT_THAT(Page("/metrics"), HasSubstr("\nforeload_config_reloads_total{result=\"taken\"} 1\n"));

  scratch_.Write("foreload.toml", Config("[prefetch]\nenabld = true\n"));
  child_->Signal(SIGHUP);
  ASSERT_TRUE(child_->WaitForErr("did you mean \"prefetch.enabled\"?")) << child_->err();
  EXPECT_THAT(Page("/metrics"), HasSubstr("\nforeload_config_last_reload_successful 0\n"));
  EXPECT_THAT(Page("/livez"), HasSubstr("200 OK"));

  scratch_.Write("foreload.toml", Config("[ssd]\ncapacity = \"1GiB\"\n"));
  EXPECT_THAT(Cli({"ctl", "reload"}, 1), HasSubstr("restart to change ssd.capacity"));
  scratch_.Write("foreload.toml", Config(""));
  EXPECT_THAT(Cli({"ctl", "reload"}, 0), HasSubstr("reloaded"));
  EXPECT_THAT(Page("/metrics"), HasSubstr("\nforeload_config_last_reload_successful 1\n"));
}

TEST_F(Serve, TellsSystemdWhatItDoes) {
  const std::string name = scratch_.path() + "/notify";
  const UniqueFd manager(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  ASSERT_EQ(::bind(manager.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const auto next_but_watchdog = [&manager]() -> std::string {
    std::array<char, 512> buffer;
    for (;;) {
      pollfd ready{manager.get(), POLLIN, 0};
      if (::poll(&ready, 1, 60'000) <= 0) return "nothing";
      const ssize_t got = ::recv(manager.get(), buffer.data(), buffer.size(), 0);
      const std::string text(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      if (text != "WATCHDOG=1") return text;
    }
  };
  Start({{"NOTIFY_SOCKET", name}, {"WATCHDOG_USEC", "200000"}});
  EXPECT_THAT(next_but_watchdog(), HasSubstr("READY=1\n"));
  std::array<char, 512> buffer;
  const ssize_t got = ::recv(manager.get(), buffer.data(), buffer.size(), 0);
  EXPECT_EQ(std::string(buffer.data(), static_cast<std::size_t>(got)), "WATCHDOG=1");
  child_->Signal(SIGHUP);
  EXPECT_THAT(next_but_watchdog(), ContainsRegex("^RELOADING=1\nMONOTONIC_USEC=[0-9]+$"));
  EXPECT_THAT(next_but_watchdog(), HasSubstr("READY=1\n"));
  child_->Signal(SIGTERM);
  EXPECT_EQ(next_but_watchdog(), "STOPPING=1");
  EXPECT_EQ(child_->Wait(), 0);
}

TEST_F(Serve, ASecondSidecarOnTheSameSocketRefusesToStart) {
  Start();
  std::filesystem::create_directory(scratch_.path() + "/second");
  ChildProcess second(
      {.arguments = {"serve", "--config", config_, "--set", "service.state_dir=" + scratch_.path() + "/s2"},
       .folder = scratch_.path() + "/second"});
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_THAT(second.err(), HasSubstr("control"));
  EXPECT_THAT(Page("/livez"), HasSubstr("200 OK"));
}

TEST_F(Serve, AnHttpPortInUseRefusesToStart) {
  Start();
  std::filesystem::create_directory(scratch_.path() + "/second");
  ChildProcess second(
      {.arguments = {"serve", "--config", config_, "--set", "service.http_listen=127.0.0.1:" + std::to_string(port_),
                     "--set", "service.control_socket=" + scratch_.path() + "/second/c.sock", "--set",
                     "service.state_dir=" + scratch_.path() + "/second/state"},
       .folder = scratch_.path() + "/second"});
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_THAT(second.err(), HasSubstr("Address already in use"));
}

TEST_F(Serve, LogsJsonWhenAsked) {
  Start({}, {"--set", "service.log_format=json"});
  child_->Signal(SIGINT);
  EXPECT_EQ(child_->Wait(), 0);
  std::istringstream lines(child_->err());
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_THAT(line, ContainsRegex("^\\{\"time\":\".*,\"message\":\".*\"\\}$"));
  }
  EXPECT_GE(count, 3u);
}

TEST_F(Serve, MetricsAreClean) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0) GTEST_SKIP() << "promtool is not installed";
  Start();
  const std::string page = Page("/metrics");
  const std::string path = scratch_.Write("page.txt", page.substr(page.find("\r\n\r\n") + 4));
  EXPECT_EQ(std::system(("promtool check metrics < " + path).c_str()), 0);
}

TEST_F(Serve, EveryMetricIsInTheOperatorsTable) {
  Start();
  const std::string docs = ReadFile(FORELOAD_SOURCE_DIR "/docs/operations.md");
  const std::string metrics = Page("/metrics");
  std::istringstream lines(metrics);
  std::size_t families = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# TYPE ")) continue;
    const std::string name = line.substr(7, line.find(' ', 7) - 7);
    if (name.starts_with("process_")) continue;
    ++families;
    EXPECT_THAT(docs, HasSubstr("`" + name + "`")) << "docs/operations.md lacks it";
  }
  EXPECT_GT(families, 10u);
  // And the table names nothing that is gone.
  for (std::size_t at = docs.find("| `foreload_"); at != std::string::npos; at = docs.find("| `foreload_", at + 1)) {
    const std::string name = docs.substr(at + 3, docs.find('`', at + 3) - at - 3);
    EXPECT_THAT(metrics, HasSubstr("# TYPE " + name + " ")) << "no such metric";
  }
}

}  // namespace
}  // namespace foreload::cmd
