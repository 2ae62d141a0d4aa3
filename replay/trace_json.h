// One JSON record of each trace format, checked field by field. The only user of the JSON library.
//
// A field that a reader needs must be there, not null, of the right type and in range: else the record is refused with
// the key and the reason. Fields that it does not need may be null or absent; those that no specification names are
// reported through `unknown_keys`, so that a caller can name each once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "replay/trace_source.h"

namespace foreload::replay {

enum class JsonShape : std::uint8_t { kUnknown, kMooncake, kWekaDelta, kWekaSession };

struct MooncakeRecord {
  double timestamp_ms = 0;
  std::uint32_t input_tokens = 0;
  std::uint32_t output_tokens = 0;
  std::uint64_t session = kNoSession;
  std::uint32_t turn = 0;  // 1-based; 0: the record does not say
  std::vector<std::uint64_t> blocks;
};

// `count` consecutive ids.
struct BlockRun {
  std::uint64_t start = 0;
  std::uint32_t count = 0;
};

struct WekaDeltaRecord {
  bool header = false;  // of a session; else a request of it
  std::uint64_t session = 0;
  std::uint32_t block_tokens = 0;  // header
  bool global_ids = false;         // header
  std::uint32_t stream = 0;
  double at_seconds = 0;     // since the session's start
  double think_seconds = 0;  // before the next request
  std::uint32_t input_tokens = 0;
  std::uint32_t output_tokens = 0;
  std::uint64_t keep = 0;
  std::vector<BlockRun> runs;
};

struct WekaSessionHead {
  std::uint32_t block_tokens = 0;
  bool global_ids = false;
};
struct WekaEntry {
  std::uint32_t stream = 0;  // 0: parent, else its sub-agents in the order of the file
  double at_seconds = 0;
  double think_seconds = 0;
  bool streaming = false;  // `type` "s"
  RequestKind kind = RequestKind::kUnknown;
  std::uint32_t input_tokens = 0;
  std::uint32_t output_tokens = 0;
  std::vector<std::uint64_t> blocks;
};

class TraceJson {
 public:
  TraceJson();
  ~TraceJson();
  TraceJson(const TraceJson&) = delete;
  TraceJson& operator=(const TraceJson&) = delete;

  // By the keys of one record alone.
  JsonShape Classify(std::string_view json);

  Status ParseMooncake(std::string_view json, std::uint32_t blocks_max, MooncakeRecord& record);
  Status ParseWekaDelta(std::string_view json, std::uint32_t blocks_max, WekaDeltaRecord& record);

  // A whole session: `on_entry` for each request in the order of the file, `on_bad` for each that is refused (index
  // such as "requests[3].requests[0]", reason). An error when the document or its head is unusable; a false `on_entry`
  // or `on_bad` stops the walk.
  struct SessionSink {
    std::function<bool(const WekaSessionHead&, const std::string& index, WekaEntry&&)> on_entry;
    std::function<bool(const std::string& index, const std::string& reason)> on_bad;
  };
  Status ParseWekaSession(std::string_view json, std::uint32_t blocks_max, const SessionSink& sink);

  // Keys met since the last call that no specification names; at most 20 are kept.
  std::vector<std::string> TakeUnknownKeys();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Every number, boolean (0 or 1) of a document by its dotted path ("prefetch.hbm.issued", array elements by index).
Result<std::map<std::string, double>> FlattenJsonNumbers(std::string_view json);

}  // namespace foreload::replay
