// A child of the test: its output in files, its end awaited with a deadline. Killed when the test leaves it behind.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace foreload::cmd {

struct ChildOptions {
  std::vector<std::string> arguments;                                 // without the program's own name
  std::vector<std::pair<std::string, std::string>> environment = {};  // added to the test's own, without FORELOAD_*
  std::string folder;                                                 // for the output files
};

class ChildProcess {
 public:
  // Starts FORELOAD_BINARY.
  explicit ChildProcess(const ChildOptions& options);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Signal(int signal) const;
  // Exit code; 128 + signal when a signal ended it; -1 when `timeout` passed first.
  int Wait(DurationNs timeout = 60 * kSecond);
  bool ended() const { return exit_code_ >= 0; }

  std::string out() const;
  std::string err() const;
  // Waits until stderr holds `text`; false when the child ended or 60 s passed without it.
  bool WaitForErr(const std::string& text);

 private:
  std::string folder_;
  pid_t pid_ = -1;
  int exit_code_ = -1;
};

// A fresh folder of mode 0700, removed with the object. Short: UNIX sockets live in it.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

std::string ReadFile(const std::string& path);

}  // namespace foreload::cmd
