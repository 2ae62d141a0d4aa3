#include "proto/xxh3.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace foreload {

std::uint64_t Xxh3(const void* data, std::size_t bytes) {
  return XXH3_64bits(data, bytes);
}

}  // namespace foreload
