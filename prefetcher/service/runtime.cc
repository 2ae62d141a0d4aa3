#include "prefetcher/service/runtime.h"

#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/random.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include "prefetcher/core/core.h"
#include "prefetcher/core/virtual_executor.h"
#include "prefetcher/service/control_server.h"
#include "prefetcher/service/core_metrics.h"
#include "prefetcher/service/engine_registry.h"
#include "prefetcher/service/event_builder.h"
#include "prefetcher/service/executor.h"
#include "prefetcher/service/inbox.h"
#include "prefetcher/service/intake.h"
#include "prefetcher/service/interner.h"
#include "prefetcher/service/observe.h"
#include "prefetcher/service/outlook.h"
#include "prefetcher/service/recorder.h"
#include "prefetcher/service/status_document.h"
#include "proto/control.pb.h"
#include "proto/telemetry.pb.h"
#include "telemetry/ingest.h"
#include "telemetry/staging_queue.h"
#include "transport/dram/dram_store.h"
#include "transport/host/host_backend.h"
#include "transport/metrics.h"
#include "transport/mover.h"
#include "transport/region_map.h"
#include "transport/ssd/ssd_store.h"
#include "transport/uring/file_backend.h"

namespace foreload::service {
namespace {

constexpr DurationNs kUsedScanInterval = 5 * kMillisecond;
constexpr DurationNs kPublishInterval = 200 * kMillisecond;
constexpr DurationNs kSweepInterval = 1 * kSecond;
constexpr DurationNs kLoopStallMax = 10 * kSecond;  // beyond it /livez fails
constexpr int kRoundsPerTurn = 64;                  // commands may answer at once with events; a turn ends all the same

std::uint64_t RandomToken() {
  std::uint64_t token = 0;
  if (getrandom(&token, sizeof token, 0) != sizeof token) token = static_cast<std::uint64_t>(WallNow());
  return token | 1;  // never 0
}

const char* StateName(ssd::SsdState state) {
  switch (state) {
    case ssd::SsdState::kOn: return "on";
    case ssd::SsdState::kWritesStopped: return "writes stopped";
    case ssd::SsdState::kOff: return "off";
  }
  return "unknown";
}

telemetry::Dialect DialectOf(Dialect dialect) {
  switch (dialect) {
    case Dialect::kAuto: return telemetry::Dialect::kAuto;
    case Dialect::kVllm: return telemetry::Dialect::kVllm;
    case Dialect::kSglang: return telemetry::Dialect::kSglang;
    case Dialect::kTrtllm: return telemetry::Dialect::kTrtllm;
    case Dialect::kMooncake: return telemetry::Dialect::kMooncake;
  }
  return telemetry::Dialect::kAuto;
}

}  // namespace

struct Runtime::Impl {
  Impl(const ServiceConfig& config_in, MetricRegistry& registry)
      : config(config_in),
        metrics(registry),
        telemetry_metrics(registry),
        core_metrics(registry),
        ssd_metrics(registry) {}

  Status Open();
  Status OpenStores();
  Status Subscribe();
  void Run();
  void Turn(TimeNs now);
  void HandleInbox(TimeNs now);
  void HandleControl(const ControlFrame& frame, TimeNs now);
  void HandleStaged(TimeNs now);
  void StepAll(TimeNs now);
  void StepOnce(TimeNs now, const core::EventBatch& batch);
  void ExecuteCommands(TimeNs now);
  void Publish(TimeNs now);
  TimeNs NextDeadline(TimeNs now) const;
  void ApplyReload();
  // Invalid when the engine has none connected.
  ConnectionId SchedulerOf(EngineId engine);
  bool observing() const { return config.mode == Mode::kObserve; }

  // Configuration and identity.
  ServiceConfig config;
  MetricRegistry& metrics;
  MonotonicClock clock;
  const std::uint64_t boot_token = RandomToken();
  const TimeNs started = MonotonicNow();

  // Owned by the core thread from Start to Drain.
  EventBuilder events;
  BlockInterner interner;
  std::unique_ptr<Backend> host_backend;
  std::unique_ptr<Backend> file_backend;
  std::string file_choice;
  std::unique_ptr<DramStore> dram;
  std::optional<RegionMap> dram_host;
  std::optional<RegionMap> dram_file;
  telemetry::TelemetryMetrics telemetry_metrics;
  CoreMetrics core_metrics;
  ssd::SsdMetrics ssd_metrics;
  std::unique_ptr<ssd::SsdStore> ssd;
  std::unique_ptr<core::Core> core;
  std::unique_ptr<core::VirtualExecutor> virtual_executor;
  std::unique_ptr<ObserveAdapter> observe;
  std::unique_ptr<Outlook> outlook;
  std::unique_ptr<Recorder> recorder;
  std::unique_ptr<EngineRegistry> engines;
  std::unique_ptr<Intake> intake;
  std::unique_ptr<Executor> executor;
  std::vector<core::Command> commands;
  std::vector<InboxItem> inbox_items;
  std::vector<telemetry::StagedItem> staged;
  core::EventBatch virtual_batch;
  TransportMetrics host_metrics{metrics, "dram_hbm"};
  TransportMetrics file_metrics{metrics, "ssd_dram"};
  FileBackendMetrics file_backend_metrics{metrics};
  ExecutorMetrics executor_metrics{metrics};
  FileBackendChoice file_backend_choice;
  TimeNs next_scan = 0;
  TimeNs next_publish = 0;
  TimeNs next_sweep = 0;
  bool stepped = false;

  // Shared between threads.
  Inbox inbox;
  std::unique_ptr<Mover> host_mover;
  std::unique_ptr<Mover> file_mover;
  std::unique_ptr<telemetry::StagingQueue> staging;
  std::unique_ptr<telemetry::Ingest> ingest;
  std::unique_ptr<ControlServer> control;
  std::thread core_thread;
  std::atomic<bool> stop{false};
  std::atomic<bool> draining{false};
  std::atomic<bool> drained{false};
  std::atomic<TimeNs> last_turn{0};
  mutable std::mutex mutex;  // guards the four below
  std::string status = "{}";
  std::optional<ServiceConfig> reload;
  std::vector<BlockKey> dropped;      // by the SSD store, for the core thread
  std::vector<std::string> degraded;  // what does not work, in words
};

// ---- start ----------------------------------------------------------------------------------------------------------

Status Runtime::Impl::OpenStores() {
  host_backend = std::make_unique<HostBackend>();
  if (observing()) return OkStatus();
  FORELOAD_ASSIGN_OR_RETURN(dram, DramStore::Create({.bytes = config.dram.capacity_bytes,
                                                     .huge_pages = config.dram.huge_pages,
                                                     .lock_memory = config.dram.lock_memory}));
  FORELOAD_ASSIGN_OR_RETURN(auto host_map,
                            RegionMap::Register(*host_backend, dram->base(), dram->bytes(), dram->bytes()));
  dram_host = std::move(host_map);
  host_mover = std::make_unique<Mover>(
      *host_backend, clock,
      MoverOptions{.name = "fl-host",
                   .link_bytes_per_second = config.links.dram_to_hbm.bytes_per_second,
                   .throttle_bytes_per_second = config.links.dram_to_hbm.throttle_bytes_per_second,
                   .write_age_max_ns = 5 * kMillisecond,  // stores hold the engine's ring slots
                   .metrics = &host_metrics},
      [this](const MoveResult& result) { inbox.Push(result); });
  if (config.ssd.directory.empty()) return OkStatus();

  FileBackendOptions io;
  io.kind = config.ssd.io == SsdIo::kThreads ? FileBackendOptions::Kind::kThreadPool
            : config.ssd.io == SsdIo::kUring ? FileBackendOptions::Kind::kUring
                                             : FileBackendOptions::Kind::kAuto;
  FORELOAD_ASSIGN_OR_RETURN(file_backend, MakeFileBackend(io, &file_backend_choice));
  file_choice = (file_backend_choice.io_uring ? "io_uring: " : "thread pool: ") + file_backend_choice.reason;
  spdlog::info("ssd: {}", file_choice);
  FORELOAD_ASSIGN_OR_RETURN(auto file_map,
                            RegionMap::Register(*file_backend, dram->base(), dram->bytes(), dram->bytes()));
  dram_file = std::move(file_map);
  file_backend_metrics.Set(file_backend_choice, *file_backend);
  FORELOAD_ASSIGN_OR_RETURN(
      ssd, ssd::SsdStore::Open({.directory = config.ssd.directory,
                                .capacity_bytes = config.ssd.capacity_bytes,
                                .segment_bytes = config.ssd.segment_bytes,
                                .direct_io = config.ssd.direct_io ? ssd::DirectIo::kAuto : ssd::DirectIo::kOff,
                                .sync_interval_ns = config.ssd.fsync_interval_ns,
                                .extents_max = 512,
                                .headers_in_flight = 512},
                               *file_backend, clock, ssd_metrics,
                               {.durable =
                                    [this](const BlockKey&, std::uint64_t token, const Status& status_in) {
                                      inbox.Push(SsdDurable{token, status_in});
                                    },
                                .dropped =
                                    [this](const BlockKey& key, ssd::DropReason) {
                                      {
                                        const std::lock_guard lock(mutex);
                                        dropped.push_back(key);
                                      }
                                      inbox.Wake();
                                    }}));
  file_mover = std::make_unique<Mover>(*file_backend, clock,
                                       MoverOptions{.name = "fl-file",
                                                    .link_bytes_per_second = config.links.ssd_to_dram.bytes_per_second,
                                                    .throttle_bytes_per_second = config.ssd.throttle_bytes_per_second,
                                                    .metrics = &file_metrics},
                                       [this](const MoveResult& result) { inbox.Push(result); });
  return OkStatus();
}

Status Runtime::Impl::Subscribe() {
  staging = std::make_unique<telemetry::StagingQueue>(
      telemetry::StagingQueue::Options{.items_max = config.limits.staging_items,
                                       .bytes_max = config.limits.staging_bytes},
      telemetry_metrics, [this] { inbox.Wake(); });
  telemetry::IngestOptions options;
  for (const EngineSettings& engine : config.engines) {
    const auto id = engines->IdFor(engine.name);
    if (!id) return ResourceExhausted("limits.engines_max is smaller than the number of [[engine]] tables");
    engines->SetDefaults(*id, engine);
    if (observe != nullptr && engine.block_bytes > 0) observe->SetBlockBytes(*id, engine.block_bytes);
    telemetry::SourceConfig source{.name = engine.name, .insecure = config.service.insecure};
    if (!engine.kv_events.empty()) {
      source.kind = telemetry::SourceKind::kKvEvents;
      source.dialect = DialectOf(engine.dialect);
      source.endpoint = engine.kv_events;
      source.bind = engine.kv_bind;
      source.replay_endpoint = engine.kv_replay;
      source.topic = engine.topic;
      source.data_parallel_rank = engine.data_parallel_rank;
      intake->BindSource(static_cast<telemetry::SourceIndex>(options.sources.size()), *id);
      options.sources.push_back(source);
    }
    if (!engine.access.empty()) {
      source = {.name = engine.name,
                .kind = telemetry::SourceKind::kAccess,
                .endpoint = engine.access,
                .insecure = config.service.insecure};
      intake->BindSource(static_cast<telemetry::SourceIndex>(options.sources.size()), *id);
      options.sources.push_back(source);
    }
  }
  if (options.sources.empty()) return OkStatus();
  FORELOAD_ASSIGN_OR_RETURN(ingest, telemetry::Ingest::Create(std::move(options), *staging, telemetry_metrics));
  ingest->Start();
  return OkStatus();
}

Status Runtime::Impl::Open() {
  FORELOAD_RETURN_IF_ERROR(OpenStores());
  const core::CoreConfig core_config = ToCoreConfig(config);
  FORELOAD_RETURN_IF_ERROR(core::Validate(core_config));
  core = std::make_unique<core::Core>(core_config);
  if (!config.record.file.empty()) {
    FORELOAD_ASSIGN_OR_RETURN(recorder, Recorder::Open(config.record, core_config, interner));
  }
  engines = std::make_unique<EngineRegistry>(
      EngineRegistry::Options{.mode = config.mode, .boot_token = boot_token, .engines_max = config.limits.engines_max},
      *host_backend, interner, metrics, events);
  intake = std::make_unique<Intake>(
      Intake::Options{.requests_max = config.limits.requests_max,
                      .sessions_max = config.limits.sessions_max,
                      .request_blocks_max = config.limits.request_blocks_max},
      interner, *engines, events, metrics,
      [this](EngineId engine, BlockId block) { return core->View(engine, block).in_engine; },
      [this](EngineId engine, const std::string& request_id) {
        const ConnectionId scheduler = SchedulerOf(engine);
        if (!scheduler.valid()) return;
        control::ControlMessage message;
        message.mutable_key_list_request()->set_request_id(request_id);
        control->Send(scheduler, std::move(message));
      });
  engines->set_on_down([this](EngineId engine) { intake->OnEngineDown(engine); });
  if (observing()) {
    virtual_executor = std::make_unique<core::VirtualExecutor>(core_config);
    observe = std::make_unique<ObserveAdapter>(*core, events);
    virtual_executor->block_bytes = [this](BlockId block) { return observe->BytesOf(block); };
  } else {
    executor = std::make_unique<Executor>(Executor::Parts{.host = *host_mover,
                                                          .file = file_mover.get(),
                                                          .dram = *dram,
                                                          .dram_host = *dram_host,
                                                          .dram_file = dram_file ? &*dram_file : nullptr,
                                                          .ssd = ssd.get(),
                                                          .engines = *engines,
                                                          .interner = interner,
                                                          .intake = *intake,
                                                          .events = events,
                                                          .clock = clock},
                                          executor_metrics);
    outlook = std::make_unique<Outlook>(*core, [this](EngineId engine, RequestId request, std::uint32_t stored) {
      const ConnectionId scheduler = SchedulerOf(engine);
      if (!scheduler.valid()) return;
      control::ControlMessage message;
      message.mutable_request_outlook()->set_request_id(std::string(intake->RequestName(request)));
      message.mutable_request_outlook()->set_stored_blocks(stored);
      control->Send(scheduler, std::move(message));
    });
    executor->AnnounceRecovered();
    StepAll(clock.Now());
  }
  if (config.mode == Mode::kOff) return OkStatus();
  FORELOAD_ASSIGN_OR_RETURN(control,
                            ControlServer::Start(config.service.control_socket, boot_token, metrics,
                                                 [this](ControlEvent event) { inbox.Push(std::move(event)); }));
  engines->set_control(control.get());
  if (executor != nullptr) executor->set_control(control.get());
  return Subscribe();
}

Result<std::unique_ptr<Runtime>> Runtime::Start(const ServiceConfig& config, MetricRegistry& metrics) {
  auto impl = std::make_unique<Impl>(config, metrics);
  if (const Status status = impl->Open(); !status.ok()) {
    Runtime failed(std::move(impl));
    return status;
  }
  impl->Publish(impl->clock.Now());
  impl->last_turn = impl->clock.Now();
  impl->core_thread = std::thread([raw = impl.get()] {
    pthread_setname_np(pthread_self(), "fl-core");
    raw->Run();
  });
  return std::unique_ptr<Runtime>(new Runtime(std::move(impl)));
}

// ---- the core thread ------------------------------------------------------------------------------------------------

void Runtime::Impl::Run() {
  while (!stop.load(std::memory_order_acquire)) {
    if (executor != nullptr && !executor->PrepareSleep()) inbox.Wake();
    inbox.WaitDrain(inbox_items, NextDeadline(clock.Now()));
    Turn(clock.Now());
  }
}

TimeNs Runtime::Impl::NextDeadline(TimeNs now) const {
  TimeNs next = std::min(next_publish, next_sweep);
  next = std::min(next, core->NextWake());
  if (virtual_executor != nullptr) next = std::min(next, virtual_executor->NextEventTime());
  bool arenas = false;
  engines->ForEach([&](EngineInstance& engine) { arenas = arenas || engine.grant != nullptr; });
  if (arenas) next = std::min(next, next_scan);
  return std::max(std::min(next, now + kPublishInterval), now);
}

void Runtime::Impl::Turn(TimeNs now) {
  last_turn.store(now, std::memory_order_relaxed);
  stepped = false;
  ApplyReload();
  // Before the frames: what was committed before a flush or purge was sent is heard first.
  if (executor != nullptr) executor->PollStores(now);
  HandleInbox(now);
  HandleStaged(now);
  if (executor != nullptr && now >= next_scan) {
    executor->Observe(now);
    next_scan = now + kUsedScanInterval;
  }
  if (now >= next_sweep) {
    intake->Sweep(now);
    next_sweep = now + kSweepInterval;
  }
  if (virtual_executor != nullptr) {
    virtual_executor->CollectUntil(now, virtual_batch);
    for (const core::Event& event : virtual_batch.events) events.Add(event);
    virtual_batch.Clear();
  }
  StepAll(now);
  if (!stepped) {
    static const core::EventBatch kTick;
    StepOnce(now, kTick);
    ExecuteCommands(now);
    StepAll(now);
  }
  if (now >= next_publish) {
    Publish(now);
    next_publish = now + kPublishInterval;
  }
}

void Runtime::Impl::HandleInbox(TimeNs now) {
  for (InboxItem& item : inbox_items) {
    if (auto* result = std::get_if<MoveResult>(&item)) {
      executor->OnMove(*result);
    } else if (auto* durable = std::get_if<SsdDurable>(&item)) {
      executor->OnSsdDurable(durable->token, durable->status);
    } else if (auto* event = std::get_if<ControlEvent>(&item)) {
      if (const auto* frame = std::get_if<ControlFrame>(event)) {
        HandleControl(*frame, now);
      } else if (const auto* closed = std::get_if<ControlClosed>(event)) {
        engines->Closed(closed->connection);
        if (executor != nullptr) executor->Closed(closed->connection);
      } else if (const auto* doorbell = std::get_if<ControlDoorbell>(event)) {
        if (executor != nullptr) executor->OnDoorbell(doorbell->connection);
      }
    }
  }
  inbox_items.clear();
  std::vector<BlockKey> gone;
  {
    const std::lock_guard lock(mutex);
    gone.swap(dropped);
  }
  for (const BlockKey& key : gone) executor->OnSsdDropped(key);
}

void Runtime::Impl::HandleControl(const ControlFrame& frame, TimeNs now) {
  if (engines->Handle(frame)) return;
  if (executor != nullptr && executor->Handle(frame, now)) return;
  control::ControlMessage reply;
  reply.set_request(frame.message->request());
  if (frame.message->has_key_list_chunk()) {
    if (const EngineInstance* engine = engines->FindByConnection(frame.connection)) {
      intake->OnKeyListChunk(engine->id, now, frame.message->key_list_chunk());
    }
    return;
  }
  if (frame.message->has_status_request()) {
    const std::lock_guard lock(mutex);
    reply.mutable_status_reply()->set_json(status);
  } else if (observing() && frame.message->has_flush()) {
    reply.mutable_flush_reply();  // nothing is ever stored, so all of it is on disk
  } else if (observing() && frame.message->has_purge()) {
    reply.mutable_purge_reply();
  } else {
    reply.mutable_error()->set_code(static_cast<std::uint32_t>(StatusCode::kUnimplemented));
    reply.mutable_error()->set_message(observing() ? "mode is observe: nothing is stored or moved"
                                                   : "this sidecar does not know the message");
  }
  control->Send(frame.connection, std::move(reply));
}

ConnectionId Runtime::Impl::SchedulerOf(EngineId engine) {
  const EngineInstance* instance = engines->Find(engine);
  if (instance == nullptr) return {};
  for (const EngineClient& client : instance->clients) {
    if (client.scheduler) return client.connection;
  }
  return {};
}

void Runtime::Impl::HandleStaged(TimeNs now) {
  if (staging == nullptr) return;
  staging->Drain(staged);
  for (telemetry::StagedItem& item : staged) {
    if (auto* kv = std::get_if<telemetry::KvEventBatch>(&item.content)) {
      intake->OnKvBatch(item.source, *kv);
    } else if (auto* access = std::get_if<std::unique_ptr<telemetry::AccessBatch>>(&item.content)) {
      intake->OnAccessBatch(item.source, now, **access);
    } else {
      intake->OnViewState(item.source, std::get<telemetry::ViewState>(item.content));
    }
  }
  staged.clear();
}

void Runtime::Impl::StepOnce(TimeNs now, const core::EventBatch& batch) {
  const std::size_t before = commands.size();
  core->Step(now, batch, commands);
  if (recorder != nullptr) recorder->Step(now, batch, std::span(commands).subspan(before));
  stepped = true;
}

void Runtime::Impl::StepAll(TimeNs now) {
  for (int round = 0; round < kRoundsPerTurn && !events.empty(); ++round) {
    std::vector<core::EventBatch> observed;
    events.Flush([&](const core::EventBatch& batch) {
      StepOnce(now, batch);
      if (outlook != nullptr) outlook->After(batch);
      if (observe != nullptr) observed.push_back(batch);
    });
    for (const core::EventBatch& batch : observed) observe->After(batch);
    if (outlook != nullptr) {
      for (const BlockId block : executor->TakeStored()) outlook->OnStored(block);
    }
    ExecuteCommands(now);
  }
  if (!events.empty()) inbox.Wake();
}

void Runtime::Impl::ExecuteCommands(TimeNs now) {
  if (virtual_executor != nullptr) {
    virtual_executor->Execute(now, commands);
    virtual_executor->TakeAnswers();  // answered from the commands themselves, below
    for (const core::Command& command : commands) {
      if (const auto* done = std::get_if<core::DemandDone>(&command)) observe->OnDemandDone(*done);
      if (const auto* forget = std::get_if<core::ForgetBlock>(&command)) interner.Forget(forget->block);
    }
  } else {
    for (const core::Command& command : commands) executor->Execute(command);
  }
  commands.clear();
}

void Runtime::Impl::ApplyReload() {
  std::optional<ServiceConfig> next;
  {
    const std::lock_guard lock(mutex);
    next.swap(reload);
  }
  if (!next) return;
  config.prefetch = next->prefetch;
  config.service.log_level = next->service.log_level;
  events.Add(core::PolicyChanged{config.prefetch.enabled});
}

void Runtime::Impl::Publish(TimeNs now) {
  core_metrics.Publish(core->stats());
  StatusInputs inputs{.config = config,
                      .stats = core->stats(),
                      .engines = *engines,
                      .boot_token = boot_token,
                      .started = started,
                      .now = now,
                      .draining = draining.load(),
                      .dram_summary = dram == nullptr ? std::string("none") : dram->Summary(),
                      .file_io = file_choice,
                      .ssd_state = "none",
                      .host = host_mover.get(),
                      .file = file_mover.get()};
  std::vector<std::string> problems;
  if (ssd != nullptr) {
    const ssd::SsdStats stats = ssd->stats();
    inputs.ssd_state = StateName(stats.state);
    if (!stats.last_error.empty()) inputs.ssd_state += " (last error: " + stats.last_error + ")";
    inputs.ssd_used_bytes = stats.used_bytes;
    inputs.ssd_records = stats.records;
    if (stats.state != ssd::SsdState::kOn) problems.push_back("ssd: " + inputs.ssd_state);
  }
  engines->ForEach([&](EngineInstance& engine) {
    if (engine.grant == nullptr) problems.push_back("engine " + engine.name + ": " + engine.arena_reason);
  });
  std::string document = StatusDocument(inputs);
  const std::lock_guard lock(mutex);
  status = std::move(document);
  degraded = std::move(problems);
}

// ---- from other threads ---------------------------------------------------------------------------------------------

Runtime::Runtime(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Runtime::~Runtime() {
  Drain(MonotonicNow());
}

Status Runtime::Reload(const ServiceConfig& config) {
  const std::lock_guard lock(impl_->mutex);
  std::vector<std::string> needs_restart;
  FORELOAD_RETURN_IF_ERROR(DiffReloadable(impl_->config, config, &needs_restart));
  impl_->reload = config;
  impl_->inbox.Wake();
  return OkStatus();
}

void Runtime::Drain(TimeNs deadline) {
  Impl& impl = *impl_;
  if (impl.drained.exchange(true)) return;
  impl.draining = true;
  if (impl.ingest != nullptr) impl.ingest->Stop();
  if (impl.core_thread.joinable()) {
    impl.stop.store(true, std::memory_order_release);
    impl.inbox.Wake();
    impl.core_thread.join();
    // The loop goes on here, without new work, until all that was committed is durable.
    impl.engines->CloseAll("the sidecar is stopping");
    if (impl.executor != nullptr) {
      impl.events.Add(core::FlushAsked{0});
      if (impl.ssd != nullptr) impl.ssd->RequestFlush();
      do {
        impl.Turn(impl.clock.Now());
        if (impl.executor->idle() && impl.core->stats().dram_bytes_dirty == 0) break;
        impl.inbox.WaitDrain(impl.inbox_items, std::min(deadline, impl.clock.Now() + kUsedScanInterval));
      } while (impl.clock.Now() < deadline);
    }
    impl.Publish(impl.clock.Now());
  }
  // No posted transfer is abandoned: the movers wait for what is in flight.
  impl.host_mover.reset();
  impl.file_mover.reset();
  impl.inbox.WaitDrain(impl.inbox_items, 0);
  if (impl.executor != nullptr) impl.HandleInbox(impl.clock.Now());
  if (impl.recorder != nullptr) {
    if (const Status status = impl.recorder->Close(); !status.ok()) spdlog::error("recording: {}", status.message());
  }
  impl.control.reset();
  impl.executor.reset();
  impl.engines.reset();
  impl.ssd.reset();
}

std::string Runtime::StatusJson() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->status;
}

Health Runtime::Livez() const {
  const DurationNs since = impl_->clock.Now() - impl_->last_turn.load(std::memory_order_relaxed);
  const bool turning = impl_->drained || since < kLoopStallMax;
  return {
      .ok = turning,
      .checks = {{"core loop", turning ? "turns" : "has not turned for " + std::to_string(since / kSecond) + " s"}}};
}

Health Runtime::Readyz() const {
  Health health{.ok = !impl_->draining, .checks = {{"draining", impl_->draining ? "yes" : "no"}}};
  const std::lock_guard lock(impl_->mutex);
  for (const std::string& problem : impl_->degraded) health.checks.emplace_back("degraded", problem);
  return health;
}

}  // namespace foreload::service
