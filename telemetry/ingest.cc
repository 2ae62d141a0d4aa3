#include "telemetry/ingest.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "telemetry/access_stream.h"
#include "telemetry/endpoint_policy.h"
#include "telemetry/kv_stream.h"

namespace foreload::telemetry {
namespace {

constexpr std::size_t kLiveFrames = 3;      // topic, sequence, payload
constexpr std::size_t kReplyFramesMin = 3;  // delimiter, sequence, payload
constexpr std::size_t kReplyFramesMax = 4;  // delimiter, topic, sequence, payload
// Time-outs of replays are seconds, so a look ten times a second is enough; a full sink is asked again sooner.
constexpr int kIdleWaitMs = 100;
constexpr int kRefusedWaitMs = 5;
constexpr DurationNs kPublishInterval = 50 * kMillisecond;  // of statuses and gauges
constexpr const char* kAccessTopic = "foreload";
// vLLM's replay ring has 10,000 batches, and its ROUTER drops what this side cannot take.
constexpr int kReplayMessagesMax = 20'000;

struct LiveMessage {
  SequenceFrame frame;
  Frame payload;
};

std::vector<Frame> ReplayRequest(std::uint64_t from) {
  Frame number(8);
  for (std::size_t i = 0; i < number.size(); ++i) number[i] = static_cast<std::uint8_t>(from >> (56 - 8 * i));
  return {Frame{}, std::move(number)};
}

// A DEALER that has asked, or nothing when the library has no socket left.
ZmqSocket OpenReplay(ZmqContext& context, const SourceConfig& config, LinkOptions link, std::uint64_t from) {
  link.receive_messages_max = kReplayMessagesMax;
  auto socket = ZmqSocket::Open(context, ZmqSocket::Type::kDealer, link, config.curve);
  if (!socket.ok() || !socket.value().Connect(config.replay_endpoint).ok()) return {};
  socket.value().Send(ReplayRequest(from));  // queued until connected; silence is the tracker's business
  return std::move(socket).value();
}

}  // namespace

// A source with its sockets. Used by the ingest thread alone once that runs.
class Source {
 public:
  Source(SourceIndex index, const IngestOptions& options, Sink& sink, TelemetryMetrics& metrics)
      : config_(options.sources[index]), options_(options), metrics_(metrics) {
    if (config_.kind == SourceKind::kAccess) {
      access_.emplace(index, sink, metrics);
      return;
    }
    SequenceTracker::Options tracker = options.tracker;
    tracker.can_replay = !config_.replay_endpoint.empty();
    kv_.emplace(KvStream::Options{index, config_.dialect, config_.data_parallel_rank, options.limits, tracker}, sink,
                metrics);
  }

  Status Open(ZmqContext& context, TimeNs now) {
    static std::atomic<std::uint64_t> monitors = 0;
    unconnected_since_ = now;
    FORELOAD_ASSIGN_OR_RETURN(ZmqSocket live,
                              ZmqSocket::Open(context, ZmqSocket::Type::kSub, options_.link, config_.curve));
    // The monitor first, so that no connection goes unseen.
    FORELOAD_ASSIGN_OR_RETURN(ZmqSocket monitor,
                              live.Monitor(context, "inproc://monitor-" + std::to_string(monitors++)));
    FORELOAD_RETURN_IF_ERROR(live.Subscribe(access_ ? kAccessTopic : config_.topic));
    FORELOAD_RETURN_IF_ERROR(config_.bind ? live.Bind(config_.endpoint) : live.Connect(config_.endpoint));
    live_ = std::move(live);
    monitor_ = std::move(monitor);
    open_connections_ = 0;
    return OkStatus();
  }

  // The library never connects again after a protocol violation (a frame over the limit is one), so a socket that has
  // been without a connection for longer than its own attempts take is replaced. Without a descriptor left for the new
  // one, the old one stays until the next try.
  void MaybeReopen(ZmqContext& context, TimeNs now) {
    const DurationNs patience = (options_.link.connect_timeout_ms + 2 * options_.link.reconnect_max_ms) * kMillisecond;
    if (config_.bind || open_connections_ > 0 || now - unconnected_since_ < patience) return;
    [[maybe_unused]] const Status tried = Open(context, now);
  }

  // Takes one turn's worth. Returns how long the thread may sleep on account of this source.
  int Turn(TimeNs now) {
    // Read, then look at the connection, then judge: whatever a new connection brought is seen after its event.
    ReadLive();
    ReadEvents(now);
    FeedLive(now);
    if (!kv_) return live_batch_.size() == options_.turn_messages_max ? 0 : kIdleWaitMs;
    ReadReplies(now);
    const auto pumped = kv_->Pump(2 * options_.turn_messages_max, now);
    if (!kv_->tracker().replay_active()) replay_.Close();
    if (pumped == KvStream::Pumped::kMore) return 0;
    return pumped == KvStream::Pumped::kRefused ? kRefusedWaitMs : kIdleWaitMs;
  }

  void MaybeAskForReplay(ZmqContext& context, TimeNs now, std::size_t& active) {
    if (!kv_ || !kv_->tracker().replay_wanted()) return;
    if (replay_) --active;
    replay_.Close();  // the new request's replies come over a new connection
    if (active >= options_.replays_max) return;
    ++active;
    const auto from = kv_->tracker().TakeReplayRequest(now);
    metrics_.replays.Add();
    replay_ = OpenReplay(context, config_, options_.link, *from);
  }

  bool replaying() const { return static_cast<bool>(replay_); }

  void AddSockets(std::vector<const ZmqSocket*>& sockets) const {
    sockets.push_back(&live_);
    sockets.push_back(&monitor_);
    if (replay_) sockets.push_back(&replay_);
  }

  SourceStatus status() const {
    SourceStatus status;
    status.name = config_.name;
    status.connected = open_connections_ > 0;
    status.connections = connections_;
    if (kv_) {
      status.view_unknown = kv_->tracker().view_unknown();
      status.received = kv_->tracker().received();
      status.next = kv_->tracker().next();
      status.buffered = kv_->tracker().buffered();
    }
    return status;
  }

  std::string endpoint() const { return live_.last_endpoint(); }

 private:
  void ReadLive() {
    live_batch_.clear();
    std::size_t count = 0;
    for (std::size_t i = 0; i < options_.turn_messages_max && live_.Receive(frames_, kLiveFrames, count); ++i) {
      if (count != kLiveFrames) {
        metrics_.Drop(DropReason::kFrameCount);
        continue;
      }
      const auto frame = ParseSequenceFrame(frames_[1]);
      if (!frame) {
        metrics_.Drop(DropReason::kSequenceFrame);
        continue;
      }
      live_batch_.push_back({*frame, std::move(frames_[2])});
    }
  }

  void ReadEvents(TimeNs now) {
    while (const auto event = monitor_.NextEvent()) {
      if (*event == ZmqSocket::Event::kDisconnected && open_connections_ > 0) {
        if (--open_connections_ == 0) unconnected_since_ = now;
      }
      if (*event != ZmqSocket::Event::kConnected) continue;
      ++open_connections_;
      if (connections_++ > 0) metrics_.reconnects.Add();
      if (kv_) kv_->tracker().OnReconnect(now);
    }
  }

  void FeedLive(TimeNs now) {
    for (LiveMessage& message : live_batch_) {
      if (kv_) {
        kv_->OnLive(message.frame, std::move(message.payload), now);
      } else {
        metrics_.access.messages.Add();
        metrics_.access.bytes.Add(message.payload.size());
        access_->OnMessage(message.frame, message.payload, now);
      }
    }
  }

  void ReadReplies(TimeNs now) {
    std::size_t count = 0;
    for (std::size_t i = 0; replay_ && i < options_.turn_messages_max; ++i) {
      if (!replay_.Receive(frames_, kReplyFramesMax, count)) return;
      if (count < kReplyFramesMin || count > kReplyFramesMax || !frames_[0].empty()) {
        metrics_.Drop(DropReason::kFrameCount);
        continue;
      }
      const auto frame = ParseSequenceFrame(frames_[count - 2]);
      if (!frame) {
        metrics_.Drop(DropReason::kSequenceFrame);
        continue;
      }
      kv_->OnReplayed(*frame, std::move(frames_[count - 1]), now);
      if (!kv_->tracker().replay_active()) replay_.Close();
    }
  }

  const SourceConfig& config_;
  const IngestOptions& options_;
  TelemetryMetrics& metrics_;
  std::optional<KvStream> kv_;  // exactly one of these two
  std::optional<AccessStream> access_;
  ZmqSocket live_;
  ZmqSocket monitor_;
  ZmqSocket replay_;
  std::vector<Frame> frames_;
  std::vector<LiveMessage> live_batch_;
  std::uint64_t connections_ = 0;
  std::uint64_t open_connections_ = 0;
  TimeNs unconnected_since_ = 0;
};

struct Ingest::Impl {
  Impl(IngestOptions given_options, Sink& sink, TelemetryMetrics& given_metrics)
      : options(std::move(given_options)), metrics(given_metrics), wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    FORELOAD_CHECK(wake >= 0, "no event descriptor");
    sources.reserve(options.sources.size());
    for (SourceIndex i = 0; i < options.sources.size(); ++i) sources.emplace_back(i, options, sink, metrics);
  }
  ~Impl() { close(wake); }

  void Run(const std::stop_token& stop) {
    std::vector<const ZmqSocket*> sockets;
    TimeNs published_at = 0;
    while (!stop.stop_requested()) {
      const TimeNs now = MonotonicNow();
      int wait_ms = kIdleWaitMs;
      for (Source& source : sources) {
        wait_ms = std::min(wait_ms, source.Turn(now));
        source.MaybeReopen(context, now);
      }
      auto replays = static_cast<std::size_t>(
          std::count_if(sources.begin(), sources.end(), [](const Source& source) { return source.replaying(); }));
      for (Source& source : sources) source.MaybeAskForReplay(context, now, replays);
      if (now - published_at >= kPublishInterval) {
        published_at = now;
        Publish();
      }
      if (wait_ms == 0) continue;
      sockets.clear();
      for (const Source& source : sources) source.AddSockets(sockets);
      WaitReadable(sockets, wake, wait_ms);
    }
    Publish();
  }

  void Publish() {
    std::size_t unknown = 0;
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      published[i] = sources[i].status();
      if (published[i].view_unknown) ++unknown;
    }
    metrics.sources_unknown.Set(static_cast<double>(unknown));
  }

  const IngestOptions options;
  TelemetryMetrics& metrics;
  const int wake;
  ZmqContext context;  // before the sources: their sockets close first
  std::vector<Source> sources;
  std::vector<std::string> endpoints;
  mutable std::mutex mutex;
  std::vector<SourceStatus> published;
  std::jthread thread;  // last: it ends first
};

Result<std::unique_ptr<Ingest>> Ingest::Create(IngestOptions options, Sink& sink, TelemetryMetrics& metrics) {
  for (const SourceConfig& source : options.sources) FORELOAD_RETURN_IF_ERROR(CheckSource(source));
  auto impl = std::make_unique<Impl>(std::move(options), sink, metrics);
  for (SourceIndex i = 0; i < impl->sources.size(); ++i) {
    const Status opened = impl->sources[i].Open(impl->context, MonotonicNow());
    if (!opened.ok()) return opened.WithContext("source " + impl->options.sources[i].name);
    impl->endpoints.push_back(impl->sources[i].endpoint());
    impl->published.push_back(impl->sources[i].status());
  }
  return std::unique_ptr<Ingest>(new Ingest(std::move(impl)));
}

Ingest::Ingest(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Ingest::~Ingest() {
  Stop();
}

void Ingest::Start() {
  FORELOAD_CHECK(!impl_->thread.joinable(), "ingest is running already");
  impl_->thread = std::jthread([impl = impl_.get()](const std::stop_token& stop) { impl->Run(stop); });
}

void Ingest::Stop() {
  if (!impl_->thread.joinable()) return;
  impl_->thread.request_stop();
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(impl_->wake, &one, sizeof one);  // full means woken already
  impl_->thread.join();
}

std::vector<SourceStatus> Ingest::statuses() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->published;
}

std::string Ingest::bound_endpoint(SourceIndex source) const {
  return impl_->endpoints.at(source);
}

}  // namespace foreload::telemetry
