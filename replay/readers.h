// The readers behind OpenTrace; see trace_source.h for what they share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "replay/trace_source.h"

namespace foreload::replay {

// Mooncake FAST'25 JSONL: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` (512 tokens a block unless
// TraceOptions::block_tokens says otherwise), optional `session_id` and `turn` (counted from 0). Streamed.
Result<std::unique_ptr<TraceSource>> OpenMooncake(const std::string& path, const TraceOptions& options);

// Weka agent sessions as deltas: a header line per session, then a line per request with `keep` and `new`. Held as
// deltas, since sessions have no common clock.
Result<std::unique_ptr<TraceSource>> OpenWekaDelta(const std::string& path, const TraceOptions& options);

// Weka agent sessions in their original form: one JSON document each, sub-agents as streams of their session. A missing
// or null `think_time` counts as 0 s. A streaming request is dropped when the stream's next one is its non-streaming
// twin (equal `hash_ids`): some producers recorded both.
Result<std::unique_ptr<TraceSource>> OpenWekaSessions(const std::vector<std::string>& paths,
                                                      const TraceOptions& options);

// Foreload's own recordings (telemetry/trace_file.h): requests as they were queued, blocks named by their salted
// hashes. Read twice, since an output's length is known at its end.
Result<std::unique_ptr<TraceSource>> OpenRecording(const std::string& path, const TraceOptions& options);

// Counts a wrong line under the rules of trace_source.h: an error in strict mode, else ok.
Status CountProblem(const TraceOptions& options, TraceStats& stats, std::string problem);
void AddNotes(TraceStats& stats, const std::vector<std::string>& unknown_keys, const std::string& file);

}  // namespace foreload::replay
