// XXH3-64 (seed 0) of some bytes: table hashes and checksums of our own formats. Never identity, never security.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foreload {

std::uint64_t Xxh3(const void* data, std::size_t bytes);

}  // namespace foreload
