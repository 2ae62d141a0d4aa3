#include "prefetcher/service/control_server.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "proto/control.pb.h"
#include "proto/control_frames.h"

namespace foreload::service {
namespace {

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif

// The peer's pidfd: race-free from the socket where the kernel offers it, else by number. Invalid where neither works
// (another PID namespace): then the end of the connection is all that is known.
UniqueFd PeerPidfd(int socket, pid_t pid) {
  int fd = -1;
  socklen_t length = sizeof fd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0 && fd >= 0) return UniqueFd(fd);
  if (pid > 0) fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  return UniqueFd(fd);
}

// What epoll's 64-bit user data says: the connection and which of its descriptors.
enum class Watch : std::uint64_t { kListener, kWakeup, kSocket, kProcess, kDoorbell };
constexpr std::uint64_t Tag(Watch watch, ConnectionId connection) {
  return (connection.value << 3) | static_cast<std::uint64_t>(watch);
}

bool SomebodyServes(const sockaddr_un& address) {
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return probe.valid() && connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

Result<UniqueFd> Listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return InvalidArgument("service.control_socket: \"" + path + "\" must have 1 to " +
                           std::to_string(sizeof address.sun_path - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());

  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!directory.empty() && !std::filesystem::exists(directory, error)) {
    std::filesystem::create_directories(directory, error);
    if (error) return IoError("cannot make " + directory.string() + ": " + error.message());
    chmod(directory.c_str(), 0700);
  }
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) return FailedPrecondition(path + " exists and is not a socket: move it away");
    if (SomebodyServes(address)) {
      return FailedPrecondition("another sidecar serves " + path + ": stop it, or set service.control_socket");
    }
    unlink(path.c_str());
  }

  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.valid()) return Status::FromErrno(errno, "control socket");
  const mode_t old_mask = umask(0177);  // the socket file is 0600 from its first moment
  const int bound = bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int bind_errno = errno;
  umask(old_mask);
  if (bound != 0) return Status::FromErrno(bind_errno, "cannot bind " + path);
  if (listen(listener.get(), 128) != 0) return Status::FromErrno(errno, "cannot listen on " + path);
  return listener;
}

}  // namespace

ControlServerMetrics::ControlServerMetrics(MetricRegistry& registry)
    : connections(registry.AddCounter("foreload_control_connections_total", "Engine processes that connected.")),
      frames(registry.AddCounter("foreload_control_frames_total", "Control messages received.")),
      rejected_peer(registry.AddCounter("foreload_control_rejected_total", "Connections or frames refused, by reason.",
                                        {{"reason", "peer"}})),
      rejected_frame(registry.AddCounter("foreload_control_rejected_total", "Connections or frames refused, by reason.",
                                         {{"reason", "frame"}})),
      rejected_full(registry.AddCounter("foreload_control_rejected_total", "Connections or frames refused, by reason.",
                                        {{"reason", "connections"}})),
      dropped_slow(registry.AddCounter("foreload_control_rejected_total", "Connections or frames refused, by reason.",
                                       {{"reason", "slow_reader"}})),
      open(registry.AddGauge("foreload_control_open_connections", "Engine processes connected now.")) {}

struct ControlServer::Impl {
  struct Connection {
    UniqueFd socket;
    UniqueFd pidfd;
    UniqueFd doorbell;
    pid_t pid = 0;
    control::FrameReader reader;
    control::FrameWriter writer;  // under Impl::mutex
    bool want_write = false;      // under Impl::mutex
    bool closing = false;         // under Impl::mutex: close once the queue is empty
  };

  Impl(MetricRegistry& registry, Sink sink_in) : metrics(registry), sink(std::move(sink_in)) {}

  void Run();
  void Accept();
  void ReadFrom(ConnectionId id);
  void FlushPending();
  void End(ConnectionId id, const char* why);
  bool Add(int fd, std::uint32_t events, std::uint64_t tag) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = tag;
    return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }

  ControlServerMetrics metrics;
  Sink sink;
  std::uint64_t boot_token = 0;
  std::string path;
  UniqueFd listener;
  UniqueFd epoll;
  UniqueFd wakeup;
  std::atomic<bool> stop{false};

  std::mutex mutex;  // guards connections' existence and writers; frames are read without it, on the thread
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections;
  std::vector<ConnectionId> pending;  // have output, or are to be closed
  std::uint64_t next_id = 1;
  std::thread thread;
};

void ControlServer::Impl::Run() {
  epoll_event events[64];
  while (!stop.load(std::memory_order_acquire)) {
    const int count = epoll_wait(epoll.get(), events, 64, -1);
    for (int i = 0; i < count; ++i) {
      const ConnectionId id{events[i].data.u64 >> 3};
      switch (static_cast<Watch>(events[i].data.u64 & 7)) {
        case Watch::kListener: Accept(); break;
        case Watch::kWakeup: {
          std::uint64_t value = 0;
          [[maybe_unused]] const auto n = read(wakeup.get(), &value, sizeof value);
          break;
        }
        case Watch::kSocket:
          if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) ReadFrom(id);
          if (events[i].events & EPOLLOUT) {
            const std::lock_guard lock(mutex);
            pending.push_back(id);
          }
          break;
        case Watch::kProcess: End(id, nullptr); break;  // a forked child may still hold the socket open
        case Watch::kDoorbell: {
          bool rung = false;
          {
            const std::lock_guard lock(mutex);
            const auto it = connections.find(id.value);
            std::uint64_t value = 0;
            rung = it != connections.end() && it->second->doorbell.valid() &&
                   read(it->second->doorbell.get(), &value, sizeof value) == sizeof value;
          }
          if (rung) sink(ControlDoorbell{id});
          break;
        }
      }
    }
    FlushPending();
  }
}

void ControlServer::Impl::Accept() {
  while (true) {
    UniqueFd socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) return;  // EAGAIN, or out of descriptors: the next event tries again
    ucred peer{};
    socklen_t length = sizeof peer;
    if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
        (peer.uid != geteuid() && peer.uid != 0)) {
      metrics.rejected_peer.Add();
      spdlog::warn("control: refused a process of uid {} (pid {}): engines must run as uid {}", peer.uid, peer.pid,
                   geteuid());
      continue;
    }
    const std::lock_guard lock(mutex);
    if (connections.size() >= kConnectionsMax) {
      metrics.rejected_full.Add();
      continue;
    }
    const ConnectionId id{next_id++};
    auto connection = std::make_unique<Connection>();
    connection->pid = peer.pid;
    connection->pidfd = PeerPidfd(socket.get(), peer.pid);
    connection->socket = std::move(socket);
    if (!Add(connection->socket.get(), EPOLLIN, Tag(Watch::kSocket, id))) continue;
    if (connection->pidfd.valid()) Add(connection->pidfd.get(), EPOLLIN, Tag(Watch::kProcess, id));
    connections.emplace(id.value, std::move(connection));
    metrics.connections.Add();
    metrics.open.Set(static_cast<double>(connections.size()));
  }
}

void ControlServer::Impl::ReadFrom(ConnectionId id) {
  Connection* connection = nullptr;
  {
    const std::lock_guard lock(mutex);
    const auto it = connections.find(id.value);
    if (it == connections.end()) return;
    connection = it->second.get();  // only this thread erases it
  }
  static constexpr int kFramesPerTurn = 64;  // so that a flooding peer does not keep the others waiting
  for (int i = 0; i < kFramesPerTurn; ++i) {
    control::Frame frame;
    const auto outcome = connection->reader.Read(connection->socket.get(), frame);
    if (!outcome.ok()) {
      metrics.rejected_frame.Add();
      End(id, outcome.status().message().c_str());
      return;
    }
    if (outcome.value() == control::FrameReader::Outcome::kWouldBlock) return;
    if (outcome.value() == control::FrameReader::Outcome::kEnd) {
      End(id, nullptr);
      return;
    }
    auto message = std::make_shared<control::ControlMessage>();
    if (const Status status = control::DecodeMessage(frame.body, *message); !status.ok()) {
      metrics.rejected_frame.Add();
      End(id, status.message().c_str());
      return;
    }
    metrics.frames.Add();
    ControlFrame event{.connection = id, .pid = connection->pid, .message = std::move(message), .descriptors = {}};
    for (UniqueFd& fd : frame.descriptors) event.descriptors.push_back(std::make_shared<UniqueFd>(std::move(fd)));
    sink(std::move(event));
  }
}

void ControlServer::Impl::FlushPending() {
  std::vector<ConnectionId> ended;
  {
    const std::lock_guard lock(mutex);
    for (const ConnectionId id : pending) {
      const auto it = connections.find(id.value);
      if (it == connections.end()) continue;
      Connection& connection = *it->second;
      const auto empty = connection.writer.Flush(connection.socket.get());
      if (!empty.ok() || (empty.value() && connection.closing)) {
        ended.push_back(id);
        continue;
      }
      const bool want_write = !empty.value();
      if (want_write != connection.want_write) {
        connection.want_write = want_write;
        epoll_event event{};
        event.events = EPOLLIN | (want_write ? EPOLLOUT : 0u);
        event.data.u64 = Tag(Watch::kSocket, id);
        epoll_ctl(epoll.get(), EPOLL_CTL_MOD, connection.socket.get(), &event);
      }
    }
    pending.clear();
  }
  for (const ConnectionId id : ended) End(id, nullptr);
}

void ControlServer::Impl::End(ConnectionId id, const char* why) {
  {
    const std::lock_guard lock(mutex);
    const auto it = connections.find(id.value);
    if (it == connections.end()) return;
    if (why != nullptr) spdlog::warn("control: closed the connection of pid {}: {}", it->second->pid, why);
    // The doorbell's open file lives on in the ring, so closing our descriptor alone would leave it in the epoll set.
    if (it->second->doorbell.valid()) epoll_ctl(epoll.get(), EPOLL_CTL_DEL, it->second->doorbell.get(), nullptr);
    connections.erase(it);  // closes socket, pidfd and doorbell
    metrics.open.Set(static_cast<double>(connections.size()));
  }
  sink(ControlClosed{id});
}

Result<std::unique_ptr<ControlServer>> ControlServer::Start(const std::string& socket_path, std::uint64_t boot_token,
                                                            MetricRegistry& registry, Sink sink) {
  auto impl = std::make_unique<Impl>(registry, std::move(sink));
  FORELOAD_ASSIGN_OR_RETURN(impl->listener, Listen(socket_path));
  impl->path = socket_path;
  impl->boot_token = boot_token;
  impl->epoll.reset(epoll_create1(EPOLL_CLOEXEC));
  impl->wakeup.reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!impl->epoll.valid() || !impl->wakeup.valid()) return Status::FromErrno(errno, "control server");
  impl->Add(impl->listener.get(), EPOLLIN, Tag(Watch::kListener, ConnectionId{0}));
  impl->Add(impl->wakeup.get(), EPOLLIN, Tag(Watch::kWakeup, ConnectionId{0}));
  impl->thread = std::thread([raw = impl.get()] {
    pthread_setname_np(pthread_self(), "fl-control");
    raw->Run();
  });
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ControlServer::~ControlServer() {
  impl_->stop.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = write(impl_->wakeup.get(), &one, sizeof one);
  impl_->thread.join();
  unlink(impl_->path.c_str());
}

void ControlServer::Send(ConnectionId connection, control::ControlMessage message,
                         const std::vector<int>& descriptors) {
  message.set_boot_token(impl_->boot_token);
  const auto body = control::EncodeMessage(message);
  if (!body.ok()) {
    spdlog::error("control: reply not sent: {}", body.status().message());
    return;
  }
  std::vector<UniqueFd> owned;
  for (const int fd : descriptors) owned.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  {
    const std::lock_guard lock(impl_->mutex);
    const auto it = impl_->connections.find(connection.value);
    if (it == impl_->connections.end()) return;
    Impl::Connection& peer = *it->second;
    if (!peer.writer.Queue(body.value(), std::move(owned)).ok()) {
      impl_->metrics.dropped_slow.Add();
      peer.closing = true;
      shutdown(peer.socket.get(), SHUT_RDWR);
    } else if (!peer.want_write) {
      // At once, so that the answer to a waiting request does not wait for another thread; what does not fit is left
      // to the server's thread.
      const auto empty = peer.writer.Flush(peer.socket.get());
      if (empty.ok() && empty.value() && !peer.closing) return;
    }
    impl_->pending.push_back(connection);
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = write(impl_->wakeup.get(), &one, sizeof one);
}

void ControlServer::WatchDoorbell(ConnectionId connection, int doorbell) {
  const std::lock_guard lock(impl_->mutex);
  const auto it = impl_->connections.find(connection.value);
  if (it == impl_->connections.end()) return;
  if (it->second->doorbell.valid()) epoll_ctl(impl_->epoll.get(), EPOLL_CTL_DEL, it->second->doorbell.get(), nullptr);
  it->second->doorbell.reset(fcntl(doorbell, F_DUPFD_CLOEXEC, 0));
  fcntl(it->second->doorbell.get(), F_SETFL, O_NONBLOCK);
  impl_->Add(it->second->doorbell.get(), EPOLLIN, Tag(Watch::kDoorbell, connection));
}

void ControlServer::Close(ConnectionId connection) {
  {
    const std::lock_guard lock(impl_->mutex);
    const auto it = impl_->connections.find(connection.value);
    if (it == impl_->connections.end()) return;
    it->second->closing = true;
    impl_->pending.push_back(connection);
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = write(impl_->wakeup.get(), &one, sizeof one);
}

}  // namespace foreload::service
