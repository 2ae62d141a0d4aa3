// SHA-256, for fingerprints and salted hashes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace foreload {

using Sha256Digest = std::array<std::uint8_t, 32>;

Sha256Digest Sha256(const void* data, std::size_t bytes);

}  // namespace foreload
