// The requests that are live in this engine, with their key lists: what the emitter re-announces and what a sidecar
// that lost a list asks for. Bounded: beyond kRequestsMax a new request is not kept, beyond kKeyBytesMax the oldest
// lists go (the request stays announced; the sidecar's question is then answered with no keys). Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/block_key.h"

namespace foreload::client {

struct KeyList {
  NamespaceFingerprint name_space;
  std::uint32_t digest_bytes = 0;
  std::vector<std::uint8_t> digests;

  std::uint32_t count() const {
    return digest_bytes == 0 ? 0 : static_cast<std::uint32_t>(digests.size() / digest_bytes);
  }
};

struct LiveRequestInfo {
  std::string id;
  int state = 0;
  std::uint32_t key_count = 0;
  std::uint64_t key_list_hash = 0;
};

class RequestBook {
 public:
  static constexpr std::size_t kRequestsMax = 16384;
  static constexpr std::size_t kKeyBytesMax = 256u << 20;  // 128 requests of a million tokens each

  // Follows a request through its states; FINISHED and ABORTED end it. `keys` may be empty: the list known so far
  // stays.
  void Update(const std::string& id, int state, const KeyList& keys);

  // What the sidecar says is stored of the request's prefix; ignored for a request that is not live.
  void SetStored(const std::string& id, std::uint32_t blocks);
  std::optional<std::uint32_t> Stored(const std::string& id) const;
  // The sidecar that said so is gone.
  void ForgetStored();

  std::vector<LiveRequestInfo> Live() const;
  // Empty for a request that is not live or whose list was dropped.
  KeyList Keys(const std::string& id) const;

 private:
  struct Entry {
    LiveRequestInfo info;
    KeyList keys;
    std::optional<std::uint32_t> stored;
  };
  void DropKeys(Entry& entry);

  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // oldest first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_id_;
  std::size_t key_bytes_ = 0;
};

}  // namespace foreload::client
