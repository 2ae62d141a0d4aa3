#include <algorithm>
#include <optional>
#include <unordered_map>

#include "replay/line_reader.h"
#include "replay/readers.h"
#include "replay/session_script.h"
#include "replay/trace_json.h"

namespace foreload::replay {
namespace {

// A workload that was read whole into a script.
class ScriptedSource final : public TraceSource {
 public:
  explicit ScriptedSource(const TraceOptions& options) : options_(options), script_(options) {}

  Result<bool> Next(TraceRequest& request) override {
    if (stats_.requests >= options_.requests_max || !script_.Next(request)) return false;
    ++stats_.requests;
    return true;
  }
  const TraceStats& stats() const override { return stats_; }

  Status LoadDelta(const std::string& path);
  Status LoadSessions(const std::vector<std::string>& paths);

 private:
  Status TakeDelta(const WekaDeltaRecord& record);
  Status LoadSession(const std::string& path, std::uint64_t session);
  void NoteStarts() {
    stats_.notes.push_back("session starts are synthetic: uniform over " +
                           std::to_string(options_.session_spread / kSecond) + " s, seed " +
                           std::to_string(options_.seed));
    if (options_.session_gap_max > 0) {
      stats_.notes.push_back("pauses inside a session are cut to " +
                             std::to_string(options_.session_gap_max / kSecond) + " s");
    }
  }

  TraceOptions options_;
  SessionScript script_;
  TraceStats stats_;
  TraceJson json_;
  std::uint64_t sessions_ = 0;
  std::uint64_t session_ = kNoSession;  // number of the one being read
  bool skipping_ = false;               // past sessions_max
};

Status ScriptedSource::TakeDelta(const WekaDeltaRecord& record) {
  if (record.header) {
    session_ = record.session;
    skipping_ = sessions_ >= options_.sessions_max;
    if (skipping_) return OkStatus();
    ++sessions_;
    script_.BeginSession(record.session, record.block_tokens, record.global_ids);
    return OkStatus();
  }
  if (record.session != session_) {
    return InvalidArgument("`s` names session " + std::to_string(record.session) + ", whose header is not above it");
  }
  if (skipping_) return OkStatus();
  return script_.Add({.at_seconds = record.at_seconds,
                      .think_seconds = record.think_seconds,
                      .stream = record.stream,
                      .input_tokens = record.input_tokens,
                      .output_tokens = record.output_tokens,
                      .keep = record.keep,
                      .runs = record.runs});
}

Status ScriptedSource::LoadDelta(const std::string& path) {
  FORELOAD_ASSIGN_OR_RETURN(auto lines, LineReader::Open(path, {options_.line_bytes_max, options_.file_bytes_max}));
  WekaDeltaRecord record;
  while (!skipping_) {
    std::string_view line;
    auto outcome = lines->Next(line);
    if (!outcome.ok()) {
      FORELOAD_RETURN_IF_ERROR(CountProblem(options_, stats_, outcome.status().message()));
      break;
    }
    if (*outcome == LineReader::Outcome::kEnd) break;
    Status status = OkStatus();
    bool lost = false;  // the record never reached the script, which must hear of it
    if (*outcome == LineReader::Outcome::kTooLong) {
      status = InvalidArgument("longer than " + std::to_string(options_.line_bytes_max) + " bytes");
      lost = true;
    } else {
      if (line.empty()) continue;
      status = json_.ParseWekaDelta(line, options_.request_blocks_max, record);
      lost = !status.ok();
      if (status.ok()) status = TakeDelta(record);
    }
    AddNotes(stats_, json_.TakeUnknownKeys(), path);
    if (status.ok()) continue;
    if (lost) script_.LostRequest();
    FORELOAD_RETURN_IF_ERROR(
        CountProblem(options_, stats_, path + ":" + std::to_string(lines->line_number()) + ": " + status.message()));
    if (status.code() == StatusCode::kResourceExhausted) break;
  }
  NoteStarts();
  return OkStatus();
}

Status ScriptedSource::LoadSession(const std::string& path, std::uint64_t session) {
  auto document = ReadDocument(path, options_.document_bytes_max);
  if (!document.ok()) return CountProblem(options_, stats_, document.status().message());

  Status failed = OkStatus();
  bool begun = false;
  std::optional<WekaEntry> held;  // a streaming request whose non-streaming twin may follow
  std::string held_index;
  const auto add = [&](const std::string& index, const WekaEntry& entry) {
    Status status = script_.AddWhole({.at_seconds = entry.at_seconds,
                                      .think_seconds = entry.think_seconds,
                                      .stream = entry.stream,
                                      .kind = entry.kind,
                                      .input_tokens = entry.input_tokens,
                                      .output_tokens = entry.output_tokens},
                                     entry.blocks);
    if (!status.ok()) failed = CountProblem(options_, stats_, path + ": " + index + ": " + status.message());
    return failed.ok();
  };
  const auto flush = [&] {
    const bool ok = !held.has_value() || add(held_index, *held);
    held.reset();
    return ok;
  };
  TraceJson::SessionSink sink;
  sink.on_entry = [&](const WekaSessionHead& head, const std::string& index, WekaEntry&& entry) {
    if (!begun) script_.BeginSession(session, head.block_tokens, head.global_ids);
    begun = true;
    if (held.has_value() && !entry.streaming && entry.stream == held->stream && entry.blocks == held->blocks) {
      ++stats_.duplicates;
      held.reset();
    }
    if (!flush()) return false;
    if (entry.streaming) {
      held = std::move(entry);
      held_index = index;
      return true;
    }
    return add(index, entry);
  };
  sink.on_bad = [&](const std::string& index, const std::string& reason) {
    failed = CountProblem(options_, stats_, path + ": " + index + ": " + reason);
    return failed.ok();
  };
  const Status parsed = json_.ParseWekaSession(*document, options_.request_blocks_max, sink);
  AddNotes(stats_, json_.TakeUnknownKeys(), path);
  if (failed.ok()) flush();
  FORELOAD_RETURN_IF_ERROR(failed);
  if (!parsed.ok()) return CountProblem(options_, stats_, path + ": " + parsed.message());
  return OkStatus();
}

Status ScriptedSource::LoadSessions(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (sessions_ == options_.sessions_max) break;
    FORELOAD_RETURN_IF_ERROR(LoadSession(path, sessions_++));
  }
  stats_.notes.push_back("a missing think_time counts as 0 s");
  NoteStarts();
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<TraceSource>> OpenWekaDelta(const std::string& path, const TraceOptions& options) {
  auto source = std::make_unique<ScriptedSource>(options);
  FORELOAD_RETURN_IF_ERROR(source->LoadDelta(path));
  return std::unique_ptr<TraceSource>(std::move(source));
}

Result<std::unique_ptr<TraceSource>> OpenWekaSessions(const std::vector<std::string>& paths,
                                                      const TraceOptions& options) {
  auto source = std::make_unique<ScriptedSource>(options);
  FORELOAD_RETURN_IF_ERROR(source->LoadSessions(paths));
  return std::unique_ptr<TraceSource>(std::move(source));
}

}  // namespace foreload::replay
