#include "client/control_link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/control.pb.h"

namespace foreload::client {

ControlLink::ControlLink(std::string socket_path, Delegate& delegate)
    : path_(std::move(socket_path)),
      delegate_(delegate),
      reader_(kDescriptorsPerFrameMax, kFrameBytesMax),
      jitter_(static_cast<std::uint64_t>(MonotonicNow()) ^ static_cast<std::uint64_t>(::getpid())) {}

ControlLink::~ControlLink() {
  Stop();
}

Status ControlLink::Start() {
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return Status::FromErrno(errno, "control: eventfd");
  thread_ = std::thread([this] { Run(); });
  return OkStatus();
}

void ControlLink::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  Wake();
  thread_.join();
  const std::lock_guard lock(mutex_);
  raw_socket_.store(-1);
  socket_.reset();
}

void ControlLink::Wake() {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

Status ControlLink::Send(const control::ControlMessage& message, std::vector<UniqueFd> descriptors) {
  FORELOAD_ASSIGN_OR_RETURN(const std::string body, control::EncodeMessage(message));
  const std::lock_guard lock(mutex_);
  if (!socket_.valid()) return Unavailable("no sidecar is connected");
  FORELOAD_RETURN_IF_ERROR(writer_.Queue(body, std::move(descriptors)));
  const auto flushed = writer_.Flush(socket_.get());
  if (!flushed.ok()) return flushed.status();  // the reader sees the end as well
  if (!flushed.value()) Wake();                // the thread waits until the socket takes more
  return OkStatus();
}

void ControlLink::Drop(std::string why) {
  {
    const std::lock_guard lock(mutex_);
    drop_why_ = std::move(why);
  }
  Wake();
}

// The mutex may be held by a thread that the child does not have, so the descriptor is taken from an atomic.
void ControlLink::CloseInChild() {
  const int socket = raw_socket_.exchange(-1);
  if (socket >= 0) ::close(socket);
}

// --- the link's thread
// -------------------------------------------------------------------------------------------------

void ControlLink::Run() {
  while (!stop_.load()) {
    next_tick_ = delegate_.OnTick(MonotonicNow());
    Round();
  }
  const std::lock_guard lock(mutex_);
  if (socket_.valid()) (void)writer_.Flush(socket_.get());
}

void ControlLink::Round() {
  pollfd entries[2] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}, {.fd = -1, .events = POLLIN, .revents = 0}};
  TimeNs until = next_tick_;
  {
    const std::lock_guard lock(mutex_);
    if (socket_.valid()) {
      entries[1].fd = socket_.get();
      if (!writer_.empty()) entries[1].events |= POLLOUT;
    } else {
      until = std::min(until, next_connect_);
    }
  }
  const DurationNs wait = std::clamp<DurationNs>(until - MonotonicNow(), 0, kSecond);
  ::poll(entries, 2, static_cast<int>((wait + kMillisecond - 1) / kMillisecond));
  std::uint64_t rings = 0;
  (void)!::read(wake_.get(), &rings, sizeof rings);

  if (entries[1].fd < 0) {
    if (MonotonicNow() >= next_connect_) TryConnect();
    return;
  }
  if (entries[1].revents & (POLLIN | POLLHUP | POLLERR)) ReadFrames();
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    why = std::exchange(drop_why_, {});
    if (why.empty() && socket_.valid()) {
      if (const auto flushed = writer_.Flush(socket_.get()); !flushed.ok()) why = flushed.status().message();
    }
  }
  if (!why.empty()) Disconnect(why);
}

void ControlLink::BackOff() {
  const auto half = static_cast<std::uint64_t>(backoff_ / 2);
  next_connect_ = MonotonicNow() + backoff_ / 2 + static_cast<DurationNs>(jitter_.Below(half + 1));
  backoff_ = std::min(backoff_ * 2, kBackoffMax);
}

void ControlLink::TryConnect() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.data(), std::min(path_.size(), sizeof address.sun_path - 1));
  // A UNIX socket connects at once or not at all; EAGAIN means that the sidecar's backlog is full.
  if (!socket.valid() || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    BackOff();
    return;
  }
  PeerProcess peer = PeerProcess::Of(socket.get());
  reader_ = control::FrameReader(kDescriptorsPerFrameMax, kFrameBytesMax);
  {
    const std::lock_guard lock(mutex_);
    writer_ = control::FrameWriter();
    drop_why_.clear();
    raw_socket_.store(socket.get());
    socket_ = std::move(socket);
  }
  delegate_.OnConnected(std::move(peer));
}

void ControlLink::ReadFrames() {
  for (int i = 0; i < kFramesPerRound; ++i) {
    control::Frame frame;
    const auto outcome = reader_.Read(raw_socket_.load(), frame);
    if (!outcome.ok()) return Disconnect(outcome.status().message());
    if (outcome.value() == control::FrameReader::Outcome::kWouldBlock) return;
    if (outcome.value() == control::FrameReader::Outcome::kEnd) return Disconnect("the sidecar closed the connection");
    control::ControlMessage message;
    Status status = control::DecodeMessage(frame.body, message);
    if (status.ok()) status = delegate_.OnMessage(message, std::move(frame.descriptors));
    if (!status.ok()) return Disconnect(status.message());
  }
}

void ControlLink::Disconnect(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    raw_socket_.store(-1);
    socket_.reset();
    drop_why_.clear();
  }
  BackOff();
  delegate_.OnDisconnected(why);
}

}  // namespace foreload::client
