// Arbitrary bytes on a control socket, sent in pieces of arbitrary sizes, some with a descriptor. The reader must end
// in order, and every frame that it gives must be within the limits.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "proto/control.pb.h"
#include "proto/control_frames.h"

namespace {

using foreload::UniqueFd;
using foreload::control::ControlMessage;
using foreload::control::Frame;
using foreload::control::FrameReader;

void Send(int socket, const std::uint8_t* data, std::size_t bytes, int descriptor) {
  iovec part{const_cast<std::uint8_t*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = ancillary;
    message.msg_controllen = sizeof ancillary;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  (void)!::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// False when the connection is over.
bool Drain(FrameReader& reader, int socket) {
  for (;;) {
    Frame frame;
    const auto outcome = reader.Read(socket, frame);
    if (!outcome.ok() || outcome.value() == FrameReader::Outcome::kEnd) return false;
    if (outcome.value() == FrameReader::Outcome::kWouldBlock) return true;
    if (frame.body.empty() || frame.body.size() > foreload::kControlFrameBytesMax || frame.descriptors.size() > 1)
      abort();
    ControlMessage message;
    if (foreload::control::DecodeMessage(frame.body, message).ok() && !foreload::control::EncodeMessage(message).ok())
      abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return 0;
  UniqueFd near(pair[0]);
  const UniqueFd far(pair[1]);
  static const int kFile = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  FrameReader reader(1);
  // Each piece begins with a byte: 7 bits of length, one for a descriptor.
  while (size > 0) {
    const std::size_t bytes = std::min<std::size_t>(std::max(1, *data & 0x7F), size - 1);
    const bool descriptor = (*data & 0x80) != 0;
    ++data;
    --size;
    if (bytes == 0) break;
    Send(near.get(), data, bytes, descriptor ? kFile : -1);
    data += bytes;
    size -= bytes;
    if (!Drain(reader, far.get())) return 0;
  }
  near.reset();
  if (Drain(reader, far.get())) abort();  // the other side has ended
  return 0;
}
