#include "cmd/drive/runner.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "cmd/drive/engine_model.h"
#include "cmd/drive/live_port.h"
#include "cmd/drive/sidecar_process.h"
#include "replay/trace_json.h"

namespace foreload::drive {
namespace {

constexpr DurationNs kReadyTimeout = 30 * kSecond;
constexpr DurationNs kReadySlice = 200 * kMillisecond;
constexpr DurationNs kStatusTimeout = 5 * kSecond;
constexpr DurationNs kPurgeTimeout = 30 * kSecond;
constexpr DurationNs kWakeMax = 100 * kMillisecond;  // of one sleep: interrupts and the sidecar's death are noticed
constexpr DurationNs kProgressTerminal = 500 * kMillisecond;
constexpr DurationNs kProgressLog = 10 * kSecond;
constexpr double kRunSecondsSlack = 120;  // beyond four times the span of arrivals, the run has failed

class Progress {
 public:
  Progress(std::string label, std::uint64_t total)
      : label_(std::move(label)), total_(total), terminal_(isatty(STDERR_FILENO) == 1), started_(MonotonicNow()) {
    next_ = started_ + (terminal_ ? kProgressTerminal : kProgressLog);
  }
  ~Progress() {
    if (terminal_ && shown_) std::fputs("\r\033[K", stderr);
  }

  void Update(TimeNs now, const EngineModel& model) {
    if (now < next_) return;
    next_ = now + (terminal_ ? kProgressTerminal : kProgressLog);
    shown_ = true;
    const std::size_t done = model.finished().size();
    std::fprintf(stderr, "%s%s: %zu of %llu requests, %zu queued, %zu running, %lld s%s", terminal_ ? "\r\033[K" : "",
                 label_.c_str(), done, static_cast<unsigned long long>(total_), model.queued(), model.running(),
                 static_cast<long long>((now - started_) / kSecond), terminal_ ? "" : "\n");
  }

 private:
  std::string label_;
  std::uint64_t total_;
  bool terminal_;
  bool shown_ = false;
  TimeNs started_;
  TimeNs next_ = 0;
};

class Runner {
 public:
  Runner(const RunOptions& options, Report& report, LeftRunning& left)
      : options_(options), scenario_(options.scenario), report_(report), left_(left) {}

  Status Run() {
    FORELOAD_RETURN_IF_ERROR(Profile());
    for (std::uint32_t repeat = 0; repeat < options_.repeat; ++repeat) {
      for (std::size_t i = 0; i < options_.phases.size(); ++i) {
        const bool last = repeat + 1 == options_.repeat && i + 1 == options_.phases.size();
        FORELOAD_RETURN_IF_ERROR(RunPhase(options_.phases[i], repeat, last));
      }
    }
    return OkStatus();
  }

 private:
  Status Profile() {
    FORELOAD_ASSIGN_OR_RETURN(auto source, OpenWorkload(scenario_, options_.trace, options_.strict));
    FORELOAD_ASSIGN_OR_RETURN(report_.profile, replay::ProfileWorkload(*source, scenario_.rates()));
    report_.notes = source->stats().notes;
    report_.skipped = source->stats().skipped;
    for (const std::string& problem : source->stats().problems) std::fprintf(stderr, "skipped: %s\n", problem.c_str());
    if (report_.profile.requests == 0) return InvalidArgument("the workload has no request");
    return OkStatus();
  }

  LivePortOptions PortOptions(Phase phase, std::uint32_t repeat, const SidecarProcess* sidecar) const {
    LivePortOptions port;
    if (sidecar != nullptr) {
      port.control_socket = sidecar->control_socket();
      port.access_endpoint = sidecar->access_endpoint();
      port.kv_endpoint = sidecar->kv_endpoint();
      port.kv_replay_endpoint = sidecar->kv_replay_endpoint();
      port.model_revision = "drive/" + scenario_.name;
    } else {
      port.control_socket = options_.connect;
      port.engine = options_.engine;
      port.access_endpoint = options_.access_endpoint;
      port.kv_endpoint = options_.kv_endpoint;
      port.kv_replay_endpoint = options_.kv_replay_endpoint;
      port.model_revision = "drive/" + scenario_.name + "/" + PhaseName(phase) + "/" + std::to_string(repeat) + "/" +
                            std::to_string(WallNow());
    }
    port.hash_form = scenario_.hash_form;
    port.block_bytes = scenario_.block_bytes;
    port.block_tokens = report_.profile.block_tokens;
    port.layer_groups = scenario_.layer_groups;
    port.ranks = scenario_.ranks;
    port.arena_slots = scenario_.arena_slots;
    port.store_slots = scenario_.store_slots;
    port.breaker_open_ms = static_cast<std::uint32_t>(std::max<DurationNs>(1, scenario_.breaker_open / kMillisecond));
    port.recompute_seconds_per_token = 1 / scenario_.engine.prefill_tokens_per_second;
    port.demand_only = phase == Phase::kDemand;
    port.fetches_max = scenario_.engine.admitted_max;
    return port;
  }

  Status WaitReady(LivePort& port, SidecarProcess* sidecar, bool observing) {
    const TimeNs until = MonotonicNow() + kReadyTimeout;
    while (true) {
      const Status ready = port.WaitReady(kReadySlice, observing);
      if (ready.ok()) return ready;
      if (sidecar != nullptr) FORELOAD_RETURN_IF_ERROR(sidecar->Alive());
      if (Interrupted()) return Cancelled("interrupted");
      if (MonotonicNow() > until) return ready;
    }
  }

  bool Interrupted() const { return options_.interrupted != nullptr && options_.interrupted->load(); }

  Status RunPhase(Phase phase, std::uint32_t repeat, bool last) {
    std::unique_ptr<SidecarProcess> sidecar;
    if (options_.connect.empty()) {
      FORELOAD_ASSIGN_OR_RETURN(sidecar, SidecarProcess::Start(scenario_, {.executable = options_.serve,
                                                                           .parent_folder = options_.work_folder,
                                                                           .observe = phase == Phase::kObserve,
                                                                           .outlive = last && options_.keep_serving}));
    }
    const Status run = RunAgainst(phase, repeat, sidecar.get());
    if (sidecar == nullptr) return run;
    if (run.ok() && last && options_.keep_serving) {
      left_ = {sidecar->pid(), sidecar->folder(), sidecar->http_address()};
      sidecar->Detach();
      return run;
    }
    const Status stopped = sidecar->Stop();
    return run.ok() ? stopped : run;
  }

  Status RunAgainst(Phase phase, std::uint32_t repeat, SidecarProcess* sidecar) {
    FORELOAD_ASSIGN_OR_RETURN(auto port, LivePort::Open(PortOptions(phase, repeat, sidecar)));
    FORELOAD_RETURN_IF_ERROR(WaitReady(*port, sidecar, phase == Phase::kObserve));
    FORELOAD_ASSIGN_OR_RETURN(auto source, OpenWorkload(scenario_, options_.trace, options_.strict));
    const auto before = Numbers(*port, nullptr);

    const TimeNs start = MonotonicNow();
    EngineModel model(scenario_.engine, *source, *port, start);
    const std::string label =
        PhaseName(phase) +
        (options_.repeat > 1 ? " " + std::to_string(repeat + 1) + "/" + std::to_string(options_.repeat) : "");
    const Status status = Loop(model, *port, sidecar, label);

    PhaseRun run;
    run.phase = phase;
    run.repeat = repeat;
    run.wall_seconds = static_cast<double>(MonotonicNow() - start) / 1e9;
    run.records = model.finished();
    run.engine = model.counts();
    run.live = port->counts();
    run.client = port->client_counters();
    run.status = Numbers(*port, &run.status_json);
    if (options_.connect.empty() == false) Subtract(before, run.status);
    report_.runs.push_back(std::move(run));
    if (!options_.connect.empty() && status.ok()) return port->Purge(kPurgeTimeout);
    return status;
  }

  Status Loop(EngineModel& model, LivePort& port, SidecarProcess* sidecar, const std::string& label) {
    Progress progress(label, report_.profile.requests);
    const TimeNs until =
        MonotonicNow() + static_cast<DurationNs>((report_.profile.span_seconds * 4 + kRunSecondsSlack) * 1e9);
    TimeNs alive_check = 0;
    while (!model.done()) {
      const TimeNs now = MonotonicNow();
      FORELOAD_RETURN_IF_ERROR(model.Advance(now));
      progress.Update(now, model);
      if (Interrupted()) return Cancelled("interrupted");
      if (sidecar != nullptr && now > alive_check) {
        FORELOAD_RETURN_IF_ERROR(sidecar->Alive());
        alive_check = now + kSecond;
      }
      if (now > until) return DeadlineExceeded("the engine fell behind: offered load or demand latency is too high");
      if (!model.done()) port.WaitUntil(std::min(model.NextWake(), now + kWakeMax));
    }
    return OkStatus();
  }

  static std::map<std::string, double> Numbers(LivePort& port, std::string* json) {
    auto text = port.StatusJson(kStatusTimeout);
    if (!text.ok()) {
      std::fprintf(stderr, "no status document: %s\n", text.status().ToString().c_str());
      return {};
    }
    auto numbers = replay::FlattenJsonNumbers(*text);
    if (json != nullptr) *json = *text;
    return numbers.ok() ? *numbers : std::map<std::string, double>{};
  }

  static void Subtract(const std::map<std::string, double>& before, std::map<std::string, double>& after) {
    for (auto& [key, value] : after) {
      const auto it = before.find(key);
      if (it != before.end() && key.starts_with("prefetch.")) value -= it->second;
    }
  }

  const RunOptions& options_;
  const Scenario& scenario_;
  Report& report_;
  LeftRunning& left_;
};

}  // namespace

Status RunPhases(const RunOptions& options, Report& report, LeftRunning& left) {
  report.scenario = options.scenario;
  report.own_sidecar = options.connect.empty();
  report.workload = !options.trace.empty()       ? options.trace
                    : options.scenario.generated ? "generator, seed " + std::to_string(options.scenario.seed)
                                                 : options.scenario.trace;
  return Runner(options, report, left).Run();
}

}  // namespace foreload::drive
