// Frames of the control socket (proto/control.proto): a 4-byte little-endian length, then one serialised
// ControlMessage; descriptors travel by SCM_RIGHTS with the first byte of their frame.
//
// Both sides use a FrameReader and a FrameWriter per connection over a non-blocking UNIX stream socket; neither owns
// the socket. After an error of either, the connection is beyond use: close it. One thread at a time.
//
// Received descriptors are close-on-exec and owned by the Frame; those beyond the limit, in the middle of a frame, or
// of a frame that is refused are closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "proto/limits.h"
#include "proto/unique_fd.h"

namespace foreload::control {

class ControlMessage;  // proto/control.pb.h

inline constexpr std::uint32_t kProtocolVersion = 1;

struct Frame {
  std::string body;
  std::vector<UniqueFd> descriptors;
};

class FrameReader {
 public:
  enum class Outcome : unsigned char {
    kFrame,       // `frame` is filled; call again, there may be more
    kWouldBlock,  // wait until the socket is readable
    kEnd          // the peer closed between two frames
  };

  // `descriptors_max`: of one frame; at most kDescriptorsPerFrameMax.
  explicit FrameReader(std::size_t descriptors_max = kDescriptorsPerFrameMax,
                       std::size_t frame_bytes_max = kControlFrameBytesMax);

  // DataLoss: the peer broke the framing (length 0 or beyond the limit, stray descriptors, end inside a frame).
  // IoError: the socket failed.
  Result<Outcome> Read(int socket, Frame& frame);

 private:
  // Bytes read, 0 at the end, -1 when it would block.
  Result<std::ptrdiff_t> Receive(int socket, char* buffer, std::size_t bytes, bool first_byte);

  std::size_t descriptors_max_;
  std::size_t frame_bytes_max_;
  unsigned char header_[4] = {};
  std::size_t header_bytes_ = 0;  // of header_ that have arrived
  std::string body_;              // grows as bytes arrive: a length alone reserves no more than a chunk
  std::size_t body_bytes_ = 0;    // announced
  std::vector<UniqueFd> descriptors_;
};

class FrameWriter {
 public:
  // Takes a frame into the queue. ResourceExhausted: the peer has not read for kControlQueueBytesMax; InvalidArgument:
  // body empty or too long, or too many descriptors.
  Status Queue(std::string_view body, std::vector<UniqueFd> descriptors = {});

  // Sends what the socket takes. True: the queue is empty; false: call again when the socket is writable.
  // Unavailable: the peer is gone.
  Result<bool> Flush(int socket);

  bool empty() const { return queue_.empty(); }

 private:
  struct Pending {
    std::string bytes;  // header and body
    std::vector<UniqueFd> descriptors;
  };
  std::deque<Pending> queue_;
  std::size_t sent_ = 0;  // of the first frame
  std::size_t queued_bytes_ = 0;
};

// ResourceExhausted when the message is larger than a frame.
Result<std::string> EncodeMessage(const ControlMessage& message);
// InvalidArgument when `body` is not a ControlMessage with a body.
Status DecodeMessage(std::string_view body, ControlMessage& message);

}  // namespace foreload::control
