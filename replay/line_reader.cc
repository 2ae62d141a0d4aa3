#include "replay/line_reader.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

namespace foreload::replay {
namespace {

constexpr std::size_t kInputBytes = 256u << 10;
constexpr std::size_t kOutputBytes = 256u << 10;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

// Decompressed bytes, a buffer at a time.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills at most out.size(); 0 at the end.
  virtual Result<std::size_t> Read(char* out, std::size_t size) = 0;
};

class PlainSource final : public ByteSource {
 public:
  PlainSource(File file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  Result<std::size_t> Read(char* out, std::size_t size) override {
    const std::size_t n = std::fread(out, 1, size, file_.get());
    if (n == 0 && std::ferror(file_.get()) != 0) return Status::FromErrno(errno, "read " + path_);
    return n;
  }

 private:
  File file_;
  std::string path_;
};

class GzipSource final : public ByteSource {
 public:
  static Result<std::unique_ptr<ByteSource>> Make(std::unique_ptr<ByteSource> raw) {
    auto source = std::unique_ptr<GzipSource>(new GzipSource(std::move(raw)));
    // 16: gzip header and trailer are required and checked.
    if (inflateInit2(&source->stream_, 15 + 16) != Z_OK) return ResourceExhausted("gzip: no memory for the decoder");
    source->ready_ = true;
    return std::unique_ptr<ByteSource>(std::move(source));
  }
  ~GzipSource() override {
    if (ready_) inflateEnd(&stream_);
  }

  Result<std::size_t> Read(char* out, std::size_t size) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(size);
    while (stream_.avail_out == size) {
      if (stream_.avail_in == 0) {
        FORELOAD_ASSIGN_OR_RETURN(const std::size_t n, raw_->Read(input_.data(), input_.size()));
        if (n == 0) {
          if (in_member_) return DataLoss("gzip: the data ends in the middle");
          return std::size_t{0};
        }
        stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
        stream_.avail_in = static_cast<uInt>(n);
      }
      in_member_ = true;
      const int rc = inflate(&stream_, Z_NO_FLUSH);
      if (rc == Z_STREAM_END) {
        in_member_ = false;
        inflateReset(&stream_);  // another member may follow
      } else if (rc != Z_OK) {
        return DataLoss(std::string("gzip: ") + (stream_.msg != nullptr ? stream_.msg : "corrupt data"));
      }
    }
    return size - stream_.avail_out;
  }

 private:
  explicit GzipSource(std::unique_ptr<ByteSource> raw) : raw_(std::move(raw)), input_(kInputBytes) {}

  std::unique_ptr<ByteSource> raw_;
  std::vector<char> input_;
  z_stream stream_{};
  bool ready_ = false;
  bool in_member_ = true;
};

class ZstdSource final : public ByteSource {
 public:
  static Result<std::unique_ptr<ByteSource>> Make(std::unique_ptr<ByteSource> raw) {
    auto source = std::unique_ptr<ZstdSource>(new ZstdSource(std::move(raw)));
    source->stream_ = ZSTD_createDStream();
    if (source->stream_ == nullptr) return ResourceExhausted("zstd: no memory for the decoder");
    // Window of 128 MiB at most: a frame that wants more is refused instead of served.
    ZSTD_DCtx_setParameter(source->stream_, ZSTD_d_windowLogMax, 27);
    return std::unique_ptr<ByteSource>(std::move(source));
  }
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }

  Result<std::size_t> Read(char* out, std::size_t size) override {
    ZSTD_outBuffer output{out, size, 0};
    while (output.pos == 0) {
      if (view_.pos == view_.size) {
        FORELOAD_ASSIGN_OR_RETURN(const std::size_t n, raw_->Read(input_.data(), input_.size()));
        if (n == 0) {
          if (in_frame_) return DataLoss("zstd: the data ends in the middle");
          return std::size_t{0};
        }
        view_ = {input_.data(), n, 0};
      }
      const std::size_t rc = ZSTD_decompressStream(stream_, &output, &view_);
      if (ZSTD_isError(rc) != 0) return DataLoss(std::string("zstd: ") + ZSTD_getErrorName(rc));
      in_frame_ = rc != 0;
    }
    return output.pos;
  }

 private:
  explicit ZstdSource(std::unique_ptr<ByteSource> raw) : raw_(std::move(raw)), input_(kInputBytes) {}

  std::unique_ptr<ByteSource> raw_;
  std::vector<char> input_;
  ZSTD_DStream* stream_ = nullptr;
  ZSTD_inBuffer view_{nullptr, 0, 0};
  bool in_frame_ = true;
};

Result<std::unique_ptr<ByteSource>> OpenBytes(const std::string& path) {
  File file(std::fopen(path.c_str(), "rbe"));
  if (file == nullptr) return Status::FromErrno(errno, "open " + path);
  std::array<unsigned char, 4> magic{};
  const std::size_t n = std::fread(magic.data(), 1, magic.size(), file.get());
  if (std::ferror(file.get()) != 0) return Status::FromErrno(errno, "read " + path);
  std::rewind(file.get());
  std::unique_ptr<ByteSource> plain = std::make_unique<PlainSource>(std::move(file), path);
  if (n >= 2 && magic[0] == 0x1F && magic[1] == 0x8B) return GzipSource::Make(std::move(plain));
  if (n == 4 && magic[0] == 0x28 && magic[1] == 0xB5 && magic[2] == 0x2F && magic[3] == 0xFD) {
    return ZstdSource::Make(std::move(plain));
  }
  return plain;
}

}  // namespace

struct LineReader::Impl {
  Impl(std::unique_ptr<ByteSource> source, const LineLimits& bounds, std::string file)
      : bytes(std::move(source)), limits(bounds), path(std::move(file)), buffer(kOutputBytes) {}

  // Refills the empty buffer; false at the end.
  Result<bool> Fill() {
    if (ended) return false;
    auto n = bytes->Read(buffer.data(), buffer.size());
    if (!n.ok() || *n == 0) {
      ended = true;
      if (!n.ok()) return n.status().WithContext(path);
      return false;
    }
    total += *n;
    if (total > limits.total_bytes_max) {
      ended = true;
      return ResourceExhausted(path + ": holds more than " + std::to_string(limits.total_bytes_max) +
                               " decompressed bytes, the rest is not read");
    }
    begin = 0;
    end = *n;
    return true;
  }

  std::unique_ptr<ByteSource> bytes;
  LineLimits limits;
  std::string path;
  std::vector<char> buffer;
  std::size_t begin = 0;
  std::size_t end = 0;
  std::string line;
  std::uint64_t number = 0;
  std::uint64_t total = 0;
  bool ended = false;
};

LineReader::LineReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LineReader::~LineReader() = default;

Result<std::unique_ptr<LineReader>> LineReader::Open(const std::string& path, const LineLimits& limits) {
  FORELOAD_ASSIGN_OR_RETURN(auto bytes, OpenBytes(path));
  return std::unique_ptr<LineReader>(new LineReader(std::make_unique<Impl>(std::move(bytes), limits, path)));
}

std::uint64_t LineReader::line_number() const {
  return impl_->number;
}

Result<LineReader::Outcome> LineReader::Next(std::string_view& line) {
  Impl& s = *impl_;
  s.line.clear();
  bool any = false;
  bool too_long = false;
  while (true) {
    if (s.begin == s.end) {
      FORELOAD_ASSIGN_OR_RETURN(const bool more, s.Fill());
      if (!more) {
        if (!any) return Outcome::kEnd;
        break;  // a last line without its end
      }
    }
    if (!any) ++s.number;
    any = true;
    const char* from = s.buffer.data() + s.begin;
    const std::size_t available = s.end - s.begin;
    const void* newline = std::memchr(from, '\n', available);
    const std::size_t n =
        newline != nullptr ? static_cast<std::size_t>(static_cast<const char*>(newline) - from) : available;
    if (s.line.size() + n > s.limits.line_bytes_max) too_long = true;
    if (!too_long) s.line.append(from, n);
    s.begin += n;
    if (newline != nullptr) {
      ++s.begin;
      break;
    }
  }
  if (too_long) return Outcome::kTooLong;
  if (!s.line.empty() && s.line.back() == '\r') s.line.pop_back();
  line = s.line;
  return Outcome::kLine;
}

Result<std::string> ReadDocument(const std::string& path, std::size_t bytes_max) {
  FORELOAD_ASSIGN_OR_RETURN(auto bytes, OpenBytes(path));
  std::string document;
  std::vector<char> buffer(kOutputBytes);
  while (true) {
    auto n = bytes->Read(buffer.data(), buffer.size());
    if (!n.ok()) return n.status().WithContext(path);
    if (*n == 0) return document;
    if (document.size() + *n > bytes_max) {
      return ResourceExhausted(path + ": larger than " + std::to_string(bytes_max) + " bytes");
    }
    document.append(buffer.data(), *n);
  }
}

}  // namespace foreload::replay
