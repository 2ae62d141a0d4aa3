#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "telemetry/trace_file.h"
#include "telemetry/trace_format.h"

namespace foreload::telemetry {
namespace {

constexpr std::size_t kReadBytes = 128u << 10;

struct FreeDecompressor {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

}  // namespace

class TraceReader::Impl {
 public:
  Impl(std::string path, int file) : path_(std::move(path)), file_(file), decompressor_(ZSTD_createDCtx()) {
    FORELOAD_CHECK(decompressor_ != nullptr, "no zstd context");
    ZSTD_DCtx_setParameter(decompressor_.get(), ZSTD_d_windowLogMax, kTraceWindowLogMax);
    input_.resize(kReadBytes);
  }
  ~Impl() { close(file_); }

  Status ReadStart() {
    while (input_end_ < kTraceFileHeaderBytes) {
      FORELOAD_ASSIGN_OR_RETURN(const std::size_t got, Fill());
      if (got == 0) return Damaged(input_end_, "too short for a trace");
    }
    const TraceFileHeader expected = MakeTraceFileHeader(kTraceVersion);
    if (std::memcmp(input_.data(), expected.data(), sizeof kTraceMagic - 1) != 0) {
      return InvalidArgument(path_ + ": offset 0: not a Foreload trace");
    }
    if (std::memcmp(input_.data(), expected.data(), expected.size()) != 0) {
      return Unimplemented(path_ + ": offset 8: a version of the trace format that this build does not read");
    }
    input_begin_ = kTraceFileHeaderBytes;
    return OkStatus();
  }

  Result<std::optional<trace::TraceRecord>> Next() {
    if (!error_.ok()) return error_;
    auto record = ReadRecord();
    if (!record.ok()) error_ = record.status();
    return record;
  }

  bool complete() const { return ended_; }

 private:
  std::uint64_t offset() const { return file_offset_ - (input_end_ - input_begin_); }

  Status Damaged(std::uint64_t at, const std::string& reason) const {
    return DataLoss(path_ + ": offset " + std::to_string(at) + ": " + reason);
  }

  // Bytes added to the input; 0 at the end of the file.
  Result<std::size_t> Fill() {
    if (input_begin_ == input_end_) input_begin_ = input_end_ = 0;
    while (true) {
      const ssize_t got = read(file_, input_.data() + input_end_, input_.size() - input_end_);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Status::FromErrno(errno, "read " + path_);
      input_end_ += static_cast<std::size_t>(got);
      file_offset_ += static_cast<std::uint64_t>(got);
      return static_cast<std::size_t>(got);
    }
  }

  // Decodes the next frame into frame_; false at the end of the file.
  Result<bool> ReadFrame() {
    frame_.clear();
    frame_read_ = 0;
    frame_offset_ = offset();
    ZSTD_DCtx_reset(decompressor_.get(), ZSTD_reset_session_only);
    bool started = false;
    while (true) {
      if (input_begin_ == input_end_) {
        FORELOAD_ASSIGN_OR_RETURN(const std::size_t got, Fill());
        if (got == 0 && !started) return false;
        if (got == 0) return Damaged(frame_offset_, "the file ends inside this frame");
      }
      started = true;
      FORELOAD_ASSIGN_OR_RETURN(const bool done, DecodeSome());
      if (done) return true;
    }
  }

  // One step of the decompressor; true when the frame is whole and its checksum agrees.
  Result<bool> DecodeSome() {
    const std::size_t before = frame_.size();
    frame_.resize(before + ZSTD_DStreamOutSize());
    ZSTD_inBuffer in{input_.data(), input_end_, input_begin_};
    ZSTD_outBuffer out{frame_.data(), frame_.size(), before};
    const std::size_t left = ZSTD_decompressStream(decompressor_.get(), &out, &in);
    input_begin_ = in.pos;
    frame_.resize(out.pos);
    if (ZSTD_isError(left)) {
      return Damaged(frame_offset_, std::string("damaged frame: ") + ZSTD_getErrorName(left));
    }
    if (frame_.size() > kTraceFrameBytesMax) return Damaged(frame_offset_, "frame over the limit of decoded bytes");
    return left == 0;
  }

  Result<std::optional<trace::TraceRecord>> ReadRecord() {
    while (frame_read_ == frame_.size()) {
      FORELOAD_ASSIGN_OR_RETURN(const bool more, ReadFrame());
      if (!more) {
        if (records_ == 0) return Damaged(offset(), "no header record");
        return std::optional<trace::TraceRecord>();
      }
    }
    google::protobuf::io::CodedInputStream stream(reinterpret_cast<const std::uint8_t*>(frame_.data()) + frame_read_,
                                                  static_cast<int>(frame_.size() - frame_read_));
    std::uint32_t size = 0;
    if (!stream.ReadVarint32(&size)) return BadRecord("has no length");
    const auto prefix = static_cast<std::size_t>(stream.CurrentPosition());
    if (size > kTraceRecordBytesMax || size > frame_.size() - frame_read_ - prefix)
      return BadRecord("exceeds its frame");
    trace::TraceRecord record;
    if (!record.ParseFromArray(frame_.data() + frame_read_ + prefix, static_cast<int>(size))) {
      return BadRecord("is not a TraceRecord");
    }
    frame_read_ += prefix + size;
    FORELOAD_RETURN_IF_ERROR(CheckOrder(record));
    ++records_;
    ended_ = record.has_end();
    return std::optional<trace::TraceRecord>(std::move(record));
  }

  Status CheckOrder(const trace::TraceRecord& record) const {
    if (ended_) return BadRecord("follows the end of the recording");
    if (record.has_header() != (records_ == 0)) return BadRecord("is out of order: the header is the first, and once");
    if (record.has_header() && record.header().version() != kTraceVersion) return BadRecord("has an unknown version");
    return OkStatus();
  }

  Status BadRecord(const std::string& reason) const {
    return Damaged(frame_offset_, "record " + std::to_string(records_) + " (byte " + std::to_string(frame_read_) +
                                      " of the decoded frame) " + reason);
  }

  const std::string path_;
  const int file_;
  std::unique_ptr<ZSTD_DCtx, FreeDecompressor> decompressor_;
  std::vector<char> input_;
  std::size_t input_begin_ = 0;
  std::size_t input_end_ = 0;
  std::uint64_t file_offset_ = 0;  // of the byte after the input
  std::string frame_;
  std::size_t frame_read_ = 0;
  std::uint64_t frame_offset_ = 0;  // where the frame begins in the file
  std::uint64_t records_ = 0;
  bool ended_ = false;
  Status error_;
};

Result<std::unique_ptr<TraceReader>> TraceReader::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return Status::FromErrno(errno, "open " + path);
  auto impl = std::make_unique<Impl>(path, file);
  FORELOAD_RETURN_IF_ERROR(impl->ReadStart());
  return std::unique_ptr<TraceReader>(new TraceReader(std::move(impl)));
}

TraceReader::TraceReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceReader::~TraceReader() = default;

Result<std::optional<trace::TraceRecord>> TraceReader::Next() {
  return impl_->Next();
}
bool TraceReader::complete() const {
  return impl_->complete();
}

}  // namespace foreload::telemetry
