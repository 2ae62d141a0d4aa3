#include "cmd/serve_loop.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>

#include "cmd/commands.h"
#include "prefetcher/service/exposition.h"
#include "prefetcher/service/http_server.h"
#include "prefetcher/service/log.h"
#include "prefetcher/service/notify.h"
#include "prefetcher/service/runtime.h"
#include "proto/unique_fd.h"

namespace foreload::cmd {
namespace {

using service::LogError;
using service::LogInfo;
using service::LogWarn;

struct ReloadMetrics {
  Gauge& successful;
  Gauge& success_timestamp;
  Counter& taken;
  Counter& refused;

  explicit ReloadMetrics(MetricRegistry& m)
      : successful(m.AddGauge("foreload_config_last_reload_successful", "1 when the last reload was taken, else 0.")),
        success_timestamp(m.AddGauge("foreload_config_last_reload_success_timestamp_seconds",
                                     "Unix time at which the configuration in force was read.")),
        taken(m.AddCounter("foreload_config_reloads_total", "Reloads by result.", {{"result", "taken"}})),
        refused(m.AddCounter("foreload_config_reloads_total", "Reloads by result.", {{"result", "refused"}})) {
    MarkTaken();
  }

  void MarkTaken() {
    successful.Set(1);
    success_timestamp.Set(static_cast<double>(WallNow()) / 1e9);
  }
};

// Reads the whole new configuration before it touches the old one. Any thread.
class Reloader {
 public:
  Reloader(const service::ConfigSources& sources, service::Runtime& runtime, const service::Notifier& notifier,
           ReloadMetrics& metrics)
      : sources_(sources), runtime_(runtime), notifier_(notifier), metrics_(metrics) {}

  Status Reload() {
    const std::lock_guard lock(mutex_);
    (void)notifier_.Reloading(MonotonicNow());
    const Status status = Take();
    if (status.ok()) {
      metrics_.MarkTaken();
      metrics_.taken.Add();
      LogInfo("configuration read again and taken");
    } else {
      metrics_.successful.Set(0);
      metrics_.refused.Add();
      LogError("configuration not taken, the old one stays: " + status.message());
    }
    (void)notifier_.Ready(status.ok() ? "running" : "running; the last reload was refused");
    return status;
  }

  DurationNs drain_timeout(DurationNs initial) const {
    const std::lock_guard lock(mutex_);
    return drain_timeout_ < 0 ? initial : drain_timeout_;
  }

 private:
  Status Take() {
    FORELOAD_ASSIGN_OR_RETURN(const service::LoadedConfig loaded, service::LoadConfigWithOrigins(sources_));
    FORELOAD_RETURN_IF_ERROR(runtime_.Reload(loaded.config));
    service::SetLogLevel(loaded.config.service.log_level);
    drain_timeout_ = loaded.config.service.drain_timeout_ns;
    return OkStatus();
  }

  const service::ConfigSources& sources_;
  service::Runtime& runtime_;
  const service::Notifier& notifier_;
  ReloadMetrics& metrics_;
  mutable std::mutex mutex_;
  DurationNs drain_timeout_ = -1;  // of the last reload
};

// state_dir/http.port, for scripts that asked for port 0; replaced as a whole, removed at the end.
class PortFile {
 public:
  Status Write(const std::string& folder, int port) {
    const std::string path = folder + "/http.port";
    const std::string fresh = path + ".new";
    const UniqueFd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    const std::string text = std::to_string(port) + "\n";
    if (!fd.valid() || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::rename(fresh.c_str(), path.c_str()) != 0) {
      return Status::FromErrno(errno, path);
    }
    path_ = path;
    return OkStatus();
  }
  PortFile() = default;
  PortFile(const PortFile&) = delete;
  PortFile& operator=(const PortFile&) = delete;
  ~PortFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

 private:
  std::string path_;
};

Result<UniqueFd> BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  if (pthread_sigmask(SIG_BLOCK, &signals, nullptr) != 0) return Status::FromErrno(errno, "pthread_sigmask");
  ::signal(SIGPIPE, SIG_IGN);
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return Status::FromErrno(errno, "signalfd");
  return fd;
}

// The next signal, 0 when there is none.
int NextSignal(int fd) {
  signalfd_siginfo info{};
  return ::read(fd, &info, sizeof info) == static_cast<ssize_t>(sizeof info) ? static_cast<int>(info.ssi_signo) : 0;
}

Status MakeStateDir(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return Status::FromErrno(errno, "state_dir " + folder);
  return OkStatus();
}

// Waits for signals and feeds the watchdog while the loop turns, until the sidecar shall stop.
void RunUntilStopped(int signals, const service::Runtime& runtime, Reloader& reloader,
                     const service::Notifier& notifier) {
  const auto interval = service::WatchdogInterval(std::getenv("WATCHDOG_USEC"), std::getenv("WATCHDOG_PID"));
  const int wait_ms = interval && notifier.enabled() ? static_cast<int>(*interval / kMillisecond) : -1;
  for (;;) {
    pollfd ready{signals, POLLIN, 0};
    ::poll(&ready, 1, wait_ms);
    if (wait_ms >= 0 && runtime.Livez().ok) (void)notifier.Watchdog();
    const int signal = NextSignal(signals);
    if (signal == SIGHUP) (void)reloader.Reload();  // it logs what is wrong
    if (signal != SIGTERM && signal != SIGINT) continue;
    LogInfo(signal == SIGTERM ? "SIGTERM: draining" : "SIGINT: draining");
    return;
  }
}

// Drains on a thread of its own, so that a second signal is still heard.
int DrainOrLeave(int signals, service::Runtime& runtime, DurationNs timeout) {
  const UniqueFd done(::eventfd(0, EFD_CLOEXEC));
  const std::jthread drainer([&runtime, &done, timeout] {
    runtime.Drain(MonotonicNow() + timeout);
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(done.get(), &one, sizeof one);
  });
  for (;;) {
    std::array<pollfd, 2> ready = {{{done.get(), POLLIN, 0}, {signals, POLLIN, 0}}};
    ::poll(ready.data(), ready.size(), -1);
    if (ready[0].revents != 0) return kExitOk;
    const int signal = NextSignal(signals);
    if (signal != SIGTERM && signal != SIGINT) continue;
    LogWarn("second signal: leaving at once, blocks that were not yet on disk are lost");
    ::_exit(kExitFailed);
  }
}

int Refuse(const Status& status) {
  LogError(status.message());
  return kExitFailed;
}

}  // namespace

int ServeLoop(const service::ConfigSources& sources, service::ServiceConfig config) {
  service::StartLog(config.service.log_level, config.service.log_format);
  auto signals = BlockSignals();
  if (!signals.ok()) return Refuse(signals.status());
  const service::Notifier notifier = service::Notifier::FromEnvironment();
  if (const Status made = MakeStateDir(config.service.state_dir); !made.ok()) return Refuse(made);

  MetricRegistry metrics;
  ReloadMetrics reload_metrics(metrics);
  auto started = service::Runtime::Start(config, metrics);
  if (!started.ok()) return Refuse(started.status());
  service::Runtime& runtime = **started;
  Reloader reloader(sources, runtime, notifier, reload_metrics);

  PortFile port_file;
  std::unique_ptr<service::HttpServer> http;  // destroyed before the runtime that it shows
  if (!config.service.http_listen.empty()) {
    auto server = service::HttpServer::Start(config.service.http_listen,
                                             {.metrics = [&metrics] { return service::ExposeMetrics(metrics); },
                                              .status_json = [&runtime] { return runtime.StatusJson(); },
                                              .livez = [&runtime] { return runtime.Livez(); },
                                              .readyz = [&runtime] { return runtime.Readyz(); },
                                              .reload = [&reloader] { return reloader.Reload(); }},
                                             metrics);
    if (!server.ok()) return Refuse(server.status());
    http = std::move(*server);
    if (const Status written = port_file.Write(config.service.state_dir, http->port()); !written.ok()) {
      return Refuse(written);
    }
    LogInfo("http on port " + std::to_string(http->port()) + ": /metrics /livez /readyz /statusz");
  }
  LogInfo("foreload " + service::VersionString() + " runs, mode " + std::string(service::ModeName(config.mode)) +
          ", control socket " + config.service.control_socket);
  if (const Status told = notifier.Ready("running"); !told.ok()) LogWarn("systemd not told: " + told.message());

  RunUntilStopped(signals->get(), runtime, reloader, notifier);

  (void)notifier.Stopping();
  const int exit_code = DrainOrLeave(signals->get(), runtime, reloader.drain_timeout(config.service.drain_timeout_ns));
  http.reset();
  LogInfo("stopped");
  return exit_code;
}

}  // namespace foreload::cmd
