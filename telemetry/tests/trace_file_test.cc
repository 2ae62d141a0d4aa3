#include "telemetry/trace_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "telemetry/tests/test_publisher.h"

namespace foreload::telemetry {
namespace {

trace::TraceRecord StepRecord(std::uint64_t number, std::size_t event_bytes = 20) {
  trace::TraceRecord record;
  record.mutable_step()->set_now_delta_ns(static_cast<std::int64_t>(number));
  record.mutable_step()->set_events(std::string(event_bytes, static_cast<char>(number)));
  record.mutable_step()->set_event_count(2);
  return record;
}

struct ReadBack {
  std::vector<trace::TraceRecord> records;
  Status status;
  bool complete = false;
};

ReadBack ReadAll(const std::string& path) {
  ReadBack out;
  auto reader = TraceReader::Open(path);
  if (!reader.ok()) {
    out.status = reader.status();
    return out;
  }
  while (true) {
    auto record = reader.value()->Next();
    if (!record.ok()) {
      out.status = record.status();
      break;
    }
    if (!record.value()) break;
    out.records.push_back(std::move(*record.value()));
  }
  out.complete = reader.value()->complete();
  return out;
}

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Spill(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class TraceFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<TraceWriter> Writer(TraceWriter::Options options = {}) {
    options.path = path_;
    trace::TraceHeader header;
    header.set_producer("test");
    auto writer = TraceWriter::Open(options, header);
    EXPECT_TRUE(writer.ok()) << writer.status().ToString();
    return std::move(writer).value();
  }
  // A file of several frames, three records each.
  std::string SmallFile(std::uint64_t steps) {
    TraceWriter::Options options;
    options.frame_bytes = StepRecord(1).ByteSizeLong() * 3;
    auto writer = Writer(options);
    for (std::uint64_t i = 0; i < steps; ++i) EXPECT_TRUE(writer->Append(StepRecord(i)));
    EXPECT_TRUE(writer->Close().ok());
    return Slurp(path_);
  }

  testing::TempDir dir_;
  const std::string path_ = dir_.File("trace");
};

TEST_F(TraceFileTest, WhatIsWrittenIsRead) {
  {
    auto writer = Writer();
    for (std::uint64_t i = 0; i < 1000; ++i) ASSERT_TRUE(writer->Append(StepRecord(i, i)));
    EXPECT_TRUE(writer->Close().ok());
    EXPECT_TRUE(writer->Close().ok());
    EXPECT_FALSE(writer->Append(StepRecord(1))) << "closed";
    EXPECT_EQ(writer->stats().bytes_written, std::filesystem::file_size(path_));
  }
  const ReadBack back = ReadAll(path_);
  ASSERT_TRUE(back.status.ok()) << back.status.ToString();
  EXPECT_TRUE(back.complete);
  ASSERT_EQ(back.records.size(), 1002u);
  EXPECT_EQ(back.records[0].header().producer(), "test");
  EXPECT_EQ(back.records[0].header().version(), kTraceVersion);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(back.records[i + 1].SerializeAsString(), StepRecord(i, i).SerializeAsString());
  }
  EXPECT_EQ(back.records.back().end().steps(), 1000u);
  EXPECT_EQ(back.records.back().end().events(), 2000u);
  EXPECT_EQ(back.records.back().end().lost_records(), 0u);
}

TEST_F(TraceFileTest, FileIsPrivateAndNeverOverwritten) {
  ASSERT_TRUE(Writer()->Close().ok());
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(TraceWriter::Open({.path = path_}, {}).status().code(), StatusCode::kAlreadyExists);
  EXPECT_FALSE(TraceWriter::Open({.path = dir_.File("no/such")}, {}).ok());
}

TEST_F(TraceFileTest, LargeRecordsSpanReadsAndWindows) {
  TraceWriter::Options options;
  options.queue_bytes_max = 256u << 20;
  auto writer = Writer(options);
  trace::TraceRecord large;
  std::string& events = *large.mutable_step()->mutable_events();
  for (std::size_t i = 0; i < (20u << 20); ++i) events.push_back(static_cast<char>((i * 2654435761u) >> 13));
  ASSERT_TRUE(writer->Append(large));
  ASSERT_TRUE(writer->Append(StepRecord(1)));
  ASSERT_TRUE(writer->Close().ok());
  const ReadBack back = ReadAll(path_);
  ASSERT_TRUE(back.status.ok()) << back.status.ToString();
  ASSERT_EQ(back.records.size(), 4u);
  EXPECT_EQ(back.records[1].step().events(), events);
}

TEST_F(TraceFileTest, FullQueueLosesRecordsAndTheEndSaysHowMany) {
  TraceWriter::Options options;
  options.queue_bytes_max = 100;
  auto writer = Writer(options);
  EXPECT_FALSE(writer->Append(StepRecord(1, 200)));
  EXPECT_FALSE(writer->Append(StepRecord(2, 200)));
  EXPECT_TRUE(writer->Append(StepRecord(3)));
  EXPECT_EQ(writer->stats().lost_records, 2u);
  ASSERT_TRUE(writer->Close().ok());
  const ReadBack back = ReadAll(path_);
  ASSERT_EQ(back.records.size(), 3u);
  EXPECT_EQ(back.records.back().end().lost_records(), 2u);
}

TEST_F(TraceFileTest, FrameIsWrittenAtItsAge) {
  TraceWriter::Options options;
  options.frame_age_max = kMillisecond;
  auto writer = Writer(options);
  const std::uint64_t before = writer->stats().bytes_written;
  ASSERT_TRUE(writer->Append(StepRecord(1)));
  const TimeNs deadline = MonotonicNow() + 30 * kSecond;
  while (writer->stats().bytes_written == before && MonotonicNow() < deadline) std::this_thread::yield();
  const ReadBack back = ReadAll(path_);
  EXPECT_TRUE(back.status.ok());
  EXPECT_EQ(back.records.size(), 2u) << "readable while it is being written";
  EXPECT_FALSE(back.complete);
}

TEST_F(TraceFileTest, DiskErrorIsReportedAndLaterRecordsAreLost) {
  auto writer = TraceWriter::Open({.path = dir_.File("full")}, {});
  ASSERT_TRUE(writer.ok());
  struct rlimit old {};
  getrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit tight = old;
  tight.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &tight);
  trace::TraceRecord noise;
  std::string& events = *noise.mutable_step()->mutable_events();
  for (std::size_t i = 0; i < 100'000; ++i) events.push_back(static_cast<char>((i * 2654435761u) >> 13));
  writer.value()->Append(noise);
  EXPECT_FALSE(writer.value()->Close().ok());
  setrlimit(RLIMIT_FSIZE, &old);
}

TEST_F(TraceFileTest, EveryTruncationGivesWholeFramesAndThenSaysWhere) {
  const std::string whole = SmallFile(6);
  const std::vector<trace::TraceRecord> all = ReadAll(path_).records;
  ASSERT_EQ(all.size(), 8u);
  std::size_t clean_ends = 0;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    Spill(path_, std::string_view(whole).substr(0, size));
    const ReadBack back = ReadAll(path_);
    ASSERT_LT(back.records.size(), all.size()) << size;
    EXPECT_FALSE(back.complete) << size;
    for (std::size_t i = 0; i < back.records.size(); ++i) {
      ASSERT_EQ(back.records[i].SerializeAsString(), all[i].SerializeAsString()) << size;
    }
    if (back.status.ok()) {
      ++clean_ends;  // between two frames nothing shows but the missing end
    } else {
      EXPECT_EQ(back.status.code(), StatusCode::kDataLoss) << size;
      EXPECT_NE(back.status.message().find(path_ + ": offset "), std::string::npos) << back.status.message();
    }
  }
  EXPECT_GE(clean_ends, 2u);
  EXPECT_LE(clean_ends, 4u);
}

TEST_F(TraceFileTest, NoFlippedBitGivesAWrongRecord) {
  const std::string whole = SmallFile(4);
  const std::vector<trace::TraceRecord> all = ReadAll(path_).records;
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    Spill(path_, flipped);
    const ReadBack back = ReadAll(path_);
    ASSERT_LE(back.records.size(), all.size()) << bit;
    for (std::size_t i = 0; i < back.records.size(); ++i) {
      ASSERT_EQ(back.records[i].SerializeAsString(), all[i].SerializeAsString()) << bit;
    }
    ASSERT_EQ(back.complete, back.records.size() == all.size()) << bit;
  }
}

TEST_F(TraceFileTest, ForeignAndNewerFilesAreRefusedWithAReason) {
  const std::string whole = SmallFile(1);
  Spill(path_, "not a trace at all, but long enough");
  EXPECT_EQ(TraceReader::Open(path_).status().code(), StatusCode::kInvalidArgument);
  std::string newer = whole;
  newer[8] = 2;
  Spill(path_, newer);
  EXPECT_EQ(TraceReader::Open(path_).status().code(), StatusCode::kUnimplemented);
  EXPECT_FALSE(TraceReader::Open(dir_.File("absent")).ok());
  Spill(path_, whole + whole.substr(16));
  const ReadBack twice = ReadAll(path_);
  EXPECT_EQ(twice.records.size(), 3u);
  EXPECT_NE(twice.status.message().find("follows the end"), std::string::npos) << twice.status.message();
}

}  // namespace
}  // namespace foreload::telemetry
