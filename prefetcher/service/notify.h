// The systemd readiness protocol: one datagram of KEY=VALUE lines to $NOTIFY_SOCKET (a path, or '@' and an abstract
// name). Without a socket every call does nothing. A manager that does not listen costs nothing: sends never block.
//
// Thread: any, one message at a time per object is not needed.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace foreload::service {

class Notifier {
 public:
  // `socket` is the value of NOTIFY_SOCKET; empty: off.
  explicit Notifier(std::string socket) : socket_(std::move(socket)) {}

  // From the environment of this process.
  static Notifier FromEnvironment();

  bool enabled() const { return !socket_.empty(); }

  Status Ready(std::string_view status) const;
  // RELOADING=1 with the monotonic time that Type=notify-reload asks for; Ready ends it.
  Status Reloading(TimeNs monotonic_now) const;
  Status Stopping() const;
  Status Watchdog() const;

 private:
  Status Send(std::string_view message) const;

  std::string socket_;
};

// Half of the interval in which systemd wants to hear from us; nullopt when it does not watch this process.
// `usec` and `pid` are the values of WATCHDOG_USEC and WATCHDOG_PID (nullptr: unset).
std::optional<DurationNs> WatchdogInterval(const char* usec, const char* pid);

}  // namespace foreload::service
