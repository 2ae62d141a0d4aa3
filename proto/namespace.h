// Fingerprints of what tokens mean (namespace) and of how bytes lie (layout).
//
// Each is the first 16 bytes of the SHA-256 over a canonical encoding: a tag naming the kind and version, then every
// field in order, strings as u64 little-endian length and bytes, integers as u64 little-endian. Lengths come first, so
// no two different descriptions share an encoding. Every process of an engine and every engine that shares blocks must
// describe the same thing with the same strings.
#pragma once

#include <cstdint>
#include <string>

#include "base/block_key.h"

namespace foreload {

struct NamespaceFields {
  std::string model_revision{};  // SHA-256 of the weight files in hex, or an operator's revision string
  std::string lora{};            // content hash of the adapter; empty: none
  std::string cache_salt{};      // tenant; empty: none
  std::uint32_t kv_group = 0;
  std::uint64_t weights_epoch = 0;  // raised when weights are reloaded in place
};

struct LayoutFields {
  std::string dtype{};  // "bfloat16"
  std::uint32_t block_tokens = 0;
  std::string kv_layout{};  // "LBHNC"
  std::string kernel{};     // kernel or ISA compatibility string
  std::string engine_version{};
  std::uint32_t rank_count = 1;  // tensor-parallel size
};

std::string EncodeNamespace(const NamespaceFields& fields);
std::string EncodeLayout(const LayoutFields& fields);

NamespaceFingerprint FingerprintOf(const NamespaceFields& fields);
// Of the instance, without the rank: what Register carries.
LayoutFingerprint FingerprintOf(const LayoutFields& fields);

// The layout of the bytes that one rank of the instance stores.
LayoutFingerprint RankLayout(const LayoutFingerprint& instance, std::uint32_t rank);

}  // namespace foreload
