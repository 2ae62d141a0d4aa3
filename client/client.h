// One client of the C API: the control protocol's state over a ControlLink, and the parts that the API calls reach.
//
// Phases: down (no connection) -> draining (connected; a table of a former sidecar is still pinned, so we do not
// register yet: a sidecar writes into re-granted memory only once a scheduler is registered) -> registering -> up.
// Look-ups go on while down, READY slots stay readable; they miss while draining.
//
// The arena is granted again by itself after a reconnect, but never while an earlier sidecar that had it may still
// write: that one must be dead or be the very one that we talk to.
//
// Threads: any; slow state is under one mutex that is never held over a wait or a large decode.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "client/control_link.h"
#include "client/emitter.h"
#include "client/fetch_book.h"
#include "client/foreload.h"
#include "client/request_book.h"
#include "client/store_lanes.h"
#include "client/table_gate.h"
#include "residency/shared_memory.h"

namespace foreload::control {
class ControlMessage;
}

namespace foreload::client {

struct ClientOptions {
  std::string socket_path;
  std::string engine;
  std::array<std::uint8_t, 16> instance_id{};
  bool scheduler = false;
  bool worker = false;
  std::uint32_t rank = 0;
  std::uint32_t rank_count = 1;
  NamespaceFingerprint name_space;
  std::array<std::uint8_t, 16> layout{};
  std::string namespace_text;
  std::vector<fl_extent> extents;
  std::uint32_t block_tokens = 0;
  double recompute_seconds_per_token = 0;
  bool layer_major = false;
  bool demand_only = false;
  std::string telemetry_endpoint;
  DurationNs breaker_open_ns = kSecond;

  // Checks `options` as far as one process can.
  static Result<ClientOptions> From(const fl_options& options);
  std::uint64_t slot_bytes() const;  // end of the last extent
};

// The answer to a request that a caller waits for.
struct Answer {
  int code = FL_OK;
  std::string message;
  std::string text;  // status document
};

class Client final : ControlLink::Delegate {
 public:
  static constexpr DurationNs kRegisterTimeout = 5 * kSecond;
  static constexpr DurationNs kDrainPoll = 2 * kMillisecond;    // while old pins are being dropped
  static constexpr DurationNs kHolderPoll = 20 * kMillisecond;  // while the former sidecar still lives
  static constexpr DurationNs kRegrantMin = 1 * kSecond;        // after a grant ended or was refused, doubling to
  static constexpr DurationNs kRegrantMax = 30 * kSecond;
  static constexpr DurationNs kCloseRevokeMax = 5 * kSecond;

  static Result<std::unique_ptr<Client>> Open(ClientOptions options);
  ~Client() override;

  const ClientOptions& options() const { return options_; }
  TableGate& table() { return table_; }
  StoreLanes& stores() { return stores_; }
  RequestBook& requests() { return requests_; }
  FetchBook& fetches() { return fetches_; }
  Emitter* emitter() { return emitter_.get(); }  // null: no telemetry

  bool connected();
  // FL_OK, FL_ETIMEDOUT or FL_EREFUSED.
  int ConnectWait(TimeNs deadline, std::string* why);

  // Result: FL_OK or an fl_code with `why`.
  int GrantHost(std::uint32_t slots, std::uint64_t stride, std::uint32_t store_slots, void** base, std::string* why);
  int GrantFd(int fd, std::uint32_t slots, std::uint64_t stride, std::uint32_t store_slots, std::string* why);
  std::uint32_t granted_slots();
  int RevokeWait(TimeNs deadline, std::string* why);

  int Fetch(const std::string& request_id, const KeyListView& keys, std::uint32_t first_block, std::int64_t deadline_us,
            std::uint64_t* ticket, std::string* why);

  // Sends `message` and waits for its reply.
  Answer Ask(control::ControlMessage& message, TimeNs deadline);

  void CountLookup(std::uint32_t hits, std::uint32_t misses);
  fl_counters counters();

  // In the child of a fork: closes the socket and makes every later call fail.
  void Disown();
  bool disowned() const { return disowned_.load(std::memory_order_relaxed); }

 private:
  enum class Phase : unsigned char { kDown, kDraining, kRegistering, kUp };

  struct Arena {
    SharedMemory memory;  // of GrantHost: stays mapped
    UniqueFd fd;          // of GrantFd
    std::uint32_t slots = 0;
    std::uint64_t stride = 0;
    std::uint32_t store_slots = 0;
    int descriptor() const { return fd.valid() ? fd.get() : memory.fd(); }
  };
  // The sidecar that may write into the arena.
  struct Holder {
    PeerProcess process;
    std::uint64_t boot_token = 0;
    bool connection_ended = false;
  };

  explicit Client(ClientOptions options);

  void OnConnected(PeerProcess peer) override;
  Status OnMessage(const control::ControlMessage& message, std::vector<UniqueFd> descriptors) override;
  void OnDisconnected(const std::string& why) override;
  TimeNs OnTick(TimeNs now) override;

  // All with mutex_ held.
  void Register(TimeNs now);
  TimeNs MaybeGrant(TimeNs now);
  bool HolderGone() const;
  void GrantEnded(TimeNs now);
  void OnError(const control::ControlMessage& message);
  int SetArena(Arena arena, std::string* why);
  std::uint64_t NextRequest() { return next_request_++; }
  bool GrantSettled() const;

  Status OnArenaState(const control::ControlMessage& message, std::vector<UniqueFd>& descriptors);
  Status OnGrantReply(const control::ControlMessage& message, std::vector<UniqueFd>& descriptors);
  void OnFetchReply(const control::ControlMessage& message);
  void AnswerKeyList(const control::ControlMessage& message);

  const ClientOptions options_;
  TableGate table_;
  StoreLanes stores_;
  RequestBook requests_;
  FetchBook fetches_;
  std::unique_ptr<Emitter> emitter_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::kDown;
  std::uint64_t next_request_ = 1;
  std::uint64_t boot_token_ = 0;  // of this connection; 0: no message yet
  PeerProcess peer_;              // of this connection
  TimeNs register_deadline_ = kTimeNever;
  std::uint64_t register_request_ = 0;
  int refused_code_ = FL_OK;       // of the last registration or grant
  bool refused_for_good_ = false;  // the same options will be refused again
  std::string last_words_ = "the sidecar has not answered yet";
  std::string mode_;
  std::uint64_t registrations_ = 0;

  std::optional<Arena> arena_;
  std::optional<Holder> holder_;
  bool revoking_ = false;
  bool grant_sent_ = false;  // on this connection
  bool grant_accepted_ = false;
  std::uint64_t grant_request_ = 0;
  TimeNs next_grant_ = 0;
  DurationNs grant_backoff_ = kRegrantMin;
  std::uint64_t grants_sent_ = 0;
  std::uint32_t slots_in_force_ = 0;

  bool table_pending_ = false;  // next_table_ waits for the old one's pins
  std::unique_ptr<TableReader> next_table_;

  std::unordered_map<std::uint64_t, std::optional<Answer>> waiting_;  // requests with a caller

  std::atomic<std::uint64_t> lookups_{0};
  std::atomic<std::uint64_t> hit_blocks_{0};
  std::atomic<std::uint64_t> miss_blocks_{0};
  std::atomic<std::uint64_t> fetch_count_{0};
  std::atomic<bool> disowned_{false};

  ControlLink link_;  // last: its thread uses all of the above
};

}  // namespace foreload::client
