// A client for tests: raw bytes over one blocking socket with a deadline on every call.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <string>
#include <string_view>

#include "proto/unique_fd.h"

namespace foreload::service {

class TestClient {
 public:
  explicit TestClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval limit{20, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }

  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }

  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // One reply with a Content-Length; what was read so far when the peer closes or the limit passes first.
  std::string ReadReply() {
    std::string reply = std::move(rest_);
    rest_.clear();
    for (;;) {
      const std::size_t end = reply.find("\r\n\r\n");
      const std::size_t length_at = reply.find("Content-Length: ");
      if (end != std::string::npos && length_at < end) {
        const std::size_t whole = end + 4 + std::stoul(reply.substr(length_at + 16));
        if (reply.size() >= whole) {
          rest_ = reply.substr(whole);
          return reply.substr(0, whole);
        }
      }
      if (!ReadSome(reply)) return reply;
    }
  }

  // Everything until the peer closes.
  std::string ReadAll() {
    std::string all = std::move(rest_);
    while (ReadSome(all)) {
    }
    return all;
  }

 private:
  bool ReadSome(std::string& into) {
    std::array<char, 65536> chunk;
    const ssize_t got = ::recv(fd_.get(), chunk.data(), chunk.size(), 0);
    if (got <= 0) return false;
    into.append(chunk.data(), static_cast<std::size_t>(got));
    return true;
  }

  UniqueFd fd_;
  bool connected_ = false;
  std::string rest_;
};

inline std::string HttpGet(int port, const std::string& path) {
  TestClient client(port);
  if (!client.connected() || !client.Send("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    return "";
  return client.ReadAll();
}

}  // namespace foreload::service
