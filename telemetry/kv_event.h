// KV-cache events as every dialect's decoder delivers them: plain data, hashes normalised, one batch at a time.
// Wire facts and limits: docs/wire.md, proto/README.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace foreload::telemetry {

// What an engine calls a block: its full digest when it sends bytes, else the low 64 bits alone.
struct BlockHash {
  std::uint64_t low64 = 0;        // the alias: an integer by its bit pattern, or the digest's last 8 bytes read BE
  std::uint8_t digest_bytes = 0;  // 16 to 32; 0: only the alias is known
  std::array<std::uint8_t, 32> digest{};

  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};

enum class Medium : std::uint8_t { kGpu, kCpu, kStorage, kExternal, kOther };  // absent on the wire: kGpu

struct BlockStored {
  std::vector<BlockHash> hashes;
  std::optional<BlockHash> parent;  // absent: prefix root
  // False when the hash list is shorter than its token span (blocks were skipped), or when neither tokens nor a parent
  // are told: then no block's parent is known, the first one's included.
  bool chain_known = true;
  std::uint32_t block_size = 0;   // tokens
  std::uint32_t token_count = 0;  // ids themselves are dropped at the decoder
  Medium medium = Medium::kGpu;
  std::optional<std::uint32_t> group;
  std::optional<std::int64_t> lora_id;
  std::string lora_name;
  std::string cache_salt;  // from extra_keys[0] (vLLM) or cache_salt (SGLang); never logged
  std::string spec_kind;
  std::string locality;
  std::string ownership;
  std::string session_id;
};
struct BlockRemoved {
  std::vector<BlockHash> hashes;
  Medium medium = Medium::kGpu;
  std::optional<std::uint32_t> group;
  std::string locality;
  std::string ownership;
};
struct AllBlocksCleared {};

using KvEvent = std::variant<BlockStored, BlockRemoved, AllBlocksCleared>;

struct KvEventBatch {
  double wall_time_seconds = 0;
  std::optional<std::uint32_t> data_parallel_rank;  // absent: all ranks
  std::vector<KvEvent> events;
  std::uint32_t unknown_events = 0;  // skipped tags
  std::uint32_t bad_events = 0;      // each cost itself alone
  std::uint32_t unknown_fields = 0;
};

}  // namespace foreload::telemetry
