#include "proto/control_frames.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "proto/control.pb.h"

namespace foreload::control {
namespace {

constexpr std::size_t kHeaderBytes = 4;
constexpr std::size_t kReadChunkBytes = 64u << 10;  // memory grows with what arrived, not with what was announced

// Room for one descriptor too many, so that too many can be told from just enough.
constexpr std::size_t kAncillaryBytes = CMSG_SPACE(sizeof(int) * (kDescriptorsPerFrameMax + 1));

// Takes ownership of every descriptor that came with `message`.
std::vector<UniqueFd> TakeDescriptors(msghdr& message) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

}  // namespace

FrameReader::FrameReader(std::size_t descriptors_max, std::size_t frame_bytes_max)
    : descriptors_max_(std::min(descriptors_max, kDescriptorsPerFrameMax)),
      frame_bytes_max_(std::min(frame_bytes_max, kControlFrameBytesMax)) {}

Result<std::ptrdiff_t> FrameReader::Receive(int socket, char* buffer, std::size_t bytes, bool first_byte) {
  alignas(cmsghdr) char ancillary[kAncillaryBytes];
  iovec part{buffer, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = ancillary;
  message.msg_controllen = sizeof ancillary;
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::ptrdiff_t{-1};
    if (errno == ECONNRESET) return std::ptrdiff_t{0};
    return Status::FromErrno(errno, "control socket: read");
  }
  std::vector<UniqueFd> descriptors = TakeDescriptors(message);
  if (message.msg_flags & MSG_CTRUNC)
    return DataLoss("control socket: more descriptors than a frame may carry, or no room for them");
  if (!descriptors.empty() && !first_byte) return DataLoss("control socket: descriptors inside a frame");
  if (descriptors.size() > descriptors_max_) return DataLoss("control socket: more descriptors than this side accepts");
  if (!descriptors.empty()) descriptors_ = std::move(descriptors);
  return static_cast<std::ptrdiff_t>(got);
}

Result<FrameReader::Outcome> FrameReader::Read(int socket, Frame& frame) {
  // Never reads past the end of a frame: the kernel hands descriptors over with any byte of the send that carried them,
  // so a read across two frames could not tell whose they are.
  while (header_bytes_ < kHeaderBytes) {
    FORELOAD_ASSIGN_OR_RETURN(const std::ptrdiff_t got,
                              Receive(socket, reinterpret_cast<char*>(header_) + header_bytes_,
                                      kHeaderBytes - header_bytes_, header_bytes_ == 0));
    if (got < 0) return Outcome::kWouldBlock;
    if (got == 0) {
      if (header_bytes_ == 0) return Outcome::kEnd;
      return DataLoss("control socket: the peer ended inside a frame");
    }
    header_bytes_ += static_cast<std::size_t>(got);
    if (header_bytes_ < kHeaderBytes) continue;
    body_bytes_ = header_[0] | header_[1] << 8 | header_[2] << 16 | static_cast<std::size_t>(header_[3]) << 24;
    if (body_bytes_ == 0 || body_bytes_ > frame_bytes_max_) {
      return DataLoss("control socket: a frame of " + std::to_string(body_bytes_) + " bytes (limit " +
                      std::to_string(frame_bytes_max_) + ")");
    }
  }
  while (body_.size() < body_bytes_) {
    const std::size_t before = body_.size();
    const std::size_t want = std::min(body_bytes_ - before, kReadChunkBytes);
    body_.resize(before + want);
    const auto received = Receive(socket, body_.data() + before, want, false);
    const std::ptrdiff_t got = received.ok() ? received.value() : 0;
    body_.resize(before + static_cast<std::size_t>(std::max<std::ptrdiff_t>(got, 0)));
    if (!received.ok()) return received.status();
    if (got < 0) return Outcome::kWouldBlock;
    if (got == 0) return DataLoss("control socket: the peer ended inside a frame");
  }
  frame.body = std::move(body_);
  frame.descriptors = std::move(descriptors_);
  body_.clear();
  descriptors_.clear();
  header_bytes_ = 0;
  return Outcome::kFrame;
}

Status FrameWriter::Queue(std::string_view body, std::vector<UniqueFd> descriptors) {
  if (body.empty() || body.size() > kControlFrameBytesMax) {
    return InvalidArgument("a control frame of " + std::to_string(body.size()) + " bytes");
  }
  if (descriptors.size() > kDescriptorsPerFrameMax)
    return InvalidArgument("too many descriptors for one control frame");
  if (queued_bytes_ + body.size() + kHeaderBytes > kControlQueueBytesMax) {
    return ResourceExhausted("the control peer does not read: " + std::to_string(queued_bytes_) + " bytes wait");
  }
  Pending pending;
  pending.bytes.reserve(kHeaderBytes + body.size());
  for (std::size_t i = 0; i < kHeaderBytes; ++i) pending.bytes += static_cast<char>(body.size() >> (8 * i));
  pending.bytes += body;
  pending.descriptors = std::move(descriptors);
  queued_bytes_ += pending.bytes.size();
  queue_.push_back(std::move(pending));
  return OkStatus();
}

Result<bool> FrameWriter::Flush(int socket) {
  while (!queue_.empty()) {
    Pending& first = queue_.front();
    iovec part{first.bytes.data() + sent_, first.bytes.size() - sent_};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char ancillary[kAncillaryBytes] = {};
    if (sent_ == 0 && !first.descriptors.empty()) {
      const std::size_t bytes = first.descriptors.size() * sizeof(int);
      message.msg_control = ancillary;
      message.msg_controllen = CMSG_SPACE(bytes);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(bytes);
      for (std::size_t i = 0; i < first.descriptors.size(); ++i) {
        const int fd = first.descriptors[i].get();
        std::memcpy(CMSG_DATA(header) + i * sizeof fd, &fd, sizeof fd);
      }
    }
    const ssize_t sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) return Unavailable("the control peer is gone");
      return Status::FromErrno(errno, "control socket: write");
    }
    first.descriptors.clear();  // they went with the first byte
    sent_ += static_cast<std::size_t>(sent);
    queued_bytes_ -= static_cast<std::size_t>(sent);
    if (sent_ < first.bytes.size()) continue;
    queue_.pop_front();
    sent_ = 0;
  }
  return true;
}

Result<std::string> EncodeMessage(const ControlMessage& message) {
  const std::size_t bytes = message.ByteSizeLong();
  if (bytes > kControlFrameBytesMax) {
    return ResourceExhausted("a control message of " + std::to_string(bytes) + " bytes does not fit into a frame");
  }
  std::string body;
  const bool ok = message.SerializeToString(&body);
  FORELOAD_CHECK(ok, "a control message within the limit does not serialise");
  return body;
}

Status DecodeMessage(std::string_view body, ControlMessage& message) {
  if (body.size() > kControlFrameBytesMax || !message.ParseFromArray(body.data(), static_cast<int>(body.size())) ||
      message.body_case() == ControlMessage::BODY_NOT_SET) {
    return InvalidArgument("not a control message that this version knows");
  }
  return OkStatus();
}

}  // namespace foreload::control
