#include "client/request_book.h"

#include "client/foreload.h"
#include "proto/xxh3.h"

namespace foreload::client {

void RequestBook::DropKeys(Entry& entry) {
  key_bytes_ -= entry.keys.digests.size();
  entry.keys = {};
}

void RequestBook::Update(const std::string& id, int state, const KeyList& keys) {
  const std::lock_guard lock(mutex_);
  auto it = by_id_.find(id);
  if (state == FL_REQUEST_FINISHED || state == FL_REQUEST_ABORTED) {
    if (it == by_id_.end()) return;
    DropKeys(*it->second);
    entries_.erase(it->second);
    by_id_.erase(it);
    return;
  }
  if (it == by_id_.end()) {
    if (entries_.size() >= kRequestsMax) return;
    entries_.push_back({.info = {.id = id}, .keys = {}, .stored = std::nullopt});
    it = by_id_.emplace(id, std::prev(entries_.end())).first;
  }
  Entry& entry = *it->second;
  entry.info.state = state;
  if (keys.digests.empty() || keys.digests.size() > kKeyBytesMax) return;
  DropKeys(entry);
  for (auto old = entries_.begin(); key_bytes_ + keys.digests.size() > kKeyBytesMax; ++old) DropKeys(*old);
  entry.keys = keys;
  key_bytes_ += keys.digests.size();
  entry.info.key_count = keys.count();
  entry.info.key_list_hash = Xxh3(keys.digests.data(), keys.digests.size());
}

void RequestBook::SetStored(const std::string& id, std::uint32_t blocks) {
  const std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  if (it != by_id_.end()) it->second->stored = blocks;
}

std::optional<std::uint32_t> RequestBook::Stored(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? std::nullopt : it->second->stored;
}

void RequestBook::ForgetStored() {
  const std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) entry.stored.reset();
}

std::vector<LiveRequestInfo> RequestBook::Live() const {
  const std::lock_guard lock(mutex_);
  std::vector<LiveRequestInfo> live;
  live.reserve(entries_.size());
  for (const Entry& entry : entries_) live.push_back(entry.info);
  return live;
}

KeyList RequestBook::Keys(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? KeyList{} : it->second->keys;
}

}  // namespace foreload::client
