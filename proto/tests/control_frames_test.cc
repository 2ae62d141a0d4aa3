#include "proto/control_frames.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/rng.h"
#include "proto/control.pb.h"

namespace foreload::control {
namespace {

using Outcome = FrameReader::Outcome;

std::size_t OpenDescriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

std::string HeaderOf(std::uint32_t bytes) {
  std::string header(4, '\0');
  for (int i = 0; i < 4; ++i) header[i] = static_cast<char>(bytes >> (8 * i));
  return header;
}

class ControlFrames : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    near_.reset(pair[0]);
    far_.reset(pair[1]);
  }
  std::vector<UniqueFd> Files(std::size_t count) {
    std::vector<UniqueFd> files;
    for (std::size_t i = 0; i < count; ++i) files.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return files;
  }
  void SendRaw(const std::string& bytes, const std::vector<UniqueFd>& descriptors = {}) {
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char ancillary[CMSG_SPACE(64 * sizeof(int))] = {};
    if (!descriptors.empty()) {
      message.msg_control = ancillary;
      message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      for (std::size_t i = 0; i < descriptors.size(); ++i) {
        const int fd = descriptors[i].get();
        std::memcpy(CMSG_DATA(header) + i * sizeof fd, &fd, sizeof fd);
      }
    }
    ASSERT_EQ(::sendmsg(near_.get(), &message, 0), static_cast<ssize_t>(bytes.size()));
  }
  StatusCode ReadCode() {
    Frame frame;
    return reader_.Read(far_.get(), frame).status().code();
  }

  UniqueFd near_;
  UniqueFd far_;
  FrameReader reader_;
  FrameWriter writer_;
};

TEST_F(ControlFrames, ArriveInOrderWithTheirOwnDescriptors) {
  ASSERT_TRUE(writer_.Queue("first", Files(2)).ok());
  ASSERT_TRUE(writer_.Queue("second").ok());
  ASSERT_TRUE(writer_.Queue("third", Files(4)).ok());
  ASSERT_TRUE(writer_.Flush(near_.get()).value());
  EXPECT_TRUE(writer_.empty());
  const std::pair<std::string, std::size_t> expected[] = {{"first", 2}, {"second", 0}, {"third", 4}};
  for (const auto& [body, descriptors] : expected) {
    Frame frame;
    ASSERT_EQ(reader_.Read(far_.get(), frame).value(), Outcome::kFrame);
    EXPECT_EQ(frame.body, body);
    ASSERT_EQ(frame.descriptors.size(), descriptors);
    for (const UniqueFd& fd : frame.descriptors) EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  }
  Frame frame;
  EXPECT_EQ(reader_.Read(far_.get(), frame).value(), Outcome::kWouldBlock);
  near_.reset();
  EXPECT_EQ(reader_.Read(far_.get(), frame).value(), Outcome::kEnd);
}

TEST_F(ControlFrames, LargeFramesSurviveSocketsThatTakeAndGiveLittle) {
  const int small = 4096;
  ASSERT_EQ(::setsockopt(near_.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  Rng rng(5);
  std::string large(1u << 20, '\0');
  for (char& c : large) c = static_cast<char>(rng.Next());
  ASSERT_TRUE(writer_.Queue(large, Files(1)).ok());
  ASSERT_TRUE(writer_.Queue("after").ok());
  Frame frame;
  Outcome outcome = Outcome::kWouldBlock;
  int stalls = 0;
  while (outcome != Outcome::kFrame) {
    stalls += writer_.Flush(near_.get()).value() ? 0 : 1;
    outcome = reader_.Read(far_.get(), frame).value();
  }
  EXPECT_GT(stalls, 1);
  EXPECT_EQ(frame.body, large);
  EXPECT_EQ(frame.descriptors.size(), 1u);
  while (!writer_.Flush(near_.get()).value()) {
  }
  ASSERT_EQ(reader_.Read(far_.get(), frame).value(), Outcome::kFrame);
  EXPECT_EQ(frame.body, "after");
  EXPECT_TRUE(frame.descriptors.empty());
}

TEST_F(ControlFrames, BytewiseArrivalIsNoDifference) {
  const std::string bytes = HeaderOf(3) + "abc";
  Frame frame;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(reader_.Read(far_.get(), frame).value(), Outcome::kWouldBlock);
    SendRaw(bytes.substr(i, 1));
  }
  EXPECT_EQ(reader_.Read(far_.get(), frame).value(), Outcome::kFrame);
  EXPECT_EQ(frame.body, "abc");
}

TEST_F(ControlFrames, HostileLengthsAreRefused) {
  for (const std::uint32_t length : {0u, static_cast<std::uint32_t>(kControlFrameBytesMax) + 1, UINT32_MAX}) {
    reader_ = FrameReader();
    SendRaw(HeaderOf(length));
    EXPECT_EQ(ReadCode(), StatusCode::kDataLoss) << length;
  }
}

TEST_F(ControlFrames, AnEndInsideAFrameIsNotAnEnd) {
  SendRaw(HeaderOf(10) + "abc");
  near_.reset();
  EXPECT_EQ(ReadCode(), StatusCode::kDataLoss);
}

TEST_F(ControlFrames, StrayAndTooManyDescriptorsAreClosed) {
  const auto files = Files(3);
  const auto many = Files(kDescriptorsPerFrameMax + 1);
  const auto crowd = Files(32);
  const std::size_t before = OpenDescriptors();
  SendRaw(HeaderOf(3) + "a");
  Frame frame;
  ASSERT_EQ(reader_.Read(far_.get(), frame).value(), Outcome::kWouldBlock);
  SendRaw("b", files);  // inside the frame
  EXPECT_EQ(ReadCode(), StatusCode::kDataLoss);
  for (const auto* descriptors : {&many, &crowd}) {
    SetUp();
    reader_ = FrameReader();
    SendRaw(HeaderOf(1) + "x", *descriptors);
    EXPECT_EQ(ReadCode(), StatusCode::kDataLoss);
  }
  SetUp();
  reader_ = FrameReader(1);  // a side that accepts one
  SendRaw(HeaderOf(1) + "x", files);
  EXPECT_EQ(ReadCode(), StatusCode::kDataLoss);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(ControlFrames, APeerThatDoesNotReadIsNoticed) {
  const std::string body(1u << 20, 'x');
  Status status;
  int queued = 0;
  while (status.ok() && queued < 100) {
    status = writer_.Queue(body);
    queued += status.ok() ? 1 : 0;
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(queued, 7) << "eight with their headers are over 8 MiB";
  EXPECT_EQ(writer_.Queue("").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer_.Queue(std::string(kControlFrameBytesMax + 1, 'x')).code(), StatusCode::kInvalidArgument);
}

TEST_F(ControlFrames, APeerThatIsGoneRaisesNoSignal) {
  far_.reset();
  ASSERT_TRUE(writer_.Queue("hello").ok());
  EXPECT_EQ(writer_.Flush(near_.get()).status().code(), StatusCode::kUnavailable);
}

TEST(ControlMessages, OnlyWholeKnownMessagesDecode) {
  ControlMessage message;
  message.set_request(9);
  message.mutable_flush();
  const auto body = EncodeMessage(message);
  ASSERT_TRUE(body.ok());
  ControlMessage decoded;
  ASSERT_TRUE(DecodeMessage(body.value(), decoded).ok());
  EXPECT_EQ(decoded.request(), 9u);
  EXPECT_EQ(DecodeMessage("\xff\xff", decoded).code(), StatusCode::kInvalidArgument);
  message.clear_flush();
  EXPECT_EQ(DecodeMessage(EncodeMessage(message).value(), decoded).code(), StatusCode::kInvalidArgument) << "no body";
  message.mutable_status_reply()->set_json(std::string(kControlFrameBytesMax, 'x'));
  EXPECT_EQ(EncodeMessage(message).status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace foreload::control
