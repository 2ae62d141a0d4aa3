// Lines of a plain, gzip or zstd file (told by its first bytes), streamed through buffers of a fixed size.
//
// Compressed input cannot take more memory than one line limit, nor more time than `total_bytes_max` decompressed
// bytes: what a small file claims to expand to does not matter. Gzip members and zstd frames may be concatenated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace foreload::replay {

struct LineLimits {
  std::size_t line_bytes_max = 8u << 20;
  std::uint64_t total_bytes_max = 64ull << 30;
};

class LineReader {
 public:
  enum class Outcome : unsigned char { kLine, kTooLong, kEnd };

  static Result<std::unique_ptr<LineReader>> Open(const std::string& path, const LineLimits& limits);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // The next line without its end, valid until the next call. kTooLong: a line over the limit was skipped whole. After
  // an error (unreadable, corrupt or truncated compressed data, total_bytes_max) the reader is at its end; the lines
  // before it were good.
  Result<Outcome> Next(std::string_view& line);

  std::uint64_t line_number() const;  // of the last Next, 1-based

 private:
  struct Impl;
  explicit LineReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The whole content of a file that is one document, under the same rules.
Result<std::string> ReadDocument(const std::string& path, std::size_t bytes_max);

}  // namespace foreload::replay
