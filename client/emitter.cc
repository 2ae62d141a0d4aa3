#include "client/emitter.h"

#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "proto/limits.h"
#include "proto/telemetry.pb.h"

namespace foreload::client {
namespace {

constexpr std::string_view kTopic = "foreload";
constexpr std::string_view kIpc = "ipc://";
constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kInsecureTcp = "insecure+tcp://";
constexpr int kSendBatchesMax = 1024;  // a subscriber that lags further loses batches; the sequence shows it
constexpr int kBatchesPerRound = 64;
constexpr std::size_t kBatchBytes = 256u << 10;  // aimed at; one large event may exceed it

Status ZmqError(const std::string& what) {
  return IoError(what + ": " + zmq_strerror(zmq_errno()));
}

bool IsLoopback(std::string_view address) {
  return address.starts_with("127.") || address.starts_with("localhost:") || address.starts_with("[::1]:");
}

// The endpoint as ZeroMQ wants it, its folder made.
Result<std::string> Prepare(const std::string& endpoint) {
  const std::string_view text = endpoint;
  if (text.starts_with(kInsecureTcp)) return endpoint.substr(kInsecureTcp.size() - kTcp.size());
  if (text.starts_with(kTcp)) {
    if (IsLoopback(text.substr(kTcp.size()))) return endpoint;
    return InvalidArgument("telemetry endpoint " + endpoint +
                           ": TCP beyond loopback is neither encrypted nor authenticated "
                           "here; write insecure+tcp://... if the network is trusted");
  }
  if (!text.starts_with(kIpc) || text.size() == kIpc.size()) {
    return InvalidArgument("telemetry endpoint " + endpoint + ": ipc:///PATH or tcp://ADDRESS:PORT");
  }
  const std::filesystem::path folder = std::filesystem::path(text.substr(kIpc.size())).parent_path();
  if (!folder.empty() && ::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return Status::FromErrno(errno, "telemetry endpoint: making " + folder.string());
  }
  return endpoint;
}

}  // namespace

struct Emitter::Socket {
  void* context = nullptr;
  void* socket = nullptr;

  ~Socket() {
    if (socket != nullptr) zmq_close(socket);
    if (context != nullptr) zmq_ctx_term(context);  // bounded by the linger time
  }
  void Set(int option, int value) const { zmq_setsockopt(socket, option, &value, sizeof value); }
};

Result<std::unique_ptr<Emitter>> Emitter::Open(const std::string& endpoint, const std::string& engine,
                                               const RequestBook& book) {
  FORELOAD_ASSIGN_OR_RETURN(const std::string address, Prepare(endpoint));
  auto socket = std::make_unique<Socket>();
  socket->context = zmq_ctx_new();
  if (socket->context == nullptr) return ZmqError("telemetry context");
  socket->socket = zmq_socket(socket->context, ZMQ_XPUB);
  if (socket->socket == nullptr) return ZmqError("telemetry socket");
  socket->Set(ZMQ_XPUB_VERBOSE, 1);  // every subscription is reported, also a second one to the same topic
  socket->Set(ZMQ_SNDHWM, kSendBatchesMax);
  socket->Set(ZMQ_LINGER, kLingerMs);
  if (zmq_bind(socket->socket, address.c_str()) != 0) return ZmqError("telemetry endpoint " + address);
  if (address.starts_with(kIpc)) {
    const std::string path = address.substr(kIpc.size());
    if (::chmod(path.c_str(), 0600) != 0) return Status::FromErrno(errno, "telemetry endpoint: chmod " + path);
  }
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return Status::FromErrno(errno, "telemetry: eventfd");
  char bound[512] = {};
  std::size_t bound_bytes = sizeof bound;
  zmq_getsockopt(socket->socket, ZMQ_LAST_ENDPOINT, bound, &bound_bytes);
  std::unique_ptr<Emitter> emitter(new Emitter(std::move(socket), std::move(wake), engine, book));
  emitter->endpoint_ = bound;
  emitter->thread_ = std::thread([self = emitter.get()] { self->Run(); });
  return emitter;
}

Emitter::Emitter(std::unique_ptr<Socket> socket, UniqueFd wake, std::string engine, const RequestBook& book)
    : book_(book), engine_(std::move(engine)), socket_(std::move(socket)), queue_({}, std::move(wake)) {
  const ssize_t got = ::getrandom(publisher_id_.data(), publisher_id_.size(), 0);
  FORELOAD_CHECK(got == static_cast<ssize_t>(publisher_id_.size()), "no random bytes");
}

Emitter::~Emitter() {
  stop_.store(true);
  queue_.Ring();
  if (thread_.joinable()) thread_.join();
}

// --- the emitter's thread
// ----------------------------------------------------------------------------------------------

void Emitter::Run() {
  TimeNs next_announce = MonotonicNow() + kAnnounceEvery;
  while (!stop_.load()) {
    const bool more = SendQueued();
    zmq_pollitem_t items[2] = {{socket_->socket, 0, ZMQ_POLLIN, 0}, {nullptr, queue_.wake_fd(), ZMQ_POLLIN, 0}};
    const DurationNs wait = more ? 0 : std::max<DurationNs>(next_announce - MonotonicNow(), 0);
    zmq_poll(items, 2, static_cast<long>((wait + kMillisecond - 1) / kMillisecond));
    queue_.Awake();
    bool joined = false;
    char message[64];
    for (int got = 0; (got = zmq_recv(socket_->socket, message, sizeof message, ZMQ_DONTWAIT)) >= 0;) {
      joined = joined || (got > 0 && message[0] == 1);  // 1: a subscription; 0: its end
    }
    if (!joined && MonotonicNow() < next_announce) continue;
    Announce();
    next_announce = MonotonicNow() + kAnnounceEvery;
  }
  (void)SendQueued();
}

// Some batches; true when more may wait. Announcements and subscriptions get their turn in between.
bool Emitter::SendQueued() {
  for (int i = 0; i < kBatchesPerRound; ++i) {
    Events events = queue_.Take(kAccessEventsPerBatchMax, kBatchBytes);
    if (events.empty()) return false;
    Send(std::move(events));
  }
  return true;
}

void Emitter::Announce() {
  Events events;
  for (const LiveRequestInfo& info : book_.Live()) {
    auto event = std::make_unique<telemetry::AccessEvent>();
    telemetry::LiveRequest& request = *event->mutable_live_request();
    request.set_request_id(info.id);
    request.set_state(static_cast<telemetry::RequestState>(info.state));
    request.set_key_count(info.key_count);
    request.set_key_list_hash(info.key_list_hash);
    events.push_back(std::move(event));
    if (events.size() < kAccessEventsPerBatchMax) continue;
    Send(std::move(events));
    events.clear();
  }
  if (!events.empty()) Send(std::move(events));
}

void Emitter::Send(Events events) {
  telemetry::AccessBatch batch;
  batch.set_wall_time_seconds(static_cast<double>(WallNow()) * 1e-9);
  batch.set_publisher_id(publisher_id_.data(), publisher_id_.size());
  batch.set_engine(engine_);
  batch.set_dropped_step_access(queue_.dropped_steps());
  for (auto& event : events) batch.mutable_events()->AddAllocated(event.release());
  const std::string body = batch.SerializeAsString();
  std::uint8_t sequence[8];
  for (int i = 0; i < 8; ++i) sequence[i] = static_cast<std::uint8_t>(sequence_ >> (56 - 8 * i));
  ++sequence_;
  // XPUB drops for a subscriber that lags and never blocks; DONTWAIT says so once more.
  if (zmq_send(socket_->socket, kTopic.data(), kTopic.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) return;
  if (zmq_send(socket_->socket, sequence, sizeof sequence, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) return;
  if (zmq_send(socket_->socket, body.data(), body.size(), ZMQ_DONTWAIT) < 0) return;
  emitted_.fetch_add(events.size(), std::memory_order_relaxed);
}

}  // namespace foreload::client
