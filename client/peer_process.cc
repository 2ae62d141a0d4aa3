#include "client/peer_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace foreload::client {
namespace {

constexpr int kSoPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5; Debian 12's headers lack it

}  // namespace

PeerProcess PeerProcess::Of(int socket) {
  PeerProcess peer;
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) return peer;
  peer.pid_ = credentials.pid;
  int pidfd = -1;
  bytes = sizeof pidfd;
  if (::getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &pidfd, &bytes) == 0) {
    peer.pidfd_.reset(pidfd);
    return peer;
  }
  if (credentials.pid <= 0) return peer;
  // A pid could be reused between death and this call; then the connection ends as well, and the pidfd of a stranger
  // only delays what waits for this death: the safe side.
  peer.pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, credentials.pid, 0)));
  return peer;
}

bool PeerProcess::Dead(bool connection_ended) const {
  if (!pidfd_.valid()) return connection_ended;
  pollfd entry{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace foreload::client
