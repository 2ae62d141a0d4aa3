// A sidecar of the drive's own: a fresh folder with its configuration, state, sockets and SSD store, and the process
// that serves it. The folder is removed with the object unless the sidecar is left running.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "cmd/drive/scenario.h"

namespace foreload::drive {

struct SidecarOptions {
  std::string executable;     // run as `executable serve --config FILE`
  std::string parent_folder;  // of the fresh folder; holds the SSD tier
  bool observe = false;
  bool outlive = false;  // it may go on after this process has ended
};

class SidecarProcess {
 public:
  static Result<std::unique_ptr<SidecarProcess>> Start(const Scenario& scenario, const SidecarOptions& options);
  // Stops it (SIGTERM, then SIGKILL after 20 s) and removes the folder.
  ~SidecarProcess();
  SidecarProcess(const SidecarProcess&) = delete;
  SidecarProcess& operator=(const SidecarProcess&) = delete;

  const std::string& folder() const { return folder_; }
  std::string control_socket() const { return folder_ + "/control.sock"; }
  std::string access_endpoint() const { return "ipc://" + folder_ + "/engine.access"; }
  std::string kv_endpoint() const { return "ipc://" + folder_ + "/engine.kv"; }
  std::string kv_replay_endpoint() const { return "ipc://" + folder_ + "/engine.replay"; }
  pid_t pid() const { return pid_; }

  // "host:port", or "" when it serves none (yet).
  std::string http_address() const;
  // Ok while it runs; else how it ended, with the last lines that it wrote.
  Status Alive();
  // SIGTERM; an error when it had to be killed or did not end with 0.
  Status Stop();
  // Leaves process and folder to the user.
  void Detach();

 private:
  SidecarProcess() = default;
  std::string LogTail() const;

  std::string folder_;
  pid_t pid_ = -1;
  int exit_status_ = -1;
  bool detached_ = false;
};

// The configuration file of such a sidecar.
std::string SidecarConfig(const Scenario& scenario, const std::string& folder, bool observe);

}  // namespace foreload::drive
