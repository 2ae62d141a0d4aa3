#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "prefetcher/core/codec.h"
#include "proto/trace.pb.h"
#include "replay/readers.h"
#include "replay/tests/temp_dir.h"
#include "telemetry/trace_file.h"

namespace foreload::replay {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

class Recording {
 public:
  explicit Recording(const std::string& path) {
    auto writer = telemetry::TraceWriter::Open({.path = path}, trace::TraceHeader());
    EXPECT_TRUE(writer.ok()) << writer.status().ToString();
    writer_ = std::move(*writer);
  }
  void Key(std::uint32_t block, std::uint64_t hash) {
    trace::TraceRecord record;
    record.mutable_key()->set_block(block);
    record.mutable_key()->set_salted_hash(hash);
    ASSERT_TRUE(writer_->Append(record));
  }
  void Step(DurationNs delta, const core::EventBatch& batch) {
    std::vector<std::uint8_t> bytes;
    core::EncodeBatch(batch, bytes);
    trace::TraceRecord record;
    record.mutable_step()->set_now_delta_ns(delta);
    record.mutable_step()->set_events(bytes.data(), bytes.size());
    ASSERT_TRUE(writer_->Append(record));
  }
  void Close() { EXPECT_TRUE(writer_->Close().ok()); }

 private:
  std::unique_ptr<telemetry::TraceWriter> writer_;
};

core::EventBatch Queue(std::uint32_t request, std::vector<BlockId> blocks, std::uint32_t tokens,
                       bool announced = false) {
  core::EventBatch batch;
  core::RequestQueued queued;
  queued.engine = EngineId{3};
  queued.request = RequestId{request};
  queued.session = SessionId{9};
  queued.kind = core::RequestKind::kTool;
  queued.turn = 4;
  queued.prompt_tokens = tokens;
  queued.announced = announced;
  queued.blocks = {0, static_cast<std::uint32_t>(blocks.size())};
  batch.blocks = std::move(blocks);
  batch.events.push_back(queued);
  return batch;
}

TEST(Recording, IsAWorkloadOfWhatWasQueued) {
  const TempDir dir;
  const std::string path = dir.path() + "/r.fltrace";
  Recording recording(path);
  core::EventBatch up;
  core::EngineUp engine;
  engine.engine = EngineId{3};
  engine.block_tokens = 16;
  up.events.push_back(engine);
  recording.Step(1000 * kSecond, up);
  recording.Key(5, 0xABC);
  recording.Key(6, 0xDEF);
  recording.Step(kSecond, Queue(1, {BlockId{5}, BlockId{6}}, 40));
  core::EventBatch finished;
  core::RequestFinished done;
  done.request = RequestId{1};
  done.blocks = {0, 4};
  finished.blocks = {BlockId{5}, BlockId{6}, BlockId{7}, BlockId{8}};
  finished.events.push_back(done);
  recording.Step(kSecond, finished);
  recording.Key(5, 0x123);  // the id was given to another block
  recording.Step(kSecond, Queue(8, {BlockId{5}}, 16, true));
  recording.Step(kSecond, Queue(1, {BlockId{5}, BlockId{77}}, 32));
  recording.Close();

  auto source = OpenTrace(path, {.strict = true});
  ASSERT_TRUE(source.ok()) << source.status().ToString();
  TraceRequest first;
  ASSERT_TRUE(*(*source)->Next(first));
  EXPECT_EQ(first.arrival, kSecond);
  EXPECT_EQ(first.session, 9u);
  EXPECT_EQ(first.turn, 4u);
  EXPECT_EQ(first.kind, RequestKind::kTool);
  EXPECT_EQ(first.block_tokens, 16u);
  EXPECT_EQ(first.input_tokens, 40u);
  EXPECT_EQ(first.output_tokens, 32u) << "two blocks of output";
  EXPECT_THAT(first.blocks, ElementsAre(0xABC, 0xDEF));
  TraceRequest second;
  ASSERT_TRUE(*(*source)->Next(second)) << "the announced one has not arrived and is none";
  EXPECT_EQ(second.arrival, 4 * kSecond);
  EXPECT_EQ(second.blocks[0], 0x123u);
  EXPECT_NE(second.blocks[1], 77u) << "a block without a name is told apart from every hash";
  EXPECT_EQ(second.output_tokens, 1u);
  EXPECT_FALSE(*(*source)->Next(second));
  EXPECT_EQ((*source)->stats().requests, 2u);
}

TEST(Recording, NeedsTheBlockSizeAndSaysSo) {
  const TempDir dir;
  const std::string path = dir.path() + "/r.fltrace";
  Recording recording(path);
  recording.Step(kSecond, Queue(1, {BlockId{5}}, 40));
  recording.Close();
  auto lenient = OpenTrace(path, {});
  ASSERT_TRUE(lenient.ok());
  TraceRequest request;
  EXPECT_FALSE(*(*lenient)->Next(request));
  EXPECT_THAT((*lenient)->stats().problems, ElementsAre(HasSubstr("request 0: its engine never said")));
  auto told = OpenTrace(path, {.block_tokens = 32});
  ASSERT_TRUE(told.ok());
  EXPECT_TRUE(*(*told)->Next(request));
}

TEST(Recording, ReadsWhatADamagedFileStillHolds) {
  const TempDir dir;
  const std::string path = dir.path() + "/r.fltrace";
  {
    Recording recording(path);
    recording.Step(kSecond, Queue(1, {BlockId{5}}, 40));
    recording.Close();
  }
  std::ofstream(path, std::ios::binary | std::ios::app) << "torn tail";
  auto source = OpenTrace(path, {.block_tokens = 16});
  ASSERT_TRUE(source.ok()) << source.status().ToString();
  TraceRequest request;
  EXPECT_TRUE(*(*source)->Next(request));
  EXPECT_FALSE(*(*source)->Next(request));
  EXPECT_EQ((*source)->stats().skipped, 1u);
  EXPECT_THAT((*source)->stats().problems, Contains(HasSubstr("r.fltrace")));
}

}  // namespace
}  // namespace foreload::replay
