#include "cmd/drive/kv_encoding.h"

#include <bit>
#include <cstring>
#include <utility>

namespace foreload::drive {
namespace {

void PutBigEndian(std::string& out, std::uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out += static_cast<char>(value >> shift);
}

void PutUnsigned(std::string& out, std::uint64_t value) {
  if (value < 0x80) {
    out += static_cast<char>(value);
  } else if (value <= 0xFF) {
    out += '\xcc';
    PutBigEndian(out, value, 1);
  } else if (value <= 0xFFFF) {
    out += '\xcd';
    PutBigEndian(out, value, 2);
  } else if (value <= 0xFFFFFFFF) {
    out += '\xce';
    PutBigEndian(out, value, 4);
  } else {
    out += '\xcf';
    PutBigEndian(out, value, 8);
  }
}

void PutNil(std::string& out) {
  out += '\xc0';
}

void PutDouble(std::string& out, double value) {
  out += '\xcb';
  PutBigEndian(out, std::bit_cast<std::uint64_t>(value), 8);
}

void PutText(std::string& out, std::string_view text) {  // all of ours are below 32 bytes
  if (text.size() < 32) {
    out += static_cast<char>(0xa0 | text.size());
  } else {
    out += '\xd9';
    PutBigEndian(out, text.size(), 1);
  }
  out += text;
}

void PutArrayHead(std::string& out, std::size_t size) {
  if (size < 16) {
    out += static_cast<char>(0x90 | size);
  } else if (size <= 0xFFFF) {
    out += '\xdc';
    PutBigEndian(out, size, 2);
  } else {
    out += '\xdd';
    PutBigEndian(out, size, 4);
  }
}

void PutMapHead(std::string& out, std::size_t pairs) {
  out += static_cast<char>(0x80 | pairs);
}

void PutHash(std::string& out, const Digest& digest, HashForm form) {
  if (form == HashForm::kDigest) {
    out += '\xc4';
    PutBigEndian(out, digest.size(), 1);
    out.append(reinterpret_cast<const char*>(digest.data()), digest.size());
    return;
  }
  std::uint64_t value = 0;
  for (std::size_t i = digest.size() - 8; i < digest.size(); ++i) value = (value << 8) | digest[i];
  PutUnsigned(out, value);
}

void PutHashes(std::string& out, std::span<const Digest> digests, HashForm form) {
  PutText(out, "block_hashes");
  PutArrayHead(out, digests.size());
  for (const Digest& digest : digests) PutHash(out, digest, form);
}

}  // namespace

void KvBatchEncoder::AddStored(std::span<const Digest> digests, const Digest* parent, std::uint32_t block_tokens) {
  ++events_;
  PutMapHead(body_, 11);
  PutText(body_, "type");
  PutText(body_, "BlockStored");
  PutHashes(body_, digests, form_);
  PutText(body_, "parent_block_hash");
  if (parent != nullptr) {
    PutHash(body_, *parent, form_);
  } else {
    PutNil(body_);
  }
  PutText(body_, "token_ids");
  PutArrayHead(body_, digests.size() * block_tokens);
  for (const Digest& digest : digests) {
    // A vocabulary of 2^16, as far as the size of the message is concerned.
    for (std::uint32_t i = 0; i < block_tokens; ++i) {
      PutUnsigned(body_, (digest[i % digest.size()] << 8 | digest[(i / 7 + 1) % digest.size()]) ^ (i & 0xFF));
    }
  }
  PutText(body_, "block_size");
  PutUnsigned(body_, block_tokens);
  PutText(body_, "lora_id");
  PutNil(body_);
  PutText(body_, "medium");
  PutText(body_, "GPU");
  PutText(body_, "lora_name");
  PutNil(body_);
  PutText(body_, "extra_keys");
  PutNil(body_);
  PutText(body_, "group_idx");
  PutUnsigned(body_, 0);
  PutText(body_, "kv_cache_spec_kind");
  PutText(body_, "full_attention");
}

void KvBatchEncoder::AddRemoved(std::span<const Digest> digests) {
  ++events_;
  PutMapHead(body_, 4);
  PutText(body_, "type");
  PutText(body_, "BlockRemoved");
  PutHashes(body_, digests, form_);
  PutText(body_, "medium");
  PutText(body_, "GPU");
  PutText(body_, "group_idx");
  PutUnsigned(body_, 0);
}

std::string KvBatchEncoder::Take(double wall_time_seconds) {
  std::string payload;
  PutArrayHead(payload, 3);
  PutDouble(payload, wall_time_seconds);
  PutArrayHead(payload, events_);
  payload += body_;
  PutUnsigned(payload, 0);
  body_.clear();
  events_ = 0;
  return payload;
}

}  // namespace foreload::drive
