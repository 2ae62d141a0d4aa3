#include "cmd/tests/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "proto/unique_fd.h"

namespace foreload::cmd {
namespace {

constexpr DurationNs kErrTimeout = 60 * kSecond;

std::vector<std::string> Environment(const ChildOptions& options) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    if (!text.starts_with("FORELOAD_") && !text.starts_with("NOTIFY_SOCKET=")) variables.push_back(text);
  }
  for (const auto& [name, value] : options.environment) variables.push_back(name + "=" + value);
  return variables;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

ChildProcess::ChildProcess(const ChildOptions& options) : folder_(options.folder) {
  std::vector<std::string> arguments = {FORELOAD_BINARY};
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  std::vector<std::string> variables = Environment(options);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, (folder_ + "/out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&files, 2, (folder_ + "/err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int failed =
      posix_spawn(&pid_, FORELOAD_BINARY, &files, nullptr, Pointers(arguments).data(), Pointers(variables).data());
  posix_spawn_file_actions_destroy(&files);
  EXPECT_EQ(failed, 0) << FORELOAD_BINARY;
  if (failed != 0) exit_code_ = 127;
}

ChildProcess::~ChildProcess() {
  if (ended()) return;
  Signal(SIGKILL);
  Wait();
}

void ChildProcess::Signal(int signal) const {
  if (!ended()) ::kill(pid_, signal);
}

int ChildProcess::Wait(DurationNs timeout) {
  if (ended()) return exit_code_;
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  pollfd ready{pidfd.get(), POLLIN, 0};
  if (pidfd.valid() && ::poll(&ready, 1, static_cast<int>(timeout / kMillisecond)) == 0) return -1;
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_) return -1;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_code_;
}

std::string ChildProcess::out() const {
  return ReadFile(folder_ + "/out");
}
std::string ChildProcess::err() const {
  return ReadFile(folder_ + "/err");
}

bool ChildProcess::WaitForErr(const std::string& text) {
  const TimeNs limit = MonotonicNow() + kErrTimeout;
  while (err().find(text) == std::string::npos) {
    if (MonotonicNow() > limit || Wait(10 * kMillisecond) >= 0) return err().find(text) != std::string::npos;
  }
  return true;
}

ScratchFolder::ScratchFolder() {
  char name[] = "/tmp/foreload-cmd-XXXXXX";
  EXPECT_NE(::mkdtemp(name), nullptr);
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ScratchFolder::Write(const std::string& name, const std::string& text) const {
  const std::string path = path_ + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace foreload::cmd
