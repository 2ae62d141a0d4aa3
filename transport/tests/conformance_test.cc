// The backend contract (transport/backend.h), run over every backend and every pair of ends that it can serve.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "transport/fault/fault_backend.h"
#include "transport/host/host_backend.h"
#include "transport/sim/sim_backend.h"
#include "transport/tests/transport_testing.h"
#include "transport/uring/thread_pool_backend.h"
#include "transport/uring/uring_backend.h"

namespace foreload::testing {
namespace {

constexpr std::uint64_t kEndBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kBlock = 4096;

enum class End : std::uint8_t { kMemory, kFile, kDirectFile };
enum class Kind : std::uint8_t {
  kHost,
  kUring,
  kUringPlain,
  kThreadPool,
  kSim,
  kFaultHost,
  kFaultUring,
  kFaultThreadPool
};

struct Param {
  Kind kind;
  End source;
  End destination;
};

std::string KindName(Kind kind) {
  switch (kind) {
    case Kind::kHost: return "Host";
    case Kind::kUring: return "Uring";
    case Kind::kUringPlain: return "UringUnregistered";
    case Kind::kThreadPool: return "ThreadPool";
    case Kind::kSim: return "Sim";
    case Kind::kFaultHost: return "FaultHost";
    case Kind::kFaultUring: return "FaultUring";
    case Kind::kFaultThreadPool: return "FaultThreadPool";
  }
  return "Unknown";
}

std::string EndName(End end) {
  return end == End::kMemory ? "Memory" : end == End::kFile ? "File" : "DirectFile";
}

std::string ParamName(const Param& param) {
  return KindName(param.kind) + EndName(param.source) + "To" + EndName(param.destination);
}
void PrintTo(const Param& param, std::ostream* out) {
  *out << ParamName(param);
}

// Memory or a file, filled and read back from outside the backend.
class TransferSide {
 public:
  explicit TransferSide(End end) : memory_(kEndBytes) {
    if (end != End::kMemory) {
      file_ = std::make_unique<TempFile>(end == End::kDirectFile);
      file_->Resize(kEndBytes);
    }
  }
  bool usable() const { return file_ == nullptr || file_->fd() >= 0; }
  Region region() const { return file_ != nullptr ? file_->region(kEndBytes) : memory_.region(); }
  TempFile* file() { return file_.get(); }

  void Write(std::uint64_t offset, const std::vector<std::uint8_t>& bytes) {
    if (file_ == nullptr) {
      std::memcpy(memory_.data() + offset, bytes.data(), bytes.size());
    } else {
      ASSERT_EQ(::pwrite(file_->buffered_fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset)),
                static_cast<ssize_t>(bytes.size()));
    }
  }
  std::vector<std::uint8_t> Read(std::uint64_t offset, std::size_t bytes) {
    std::vector<std::uint8_t> out(bytes);
    if (file_ == nullptr) {
      std::memcpy(out.data(), memory_.data() + offset, bytes);
    } else {
      EXPECT_EQ(::pread(file_->buffered_fd(), out.data(), bytes, static_cast<off_t>(offset)),
                static_cast<ssize_t>(bytes));
    }
    return out;
  }

 private:
  Memory memory_;
  std::unique_ptr<TempFile> file_;
};

const std::vector<std::uint8_t>& Content() {
  static const std::vector<std::uint8_t> content = Pattern(7, kEndBytes);
  return content;
}

class ConformanceTest : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    source_ = std::make_unique<TransferSide>(GetParam().source);
    destination_ = std::make_unique<TransferSide>(GetParam().destination);
    if (!source_->usable() || !destination_->usable())
      GTEST_SKIP() << "no O_DIRECT in " << TestDirectory() << " (set TEST_TMPDIR)";
    Start(8);
  }

  void TearDown() override {
    if (backend_ != nullptr) Drain();
  }

  void Start(std::uint32_t depth) {
    auto made = Make(depth);
    if (!made.ok() && made.status().code() != StatusCode::kInvalidArgument) GTEST_SKIP() << made.status().ToString();
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    backend_ = std::move(made).value();
    source_->Write(0, content_);
    source_id_ = Register(source_->region());
    destination_id_ = Register(destination_->region());
  }

  Result<std::unique_ptr<Backend>> Make(std::uint32_t depth) {
    const auto fault = [](Result<std::unique_ptr<Backend>> inner) -> Result<std::unique_ptr<Backend>> {
      if (!inner.ok()) return inner.status();
      // Delays and reordering stay inside the contract, so the suite must pass under them.
      return std::unique_ptr<Backend>(new FaultBackend(
          std::move(inner).value(), {.seed = 3, .delay_probability = 0.5, .delay_polls_max = 4, .reorder = true}));
    };
    const auto widen = [](auto made) -> Result<std::unique_ptr<Backend>> {
      if (!made.ok()) return made.status();
      return std::unique_ptr<Backend>(std::move(made).value());
    };
    const auto host = [&]() -> Result<std::unique_ptr<Backend>> {
      return std::unique_ptr<Backend>(new HostBackend({.queue_depth = depth, .slice_bytes = 100'000}));
    };
    switch (GetParam().kind) {
      case Kind::kHost: return host();
      case Kind::kUring: return widen(UringBackend::Create({.queue_depth = depth}));
      case Kind::kUringPlain:
        return widen(
            UringBackend::Create({.queue_depth = depth, .registered_buffers = false, .registered_files = false}));
      case Kind::kThreadPool: return widen(ThreadPoolBackend::Create({.threads = 3, .queue_depth = depth}));
      case Kind::kSim: return std::unique_ptr<Backend>(new SimBackend(clock_, {.queue_depth = depth}));
      case Kind::kFaultHost: return fault(host());
      case Kind::kFaultUring: return fault(widen(UringBackend::Create({.queue_depth = depth})));
      case Kind::kFaultThreadPool: return fault(widen(ThreadPoolBackend::Create({.threads = 3, .queue_depth = depth})));
    }
    return InvalidArgument("unknown kind");
  }

  RegionId Register(const Region& region) {
    auto id = backend_->Register(region);
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    return id.ok() ? id.value() : RegionId{};
  }

  Transfer Copy(std::uint64_t token, std::uint64_t from, std::uint64_t to, std::uint64_t bytes) const {
    return {.token = token,
            .source = source_id_,
            .source_offset = from,
            .destination = destination_id_,
            .destination_offset = to,
            .bytes = bytes};
  }

  bool Submit(const Transfer& transfer) {
    if (backend_->Submit({&transfer, 1}) != 1) return false;
    ++outstanding_;
    return true;
  }

  // Polls once, as the capabilities say, and files what came.
  void PollOnce() {
    clock_.Advance(kMillisecond);
    const int fd = backend_->capabilities().poll_fd;
    if (fd >= 0 && outstanding_ > 0) {
      ASSERT_TRUE(WaitReadable(fd)) << "outstanding work, but poll_fd stays silent";
    }
    std::array<Completion, 5> batch;
    const std::size_t count = backend_->Poll(batch);
    ASSERT_LE(count, batch.size());
    ASSERT_LE(count, outstanding_) << "more completions than transfers";
    outstanding_ -= count;
    for (std::size_t i = 0; i < count; ++i) {
      const bool is_new = completed_.emplace(batch[i].token, batch[i]).second;
      EXPECT_TRUE(is_new) << "token " << batch[i].token << " completed twice";
    }
  }

  void Drain() {
    ASSERT_TRUE(Eventually([this] {
      if (outstanding_ > 0) PollOnce();
      return outstanding_ == 0 || HasFatalFailure();
    })) << outstanding_
        << " transfers never ended";
  }

  Completion Run(const Transfer& transfer) {
    EXPECT_TRUE(Submit(transfer));
    Drain();
    const auto found = completed_.find(transfer.token);
    EXPECT_TRUE(found != completed_.end());
    return found == completed_.end() ? Completion{} : found->second;
  }

  void ExpectCopied(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
    const std::vector<std::uint8_t> got = destination_->Read(to, bytes);
    EXPECT_EQ(std::memcmp(got.data(), content_.data() + from, bytes), 0) << "bytes differ";
  }

  bool direct() const { return GetParam().source == End::kDirectFile || GetParam().destination == End::kDirectFile; }
  bool files() const { return GetParam().source != End::kMemory || GetParam().destination != End::kMemory; }

  AtomicClock clock_;
  std::unique_ptr<TransferSide> source_;
  std::unique_ptr<TransferSide> destination_;
  std::unique_ptr<Backend> backend_;
  const std::vector<std::uint8_t>& content_ = Content();
  RegionId source_id_;
  RegionId destination_id_;
  std::size_t outstanding_ = 0;
  std::map<std::uint64_t, Completion> completed_;
};

// The parts of the contract that concern some of the pairs alone.
class MemoryConformanceTest : public ConformanceTest {};
class FileConformanceTest : public ConformanceTest {};
class FileSourceConformanceTest : public ConformanceTest {};
class FileDestinationConformanceTest : public ConformanceTest {};
class DirectConformanceTest : public ConformanceTest {};
class PollFdConformanceTest : public ConformanceTest {};

TEST_P(ConformanceTest, ProbeIsOkAndCapabilitiesNameTheBackend) {
  EXPECT_TRUE(backend_->Probe().ok());
  const Capabilities capabilities = backend_->capabilities();
  EXPECT_FALSE(capabilities.name.empty());
  EXPECT_EQ(capabilities.queue_depth, 8u);
  EXPECT_GE(capabilities.transfer_bytes_max, kEndBytes);
  EXPECT_TRUE(files() ? capabilities.file_to_memory && capabilities.memory_to_file : capabilities.memory_to_memory);
}

TEST_P(ConformanceTest, BytesArriveExactlyAndNeighboursStayUntouched) {
  const std::vector<std::uint8_t> before = destination_->Read(0, kEndBytes);
  const Completion done = Run(Copy(42, 2 * kBlock, 5 * kBlock, 300 * kBlock));
  EXPECT_EQ(done.error, TransferError::kNone);
  EXPECT_EQ(done.bytes, 300 * kBlock);
  ExpectCopied(2 * kBlock, 5 * kBlock, 300 * kBlock);
  EXPECT_EQ(destination_->Read(0, 5 * kBlock), std::vector<std::uint8_t>(before.begin(), before.begin() + 5 * kBlock));
  EXPECT_EQ(destination_->Read(305 * kBlock, kBlock),
            std::vector<std::uint8_t>(before.begin() + 305 * kBlock, before.begin() + 306 * kBlock));
}

TEST_P(ConformanceTest, TheWholeRegionCanBeMovedAtOnce) {
  const Completion done = Run(Copy(1, 0, 0, kEndBytes));
  EXPECT_EQ(done.error, TransferError::kNone);
  EXPECT_EQ(done.bytes, kEndBytes);
  ExpectCopied(0, 0, kEndBytes);
}

TEST_P(ConformanceTest, OddOffsetsAndLengthsAreExactOrRefusedForDirectFiles) {
  const Completion done = Run(Copy(1, 3, 4097, 70'001));
  if (direct()) {
    EXPECT_EQ(done.error, TransferError::kBadRegion);
    EXPECT_EQ(done.bytes, 0u);
  } else {
    EXPECT_EQ(done.error, TransferError::kNone);
    EXPECT_EQ(done.bytes, 70'001u);
    ExpectCopied(3, 4097, 70'001);
  }
}

TEST_P(DirectConformanceTest, DirectFilesRefuseEachMisalignmentAlone) {
  EXPECT_EQ(Run(Copy(1, 512, 0, kBlock)).error, TransferError::kBadRegion);
  EXPECT_EQ(Run(Copy(2, 0, 512, kBlock)).error, TransferError::kBadRegion);
  EXPECT_EQ(Run(Copy(3, 0, 0, 512)).error, TransferError::kBadRegion);
  EXPECT_EQ(Run(Copy(4, 0, 0, kBlock)).error, TransferError::kNone);
}

TEST_P(ConformanceTest, EveryTransferOutsideItsRegionIsRefusedAndMovesNothing) {
  const std::vector<std::uint8_t> before = destination_->Read(0, kEndBytes);
  const std::uint64_t huge = UINT64_MAX - kBlock + 1;  // aligned, so that only the bounds can refuse it
  std::vector<Transfer> bad = {
      Copy(1, 0, 0, 0),               // empty
      Copy(2, kEndBytes, 0, kBlock),  // source begins at its end
      Copy(3, 0, kEndBytes, kBlock),
      Copy(4, kEndBytes - kBlock, 0, 2 * kBlock),  // runs over the end
      Copy(5, 0, kEndBytes - kBlock, 2 * kBlock),
      Copy(6, 0, 0, kEndBytes + kBlock),
      Copy(7, huge, 0, kBlock),  // offset + bytes wraps to 0
      Copy(8, 0, huge, kBlock),
      Copy(9, huge, huge, 2 * kBlock),
      Copy(10, kBlock, kBlock, huge),  // the sum wraps
      Copy(11, 0, 0, UINT64_MAX),
  };
  bad.push_back(Copy(12, 0, 0, kBlock));
  bad.back().source = RegionId{};
  bad.push_back(Copy(13, 0, 0, kBlock));
  bad.back().destination = RegionId{12345};
  for (const Transfer& transfer : bad) {
    const Completion done = Run(transfer);
    EXPECT_EQ(done.error, TransferError::kBadRegion) << "token " << transfer.token;
    EXPECT_EQ(done.bytes, 0u);
  }
  EXPECT_EQ(destination_->Read(0, kEndBytes), before);
  EXPECT_EQ(Run(Copy(99, 0, 0, kBlock)).error, TransferError::kNone) << "an ordinary one after the bad ones";
}

TEST_P(ConformanceTest, BadRegionsAreRefusedAtRegistration) {
  Region empty = source_->region();
  empty.bytes = 0;
  EXPECT_FALSE(backend_->Register(empty).ok());
  Region wrapping;
  wrapping.base = reinterpret_cast<void*>(UINTPTR_MAX - 4095);
  wrapping.bytes = 2 * kBlock;
  EXPECT_FALSE(backend_->Register(wrapping).ok());
  Region closed;
  closed.kind = Region::Kind::kFile;
  closed.bytes = kBlock;
  EXPECT_FALSE(backend_->Register(closed).ok());
}

TEST_P(ConformanceTest, AFullQueueSaysHowManyItTook) {
  std::vector<Transfer> many;
  for (std::uint64_t i = 0; i < 20; ++i) many.push_back(Copy(i, i * kBlock, i * kBlock, kBlock));
  const std::size_t accepted = backend_->Submit(many);
  EXPECT_EQ(accepted, 8u);
  outstanding_ = accepted;
  EXPECT_EQ(backend_->Submit(std::span(many).subspan(accepted)), 0u);
  Drain();
  EXPECT_EQ(completed_.size(), accepted);
  for (std::uint64_t i = 0; i < accepted; ++i) {
    EXPECT_TRUE(completed_.contains(i));
    EXPECT_EQ(completed_[i].error, TransferError::kNone);
  }
  EXPECT_EQ(destination_->Read(8 * kBlock, kBlock), std::vector<std::uint8_t>(kBlock, 0)) << "a refused one moved";
  EXPECT_TRUE(Submit(many[8])) << "there is room again";
}

TEST_P(ConformanceTest, BadTransfersTakeTheirTurnInAFullQueue) {
  std::vector<Transfer> many;
  for (std::uint64_t i = 0; i < 20; ++i) many.push_back(Copy(i, i % 2 == 0 ? 0 : kEndBytes, i * kBlock, kBlock));
  outstanding_ = backend_->Submit(many);
  EXPECT_EQ(outstanding_, 8u);
  Drain();
  for (std::uint64_t i = 0; i < 8; ++i)
    EXPECT_EQ(completed_[i].error, i % 2 == 0 ? TransferError::kNone : TransferError::kBadRegion);
}

TEST_P(ConformanceTest, UnregisterWaitsForOutstandingTransfers) {
  ASSERT_TRUE(Submit(Copy(1, 0, 0, kEndBytes)));
  EXPECT_EQ(backend_->Unregister(source_id_).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(backend_->Unregister(destination_id_).code(), StatusCode::kFailedPrecondition);
  Drain();
  EXPECT_TRUE(backend_->Unregister(source_id_).ok());
  EXPECT_EQ(backend_->Unregister(source_id_).code(), StatusCode::kNotFound);
  EXPECT_EQ(Run(Copy(2, 0, 0, kBlock)).error, TransferError::kBadRegion);
  const RegionId again = Register(source_->region());
  EXPECT_NE(again, source_id_) << "a stale id must not name the new region";
  source_id_ = again;
  EXPECT_EQ(Run(Copy(3, 0, 0, kBlock)).error, TransferError::kNone);
}

TEST_P(ConformanceTest, PollWithNothingOutstandingReturnsNothing) {
  std::array<Completion, 4> batch;
  EXPECT_EQ(backend_->Poll(batch), 0u);
  EXPECT_EQ(Run(Copy(1, 0, 0, kBlock)).error, TransferError::kNone);
  EXPECT_EQ(backend_->Poll(batch), 0u);
  const int fd = backend_->capabilities().poll_fd;
  if (fd >= 0) {
    EXPECT_FALSE(ReadableNow(fd)) << "an idle backend would make the mover spin";
  }
}

TEST_P(PollFdConformanceTest, PollFdBecomesReadableAndCloses) {
  const int fd = backend_->capabilities().poll_fd;
  ASSERT_GE(fd, 0);
  EXPECT_FALSE(ReadableNow(fd));
  for (std::uint64_t round = 0; round < 10; ++round) {
    ASSERT_TRUE(Submit(Copy(round, 0, 0, kBlock)));
    EXPECT_TRUE(WaitReadable(fd));
    Drain();
    EXPECT_FALSE(ReadableNow(fd));
  }
  ASSERT_TRUE(Submit(Copy(100, kEndBytes, 0, kBlock)));  // refused ones must wake the poller as well
  EXPECT_TRUE(WaitReadable(fd));
}

TEST_P(ConformanceTest, ManySmallTransfersCompleteOnceEach) {
  Rng rng(11);
  constexpr std::uint64_t kCount = 3000;
  const std::uint64_t slots = kEndBytes / kBlock;
  std::vector<std::uint64_t> origin(slots, UINT64_MAX);
  std::vector<bool> busy(slots, false);
  std::map<std::uint64_t, std::uint64_t> slot_of;
  std::uint64_t next = 0;
  ASSERT_TRUE(Eventually([&] {
    while (next < kCount) {
      const std::uint64_t from = rng.Below(slots);
      const std::uint64_t to = rng.Below(slots);
      if (busy[to] || !Submit(Copy(next, from * kBlock, to * kBlock, kBlock))) break;
      busy[to] = true;
      origin[to] = from;
      slot_of[next++] = to;
    }
    const std::map<std::uint64_t, Completion> seen = std::exchange(completed_, {});
    for (const auto& [token, completion] : seen) {
      EXPECT_EQ(completion.error, TransferError::kNone);
      EXPECT_EQ(slot_of.count(token), 1u) << "completed twice: " << token;
      busy[slot_of[token]] = false;
      slot_of.erase(token);
    }
    if (outstanding_ > 0) PollOnce();
    return (next == kCount && slot_of.empty()) || HasFatalFailure();
  }));
  for (std::uint64_t slot = 0; slot < slots; ++slot) {
    if (origin[slot] != UINT64_MAX) ExpectCopied(origin[slot] * kBlock, slot * kBlock, kBlock);
  }
}

TEST_P(ConformanceTest, ShutdownDrainsWhatWasAccepted) {
  std::vector<Transfer> batch;
  for (std::uint64_t i = 0; i < 8; ++i) batch.push_back(Copy(i, i * 64 * kBlock, i * 64 * kBlock, 64 * kBlock));
  outstanding_ = backend_->Submit(batch);
  ASSERT_EQ(outstanding_, 8u);
  Drain();
  backend_.reset();  // checks by itself that nothing is outstanding
  ExpectCopied(0, 0, 8 * 64 * kBlock);
}

TEST_P(FileSourceConformanceTest, AFileThatEndsInsideATransferIsShort) {
  source_->file()->Resize(10 * kBlock + 100);
  const Completion done = Run(Copy(1, 8 * kBlock, 0, 4 * kBlock));
  EXPECT_EQ(done.error, TransferError::kShort);
  EXPECT_EQ(done.bytes, 2 * kBlock + 100);
  ExpectCopied(8 * kBlock, 0, 2 * kBlock + 100);
  const Completion beyond = Run(Copy(2, 20 * kBlock, 0, kBlock));
  EXPECT_EQ(beyond.error, TransferError::kShort);
  EXPECT_EQ(beyond.bytes, 0u);
}

TEST_P(FileDestinationConformanceTest, AFileGrowsUnderWrites) {
  destination_->file()->Resize(0);
  EXPECT_EQ(Run(Copy(1, 0, 16 * kBlock, 4 * kBlock)).error, TransferError::kNone);
  ExpectCopied(0, 16 * kBlock, 4 * kBlock);
}

TEST_P(MemoryConformanceTest, OneRegionMayBeBothEndsWhereTheRangesDoNotOverlap) {
  Transfer inside = Copy(1, 0, 64 * kBlock, 64 * kBlock);
  inside.source = destination_id_;
  destination_->Write(0, Pattern(9, 64 * kBlock));
  EXPECT_EQ(Run(inside).error, TransferError::kNone);
  EXPECT_EQ(destination_->Read(64 * kBlock, 64 * kBlock), Pattern(9, 64 * kBlock));
  inside.token = 2;
  inside.destination_offset = 64 * kBlock - 1;
  EXPECT_EQ(Run(inside).error, TransferError::kBadRegion);
}

TEST_P(FileConformanceTest, APairOfEndsThatIsNotOfferedIsRefused) {
  Memory memory(kBlock * 4);
  const RegionId other = Register(GetParam().source == End::kMemory ? destination_->region() : source_->region());
  Transfer file_to_file = Copy(1, 0, kBlock, kBlock);
  (GetParam().source == End::kMemory ? file_to_file.source : file_to_file.destination) = other;
  EXPECT_EQ(Run(file_to_file).error, TransferError::kBadRegion);
}

std::vector<Param> Params(bool (*wanted)(const Param&)) {
  std::vector<Param> params;
  for (const Kind kind : {Kind::kHost, Kind::kSim, Kind::kFaultHost})
    params.push_back({kind, End::kMemory, End::kMemory});
  for (const Kind kind :
       {Kind::kUring, Kind::kUringPlain, Kind::kThreadPool, Kind::kSim, Kind::kFaultUring, Kind::kFaultThreadPool}) {
    for (const End file : {End::kFile, End::kDirectFile}) {
      params.push_back({kind, file, End::kMemory});
      params.push_back({kind, End::kMemory, file});
    }
  }
  std::erase_if(params, [wanted](const Param& param) { return !wanted(param); });
  return params;
}

bool All(const Param&) {
  return true;
}
bool FromFile(const Param& param) {
  return param.source != End::kMemory;
}
bool ToFile(const Param& param) {
  return param.destination != End::kMemory;
}
bool WithFile(const Param& param) {
  return FromFile(param) || ToFile(param);
}
bool MemoryOnly(const Param& param) {
  return !WithFile(param);
}
bool Direct(const Param& param) {
  return param.source == End::kDirectFile || param.destination == End::kDirectFile;
}
bool HasPollFd(const Param& param) {
  return WithFile(param) && param.kind != Kind::kSim;
}

std::string NameOf(const ::testing::TestParamInfo<Param>& param_info) {
  return ParamName(param_info.param);
}

INSTANTIATE_TEST_SUITE_P(Backends, ConformanceTest, ::testing::ValuesIn(Params(All)), NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, MemoryConformanceTest, ::testing::ValuesIn(Params(MemoryOnly)), NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, FileConformanceTest, ::testing::ValuesIn(Params(WithFile)), NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, FileSourceConformanceTest, ::testing::ValuesIn(Params(FromFile)), NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, FileDestinationConformanceTest, ::testing::ValuesIn(Params(ToFile)), NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, DirectConformanceTest, ::testing::ValuesIn(Params(Direct)), NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, PollFdConformanceTest, ::testing::ValuesIn(Params(HasPollFd)), NameOf);

}  // namespace
}  // namespace foreload::testing
