#include "telemetry/trtllm_json.h"

#include <simdjson.h>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"

namespace foreload::telemetry {
namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;

// Absent and null are the same.
std::optional<element> Get(const element& object, std::string_view name) {
  element value;
  if (object[name].get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> Uint(const std::optional<element>& value) {
  std::uint64_t number = 0;
  if (!value || value->get(number) != simdjson::SUCCESS) return std::nullopt;
  return number;
}

std::optional<std::uint32_t> Uint32(const std::optional<element>& value) {
  const auto number = Uint(value);
  if (!number || *number > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  return static_cast<std::uint32_t>(*number);
}

std::string_view Text(const std::optional<element>& value) {
  std::string_view text;
  if (!value || value->get(text) != simdjson::SUCCESS) return {};
  return text;
}

bool ReadHash(const std::optional<element>& value, BlockHash& hash) {
  std::int64_t number = 0;
  if (!value) return false;
  if (value->get(hash.low64) == simdjson::SUCCESS) return true;
  if (value->get(number) != simdjson::SUCCESS) return false;
  hash.low64 = static_cast<std::uint64_t>(number);
  return true;
}

Medium MediumOfLevel(std::uint64_t level) {
  if (level == 0) return Medium::kGpu;
  return level == 1 ? Medium::kCpu : Medium::kStorage;
}

class Decoder {
 public:
  Decoder(const DecodeLimits& limits, DecodeReport& report) : limits_(limits), report_(report) {}

  void AddEvent(const element& event) {
    if (!event.is_object()) return Bad(CurrentBatch(std::nullopt), DecodeError::kEventShape);
    const auto rank = Get(event, "attention_dp_rank");
    KvEventBatch& batch = CurrentBatch(Uint32(rank));
    if (rank && !Uint32(rank)) return Bad(batch, DecodeError::kField);
    NoteId(event);
    const auto data = Get(event, "data");
    if (!data || !data->is_object()) return Bad(batch, DecodeError::kEventShape);
    group_ = Uint32(Get(event, "layer_group_id"));
    if (!group_) group_ = Uint32(Get(event, "window_size"));

    const std::string_view type = Text(Get(*data, "type"));
    if (type.empty()) return Bad(batch, DecodeError::kEventType);
    if (type == "created") {
      batch.events.emplace_back(AllBlocksCleared{});
    } else if (type == "stored") {
      AddStored(*data, batch);
    } else if (type == "removed") {
      AddRemoved(*data, batch);
    } else if (type == "updated") {
      AddUpdated(*data, batch);
    } else {
      ++batch.unknown_events;
    }
  }

  TrtllmPull Finish() && { return std::move(pull_); }

 private:
  void Bad(KvEventBatch& batch, DecodeError error) {
    ++batch.bad_events;
    report_.Count(error);
  }

  KvEventBatch& CurrentBatch(std::optional<std::uint32_t> rank) {
    if (pull_.batches.empty() || pull_.batches.back().data_parallel_rank != rank) {
      pull_.batches.emplace_back().data_parallel_rank = rank;
    }
    return pull_.batches.back();
  }

  void NoteId(const element& event) {
    const auto id = Uint(Get(event, "event_id"));
    if (!id) return;
    if (!pull_.first_event_id) {
      pull_.first_event_id = id;
    } else if (*id != *pull_.last_event_id + 1) {
      pull_.ids_consecutive = false;
    }
    pull_.last_event_id = id;
  }

  void AddStored(const element& data, KvEventBatch& batch) {
    simdjson::dom::array blocks;
    const auto list = Get(data, "blocks");
    if (!list || list->get(blocks) != simdjson::SUCCESS || blocks.size() > limits_.hashes_per_event_max) {
      return Bad(batch, DecodeError::kHash);
    }
    std::optional<BlockHash> parent;
    if (const auto value = Get(data, "parent_hash")) {
      if (!ReadHash(value, parent.emplace())) return Bad(batch, DecodeError::kHash);
    }

    std::vector<BlockStored> runs;
    for (const element block : blocks) {
      BlockHash hash;
      if (!ReadHash(Get(block, "block_hash"), hash)) return Bad(batch, DecodeError::kHash);
      const Medium medium = MediumOfLevel(Uint(Get(block, "cache_level")).value_or(0));
      if (runs.empty() || runs.back().medium != medium) {
        BlockStored& run = runs.emplace_back();
        run.medium = medium;
        run.parent = parent;
        run.group = group_;
      }
      BlockStored& run = runs.back();
      const std::uint32_t tokens = TokensOf(block);
      if (run.hashes.empty()) run.block_size = tokens;
      run.token_count += tokens;
      run.hashes.push_back(hash);
      parent = hash;
    }
    for (BlockStored& run : runs) batch.events.emplace_back(std::move(run));
  }

  static std::uint32_t TokensOf(const element& block) {
    simdjson::dom::array tokens;
    const auto list = Get(block, "tokens");
    if (!list || list->get(tokens) != simdjson::SUCCESS) return 0;
    return static_cast<std::uint32_t>(tokens.size());
  }

  void AddRemoved(const element& data, KvEventBatch& batch) {
    simdjson::dom::array hashes;
    const auto list = Get(data, "block_hashes");
    if (!list || list->get(hashes) != simdjson::SUCCESS || hashes.size() > limits_.hashes_per_event_max) {
      return Bad(batch, DecodeError::kHash);
    }
    BlockRemoved event;
    event.group = group_;
    event.hashes.reserve(hashes.size());
    for (const element value : hashes) {
      if (!ReadHash(value, event.hashes.emplace_back())) return Bad(batch, DecodeError::kHash);
    }
    batch.events.emplace_back(std::move(event));
  }

  void AddUpdated(const element& data, KvEventBatch& batch) {
    BlockHash hash;
    if (!ReadHash(Get(data, "block_hash"), hash)) return Bad(batch, DecodeError::kHash);
    const auto level = Get(data, "cache_level");
    if (!level) return;  // a new priority changes no residency
    const auto old_level = Uint(Get(*level, "old_value"));
    const auto new_level = Uint(Get(*level, "new_value"));
    if (!old_level || !new_level) return Bad(batch, DecodeError::kField);
    if (*old_level == *new_level) return;

    BlockRemoved removed;
    removed.hashes.push_back(hash);
    removed.group = group_;
    removed.medium = MediumOfLevel(*old_level);
    BlockStored stored;
    stored.hashes = removed.hashes;
    stored.group = group_;
    stored.medium = MediumOfLevel(*new_level);
    stored.chain_known = false;  // a moved block keeps its parent, which this event does not name
    batch.events.emplace_back(std::move(removed));
    batch.events.emplace_back(std::move(stored));
  }

  const DecodeLimits& limits_;
  DecodeReport& report_;
  TrtllmPull pull_;
  std::optional<std::uint32_t> group_;
};

Status PullError(DecodeError error, std::string message, DecodeReport& report) {
  report.Count(error);
  return InvalidArgument("TensorRT-LLM events: " + std::move(message));
}

}  // namespace

Result<TrtllmPull> DecodeTrtllmJson(std::string_view json, const DecodeLimits& limits, DecodeReport* report) {
  DecodeReport unused;
  DecodeReport& counts = report != nullptr ? *report : unused;
  if (json.size() > limits.payload_bytes_max) {
    return PullError(DecodeError::kLimit, "larger than " + std::to_string(limits.payload_bytes_max) + " bytes", counts);
  }
  // The parser takes memory in proportion to the text (about 10 bytes for each), which is bounded above.
  simdjson::dom::parser parser(limits.payload_bytes_max);
  if (parser.allocate(json.size(), limits.depth_max) != simdjson::SUCCESS) {
    return ResourceExhausted("TensorRT-LLM events: no memory to parse them");
  }
  element root;
  const simdjson::error_code error = parser.parse(json.data(), json.size()).get(root);
  if (error == simdjson::DEPTH_ERROR) return PullError(DecodeError::kLimit, "nested too deeply", counts);
  if (error != simdjson::SUCCESS) return PullError(DecodeError::kMalformed, simdjson::error_message(error), counts);

  Decoder decoder(limits, counts);
  if (root.type() == element_type::OBJECT) {
    decoder.AddEvent(root);
  } else if (root.type() == element_type::ARRAY) {
    const simdjson::dom::array events = simdjson::dom::array(root);
    if (events.size() > limits.events_max) {
      return PullError(DecodeError::kLimit, "more than " + std::to_string(limits.events_max) + " events", counts);
    }
    for (const element event : events) decoder.AddEvent(event);
  } else {
    return PullError(DecodeError::kBatchShape, "neither an event nor an array of events", counts);
  }
  return std::move(decoder).Finish();
}

}  // namespace foreload::telemetry
