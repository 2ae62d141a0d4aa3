// Taps the core's input into a recording (telemetry/trace_file.h), so that a replay takes the very same decisions.
//
// What is written: the core's configuration, each step's time and events, and a digest of the commands that it gave.
// Block keys appear as salted hashes (first 8 bytes of SHA-256 of salt and key), token ids never. Recording starts with
// an empty core, before its first step.
//
// Never waits for the disk. When the file has reached its size limit the recording ends, in words. Thread: the core's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "prefetcher/core/core.h"
#include "prefetcher/service/config.h"
#include "prefetcher/service/interner.h"
#include "telemetry/trace_file.h"

namespace foreload::service {

inline constexpr std::size_t kSaltBytesMin = 32;

class Recorder {
 public:
  // InvalidArgument: the salt file is shorter than kSaltBytesMin or readable by others. AlreadyExists: the file is
  // there.
  static Result<std::unique_ptr<Recorder>> Open(const ServiceConfig::Record& config,
                                                const core::CoreConfig& core_config, const BlockInterner& interner);

  // After a step: what it was given and what it answered.
  void Step(TimeNs now, const core::EventBatch& batch, std::span<const core::Command> commands);
  // Ends the file; the recording is whole only after this.
  Status Close();

  std::uint64_t lost_records() const { return writer_->stats().lost_records; }

 private:
  Recorder(std::unique_ptr<telemetry::TraceWriter> writer, std::string salt, std::uint64_t bytes_max,
           const BlockInterner& interner);

  void Define(BlockId block);

  std::unique_ptr<telemetry::TraceWriter> writer_;
  const std::string salt_;
  const std::uint64_t bytes_max_;
  const BlockInterner& interner_;
  std::vector<bool> defined_;  // by BlockId
  TimeNs last_now_ = 0;
  bool full_ = false;
};

// Steps a new core through a recording and compares every step's commands with those recorded.
struct ReplayCheck {
  std::uint64_t steps = 0;
  std::uint64_t events = 0;
  std::uint64_t differing_steps = 0;
  std::uint64_t first_difference = 0;  // step number, from 1; 0: none
  bool complete = false;               // the recording has its end
};
Result<ReplayCheck> CheckRecording(const std::string& path);

}  // namespace foreload::service
