#include "proto/namespace.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "proto/sha256.h"

namespace foreload {
namespace {

class Encoder {
 public:
  explicit Encoder(std::string_view tag) { String(tag); }

  Encoder& Number(std::uint64_t value) {
    for (int i = 0; i < 8; ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
    return *this;
  }
  Encoder& String(std::string_view text) {
    Number(text.size());
    out_.append(text);
    return *this;
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

template <typename Fingerprint>
Fingerprint Shorten(std::string_view encoding) {
  const Sha256Digest digest = Sha256(encoding.data(), encoding.size());
  Fingerprint fingerprint;
  std::copy_n(digest.begin(), fingerprint.bytes.size(), fingerprint.bytes.begin());
  return fingerprint;
}

}  // namespace

std::string EncodeNamespace(const NamespaceFields& fields) {
  return Encoder("foreload.namespace.1")
      .String(fields.model_revision)
      .String(fields.lora)
      .String(fields.cache_salt)
      .Number(fields.kv_group)
      .Number(fields.weights_epoch)
      .Take();
}

std::string EncodeLayout(const LayoutFields& fields) {
  return Encoder("foreload.layout.1")
      .String(fields.dtype)
      .Number(fields.block_tokens)
      .String(fields.kv_layout)
      .String(fields.kernel)
      .String(fields.engine_version)
      .Number(fields.rank_count)
      .Take();
}

NamespaceFingerprint FingerprintOf(const NamespaceFields& fields) {
  return Shorten<NamespaceFingerprint>(EncodeNamespace(fields));
}

LayoutFingerprint FingerprintOf(const LayoutFields& fields) {
  return Shorten<LayoutFingerprint>(EncodeLayout(fields));
}

LayoutFingerprint RankLayout(const LayoutFingerprint& instance, std::uint32_t rank) {
  const std::string_view bytes(reinterpret_cast<const char*>(instance.bytes.data()), instance.bytes.size());
  return Shorten<LayoutFingerprint>(Encoder("foreload.rank_layout.1").String(bytes).Number(rank).Take());
}

}  // namespace foreload
