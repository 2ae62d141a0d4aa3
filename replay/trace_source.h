// Requests of a recorded or generated workload, one at a time in order of arrival.
//
// Readers take files as untrusted input: a wrong line costs that line, is counted and named (file, line or index, key,
// reason), and the rest is read; `strict` makes the first one an error. Memory is bounded by the limits in
// TraceOptions, whatever the file says of itself; compressed files (gzip, zstd; told by their first bytes) are
// streamed.
//
// Thread: a source is single-threaded. Block ids are the trace's own: equal ids are equal prefixes, and nothing else
// about them has a meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace foreload::replay {

inline constexpr std::uint64_t kNoSession = UINT64_MAX;

enum class RequestKind : std::uint8_t { kUnknown, kHuman, kTool, kWorkflow };

struct TraceRequest {
  TimeNs arrival = 0;  // since the start of the trace; never before that of the request before it
  std::uint64_t session = kNoSession;
  std::uint32_t stream = 0;  // 0: the session's own; else a sub-agent of it
  std::uint32_t turn = 0;    // 1-based in (session, stream); 0: unknown
  RequestKind kind = RequestKind::kUnknown;
  std::int32_t priority = 0;  // smaller runs earlier
  std::uint32_t block_tokens = 0;
  std::uint32_t input_tokens = 0;
  std::uint32_t output_tokens = 0;
  std::vector<std::uint64_t> blocks;         // of the prompt, in prefix order; the last one may be partly filled
  std::vector<std::uint64_t> output_blocks;  // that the output fills; empty where the trace does not know them

  // Blocks of the prompt that are full, hence can be cached.
  std::size_t full_blocks() const {
    const std::size_t by_tokens = block_tokens == 0 ? 0 : input_tokens / block_tokens;
    return by_tokens < blocks.size() ? by_tokens : blocks.size();
  }
};

inline constexpr std::size_t kProblemsMax = 20;  // kept in words; the rest are counted

struct TraceStats {
  std::uint64_t requests = 0;         // delivered
  std::uint64_t skipped = 0;          // wrong lines or entries
  std::uint64_t duplicates = 0;       // recorded twice by their producer, delivered once
  std::vector<std::string> problems;  // "file:line: reason", at most kProblemsMax
  std::vector<std::string> notes;     // unknown keys (each once), defaults taken, synthesised starts
};

struct TraceOptions {
  bool strict = false;                          // the first wrong line is an error
  std::uint64_t seed = 1;                       // of session starts, where a trace has no common clock
  DurationNs session_spread = 0;                // session starts: uniform over this span
  DurationNs session_gap_max = 0;               // a longer pause inside a session is shortened to this; 0: as recorded
  std::uint64_t sessions_max = UINT64_MAX;      // the first ones in the order of the file (or of file names)
  std::uint64_t requests_max = UINT64_MAX;      // delivered, then the source ends
  std::uint32_t block_tokens = 0;               // of a format that does not say; 0: the format's own default
  std::size_t line_bytes_max = 8u << 20;        // a longer line is a wrong line
  std::uint64_t file_bytes_max = 64ull << 30;   // decompressed; beyond it the file counts as ended, with a problem
  std::size_t document_bytes_max = 256u << 20;  // of a file that is one JSON document
  std::uint32_t request_blocks_max = 1u << 18;  // 4 M tokens at 16 a block
  std::uint64_t held_requests_max = 4u << 20;   // that a format without a common clock makes a reader hold
};

class TraceSource {
 public:
  virtual ~TraceSource() = default;

  // True and `request` filled (its vectors are reused), or false at the end. An error only when the file cannot be read
  // at all, or in strict mode.
  virtual Result<bool> Next(TraceRequest& request) = 0;

  virtual const TraceStats& stats() const = 0;
};

// Chooses the reader by the content: Mooncake JSONL (also with `session_id` and `turn`), Weka delta JSONL, a Weka
// session file or a folder of them, Foreload's own recording.
Result<std::unique_ptr<TraceSource>> OpenTrace(const std::string& path, const TraceOptions& options);

}  // namespace foreload::replay
