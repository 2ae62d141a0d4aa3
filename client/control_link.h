// The connection to the sidecar's control socket, kept by a thread of its own: connects, reads frames, reconnects with
// back-off and jitter. It knows frames, not their meaning; a Delegate does.
//
// Send comes from any thread and never blocks. The delegate is called on the link's thread alone. The socket is
// close-on-exec; CloseInChild closes it after fork.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "base/status.h"
#include "client/peer_process.h"
#include "proto/control_frames.h"
#include "proto/unique_fd.h"

namespace foreload::client {

class ControlLink {
 public:
  static constexpr DurationNs kBackoffMin = 50 * kMillisecond;
  static constexpr DurationNs kBackoffMax = 1 * kSecond;
  static constexpr std::size_t kFrameBytesMax = 1u << 20;  // a status document is the largest that a sidecar sends
  static constexpr int kFramesPerRound = 64;               // then the delegate's clock gets its turn

  class Delegate {
   public:
    virtual ~Delegate() = default;
    virtual void OnConnected(PeerProcess peer) = 0;
    // Not ok: the sidecar broke the protocol; the link drops the connection.
    virtual Status OnMessage(const control::ControlMessage& message, std::vector<UniqueFd> descriptors) = 0;
    virtual void OnDisconnected(const std::string& why) = 0;
    // Called after every round; returns when it wants to be called next at the latest.
    virtual TimeNs OnTick(TimeNs now) = 0;
  };

  ControlLink(std::string socket_path, Delegate& delegate);
  ~ControlLink();
  ControlLink(const ControlLink&) = delete;
  ControlLink& operator=(const ControlLink&) = delete;

  Status Start();
  // Joins the thread; no delegate call afterwards.
  void Stop();

  // Unavailable without a connection; ResourceExhausted when the sidecar does not read.
  Status Send(const control::ControlMessage& message, std::vector<UniqueFd> descriptors = {});
  // Ends the connection at the next round; the link connects again.
  void Drop(std::string why);
  // Calls OnTick soon.
  void Wake();

  // The connection has proved good: the next one is tried soon after its end. From the delegate.
  void ResetBackoff() { backoff_ = kBackoffMin; }

  void CloseInChild();

 private:
  void Run();
  void Round();
  void TryConnect();
  void ReadFrames();
  void Disconnect(const std::string& why);
  void BackOff();

  const std::string path_;
  Delegate& delegate_;
  UniqueFd wake_;
  control::FrameReader reader_;
  TimeNs next_connect_ = 0;
  TimeNs next_tick_ = 0;
  DurationNs backoff_ = kBackoffMin;
  Rng jitter_;

  std::mutex mutex_;  // socket_, writer_, drop_why_
  UniqueFd socket_;
  control::FrameWriter writer_;
  std::string drop_why_;
  std::atomic<int> raw_socket_{-1};  // for the child of a fork
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace foreload::client
