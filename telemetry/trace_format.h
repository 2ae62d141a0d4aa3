// The file header and zstd parameters that writer and reader of traces share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace foreload::telemetry {

inline constexpr std::size_t kTraceFileHeaderBytes = 16;
inline constexpr char kTraceMagic[] = "FLTRACE1";  // 8 bytes on disk, without the terminator
// 8 MiB: the writer never uses more, so a reader needs no more.
inline constexpr int kTraceWindowLogMax = 23;

using TraceFileHeader = std::array<std::uint8_t, kTraceFileHeaderBytes>;

inline TraceFileHeader MakeTraceFileHeader(std::uint32_t version) {
  TraceFileHeader header{};
  std::memcpy(header.data(), kTraceMagic, 8);
  for (int i = 0; i < 4; ++i) header[8 + i] = static_cast<std::uint8_t>(version >> (8 * i));
  return header;
}

}  // namespace foreload::telemetry
