#include "telemetry/zmq_socket.h"

#include <sys/stat.h>
#include <zmq.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace foreload::telemetry {
namespace {

constexpr int kHandshakeSucceeded = ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
constexpr int kHandshakeFailed =
    ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
constexpr std::string_view kIpc = "ipc://";
constexpr std::size_t kCurveKeyChars = 40;
// TCP keep-alive is the second line behind heartbeats: dead after 20 + 3 * 5 s.
constexpr int kKeepAliveIdleSeconds = 20;
constexpr int kKeepAliveIntervalSeconds = 5;
constexpr int kKeepAliveProbes = 3;

int TypeOf(ZmqSocket::Type type) {
  switch (type) {
    case ZmqSocket::Type::kSub: return ZMQ_SUB;
    case ZmqSocket::Type::kDealer: return ZMQ_DEALER;
    case ZmqSocket::Type::kPair: return ZMQ_PAIR;
    case ZmqSocket::Type::kXpub: return ZMQ_XPUB;
    case ZmqSocket::Type::kRouter: return ZMQ_ROUTER;
  }
  return ZMQ_PAIR;
}

Status ZmqError(std::string_view what) {
  return Unavailable(std::string(what) + ": " + zmq_strerror(zmq_errno()));
}

// Options that this library version always has: a refusal is our own mistake.
void Set(void* socket, int option, int value) {
  FORELOAD_CHECK(zmq_setsockopt(socket, option, &value, sizeof value) == 0, zmq_strerror(zmq_errno()));
}

void SetLinkOptions(void* socket, const LinkOptions& link) {
  Set(socket, ZMQ_LINGER, 0);
  Set(socket, ZMQ_RCVHWM, link.receive_messages_max);
  Set(socket, ZMQ_HEARTBEAT_IVL, link.heartbeat_interval_ms);
  if (link.heartbeat_interval_ms > 0) {
    Set(socket, ZMQ_HEARTBEAT_TIMEOUT, link.heartbeat_timeout_ms);
    Set(socket, ZMQ_HEARTBEAT_TTL, 2 * link.heartbeat_timeout_ms);  // after this the peer may forget us
  }
  Set(socket, ZMQ_RECONNECT_IVL, link.reconnect_min_ms);
  Set(socket, ZMQ_RECONNECT_IVL_MAX, link.reconnect_max_ms);
  Set(socket, ZMQ_CONNECT_TIMEOUT, link.connect_timeout_ms);
  Set(socket, ZMQ_HANDSHAKE_IVL, link.handshake_timeout_ms);
  Set(socket, ZMQ_TCP_KEEPALIVE, 1);
  Set(socket, ZMQ_TCP_KEEPALIVE_IDLE, kKeepAliveIdleSeconds);
  Set(socket, ZMQ_TCP_KEEPALIVE_INTVL, kKeepAliveIntervalSeconds);
  Set(socket, ZMQ_TCP_KEEPALIVE_CNT, kKeepAliveProbes);
  FORELOAD_CHECK(zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &link.message_bytes_max, sizeof link.message_bytes_max) == 0,
                 zmq_strerror(zmq_errno()));
}

Status SetCurve(void* socket, const CurveKeys& curve) {
  const std::pair<int, const std::string*> keys[] = {{ZMQ_CURVE_SERVERKEY, &curve.server_public},
                                                     {ZMQ_CURVE_PUBLICKEY, &curve.own_public},
                                                     {ZMQ_CURVE_SECRETKEY, &curve.own_secret}};
  for (const auto& [option, key] : keys) {
    if (key->size() != kCurveKeyChars || zmq_setsockopt(socket, option, key->c_str(), kCurveKeyChars + 1) != 0) {
      return InvalidArgument("a CURVE key is not 40 characters of Z85, or one of the three is missing");
    }
  }
  return OkStatus();
}

}  // namespace

ZmqContext::ZmqContext() : handle_(zmq_ctx_new()) {
  FORELOAD_CHECK(handle_ != nullptr, "no ZeroMQ context");
}
ZmqContext::~ZmqContext() {
  zmq_ctx_term(handle_);
}

ZmqSocket::ZmqSocket(ZmqSocket&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
ZmqSocket& ZmqSocket::operator=(ZmqSocket&& other) noexcept {
  if (this != &other) {
    Close();
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

Result<ZmqSocket> ZmqSocket::Open(ZmqContext& context, Type type, const LinkOptions& link, const CurveKeys& curve) {
  ZmqSocket socket(zmq_socket(context.handle(), TypeOf(type)));
  if (!socket) return ResourceExhausted(std::string("no ZeroMQ socket: ") + zmq_strerror(zmq_errno()));
  SetLinkOptions(socket.handle_, link);
  if (!curve.empty()) FORELOAD_RETURN_IF_ERROR(SetCurve(socket.handle_, curve));
  return socket;
}

Status ZmqSocket::Subscribe(const std::string& prefix) {
  if (zmq_setsockopt(handle_, ZMQ_SUBSCRIBE, prefix.data(), prefix.size()) != 0) return ZmqError("subscribe");
  return OkStatus();
}

Status ZmqSocket::Connect(const std::string& endpoint) {
  if (zmq_connect(handle_, endpoint.c_str()) != 0) return ZmqError("cannot connect to " + endpoint);
  return OkStatus();
}

Status ZmqSocket::Bind(const std::string& endpoint) {
  if (zmq_bind(handle_, endpoint.c_str()) != 0) return ZmqError("cannot bind " + endpoint);
  if (endpoint.starts_with(kIpc) && chmod(endpoint.c_str() + kIpc.size(), S_IRUSR | S_IWUSR) != 0) {
    return Status::FromErrno(errno, "cannot restrict " + endpoint);
  }
  return OkStatus();
}

std::string ZmqSocket::last_endpoint() const {
  char text[512] = {};
  std::size_t size = sizeof text;
  if (zmq_getsockopt(handle_, ZMQ_LAST_ENDPOINT, text, &size) != 0) return {};
  return text;
}

Result<ZmqSocket> ZmqSocket::Monitor(ZmqContext& context, const std::string& inproc_name) {
  const int events = kHandshakeSucceeded | kHandshakeFailed | ZMQ_EVENT_DISCONNECTED;
  if (zmq_socket_monitor(handle_, inproc_name.c_str(), events) != 0) return ZmqError("socket monitor");
  FORELOAD_ASSIGN_OR_RETURN(ZmqSocket monitor, Open(context, Type::kPair, LinkOptions{}));
  FORELOAD_RETURN_IF_ERROR(monitor.Connect(inproc_name));
  return monitor;
}

bool ZmqSocket::Send(std::span<const Frame> frames) {
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    if (zmq_send(handle_, frames[i].data(), frames[i].size(), flags) < 0) return false;
  }
  return true;
}

bool ZmqSocket::Receive(std::vector<Frame>& frames, std::size_t frames_max, std::size_t& frame_count) {
  frame_count = 0;
  zmq_msg_t message;
  zmq_msg_init(&message);
  bool more = true;
  while (more) {
    if (zmq_msg_recv(&message, handle_, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      return false;
    }
    if (frame_count < frames_max) {
      if (frames.size() <= frame_count) frames.emplace_back();
      const auto* bytes = static_cast<const std::uint8_t*>(zmq_msg_data(&message));
      frames[frame_count].assign(bytes, bytes + zmq_msg_size(&message));
    }
    ++frame_count;
    more = zmq_msg_more(&message) != 0;
  }
  zmq_msg_close(&message);
  return true;
}

std::optional<ZmqSocket::Event> ZmqSocket::NextEvent() {
  std::vector<Frame> frames;
  std::size_t count = 0;
  if (!Receive(frames, 1, count) || frames[0].size() < sizeof(std::uint16_t)) return std::nullopt;
  std::uint16_t event = 0;  // in host order, by the library's documentation
  std::memcpy(&event, frames[0].data(), sizeof event);
  if (event == kHandshakeSucceeded) return Event::kConnected;
  if (event == ZMQ_EVENT_DISCONNECTED) return Event::kDisconnected;
  return (event & kHandshakeFailed) != 0 ? Event::kHandshakeFailed : Event::kOther;
}

void ZmqSocket::Close() {
  if (handle_ != nullptr) zmq_close(std::exchange(handle_, nullptr));
}

void WaitReadable(std::span<const ZmqSocket* const> sockets, int descriptor, int timeout_ms) {
  std::vector<zmq_pollitem_t> items;
  items.reserve(sockets.size() + 1);
  items.push_back({nullptr, descriptor, ZMQ_POLLIN, 0});
  for (const ZmqSocket* socket : sockets) items.push_back({socket->handle(), 0, ZMQ_POLLIN, 0});
  zmq_poll(items.data(), static_cast<int>(items.size()), timeout_ms);
}

}  // namespace foreload::telemetry
