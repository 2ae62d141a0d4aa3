// The control socket: accepts engine processes, reads their frames, watches their lives and their store doorbells.
//
// One thread with epoll. It decides nothing: whole messages, ends of connections and processes, and doorbells go to
// `sink`, and the core thread answers through `Send`. Peers must have our uid (or root's); the socket is 0600 in a 0700
// directory. A peer that breaks framing or floods (over kControlQueueBytesMax unread) is disconnected with a log
// line and a counter; nothing it does can block the others.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/metric.h"
#include "base/status.h"
#include "proto/unique_fd.h"

namespace foreload::control {
class ControlMessage;
}

namespace foreload::service {

using ConnectionId = Id<struct ConnectionTag, std::uint64_t>;  // never reused

struct ControlFrame {
  ConnectionId connection;
  pid_t pid = 0;  // of the peer, as the kernel says
  std::shared_ptr<const control::ControlMessage> message;
  std::vector<std::shared_ptr<UniqueFd>>
      descriptors;  // shared only so that the event can be copied; one owner takes it
};
// EOF, a broken peer, or (by pidfd, where one could be had) the death of the process. The process may live on.
struct ControlClosed {
  ConnectionId connection;
};
struct ControlDoorbell {
  ConnectionId connection;
};
using ControlEvent = std::variant<ControlFrame, ControlClosed, ControlDoorbell>;

struct ControlServerMetrics {
  explicit ControlServerMetrics(MetricRegistry& registry);
  Counter& connections;
  Counter& frames;
  Counter& rejected_peer;   // wrong uid
  Counter& rejected_frame;  // framing or protobuf
  Counter& rejected_full;   // too many connections
  Counter& dropped_slow;    // output limit
  Gauge& open;
};

class ControlServer {
 public:
  using Sink = std::function<void(ControlEvent)>;
  static constexpr std::size_t kConnectionsMax = 1024;

  // Creates the directory 0700 when absent, replaces a socket that nobody serves, refuses one that somebody does.
  static Result<std::unique_ptr<ControlServer>> Start(const std::string& socket_path, std::uint64_t boot_token,
                                                      MetricRegistry& registry, Sink sink);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Any thread; never blocks. Fills in the boot token. Descriptors are duplicated before it returns.
  void Send(ConnectionId connection, control::ControlMessage message, const std::vector<int>& descriptors = {});
  // Reads `doorbell` (an eventfd, duplicated) until the connection ends and reports each ring.
  void WatchDoorbell(ConnectionId connection, int doorbell);
  // Ends the connection once its output is sent.
  void Close(ConnectionId connection);

 private:
  struct Impl;
  explicit ControlServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace foreload::service
