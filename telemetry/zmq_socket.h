// ZeroMQ behind plain types: contexts, sockets with the options that this project needs, multipart messages as byte
// vectors. Errors are values. A socket belongs to one thread at a time; it is closed with linger 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace foreload::telemetry {

using Frame = std::vector<std::uint8_t>;

class ZmqContext {
 public:
  ZmqContext();
  ~ZmqContext();  // waits until every socket is closed
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;

  void* handle() const { return handle_; }

 private:
  void* handle_;
};

// How dead links are found and healed. The default heals within heartbeat_interval + heartbeat_timeout +
// connect_timeout
// + 2 * reconnect_max = 35 s (docs/wire.md); a peer that is merely idle answers heartbeats in its I/O thread and stays.
struct LinkOptions {
  int heartbeat_interval_ms = 5'000;  // 0: no heartbeats, for peers that do not answer them
  int heartbeat_timeout_ms = 15'000;
  int reconnect_min_ms = 100;
  int reconnect_max_ms = 5'000;
  int connect_timeout_ms = 5'000;
  int handshake_timeout_ms = 5'000;
  int receive_messages_max = 8'192;  // high-water mark; what the publisher cannot hand over it drops, which is a gap
  std::int64_t message_bytes_max = (16 << 20) + 4096;  // a frame beyond it ends the connection
};

// Keys of the CURVE client side, each in Z85 (40 characters). All three or none.
struct CurveKeys {
  std::string server_public;
  std::string own_public;
  std::string own_secret;
  bool empty() const { return server_public.empty() && own_public.empty() && own_secret.empty(); }
};

class ZmqSocket {
 public:
  enum class Type : std::uint8_t { kSub, kDealer, kPair, kXpub, kRouter };

  ZmqSocket() = default;
  ~ZmqSocket() { Close(); }
  ZmqSocket(ZmqSocket&& other) noexcept;
  ZmqSocket& operator=(ZmqSocket&& other) noexcept;

  static Result<ZmqSocket> Open(ZmqContext& context, Type type, const LinkOptions& link, const CurveKeys& curve = {});

  Status Subscribe(const std::string& prefix);
  Status Connect(const std::string& endpoint);
  Status Bind(const std::string& endpoint);  // an ipc path is left readable by its owner alone
  // The endpoint as bound, wildcards filled in.
  std::string last_endpoint() const;

  // Delivers connection events of this socket to a PAIR socket (NextEvent).
  Result<ZmqSocket> Monitor(ZmqContext& context, const std::string& inproc_name);

  // False when the message cannot be sent now. Never blocks.
  bool Send(std::span<const Frame> frames);
  // The next message, or false when none waits. Never blocks. At most `frames_max` frames are kept (their memory is
  // reused); the count of all is returned through `frame_count`.
  bool Receive(std::vector<Frame>& frames, std::size_t frames_max, std::size_t& frame_count);

  enum class Event : std::uint8_t { kConnected, kDisconnected, kHandshakeFailed, kOther };
  std::optional<Event> NextEvent();  // on a socket that Monitor gave

  void Close();
  explicit operator bool() const { return handle_ != nullptr; }
  void* handle() const { return handle_; }

 private:
  explicit ZmqSocket(void* handle) : handle_(handle) {}
  void* handle_ = nullptr;
};

// Waits until a socket or the descriptor is readable; `timeout_ms` < 0 waits for ever.
void WaitReadable(std::span<const ZmqSocket* const> sockets, int descriptor, int timeout_ms);

}  // namespace foreload::telemetry
