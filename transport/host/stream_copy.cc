#include "transport/host/stream_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace foreload {

#if defined(__x86_64__)
namespace {

constexpr std::size_t kVectorBytes = 32;
constexpr std::size_t kStepBytes = 8 * kVectorBytes;  // four cache lines a turn
constexpr std::size_t kPrefetchAhead = 4 * kStepBytes;

// `destination` is 32-byte aligned, `bytes` a multiple of kStepBytes.
__attribute__((target("avx2"))) void CopySteps(std::uint8_t* destination, const std::uint8_t* source,
                                               std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kStepBytes) {
    for (std::size_t line = 0; line < kStepBytes; line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(source + i + kPrefetchAhead + line), _MM_HINT_NTA);
    __m256i vectors[kStepBytes / kVectorBytes];
    for (std::size_t v = 0; v < kStepBytes / kVectorBytes; ++v)
      vectors[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i + v * kVectorBytes));
    for (std::size_t v = 0; v < kStepBytes / kVectorBytes; ++v)
      _mm256_stream_si256(reinterpret_cast<__m256i*>(destination + i + v * kVectorBytes), vectors[v]);
  }
  _mm_sfence();
}

}  // namespace

void StreamCopy(void* destination, const void* source, std::size_t bytes) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (!has_avx2 || bytes < kStreamCopyBytesMin) {
    std::memcpy(destination, source, bytes);
    return;
  }
  auto* to = static_cast<std::uint8_t*>(destination);
  const auto* from = static_cast<const std::uint8_t*>(source);
  const std::size_t head = (kVectorBytes - reinterpret_cast<std::uintptr_t>(to) % kVectorBytes) % kVectorBytes;
  const std::size_t body = (bytes - head) / kStepBytes * kStepBytes;
  std::memcpy(to, from, head);
  std::memcpy(to + head + body, from + head + body, bytes - head - body);
  CopySteps(to + head, from + head, body);
}
#else
void StreamCopy(void* destination, const void* source, std::size_t bytes) {
  std::memcpy(destination, source, bytes);
}
#endif

}  // namespace foreload
