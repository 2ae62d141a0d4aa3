// Recordings of the core's input (proto/trace.proto): a 16-byte file header, then zstd frames of length-delimited
// TraceRecords. Each frame is whole records and decodable alone, so that a torn tail costs one frame.
//
// This file knows the container only; what the event bytes in a Step mean belongs to prefetcher/core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "proto/trace.pb.h"

namespace foreload::telemetry {

inline constexpr std::uint32_t kTraceVersion = 1;
// A record is one step or key; the header may hold a snapshot of the core.
inline constexpr std::size_t kTraceRecordBytesMax = 64u << 20;
// Decoded bytes of one frame: what is flushed, plus one record of the largest size.
inline constexpr std::size_t kTraceFrameBytesMax = kTraceRecordBytesMax + (4u << 20);

// Writes on a thread of its own. Append never waits for the disk: when the queue is full, or after an I/O error, the
// record is lost and counted, and TraceEnd says how many. Append from any thread; Close (or destruction) once.
class TraceWriter {
 public:
  struct Options {
    std::string path;  // must not exist; created readable by its owner alone
    std::size_t queue_records_max = 65536;
    std::size_t queue_bytes_max = 64u << 20;
    std::size_t frame_bytes = 1u << 20;  // a frame is written at this size (4 MiB at most) ...
    DurationNs frame_age_max = kSecond;  // ... or at this age of its first record
    int compression_level = 3;
  };
  struct Stats {
    std::uint64_t records = 0;  // queued so far
    std::uint64_t lost_records = 0;
    std::uint64_t bytes_written = 0;  // of the file
  };

  // `header` is the first record; its version is set here.
  static Result<std::unique_ptr<TraceWriter>> Open(const Options& options, trace::TraceHeader header);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // False when the record is lost.
  bool Append(trace::TraceRecord record);

  // Writes what is queued and TraceEnd, syncs, closes; returns the first I/O error. Later calls do nothing.
  Status Close();

  Stats stats() const;

 private:
  class Impl;
  explicit TraceWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Reads records in order. Every byte is untrusted: memory is bounded by kTraceFrameBytesMax and zstd's window (8 MiB),
// and a frame's records come out only after its checksum has agreed. Single-threaded.
class TraceReader {
 public:
  // Fails on what is no trace of a version that this reader knows.
  static Result<std::unique_ptr<TraceReader>> Open(const std::string& path);
  ~TraceReader();
  TraceReader(const TraceReader&) = delete;
  TraceReader& operator=(const TraceReader&) = delete;

  // The next record; nothing at the end of the file; an error that names file, offset and reason where the file is
  // damaged (records before it were good; further calls repeat the error).
  Result<std::optional<trace::TraceRecord>> Next();

  // Whether TraceEnd was read: without it the tail of the recording may be missing.
  bool complete() const;

 private:
  class Impl;
  explicit TraceReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace foreload::telemetry
