#include "prefetcher/service/notify.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "prefetcher/service/config_value.h"
#include "proto/unique_fd.h"

namespace foreload::service {

Notifier Notifier::FromEnvironment() {
  const char* socket = std::getenv("NOTIFY_SOCKET");
  return Notifier(socket == nullptr ? "" : socket);
}

Status Notifier::Ready(std::string_view status) const {
  return Send("READY=1\nSTATUS=" + std::string(status));
}

Status Notifier::Reloading(TimeNs monotonic_now) const {
  return Send("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(monotonic_now / kMicrosecond));
}

Status Notifier::Stopping() const {
  return Send("STOPPING=1");
}

Status Notifier::Watchdog() const {
  return Send("WATCHDOG=1");
}

Status Notifier::Send(std::string_view message) const {
  if (socket_.empty()) return OkStatus();
  sockaddr_un address{};
  if (socket_.size() < 2 || socket_.size() >= sizeof(address.sun_path) || (socket_[0] != '/' && socket_[0] != '@')) {
    return InvalidArgument("NOTIFY_SOCKET is neither a path nor an abstract name: " + socket_);
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (socket_[0] == '@') address.sun_path[0] = '\0';
  // An abstract name is as long as its address says; a path needs no zero byte counted.
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Status::FromErrno(errno, "socket");
  const ssize_t sent = ::sendto(fd.get(), message.data(), message.size(), MSG_NOSIGNAL,
                                reinterpret_cast<const sockaddr*>(&address), length);
  if (sent < 0) return Status::FromErrno(errno, "notify " + socket_);
  return OkStatus();
}

std::optional<DurationNs> WatchdogInterval(const char* usec, const char* pid) {
  if (usec == nullptr) return std::nullopt;
  const auto interval = ParseInteger(usec);
  constexpr std::int64_t kIntervalMax = 24ll * 3600 * 1'000'000;  // a day: beyond it nobody watches
  if (!interval || *interval <= 0 || *interval > kIntervalMax) return std::nullopt;
  if (pid != nullptr && ParseInteger(pid) != std::optional<std::int64_t>(::getpid())) return std::nullopt;
  return *interval * kMicrosecond / 2;
}

}  // namespace foreload::service
