// memcpy for blocks that the copying core will not read again.
#pragma once

#include <cstddef>

namespace foreload {

// Below it a plain memcpy wins, and the reader may profit from what it leaves in the cache.
inline constexpr std::size_t kStreamCopyBytesMin = std::size_t{32} << 10;

// Copies `bytes` between ranges that do not overlap. From kStreamCopyBytesMin on, and where the processor has AVX2,
// with non-temporal stores: the destination is not read first and no cache is flushed of what others need, which is 1.3
// to 1.5 times as fast for working sets beyond the cache. All stores are globally visible (sfence) when it returns, so
// a release store may publish them.
void StreamCopy(void* destination, const void* source, std::size_t bytes);

}  // namespace foreload
