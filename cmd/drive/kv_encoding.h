// KV-cache events as vLLM publishes them (0.23.1 and later): a MessagePack array [time, events, data-parallel rank] of
// maps, every field that its encoder writes, hashes as 64-bit integers (the digest's last 8 bytes, big-endian: the
// default) or as the whole digest.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cmd/drive/block_content.h"

namespace foreload::drive {

enum class HashForm : std::uint8_t { kInt64, kDigest };

class KvBatchEncoder {
 public:
  explicit KvBatchEncoder(HashForm form) : form_(form) {}

  // `digests` in prefix order; `parent` null: prefix root. Token ids are made up from the digests: the sidecar must not
  // need them.
  void AddStored(std::span<const Digest> digests, const Digest* parent, std::uint32_t block_tokens);
  void AddRemoved(std::span<const Digest> digests);

  bool empty() const { return events_ == 0; }
  // The payload; the encoder is empty again.
  std::string Take(double wall_time_seconds);

 private:
  HashForm form_;
  std::uint32_t events_ = 0;
  std::string body_;
};

}  // namespace foreload::drive
