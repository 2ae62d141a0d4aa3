#include "prefetcher/service/recorder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace foreload::service {
namespace {

class RecorderTest : public testing::Test {
 protected:
  RecorderTest() : directory_(std::filesystem::temp_directory_path() / ("fl-recorder-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(directory_);
    salt_ = directory_ / "salt";
    std::ofstream(salt_) << std::string(32, 's');
    chmod(salt_.c_str(), 0600);
  }
  ~RecorderTest() override { std::filesystem::remove_all(directory_); }

  // A few requests of one engine with a DRAM tier, stepped and recorded.
  Status Record(const std::string& file) {
    core::CoreConfig config;
    config.dram_bytes = 1 << 20;
    auto recorder = Recorder::Open({.file = file, .salt_file = salt_}, config, interner_);
    if (!recorder.ok()) return recorder.status();
    core::Core core(config);
    std::vector<BlockId> blocks;
    for (std::uint8_t i = 0; i < 8; ++i) {
      const std::array<std::uint8_t, 32> digest{i, 1, 2, 3};
      blocks.push_back(interner_.Intern(BlockKey::From({}, digest), 0, {}).block);
    }
    std::vector<core::Command> commands;
    for (std::uint32_t turn = 0; turn < 50; ++turn) {
      core::EventBatch batch;
      batch.blocks = blocks;
      if (turn == 0) {
        batch.events.push_back(core::EngineUp{.engine = EngineId{0}, .block_tokens = 16, .block_bytes = 4096});
        batch.events.push_back(core::ArenaGranted{EngineId{0}, 16});
      }
      batch.events.push_back(core::StoreOffered{
          .store = turn + 1, .engine = EngineId{0}, .block = blocks[turn % 8], .parent = BlockId{}, .bytes = 4096});
      for (const core::Command& command : commands) {
        if (const auto* accept = std::get_if<core::AcceptStore>(&command)) {
          batch.events.push_back(core::TransferDone{.transfer = accept->transfer, .bytes = 4096, .service_ns = 1000});
        }
      }
      batch.events.push_back(core::RequestQueued{.engine = EngineId{0},
                                                 .request = RequestId{turn},
                                                 .session = SessionId{0},
                                                 .blocks = {0, static_cast<std::uint32_t>(blocks.size())}});
      commands.clear();
      core.Step(turn * kMillisecond, batch, commands);
      (*recorder)->Step(turn * kMillisecond, batch, commands);
    }
    return (*recorder)->Close();
  }

  std::filesystem::path directory_;
  std::filesystem::path salt_;
  BlockInterner interner_;
};

TEST_F(RecorderTest, ARecordingReplaysToTheSameDecisions) {
  const std::string file = directory_ / "run.fltrace";
  ASSERT_TRUE(Record(file).ok());
  const auto check = CheckRecording(file);
  ASSERT_TRUE(check.ok()) << check.status().message();
  EXPECT_EQ(check->steps, 50u);
  EXPECT_EQ(check->differing_steps, 0u) << "first at step " << check->first_difference;
  EXPECT_TRUE(check->complete);
}

TEST_F(RecorderTest, RefusesASaltThatOthersCanReadOrThatIsShort) {
  chmod(salt_.c_str(), 0644);
  EXPECT_EQ(Record(directory_ / "a").code(), StatusCode::kInvalidArgument);
  chmod(salt_.c_str(), 0600);
  std::ofstream(salt_) << "short";
  EXPECT_EQ(Record(directory_ / "b").code(), StatusCode::kInvalidArgument);
}

TEST_F(RecorderTest, NeverOverwritesARecording) {
  const std::string file = directory_ / "run.fltrace";
  ASSERT_TRUE(Record(file).ok());
  EXPECT_FALSE(Record(file).ok());
}

}  // namespace
}  // namespace foreload::service
