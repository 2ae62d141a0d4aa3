#include "replay/trace_json.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "proto/xxh3.h"

namespace foreload::replay {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr std::size_t kUnknownKeysMax = 20;
constexpr double kSecondsMax = 1e9;  // 31 years
constexpr std::uint64_t kTokensMax = 1u << 30;
constexpr std::uint32_t kStreamsMax = 1u << 20;
constexpr std::uint32_t kBlockTokensMax = 1u << 16;

Status Wrong(std::string_view key, std::string_view reason) {
  return InvalidArgument("`" + std::string(key) + "` " + std::string(reason));
}

// The element of a field that must be there.
Result<element> Required(const object& record, std::string_view key) {
  element value;
  if (record.at_key(key).get(value) != simdjson::SUCCESS) return Wrong(key, "is missing");
  if (value.is_null()) return Wrong(key, "is null");
  return value;
}

// As above; false when the field is absent or null.
bool Optional(const object& record, std::string_view key, element& value) {
  return record.at_key(key).get(value) == simdjson::SUCCESS && !value.is_null();
}

Result<std::uint64_t> AsUnsigned(element value, std::string_view key, std::uint64_t max) {
  std::uint64_t number = 0;
  if (value.get(number) != simdjson::SUCCESS) return Wrong(key, "is not a whole number >= 0");
  if (number > max) return Wrong(key, "is larger than " + std::to_string(max));
  return number;
}

Result<std::uint64_t> RequiredUnsigned(const object& record, std::string_view key, std::uint64_t max) {
  FORELOAD_ASSIGN_OR_RETURN(const element value, Required(record, key));
  return AsUnsigned(value, key, max);
}

Result<double> AsNumber(element value, std::string_view key, double max) {
  double number = 0;
  if (value.get(number) != simdjson::SUCCESS) return Wrong(key, "is not a number");
  if (!(number >= 0 && number <= max)) return Wrong(key, "is out of range");
  return number;
}

Result<double> RequiredNumber(const object& record, std::string_view key, double max) {
  FORELOAD_ASSIGN_OR_RETURN(const element value, Required(record, key));
  return AsNumber(value, key, max);
}

// Absent or null takes `fallback`.
Result<double> NumberOr(const object& record, std::string_view key, double max, double fallback) {
  element value;
  if (!Optional(record, key, value)) return fallback;
  return AsNumber(value, key, max);
}

Status ReadIds(const object& record, std::string_view key, std::uint32_t blocks_max, std::vector<std::uint64_t>& ids) {
  ids.clear();
  FORELOAD_ASSIGN_OR_RETURN(const element value, Required(record, key));
  array list;
  if (value.get(list) != simdjson::SUCCESS) return Wrong(key, "is not an array");
  for (const element item : list) {
    if (ids.size() == blocks_max) return Wrong(key, "has more than " + std::to_string(blocks_max) + " ids");
    std::uint64_t id = 0;
    if (item.get(id) != simdjson::SUCCESS) return Wrong(key, "has an id that is not a whole number >= 0");
    ids.push_back(id);
  }
  return OkStatus();
}

// A session id may be a number or a string.
Result<std::uint64_t> SessionNumber(element value, std::string_view key) {
  std::uint64_t number = 0;
  if (value.get(number) == simdjson::SUCCESS && number != kNoSession) return number;
  std::string_view text;
  if (value.get(text) == simdjson::SUCCESS) return Xxh3(text.data(), text.size()) >> 1;
  return Wrong(key, "is neither a whole number nor a string");
}

bool Has(const object& record, std::string_view key) {
  element value;
  return record.at_key(key).get(value) == simdjson::SUCCESS;
}

constexpr std::array<std::string_view, 6> kMooncakeKeys{"timestamp", "input_length", "output_length",
                                                        "hash_ids",  "session_id",   "turn"};
constexpr std::array<std::string_view, 8> kDeltaHeaderKeys{
    "session", "id", "block_size", "hash_id_scope", "tool_tokens", "system_tokens", "requests", "model"};
constexpr std::array<std::string_view, 9> kDeltaRequestKeys{"s",   "sub",   "t",    "in", "out",
                                                            "api", "think", "keep", "new"};
constexpr std::array<std::string_view, 9> kSessionKeys{
    "id", "models", "block_size", "hash_id_scope", "tool_tokens", "system_tokens", "requests", "totals", "model"};
constexpr std::array<std::string_view, 12> kEntryKeys{"t",        "type",       "model",        "in",
                                                      "out",      "hash_ids",   "input_types",  "stop",
                                                      "api_time", "think_time", "output_types", "ttft"};
constexpr std::array<std::string_view, 12> kSubagentKeys{"type",        "t",        "agent_id",       "subagent_type",
                                                         "duration_ms", "models",   "tool_use_count", "total_tokens",
                                                         "status",      "requests", "tool_tokens",    "system_tokens"};

}  // namespace

struct TraceJson::Impl {
  void NoteUnknown(const object& record, std::span<const std::string_view> known) {
    for (const auto field : record) {
      const std::string_view key = field.key;
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      if (unknown.size() >= kUnknownKeysMax || std::find(unknown.begin(), unknown.end(), key) != unknown.end())
        continue;
      unknown.emplace_back(key);
    }
  }

  Result<object> Parse(std::string_view json) {
    element root;
    if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
      return InvalidArgument(std::string("not JSON: ") + simdjson::error_message(error));
    }
    object record;
    if (root.get(record) != simdjson::SUCCESS) return InvalidArgument("not a JSON object");
    return record;
  }

  Status ParseEntry(const object& record, std::uint32_t blocks_max, WekaEntry& entry);
  Status WalkEntries(const array& list, const std::string& prefix, std::uint32_t stream, std::uint32_t blocks_max,
                     const WekaSessionHead& head, const SessionSink& sink, std::uint32_t& streams, bool& stopped);

  simdjson::dom::parser parser;
  std::vector<std::string> unknown;
};

TraceJson::TraceJson() : impl_(std::make_unique<Impl>()) {}
TraceJson::~TraceJson() = default;

std::vector<std::string> TraceJson::TakeUnknownKeys() {
  return std::exchange(impl_->unknown, {});
}

JsonShape TraceJson::Classify(std::string_view json) {
  const auto record = impl_->Parse(json);
  if (!record.ok()) return JsonShape::kUnknown;
  const object& fields = record.value();
  if (Has(fields, "hash_ids") && Has(fields, "input_length")) return JsonShape::kMooncake;
  element requests;
  if (fields.at_key("requests").get(requests) == simdjson::SUCCESS && requests.is_array())
    return JsonShape::kWekaSession;
  if (Has(fields, "session") && Has(fields, "block_size")) return JsonShape::kWekaDelta;
  if (Has(fields, "s") && Has(fields, "keep")) return JsonShape::kWekaDelta;
  return JsonShape::kUnknown;
}

Status TraceJson::ParseMooncake(std::string_view json, std::uint32_t blocks_max, MooncakeRecord& record) {
  FORELOAD_ASSIGN_OR_RETURN(const object fields, impl_->Parse(json));
  FORELOAD_ASSIGN_OR_RETURN(record.timestamp_ms, RequiredNumber(fields, "timestamp", kSecondsMax * 1e3));
  FORELOAD_ASSIGN_OR_RETURN(const std::uint64_t input, RequiredUnsigned(fields, "input_length", kTokensMax));
  FORELOAD_ASSIGN_OR_RETURN(const std::uint64_t output, RequiredUnsigned(fields, "output_length", kTokensMax));
  record.input_tokens = static_cast<std::uint32_t>(input);
  record.output_tokens = static_cast<std::uint32_t>(output);
  FORELOAD_RETURN_IF_ERROR(ReadIds(fields, "hash_ids", blocks_max, record.blocks));
  record.session = kNoSession;
  record.turn = 0;
  element value;
  if (Optional(fields, "session_id", value)) {
    FORELOAD_ASSIGN_OR_RETURN(record.session, SessionNumber(value, "session_id"));
  }
  if (Optional(fields, "turn", value)) {  // counted from 0 in the traces that have it
    FORELOAD_ASSIGN_OR_RETURN(const std::uint64_t turn, AsUnsigned(value, "turn", 1u << 30));
    record.turn = static_cast<std::uint32_t>(turn) + 1;
  }
  impl_->NoteUnknown(fields, kMooncakeKeys);
  return OkStatus();
}

namespace {

Result<bool> ReadScope(const object& fields) {
  element value;
  if (!Optional(fields, "hash_id_scope", value)) return false;  // ids of a session mean nothing elsewhere
  std::string_view scope;
  if (value.get(scope) != simdjson::SUCCESS || (scope != "global" && scope != "local")) {
    return Wrong("hash_id_scope", "is neither \"global\" nor \"local\"");
  }
  return scope == "global";
}

Result<std::uint32_t> ReadBlockSize(const object& fields) {
  FORELOAD_ASSIGN_OR_RETURN(const std::uint64_t size, RequiredUnsigned(fields, "block_size", kBlockTokensMax));
  if (size == 0) return Wrong("block_size", "is 0");
  return static_cast<std::uint32_t>(size);
}

Status ReadRuns(const object& fields, std::uint32_t blocks_max, WekaDeltaRecord& record) {
  FORELOAD_ASSIGN_OR_RETURN(const element value, Required(fields, "new"));
  array list;
  if (value.get(list) != simdjson::SUCCESS) return Wrong("new", "is not an array");
  std::uint64_t total = record.keep;
  for (const element item : list) {
    array pair;
    if (item.get(pair) != simdjson::SUCCESS || pair.size() != 2)
      return Wrong("new", "has an entry that is no [start, count]");
    std::uint64_t start = 0;
    std::uint64_t count = 0;
    if (pair.at(0).get(start) != simdjson::SUCCESS || pair.at(1).get(count) != simdjson::SUCCESS) {
      return Wrong("new", "has a start or count that is not a whole number >= 0");
    }
    if (count > blocks_max || (total += count) > blocks_max) {
      return Wrong("new", "makes more than " + std::to_string(blocks_max) + " ids");
    }
    record.runs.push_back({start, static_cast<std::uint32_t>(count)});
  }
  return OkStatus();
}

}  // namespace

Status TraceJson::ParseWekaDelta(std::string_view json, std::uint32_t blocks_max, WekaDeltaRecord& record) {
  FORELOAD_ASSIGN_OR_RETURN(const object fields, impl_->Parse(json));
  record = WekaDeltaRecord{.runs = std::move(record.runs)};
  record.runs.clear();
  record.header = Has(fields, "block_size");
  if (record.header) {
    FORELOAD_ASSIGN_OR_RETURN(record.session, RequiredUnsigned(fields, "session", UINT32_MAX));
    FORELOAD_ASSIGN_OR_RETURN(record.block_tokens, ReadBlockSize(fields));
    FORELOAD_ASSIGN_OR_RETURN(record.global_ids, ReadScope(fields));
    impl_->NoteUnknown(fields, kDeltaHeaderKeys);
    return OkStatus();
  }
  FORELOAD_ASSIGN_OR_RETURN(record.session, RequiredUnsigned(fields, "s", UINT32_MAX));
  FORELOAD_ASSIGN_OR_RETURN(const std::uint64_t stream, RequiredUnsigned(fields, "sub", kStreamsMax));
  FORELOAD_ASSIGN_OR_RETURN(record.at_seconds, RequiredNumber(fields, "t", kSecondsMax));
  FORELOAD_ASSIGN_OR_RETURN(const std::uint64_t input, RequiredUnsigned(fields, "in", kTokensMax));
  FORELOAD_ASSIGN_OR_RETURN(const std::uint64_t output, RequiredUnsigned(fields, "out", kTokensMax));
  FORELOAD_ASSIGN_OR_RETURN(record.think_seconds, NumberOr(fields, "think", kSecondsMax, 0));
  FORELOAD_ASSIGN_OR_RETURN(record.keep, RequiredUnsigned(fields, "keep", blocks_max));
  record.stream = static_cast<std::uint32_t>(stream);
  record.input_tokens = static_cast<std::uint32_t>(input);
  record.output_tokens = static_cast<std::uint32_t>(output);
  FORELOAD_RETURN_IF_ERROR(ReadRuns(fields, blocks_max, record));
  impl_->NoteUnknown(fields, kDeltaRequestKeys);
  return OkStatus();
}

Status TraceJson::Impl::ParseEntry(const object& record, std::uint32_t blocks_max, WekaEntry& entry) {
  FORELOAD_ASSIGN_OR_RETURN(entry.at_seconds, RequiredNumber(record, "t", kSecondsMax));
  FORELOAD_ASSIGN_OR_RETURN(const std::uint64_t input, RequiredUnsigned(record, "in", kTokensMax));
  FORELOAD_ASSIGN_OR_RETURN(const std::uint64_t output, RequiredUnsigned(record, "out", kTokensMax));
  FORELOAD_ASSIGN_OR_RETURN(entry.think_seconds, NumberOr(record, "think_time", kSecondsMax, 0));
  entry.input_tokens = static_cast<std::uint32_t>(input);
  entry.output_tokens = static_cast<std::uint32_t>(output);
  FORELOAD_RETURN_IF_ERROR(ReadIds(record, "hash_ids", blocks_max, entry.blocks));
  element value;
  std::string_view text;
  entry.streaming = Optional(record, "type", value) && value.get(text) == simdjson::SUCCESS && text == "s";
  array types;
  if (Optional(record, "input_types", value) && value.get(types) == simdjson::SUCCESS) {
    // A tool's answer among the new input says what triggered the request; plain text says a person did.
    entry.kind = RequestKind::kUnknown;
    for (const element type : types) {
      if (type.get(text) != simdjson::SUCCESS) continue;
      if (text == "tool_result") entry.kind = RequestKind::kTool;
      if (text == "text" && entry.kind == RequestKind::kUnknown) entry.kind = RequestKind::kHuman;
    }
  }
  NoteUnknown(record, kEntryKeys);
  return OkStatus();
}

Status TraceJson::Impl::WalkEntries(const array& list, const std::string& prefix, std::uint32_t stream,
                                    std::uint32_t blocks_max, const WekaSessionHead& head, const SessionSink& sink,
                                    std::uint32_t& streams, bool& stopped) {
  std::size_t index = 0;
  for (const element item : list) {
    const std::string name = prefix + "[" + std::to_string(index++) + "]";
    object record;
    std::string_view type;
    element value;
    Status status = OkStatus();
    if (item.get(record) != simdjson::SUCCESS) {
      status = InvalidArgument("is not an object");
    } else if (stream == 0 && Optional(record, "type", value) && value.get(type) == simdjson::SUCCESS &&
               type == "subagent") {
      NoteUnknown(record, kSubagentKeys);
      array inner;
      auto requests = Required(record, "requests");
      if (!requests.ok()) {
        status = requests.status();
      } else if (requests->get(inner) != simdjson::SUCCESS) {
        status = Wrong("requests", "is not an array");
      } else if (streams >= kStreamsMax) {
        status = InvalidArgument("is one sub-agent too many");
      } else {
        FORELOAD_RETURN_IF_ERROR(
            WalkEntries(inner, name + ".requests", ++streams, blocks_max, head, sink, streams, stopped));
        if (stopped) return OkStatus();
        continue;
      }
    } else {
      WekaEntry entry;
      entry.stream = stream;
      status = ParseEntry(record, blocks_max, entry);
      if (status.ok()) {
        stopped = !sink.on_entry(head, name, std::move(entry));
        if (stopped) return OkStatus();
        continue;
      }
    }
    stopped = !sink.on_bad(name, status.message());
    if (stopped) return OkStatus();
  }
  return OkStatus();
}

Status TraceJson::ParseWekaSession(std::string_view json, std::uint32_t blocks_max, const SessionSink& sink) {
  FORELOAD_ASSIGN_OR_RETURN(const object fields, impl_->Parse(json));
  WekaSessionHead head;
  FORELOAD_ASSIGN_OR_RETURN(head.block_tokens, ReadBlockSize(fields));
  FORELOAD_ASSIGN_OR_RETURN(head.global_ids, ReadScope(fields));
  impl_->NoteUnknown(fields, kSessionKeys);
  FORELOAD_ASSIGN_OR_RETURN(const element value, Required(fields, "requests"));
  array requests;
  if (value.get(requests) != simdjson::SUCCESS) return Wrong("requests", "is not an array");
  std::uint32_t streams = 0;
  bool stopped = false;
  return impl_->WalkEntries(requests, "requests", 0, blocks_max, head, sink, streams, stopped);
}

namespace {

constexpr std::size_t kFlattenDepthMax = 32;

void Flatten(element value, const std::string& path, std::size_t depth, std::map<std::string, double>& out) {
  if (depth > kFlattenDepthMax) return;
  const std::string prefix = path.empty() ? "" : path + ".";
  object fields;
  array items;
  double number = 0;
  bool flag = false;
  if (value.get(fields) == simdjson::SUCCESS) {
    for (const auto field : fields) Flatten(field.value, prefix + std::string(field.key), depth + 1, out);
  } else if (value.get(items) == simdjson::SUCCESS) {
    std::size_t index = 0;
    for (const element item : items) Flatten(item, prefix + std::to_string(index++), depth + 1, out);
  } else if (value.get(number) == simdjson::SUCCESS) {
    out[path] = number;
  } else if (value.get(flag) == simdjson::SUCCESS) {
    out[path] = flag ? 1 : 0;
  }
}

}  // namespace

Result<std::map<std::string, double>> FlattenJsonNumbers(std::string_view json) {
  simdjson::dom::parser parser;
  element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return InvalidArgument(std::string("not JSON: ") + simdjson::error_message(error));
  }
  std::map<std::string, double> numbers;
  Flatten(root, "", 0, numbers);
  return numbers;
}

}  // namespace foreload::replay
