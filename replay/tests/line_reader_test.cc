#include "replay/line_reader.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <string>
#include <vector>

#include "replay/tests/temp_dir.h"

namespace foreload::replay {
namespace {

std::string Gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

struct Read {
  std::vector<std::string> lines;
  std::vector<std::uint64_t> too_long;
  Status status = OkStatus();
};

Read ReadAll(const std::string& path, const LineLimits& limits = {}) {
  Read read;
  auto reader = LineReader::Open(path, limits);
  if (!reader.ok()) {
    read.status = reader.status();
    return read;
  }
  while (true) {
    std::string_view line;
    auto outcome = (*reader)->Next(line);
    if (!outcome.ok()) {
      read.status = outcome.status();
      return read;
    }
    if (*outcome == LineReader::Outcome::kEnd) return read;
    if (*outcome == LineReader::Outcome::kTooLong) {
      read.too_long.push_back((*reader)->line_number());
    } else {
      read.lines.emplace_back(line);
    }
  }
}

std::string ManyLines() {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "line " + std::to_string(i) + "\n";
  return text;
}

TEST(LineReader, GivesTheSameLinesFromPlainGzipAndZstdFiles) {
  const TempDir dir;
  const std::string text = ManyLines();
  const Read plain = ReadAll(dir.Write("a", text));
  ASSERT_TRUE(plain.status.ok()) << plain.status.ToString();
  ASSERT_EQ(plain.lines.size(), 200'000u);
  EXPECT_EQ(plain.lines.back(), "line 199999");
  EXPECT_EQ(ReadAll(dir.Write("b", Gzip(text))).lines, plain.lines);
  EXPECT_EQ(ReadAll(dir.Write("c", Zstd(text))).lines, plain.lines);
}

TEST(LineReader, ReadsConcatenatedMembersAndFrames) {
  const TempDir dir;
  EXPECT_EQ(ReadAll(dir.Write("a", Gzip("one\nt") + Gzip("wo\n"))).lines, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(ReadAll(dir.Write("b", Zstd("one\nt") + Zstd("wo\n"))).lines, (std::vector<std::string>{"one", "two"}));
}

TEST(LineReader, TakesTheLastLineWithoutItsEndAndDropsCarriageReturns) {
  const TempDir dir;
  EXPECT_EQ(ReadAll(dir.Write("a", "one\r\n\ntwo")).lines, (std::vector<std::string>{"one", "", "two"}));
  EXPECT_TRUE(ReadAll(dir.Write("b", "")).lines.empty());
}

TEST(LineReader, SkipsALineOverTheLimitAndGoesOnWithTheNext) {
  const TempDir dir;
  const Read read =
      ReadAll(dir.Write("a", "short\n" + std::string(1'000'000, 'x') + "\nafter\n"), {.line_bytes_max = 100});
  EXPECT_EQ(read.lines, (std::vector<std::string>{"short", "after"}));
  EXPECT_EQ(read.too_long, (std::vector<std::uint64_t>{2}));
}

TEST(LineReader, StopsABombAtTheBoundOfDecompressedBytes) {
  const TempDir dir;
  const std::string bomb = Gzip(std::string(64u << 20, '\0'));
  ASSERT_LT(bomb.size(), 100'000u);
  const Read read = ReadAll(dir.Write("bomb.gz", bomb), {.line_bytes_max = 1000, .total_bytes_max = 1u << 20});
  EXPECT_EQ(read.status.code(), StatusCode::kResourceExhausted) << read.status.ToString();
  EXPECT_TRUE(read.lines.empty());
  const auto document = ReadDocument(dir.path() + "/bomb.gz", 1u << 20);
  EXPECT_EQ(document.status().code(), StatusCode::kResourceExhausted);
}

TEST(LineReader, SaysThatCompressedDataEndsInTheMiddleAfterTheGoodLines) {
  const TempDir dir;
  const std::string text = ManyLines();
  for (const std::string& whole : {Gzip(text), Zstd(text)}) {
    const Read read = ReadAll(dir.Write("cut", whole.substr(0, whole.size() / 2)));
    EXPECT_EQ(read.status.code(), StatusCode::kDataLoss) << read.status.ToString();
    ASSERT_GT(read.lines.size(), 1000u);
    EXPECT_EQ(read.lines[1000], "line 1000");
  }
}

TEST(LineReader, SaysThatCompressedDataIsCorrupt) {
  const TempDir dir;
  std::string bytes = Gzip(ManyLines());
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x55);
  EXPECT_EQ(ReadAll(dir.Write("bad.gz", bytes)).status.code(), StatusCode::kDataLoss);
}

TEST(LineReader, NamesAFileThatIsNotThere) {
  const Read read = ReadAll("/nonexistent/trace.jsonl");
  EXPECT_EQ(read.status.code(), StatusCode::kIoError);
  EXPECT_NE(read.status.message().find("/nonexistent/trace.jsonl"), std::string::npos);
}

}  // namespace
}  // namespace foreload::replay
