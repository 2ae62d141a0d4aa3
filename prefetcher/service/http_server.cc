#include "prefetcher/service/http_server.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>
#include <vector>

#include "prefetcher/service/config_value.h"
#include "proto/unique_fd.h"

namespace foreload::service {
namespace {

constexpr DurationNs kAcceptPause = 100 * kMillisecond;  // after EMFILE and its like
constexpr std::size_t kAcceptsPerTurnMax = 64;           // so that a storm of connects does not starve the others

constexpr std::string_view kTooLarge =
    "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

struct Connection {
  UniqueFd fd;
  std::string peer;
  std::string input;
  std::string output;
  std::size_t written = 0;
  TimeNs deadline = 0;  // of the request, or of the reply while there is one
  std::size_t served = 0;
  bool close = false;  // once the output is gone

  bool replying() const { return written < output.size(); }
};

struct ServerMetrics {
  Counter& accepted;
  Gauge& open;
  Counter& accept_errors;
  Counter& evicted;
  Counter& timeouts;
  Counter& oversized;

  explicit ServerMetrics(MetricRegistry& m)
      : accepted(m.AddCounter("foreload_http_connections_total", "Connections accepted.")),
        open(m.AddGauge("foreload_http_connections", "Connections open now.")),
        accept_errors(
            m.AddCounter("foreload_http_accept_errors_total", "Accepts that failed, as without descriptors.")),
        evicted(m.AddCounter("foreload_http_closed_connections_total", "Connections closed by us, by reason.",
                             {{"reason", "too_many"}})),
        timeouts(m.AddCounter("foreload_http_closed_connections_total", "Connections closed by us, by reason.",
                              {{"reason", "timeout"}})),
        oversized(m.AddCounter("foreload_http_closed_connections_total", "Connections closed by us, by reason.",
                               {{"reason", "oversized"}})) {}
};

std::string NumericPeer(const sockaddr_storage& address, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  const int failed = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host.data(), host.size(),
                                   nullptr, 0, NI_NUMERICHOST);
  return failed != 0 ? std::string() : std::string(host.data());
}

Result<UniqueFd> Bind(const std::string& listen, int backlog) {
  FORELOAD_ASSIGN_OR_RETURN(const auto place, SplitListen(listen));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(place.first.c_str(), place.second.c_str(), &hints, &found);
  if (failed != 0) return InvalidArgument("http_listen " + listen + ": " + ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, &::freeaddrinfo);
  Status status = Unavailable("http_listen " + listen + ": no address");
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    UniqueFd fd(::socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int one = 1;
    if (fd.valid()) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd.valid() && ::bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 && ::listen(fd.get(), backlog) == 0) {
      return fd;
    }
    status = Status::FromErrno(errno, "http_listen " + listen);
  }
  return status;
}

int BoundPort(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  std::array<char, NI_MAXSERV> service{};
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, nullptr, 0, service.data(), service.size(),
                    NI_NUMERICSERV) != 0) {
    return 0;
  }
  return static_cast<int>(ParseInteger(service.data()).value_or(0));
}

}  // namespace

Result<std::pair<std::string, std::string>> SplitListen(const std::string& listen) {
  const std::size_t colon = listen.rfind(':');
  if (colon == std::string::npos || colon == 0) return InvalidArgument("expects host:port, got \"" + listen + "\"");
  std::string host = listen.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host == "*") host = "0.0.0.0";
  return std::pair(std::move(host), listen.substr(colon + 1));
}

struct HttpServer::Impl {
  HttpLimits limits;
  ServerMetrics metrics;
  HttpRouter router;
  UniqueFd listener;
  UniqueFd wake;  // eventfd, readable once the server shall stop
  std::vector<Connection> connections;
  std::vector<pollfd> polled;
  TimeNs accept_after = 0;
  std::jthread thread;

  Impl(HttpHandlers handlers, MetricRegistry& registry, const HttpLimits& given)
      : limits(given), metrics(registry), router(std::move(handlers), registry) {}

  void Run() {
    while (Turn()) {
    }
    connections.clear();
  }

  // One wait and what it brought; false once the server shall stop.
  bool Turn() {
    const TimeNs now = MonotonicNow();
    const bool accepting = now >= accept_after;
    polled.clear();
    polled.push_back({wake.get(), POLLIN, 0});
    polled.push_back({accepting ? listener.get() : -1, POLLIN, 0});
    TimeNs next = accepting ? kTimeNever : accept_after;
    for (const Connection& connection : connections) {
      polled.push_back({connection.fd.get(), static_cast<short>(connection.replying() ? POLLOUT : POLLIN), 0});
      next = std::min(next, connection.deadline);
    }
    timespec wait{};
    const DurationNs left = std::max<DurationNs>(0, next == kTimeNever ? 0 : next - now);
    wait.tv_sec = left / kSecond;
    wait.tv_nsec = left % kSecond;
    if (::ppoll(polled.data(), polled.size(), next == kTimeNever ? nullptr : &wait, nullptr) < 0 && errno != EINTR) {
      return false;
    }
    if (polled[0].revents != 0) return false;
    for (std::size_t i = 0; i < connections.size(); ++i) {
      if (polled[i + 2].revents != 0) Serve(connections[i]);
    }
    DropEnded(MonotonicNow());
    if (polled[1].revents != 0) Accept();
    metrics.open.Set(static_cast<double>(connections.size()));
    return true;
  }

  void DropEnded(TimeNs now) {
    std::erase_if(connections, [&](const Connection& connection) {
      if (!connection.fd.valid()) return true;
      if (now < connection.deadline) return false;
      const bool idle = connection.served > 0 && connection.input.empty() && !connection.replying();
      if (!idle) metrics.timeouts.Add();
      return true;
    });
  }

  void Accept() {
    for (std::size_t i = 0; i < kAcceptsPerTurnMax; ++i) {
      sockaddr_storage address{};
      socklen_t length = sizeof address;
      UniqueFd fd(
          ::accept4(listener.get(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        if (errno == ECONNABORTED || errno == EINTR) continue;
        metrics.accept_errors.Add();
        accept_after = MonotonicNow() + kAcceptPause;
        return;
      }
      metrics.accepted.Add();
      if (connections.size() >= limits.connections_max) EvictOne();
      Connection connection;
      connection.fd = std::move(fd);
      connection.peer = NumericPeer(address, length);
      connection.deadline = MonotonicNow() + limits.request_timeout_ns;
      connections.push_back(std::move(connection));
    }
  }

  // The one whose deadline comes first has been silent longest.
  void EvictOne() {
    metrics.evicted.Add();
    connections.erase(std::min_element(connections.begin(), connections.end(),
                                       [](const auto& a, const auto& b) { return a.deadline < b.deadline; }));
  }

  // Reads or writes what can be without waiting; an invalid descriptor afterwards means that the connection ended.
  void Serve(Connection& connection) {
    if (!connection.replying()) return Read(connection);
    Write(connection);
    Answer(connection);  // what arrived behind the request that was just answered
  }

  void Read(Connection& connection) {
    std::array<char, 4096> chunk;
    const ssize_t got = ::recv(connection.fd.get(), chunk.data(), chunk.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      connection.fd.reset();
      return;
    }
    connection.input.append(chunk.data(), static_cast<std::size_t>(got));
    Answer(connection);
  }

  // Answers every whole request that has arrived, as long as the replies can be written at once.
  void Answer(Connection& connection) {
    while (connection.fd.valid() && !connection.replying()) {
      const std::size_t bytes = HttpRequestBytes(connection.input, limits.request_bytes_max);
      if (bytes == 0) return;
      if (bytes == SIZE_MAX) {
        metrics.oversized.Add();
        Reply(connection, std::string(kTooLarge), true);
        return;
      }
      HttpExchange exchange = router.Serve(std::string_view(connection.input).substr(0, bytes), connection.peer);
      connection.input.erase(0, bytes);
      ++connection.served;
      Reply(connection, std::move(exchange.reply),
            exchange.close || connection.served >= limits.requests_per_connection_max);
    }
  }

  void Reply(Connection& connection, std::string reply, bool close) {
    connection.output = std::move(reply);
    connection.written = 0;
    connection.close = close;
    connection.deadline = MonotonicNow() + limits.reply_timeout_ns;
    Write(connection);
  }

  void Write(Connection& connection) {
    while (connection.replying()) {
      const ssize_t sent = ::send(connection.fd.get(), connection.output.data() + connection.written,
                                  connection.output.size() - connection.written, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      if (sent <= 0) {
        connection.fd.reset();
        return;
      }
      connection.written += static_cast<std::size_t>(sent);
    }
    connection.output.clear();
    connection.written = 0;
    connection.deadline = MonotonicNow() + limits.request_timeout_ns;
    if (connection.close) connection.fd.reset();
  }
};

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen, HttpHandlers handlers,
                                                      MetricRegistry& metrics, const HttpLimits& limits) {
  FORELOAD_ASSIGN_OR_RETURN(UniqueFd listener, Bind(listen, limits.backlog));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return Status::FromErrno(errno, "eventfd");
  auto impl = std::make_unique<Impl>(std::move(handlers), metrics, limits);
  impl->listener = std::move(listener);
  impl->wake = std::move(wake);
  impl->thread = std::jthread([raw = impl.get()] { raw->Run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  const std::uint64_t one = 1;
  // An eventfd takes eight bytes or fails; at 0 it cannot fail.
  [[maybe_unused]] const ssize_t written = ::write(impl_->wake.get(), &one, sizeof one);
  impl_->thread.join();
}

int HttpServer::port() const {
  return BoundPort(impl_->listener.get());
}

}  // namespace foreload::service
