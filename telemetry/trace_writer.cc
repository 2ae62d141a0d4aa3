#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "base/check.h"
#include "telemetry/trace_file.h"
#include "telemetry/trace_format.h"

namespace foreload::telemetry {
namespace {

// A frame holds less than this before its last record is added, so that it stays within kTraceFrameBytesMax.
constexpr std::size_t kFlushBytesMax = 4u << 20;

struct FreeCompressor {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};
using Compressor = std::unique_ptr<ZSTD_CCtx, FreeCompressor>;

Compressor MakeCompressor(int level) {
  Compressor context(ZSTD_createCCtx());
  FORELOAD_CHECK(context != nullptr, "no zstd context");
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, kTraceWindowLogMax);
  return context;
}

}  // namespace

class TraceWriter::Impl {
 public:
  Impl(const Options& options, int file)
      : options_(options),
        file_(file),
        compressor_(MakeCompressor(options.compression_level)),
        queue_(options.queue_records_max) {}
  ~Impl() { close(file_); }

  Status WriteStart(const trace::TraceHeader& header) {
    trace::TraceRecord record;
    *record.mutable_header() = header;
    record.mutable_header()->set_version(kTraceVersion);
    if (record.ByteSizeLong() > kTraceRecordBytesMax) return InvalidArgument("the trace header is too large");
    const TraceFileHeader start = MakeTraceFileHeader(kTraceVersion);
    FORELOAD_RETURN_IF_ERROR(Write(start.data(), start.size()));
    AddToFrame(record);
    return FlushFrame();
  }

  void Start() {
    thread_ = std::thread([this] { Run(); });
  }

  bool Append(trace::TraceRecord&& record) {
    const std::size_t bytes = record.ByteSizeLong();
    const bool fits = bytes <= kTraceRecordBytesMax &&
                      queued_bytes_.load(std::memory_order_relaxed) + bytes <= options_.queue_bytes_max;
    if (!fits || failed_.load(std::memory_order_relaxed)) return Lose();
    queued_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    if (!queue_.Push(std::move(record))) {
      queued_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
      return Lose();
    }
    records_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  Status Close() {
    queue_.Close();
    if (thread_.joinable()) thread_.join();
    if (std::exchange(closed_, true)) return error_;
    trace::TraceRecord end;
    end.mutable_end()->set_steps(steps_);
    end.mutable_end()->set_events(events_);
    end.mutable_end()->set_lost_records(lost_.load());
    AddToFrame(end);
    Keep(FlushFrame());
    if (error_.ok() && fsync(file_) != 0) Keep(Status::FromErrno(errno, "sync " + options_.path));
    return error_;
  }

  Stats stats() const { return {records_.load(), lost_.load(), bytes_written_.load()}; }

 private:
  void Run() {
    std::vector<trace::TraceRecord> batch;
    TimeNs flush_at = kTimeNever;  // when the frame has something in it
    while (queue_.WaitDrain(batch, flush_at)) {
      for (const trace::TraceRecord& record : batch) {
        queued_bytes_.fetch_sub(record.ByteSizeLong(), std::memory_order_relaxed);
        if (failed_.load(std::memory_order_relaxed)) {
          Lose();
          continue;
        }
        AddToFrame(record);
        if (frame_.size() >= std::min(options_.frame_bytes, kFlushBytesMax)) Keep(FlushFrame());
      }
      const TimeNs now = MonotonicNow();
      if (now >= flush_at) Keep(FlushFrame());
      if (frame_.empty()) {
        flush_at = kTimeNever;
      } else if (flush_at == kTimeNever || now >= flush_at) {
        flush_at = now + options_.frame_age_max;
      }
    }
  }

  bool Lose() {
    lost_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }

  void AddToFrame(const trace::TraceRecord& record) {
    if (record.has_step()) {
      ++steps_;
      events_ += record.step().event_count();
    }
    google::protobuf::io::StringOutputStream stream(&frame_);
    FORELOAD_CHECK(google::protobuf::util::SerializeDelimitedToZeroCopyStream(record, &stream), "cannot encode");
  }

  Status FlushFrame() {
    if (frame_.empty()) return OkStatus();
    packed_.resize(ZSTD_compressBound(frame_.size()));
    const std::size_t size =
        ZSTD_compress2(compressor_.get(), packed_.data(), packed_.size(), frame_.data(), frame_.size());
    FORELOAD_CHECK(!ZSTD_isError(size), ZSTD_getErrorName(size));  // the bound is enough and memory is there
    frame_.clear();
    return Write(packed_.data(), size);
  }

  Status Write(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::uint8_t*>(data);
    while (size > 0) {
      const ssize_t written = write(file_, bytes, size);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return Status::FromErrno(errno, "write " + options_.path);
      bytes += written;
      size -= static_cast<std::size_t>(written);
      bytes_written_.fetch_add(static_cast<std::uint64_t>(written), std::memory_order_relaxed);
    }
    return OkStatus();
  }

  void Keep(const Status& status) {
    if (status.ok() || !error_.ok()) return;
    error_ = status;
    failed_.store(true, std::memory_order_relaxed);
  }

  const Options options_;
  const int file_;
  Compressor compressor_;
  BoundedQueue<trace::TraceRecord> queue_;
  std::atomic<std::size_t> queued_bytes_{0};
  std::atomic<std::uint64_t> records_{0};
  std::atomic<std::uint64_t> lost_{0};
  std::atomic<std::uint64_t> bytes_written_{0};
  std::atomic<bool> failed_{false};
  // The writer thread's, and after it Close's.
  std::string frame_;
  std::vector<char> packed_;
  std::uint64_t steps_ = 0;
  std::uint64_t events_ = 0;
  Status error_;
  bool closed_ = false;
  std::thread thread_;
};

Result<std::unique_ptr<TraceWriter>> TraceWriter::Open(const Options& options, trace::TraceHeader header) {
  const int file = open(options.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0 && errno == EEXIST) return AlreadyExists(options.path + " exists: a recording overwrites nothing");
  if (file < 0) return Status::FromErrno(errno, "create " + options.path);
  auto impl = std::make_unique<Impl>(options, file);
  FORELOAD_RETURN_IF_ERROR(impl->WriteStart(header));
  impl->Start();
  return std::unique_ptr<TraceWriter>(new TraceWriter(std::move(impl)));
}

TraceWriter::TraceWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceWriter::~TraceWriter() {
  [[maybe_unused]] const Status closed = Close();  // whoever wants the error calls Close
}

bool TraceWriter::Append(trace::TraceRecord record) {
  return impl_->Append(std::move(record));
}
Status TraceWriter::Close() {
  return impl_->Close();
}
TraceWriter::Stats TraceWriter::stats() const {
  return impl_->stats();
}

}  // namespace foreload::telemetry
