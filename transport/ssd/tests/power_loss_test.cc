// Power loss at every point of a run. Everything that reached the disk is logged; for each prefix of the log a disk
// image is made that keeps what was synced by then and any part of the rest, torn within blocks too. A store opened on
// it must hold every record that had been called durable, byte-exact, no record that was dropped for good, and no wrong
// byte.
#include <gtest/gtest.h>

#include <errno.h>

#include <algorithm>
#include <cstring>

#include "transport/ssd/directory.h"
#include "transport/ssd/tests/test_support.h"

namespace foreload::ssd::testing {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kOperationsApart = 5;  // of two crashes: here they take long
#else
constexpr std::size_t kOperationsApart = 1;
#endif

enum class Loss { kAllUnsynced, kNothing, kRandomWrites, kTornSectors };
constexpr std::size_t kSectorBytes = 512;

struct Promise {
  std::set<std::uint64_t> durable;    // must be there
  std::set<std::uint64_t> forgotten;  // must not
};

ExtentSizes SizesOf(std::uint64_t id) {
  if (id % 3 == 0) return {9000, 20000};
  if (id % 3 == 1) return {60000};
  return ExtentSizes(50, 4096);  // a header of two blocks
}

Promise PromiseAt(std::span<const DiskOp> ops) {
  Promise promise;
  for (const DiskOp& op : ops) {
    if (op.kind == DiskOp::Kind::kDurable) promise.durable.insert(op.id), promise.forgotten.erase(op.id);
    if (op.kind == DiskOp::Kind::kGone) promise.durable.erase(op.id);
    if (op.kind == DiskOp::Kind::kForgotten) promise.forgotten.insert(op.id), promise.durable.erase(op.id);
  }
  return promise;
}

// Whether the operation at `at` was made durable by a later one in `ops`.
bool IsDurable(std::span<const DiskOp> ops, std::size_t at) {
  const bool in_directory = ops[at].kind == DiskOp::Kind::kCreate || ops[at].kind == DiskOp::Kind::kRemove;
  std::set<std::uint64_t> begun;
  for (std::size_t i = at + 1; i < ops.size(); ++i) {
    if (in_directory && ops[i].kind == DiskOp::Kind::kDirSync) return true;
    if (in_directory || ops[i].path != ops[at].path) continue;
    if (ops[i].kind == DiskOp::Kind::kSyncBegin) begun.insert(ops[i].id);
    if (ops[i].kind == DiskOp::Kind::kSyncEnd && begun.count(ops[i].id) == 1) return true;
  }
  return false;
}

using Image = std::map<std::string, std::vector<std::byte>>;

void ApplyWrite(std::vector<std::byte>& file, const DiskOp& op, bool durable, Loss loss, Rng& rng) {
  const auto put = [&](std::size_t from, std::size_t bytes) {
    if (op.offset + from + bytes > file.size()) return;  // a truncation that was not to be
    std::copy_n(op.bytes.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                file.begin() + static_cast<std::ptrdiff_t>(op.offset + from));
  };
  if (durable || loss == Loss::kNothing) return put(0, op.bytes.size());
  if (loss == Loss::kAllUnsynced) return;
  if (loss == Loss::kRandomWrites) {
    if (rng.Below(2) == 0) put(0, op.bytes.size());
    return;
  }
  for (std::size_t at = 0; at < op.bytes.size(); at += kSectorBytes) {
    if (rng.Below(2) == 0) put(at, std::min(kSectorBytes, op.bytes.size() - at));
  }
}

Image ImageAt(std::span<const DiskOp> ops, Loss loss, Rng& rng) {
  Image image;
  const auto happened = [&](std::size_t at) {
    if (IsDurable(ops, at) || loss == Loss::kNothing) return true;
    return loss != Loss::kAllUnsynced && rng.Below(2) == 0;
  };
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const DiskOp& op = ops[i];
    if (op.kind == DiskOp::Kind::kCreate && happened(i)) image[op.path].assign(op.offset, std::byte{0});
    const auto file = image.find(op.path);
    if (file == image.end()) continue;
    if (op.kind == DiskOp::Kind::kRemove && happened(i))
      image.erase(file);
    else if (op.kind == DiskOp::Kind::kTruncate && happened(i))
      file->second.resize(op.offset);
    else if (op.kind == DiskOp::Kind::kWrite)
      ApplyWrite(file->second, op, IsDurable(ops, i), loss, rng);
  }
  return image;
}

// A run with writes, drops, failures, reclaim and a restart; small segments, so that all of it happens soon.
std::vector<DiskOp> RecordRun(std::uint64_t seed) {
  TempDir dir;
  DiskLog log;
  StoreBench bench(dir.path(), &log);
  bench.options.capacity_bytes = 4 << 20;
  EXPECT_TRUE(bench.Open().ok());
  Rng rng(seed);
  std::uint64_t next = 0;
  for (int step = 0; step < 90; ++step) {
    if (step == 60) {
      EXPECT_TRUE(bench.Open().ok());
    }
    const std::uint64_t dice = rng.Below(20);
    if (dice == 0 && next > 0) {
      const std::uint64_t id = next - 1 - rng.Below(std::min<std::uint64_t>(next, 10));
      log.Add({DiskOp::Kind::kGone, "", 0, {}, id});
      (void)bench.store->Drop(KeyOf(id));
      EXPECT_TRUE(bench.store->Flush().ok());
      log.Add({DiskOp::Kind::kForgotten, "", 0, {}, id});
    } else if (dice == 1) {
      bench.backend.fail_errno = EIO;
      EXPECT_FALSE(bench.Write(next, SizesOf(next)).ok());
      bench.backend.fail_errno = 0;
      ++next;
    } else if (dice < 5) {
      EXPECT_TRUE(bench.store->Flush().ok());
    } else {
      EXPECT_TRUE(bench.Write(next, SizesOf(next)).ok());
      ++next;
    }
  }
  EXPECT_FALSE(bench.Dropped().empty()) << "the run never reclaimed";
  bench.Close();
  return log.Take();
}

void CheckImage(const Image& image, const Promise& promise, const std::string& recorded_at) {
  TempDir dir;
  for (const auto& [path, bytes] : image) WriteFile(dir.path() + path.substr(path.rfind('/')), bytes);
  DiskLog unused;  // no real syncs
  StoreBench bench(dir.path(), &unused);
  bench.options.capacity_bytes = 64 << 20;  // nothing is reclaimed for lack of room
  ASSERT_TRUE(bench.Open().ok()) << recorded_at;
  const auto stored = bench.Stored();
  for (const std::uint64_t id : promise.durable) {
    ASSERT_EQ(stored.count(id), 1u) << recorded_at << ": record " << id << " was durable and is lost";
    ASSERT_EQ(bench.Read(id, SizesOf(id)).ToString(), OkStatus().ToString()) << recorded_at << ": record " << id;
  }
  for (const std::uint64_t id : stored) {
    ASSERT_EQ(promise.forgotten.count(id), 0u) << recorded_at << ": record " << id << " came back from the dead";
    const Status status = bench.Read(id, SizesOf(id));
    ASSERT_TRUE(status.ok()) << recorded_at << ": record " << id << ": " << status.ToString();
  }
}

TEST(SsdPowerLossTest, NothingDurableIsLostAtAnyPointOfARun) {
  const std::uint64_t seed = 20240611;
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::vector<DiskOp> ops = RecordRun(seed);
  ASSERT_GT(ops.size(), 200u);
  Rng rng(seed + 1);
  std::size_t durable_most = 0;
  for (std::size_t at = 0; at <= ops.size(); at += kOperationsApart) {
    const std::span<const DiskOp> prefix(ops.data(), at);
    const auto loss = static_cast<Loss>(at % 4);
    const Promise promise = PromiseAt(prefix);
    durable_most = std::max(durable_most, promise.durable.size());
    ASSERT_NO_FATAL_FAILURE(CheckImage(ImageAt(prefix, loss, rng), promise,
                                       "operation " + std::to_string(at) + ", loss " + std::to_string(at % 4)));
  }
  EXPECT_GT(durable_most, 20u);
}

// The harness can fail: a store that called records durable without a sync would be caught.
TEST(SsdPowerLossTest, TheHarnessSeesAMissingSync) {
  std::vector<DiskOp> ops = RecordRun(3);
  std::erase_if(
      ops, [](const DiskOp& op) { return op.kind == DiskOp::Kind::kSyncBegin || op.kind == DiskOp::Kind::kSyncEnd; });
  Rng rng(1);
  const Image image = ImageAt(ops, Loss::kAllUnsynced, rng);
  TempDir dir;
  for (const auto& [path, bytes] : image) WriteFile(dir.path() + path.substr(path.rfind('/')), bytes);
  StoreBench bench(dir.path());
  ASSERT_TRUE(bench.Open().ok());
  EXPECT_FALSE(PromiseAt(ops).durable.empty());
  EXPECT_TRUE(bench.Stored().empty());
}

}  // namespace
}  // namespace foreload::ssd::testing
