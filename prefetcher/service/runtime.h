// The running sidecar: telemetry in, decisions on one core thread, bytes moved by movers, engines answered.
//
// Threads: ingest (telemetry), control (socket), core (this file's loop; owner of catalog, tables, stores and
// interners), one per mover, the SSD store's sync thread. They meet at the staging queue and the inbox.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/metric.h"
#include "base/status.h"
#include "prefetcher/service/config.h"
#include "prefetcher/service/health.h"

namespace foreload::service {

class Runtime {
 public:
  // Opens stores (recovery included), binds the control socket, subscribes, starts the threads. On an error nothing is
  // left behind. `metrics` outlives the runtime.
  static Result<std::unique_ptr<Runtime>> Start(const ServiceConfig& config, MetricRegistry& metrics);
  // As Drain with a deadline of now.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Takes over what can be changed while running. FailedPrecondition, naming the keys, when something else changed;
  // then nothing is taken over.
  Status Reload(const ServiceConfig& config);

  // Stops accepting, closes arenas, lets what is in flight end, makes dirty blocks durable, until `deadline` at the
  // latest; then stops the threads. Idempotent.
  void Drain(TimeNs deadline);

  // Any thread. At most a few milliseconds old.
  std::string StatusJson() const;
  // The loop turns.
  Health Livez() const;
  // Work is welcome; degraded parts are named but do not make it false: a sidecar that is not ready must not take its
  // engine out of service.
  Health Readyz() const;

 private:
  struct Impl;
  explicit Runtime(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace foreload::service
