#include "cmd/control_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proto/control.pb.h"
#include "proto/control_frames.h"
#include "proto/unique_fd.h"

namespace foreload::cmd {
namespace {

constexpr std::uint64_t kRequestId = 1;

Result<UniqueFd> Connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return InvalidArgument("socket path too long: " + path);
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Status::FromErrno(errno, "socket");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  if (errno == ENOENT) return Unavailable("no sidecar: " + path + " does not exist");
  if (errno == ECONNREFUSED) return Unavailable("no sidecar listens on " + path + " (left behind by one that died)");
  if (errno == EAGAIN) return Unavailable("the sidecar on " + path + " accepts nobody now");
  return Status::FromErrno(errno, "connect " + path);
}

Status Wait(int fd, short events, TimeNs deadline) {
  pollfd ready{fd, events, 0};
  const DurationNs left = deadline - MonotonicNow();
  if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left / kMillisecond) + 1) == 0) {
    return DeadlineExceeded("the sidecar did not answer in time");
  }
  return OkStatus();
}

Status SendAll(int fd, const control::ControlMessage& request, TimeNs deadline) {
  control::ControlMessage message = request;
  message.set_request(kRequestId);
  FORELOAD_ASSIGN_OR_RETURN(const std::string body, control::EncodeMessage(message));
  control::FrameWriter writer;
  FORELOAD_RETURN_IF_ERROR(writer.Queue(body));
  for (;;) {
    FORELOAD_ASSIGN_OR_RETURN(const bool sent, writer.Flush(fd));
    if (sent) return OkStatus();
    FORELOAD_RETURN_IF_ERROR(Wait(fd, POLLOUT, deadline));
  }
}

}  // namespace

Status Ask(const std::string& socket, const control::ControlMessage& request, DurationNs timeout,
           control::ControlMessage& reply) {
  const TimeNs deadline = MonotonicNow() + timeout;
  FORELOAD_ASSIGN_OR_RETURN(const UniqueFd fd, Connect(socket));
  FORELOAD_RETURN_IF_ERROR(SendAll(fd.get(), request, deadline));
  control::FrameReader reader;
  for (;;) {
    control::Frame frame;
    FORELOAD_ASSIGN_OR_RETURN(const auto outcome, reader.Read(fd.get(), frame));
    if (outcome == control::FrameReader::Outcome::kEnd) {
      return Unavailable("the sidecar closed the connection; it may run under another account");
    }
    if (outcome == control::FrameReader::Outcome::kWouldBlock) {
      FORELOAD_RETURN_IF_ERROR(Wait(fd.get(), POLLIN, deadline));
      continue;
    }
    FORELOAD_RETURN_IF_ERROR(control::DecodeMessage(frame.body, reply));
    if (reply.request() != kRequestId) continue;  // something that the sidecar says to everybody
    if (!reply.has_error()) return OkStatus();
    const std::uint32_t last = static_cast<std::uint32_t>(StatusCode::kFailedPrecondition);
    const std::uint32_t code = std::clamp<std::uint32_t>(reply.error().code(), 1, last);
    return {static_cast<StatusCode>(code), reply.error().message()};
  }
}

}  // namespace foreload::cmd
