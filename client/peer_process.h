// The process at the other end of a UNIX socket: who it is and whether it still lives. Its memory accesses, transfers
// included, have ended when it is dead, not when its socket is closed.
#pragma once

#include <sys/types.h>

#include <utility>

#include "proto/unique_fd.h"

namespace foreload::client {

class PeerProcess {
 public:
  PeerProcess() = default;
  PeerProcess(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}
  // Of a connected socket: SO_PEERPIDFD where the kernel has it, else SO_PEERCRED and pidfd_open.
  static PeerProcess Of(int socket);

  pid_t pid() const { return pid_; }
  // Readable once the process is dead; -1: unknown (another PID namespace).
  int fd() const { return pidfd_.get(); }

  // Without a pidfd nothing but the end of the connection tells: the caller says whether that has come.
  bool Dead(bool connection_ended) const;

 private:
  pid_t pid_ = 0;
  UniqueFd pidfd_;
};

}  // namespace foreload::client
