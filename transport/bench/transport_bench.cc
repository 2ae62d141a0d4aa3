// How close the mover comes to the machine, as ratios within one run:
//   dram_arena_ratio_<size>   blocks of a DRAM store into an arena, Mover + host backend, over memcpy of the same
//   blocks
//                             in the same order by one thread (the mover's thread copies, another submits)
//   dram_arena_cpu_ratio_...  the same by processor time of the copying thread: what of it goes into copying
//   ssd_arena_ratio           blocks of a file into an arena, Mover + io_uring, over fio's io_uring engine with the
//   same
//                             file, block size and depth, both with O_DIRECT and registered buffers
// Contenders take turns; the value is the median of the paired ratios, `spread` their 25th and 75th percentile.
// One JSON object a line: {"id", "value", "unit", "spread": [low, high]}, or {"id", "skipped": reason}.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "transport/dram/dram_store.h"
#include "transport/host/host_backend.h"
#include "transport/mover.h"
#include "transport/uring/uring_backend.h"

namespace foreload {
namespace {

struct BenchOptions {
  std::uint64_t working_set_bytes = std::uint64_t{512} << 20;  // source and destination together
  std::uint64_t file_bytes = std::uint64_t{1} << 30;
  std::uint64_t file_block_bytes = std::uint64_t{256} << 10;
  std::uint32_t file_depth = 32;
  std::uint32_t file_seconds = 2;  // per turn
  int repetitions = 15;
  int file_repetitions = 5;
  std::string directory = "/var/tmp";
  bool dram = true;
  bool ssd = true;
};

struct Spread {
  double low = 0;
  double median = 0;
  double high = 0;
};

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  };
  return {.low = at(0.25), .median = at(0.5), .high = at(0.75)};
}

void Print(const std::string& id, const Spread& spread, const char* unit) {
  std::printf("{\"id\": \"%s\", \"value\": %.4f, \"unit\": \"%s\", \"spread\": [%.4f, %.4f]}\n", id.c_str(),
              spread.median, unit, spread.low, spread.high);
  std::fflush(stdout);
}

void PrintSkipped(const std::string& id, const std::string& reason) {
  std::string clean;
  for (const char c : reason) clean += c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20 ? '\'' : c;
  std::printf("{\"id\": \"%s\", \"skipped\": \"%s\"}\n", id.c_str(), clean.c_str());
  std::fflush(stdout);
}

// Processor time of the calling thread: what a copy costs, whatever else the machine does.
DurationNs ThreadCpu() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

// Counts ended jobs; the submitter waits until few enough are left.
class Tally {
 public:
  Mover::Sink sink() {
    return [this](const MoveResult& result) {
      FORELOAD_CHECK(result.outcome == MoveResult::Outcome::kOk, "a benchmark's transfer failed");
      const std::uint64_t ended = ended_.fetch_add(1) + 1;
      if (ended >= wanted_.load()) {
        const std::lock_guard lock(mutex_);
        mover_cpu_ = ThreadCpu();
        changed_.notify_one();
      }
    };
  }
  // Before the submissions that it is about; then the last of them is noticed wherever it falls.
  void Expect(std::uint64_t ended) { wanted_.store(ended); }
  void WaitFor(std::uint64_t ended) {
    wanted_.store(ended);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_.load() >= ended; });
  }
  // Processor time of the mover's thread when the last awaited job had ended.
  DurationNs mover_cpu() {
    const std::lock_guard lock(mutex_);
    return mover_cpu_;
  }

 private:
  std::atomic<std::uint64_t> ended_{0};
  std::atomic<std::uint64_t> wanted_{UINT64_MAX};
  std::mutex mutex_;
  std::condition_variable changed_;
  DurationNs mover_cpu_ = 0;
};

std::vector<std::uint64_t> Shuffled(std::uint64_t count, std::uint64_t seed) {
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  Rng rng(seed);
  for (std::uint64_t i = count; i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
  return order;
}

// ---- dram -> arena --------------------------------------------------------------------------------------------------

class DramBench {
 public:
  DramBench(std::uint64_t bytes_each, std::uint64_t block_bytes)
      : block_bytes_(block_bytes), count_(bytes_each / block_bytes) {
    auto store = DramStore::Create({.bytes = bytes_each});
    FORELOAD_CHECK(store.ok(), "no memory for the benchmark");
    store_ = std::move(store).value();
    auto arena = DramStore::Create({.bytes = bytes_each});
    FORELOAD_CHECK(arena.ok(), "no memory for the benchmark");
    arena_ = std::move(arena).value();
    for (std::uint64_t i = 0; i < count_; ++i) {
      auto block = store_->Allocate(block_bytes_);
      FORELOAD_CHECK(block.ok(), "the store holds the working set");
      blocks_.push_back(*block);
      std::memset(store_->Data(*block), static_cast<int>(i * 7 + 1), block_bytes_);
    }
    source_ = backend_.Register({.base = store_->base(), .bytes = store_->bytes()}).value();
    destination_ = backend_.Register({.base = arena_->base(), .bytes = arena_->bytes()}).value();
    mover_ = std::make_unique<Mover>(backend_, clock_, MoverOptions{.name = "bench"}, tally_.sink());
  }

  struct Turn {
    double wall = 0;  // GB/s
    double cpu = 0;   // GB per second of processor time of the copying thread
  };

  Turn MemcpyOnce(const std::vector<std::uint64_t>& order) {
    const TimeNs start = MonotonicNow();
    const DurationNs cpu = ThreadCpu();
    for (const std::uint64_t i : order) {
      std::memcpy(arena_->base() + i * block_bytes_, store_->Data(blocks_[i]), block_bytes_);
    }
    return {.wall = Rate(MonotonicNow() - start), .cpu = Rate(ThreadCpu() - cpu)};
  }

  Turn MoverOnce(const std::vector<std::uint64_t>& order) {
    const DurationNs cpu = tally_.mover_cpu();
    tally_.Expect(next_id_ + order.size());
    const TimeNs start = MonotonicNow();
    for (const std::uint64_t i : order) {
      MoveJob job;
      job.id = TransferId{next_id_++};
      job.move_class = MoveClass::kPrefetch;
      job.parts.push_back({.source = source_,
                           .source_offset = blocks_[i].offset,
                           .destination = destination_,
                           .destination_offset = i * block_bytes_,
                           .bytes = block_bytes_});
      FORELOAD_CHECK(mover_->Submit(std::move(job)).ok(), "the queue holds the working set");
    }
    tally_.WaitFor(next_id_);
    return {.wall = Rate(MonotonicNow() - start), .cpu = Rate(tally_.mover_cpu() - cpu)};
  }

  void Verify() const {
    for (std::uint64_t i = 0; i < count_; ++i) {
      FORELOAD_CHECK(std::memcmp(arena_->base() + i * block_bytes_, store_->Data(blocks_[i]), block_bytes_) == 0,
                     "the mover delivers the bytes it was given");
    }
  }
  void ClearArena() { std::memset(arena_->base(), 0, arena_->bytes()); }
  std::uint64_t count() const { return count_; }

 private:
  double Rate(DurationNs elapsed) const {
    return static_cast<double>(count_ * block_bytes_) / static_cast<double>(elapsed);  // bytes/ns = GB/s
  }

  const std::uint64_t block_bytes_;
  const std::uint64_t count_;
  std::unique_ptr<DramStore> store_;
  std::unique_ptr<DramStore> arena_;
  std::vector<DramBlock> blocks_;
  MonotonicClock clock_;
  HostBackend backend_;
  RegionId source_;
  RegionId destination_;
  Tally tally_;
  std::uint64_t next_id_ = 0;
  std::unique_ptr<Mover> mover_;
};

void RunDram(const BenchOptions& options) {
  for (const std::uint64_t kib : {64, 256, 1024}) {
    DramBench bench(options.working_set_bytes / 2, kib << 10);
    std::vector<double> ratios;
    std::vector<double> cpu_ratios;
    std::vector<double> mover_rates;
    std::vector<double> memcpy_rates;
    bench.MemcpyOnce(Shuffled(bench.count(), 0));  // warms both sides
    bench.MoverOnce(Shuffled(bench.count(), 0));
    bench.ClearArena();
    for (int i = 0; i < options.repetitions; ++i) {
      const std::vector<std::uint64_t> order = Shuffled(bench.count(), static_cast<std::uint64_t>(i) + 1);
      const bool mover_first = i % 2 == 0;
      DramBench::Turn mover;
      if (mover_first) mover = bench.MoverOnce(order);
      if (i == 0) bench.Verify();
      const DramBench::Turn copy = bench.MemcpyOnce(order);
      if (!mover_first) mover = bench.MoverOnce(order);
      ratios.push_back(mover.wall / copy.wall);
      cpu_ratios.push_back(mover.cpu / copy.cpu);
      mover_rates.push_back(mover.wall);
      memcpy_rates.push_back(copy.wall);
    }
    const std::string size = std::to_string(kib) + "k";
    Print("dram_arena_ratio_" + size, SpreadOf(ratios), "ratio");
    Print("dram_arena_cpu_ratio_" + size, SpreadOf(cpu_ratios), "ratio");
    Print("dram_arena_mover_" + size, SpreadOf(mover_rates), "GB/s");
    Print("dram_arena_memcpy_" + size, SpreadOf(memcpy_rates), "GB/s");
  }
}

// ---- ssd -> arena ---------------------------------------------------------------------------------------------------

// A file of random bytes (so that no layer below can compress or skip them), removed at the end.
class BenchFile {
 public:
  BenchFile(const std::string& directory, std::uint64_t bytes) : path_(directory + "/foreload-bench-XXXXXX") {
    const int fd = ::mkostemp(path_.data(), O_CLOEXEC);
    FORELOAD_CHECK(fd >= 0, "the bench directory must be writable");
    std::vector<std::uint64_t> chunk((std::size_t{4} << 20) / sizeof(std::uint64_t));
    Rng rng(1);
    for (std::uint64_t done = 0; done < bytes; done += chunk.size() * sizeof(std::uint64_t)) {
      for (std::uint64_t& word : chunk) word = rng.Next();
      const auto want = static_cast<std::size_t>(std::min<std::uint64_t>(chunk.size() * 8, bytes - done));
      FORELOAD_CHECK(::write(fd, chunk.data(), want) == static_cast<ssize_t>(want), "the bench directory needs space");
    }
    ::fsync(fd);
    ::close(fd);
    direct_fd_ = ::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  }
  ~BenchFile() {
    if (direct_fd_ >= 0) ::close(direct_fd_);
    ::unlink(path_.c_str());
  }
  BenchFile(const BenchFile&) = delete;
  BenchFile& operator=(const BenchFile&) = delete;
  int direct_fd() const { return direct_fd_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int direct_fd_ = -1;
};

// The number after `"key" :`, searched from `from`.
std::optional<double> NumberAfter(const std::string& text, std::string_view key, std::size_t from) {
  const std::size_t at = text.find("\"" + std::string(key) + "\"", from);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t colon = text.find(':', at);
  if (colon == std::string::npos) return std::nullopt;
  return std::strtod(text.c_str() + colon + 1, nullptr);
}

// GB/s of one fio run; nullopt: no fio, or it failed.
std::optional<double> FioOnce(const BenchOptions& options, const BenchFile& file, int seed) {
  // Its buffers in transparent huge pages, as the arena's are: page size alone changes the rate of one device
  // threefold.
  std::string command =
      "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --mem=malloc --name=bench --readonly --rw=randread --norandommap "
      "--ioengine=io_uring --fixedbufs=1";
  command += " --registerfiles=1 --direct=1 --thread --group_reporting --output-format=json --time_based";
  command += " --filename=" + file.path() + " --size=" + std::to_string(options.file_bytes);
  command += " --bs=" + std::to_string(options.file_block_bytes) + " --iodepth=" + std::to_string(options.file_depth);
  command +=
      " --runtime=" + std::to_string(options.file_seconds) + " --randseed=" + std::to_string(seed) + " 2>/dev/null";
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  char buffer[4096];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, got);
  if (::pclose(pipe) != 0) return std::nullopt;
  const std::size_t read = text.find("\"read\"");
  if (read == std::string::npos) return std::nullopt;
  const auto bytes_per_second = NumberAfter(text, "bw_bytes", read);
  return bytes_per_second ? std::optional(*bytes_per_second / 1e9) : std::nullopt;
}

double MoverFileOnce(const BenchOptions& options, Backend& backend, RegionId file, RegionId arena, std::uint64_t seed) {
  const MonotonicClock clock;
  Tally tally;
  Mover mover(backend, clock, {.name = "bench"}, tally.sink());
  Rng rng(seed);
  const std::uint64_t blocks = options.file_bytes / options.file_block_bytes;
  const std::uint64_t slots = std::uint64_t{2} * options.file_depth;
  const TimeNs start = MonotonicNow();
  const TimeNs end = start + options.file_seconds * kSecond;
  std::uint64_t id = 0;
  for (; id < options.file_depth || MonotonicNow() < end; ++id) {
    // Twice the depth of slots, so that the backend always has its depth. Two reads may meet in one slot: the content
    // is not looked at here.
    if (id >= slots) tally.WaitFor(id - slots + 1);
    MoveJob job;
    job.id = TransferId{id};
    job.move_class = MoveClass::kPrefetch;
    job.parts.push_back({.source = file,
                         .source_offset = rng.Below(blocks) * options.file_block_bytes,
                         .destination = arena,
                         .destination_offset = id % slots * options.file_block_bytes,
                         .bytes = options.file_block_bytes});
    FORELOAD_CHECK(mover.Submit(std::move(job)).ok(), "the queue holds a few times the depth");
  }
  tally.WaitFor(id);
  return static_cast<double>(id * options.file_block_bytes) / static_cast<double>(MonotonicNow() - start);
}

void RunSsd(const BenchOptions& options) {
  const std::string id = "ssd_arena_ratio";
  if (std::system("fio --version >/dev/null 2>&1") != 0) return PrintSkipped(id, "fio is not installed");
  auto backend = UringBackend::Create({.queue_depth = options.file_depth});
  if (!backend.ok()) return PrintSkipped(id, backend.status().message());
  const BenchFile file(options.directory, options.file_bytes);
  if (file.direct_fd() < 0) return PrintSkipped(id, "no O_DIRECT in " + options.directory);
  const RegionId file_id =
      (*backend)
          ->Register({.kind = Region::Kind::kFile, .bytes = options.file_bytes, .fd = file.direct_fd(), .direct = true})
          .value();
  auto arena =
      DramStore::Create({.bytes = std::max(options.file_block_bytes * 2 * options.file_depth, std::uint64_t{1} << 20)});
  FORELOAD_CHECK(arena.ok(), "no memory for the benchmark");
  const RegionId arena_id = (*backend)->Register({.base = (*arena)->base(), .bytes = (*arena)->bytes()}).value();
  std::vector<double> ratios;
  std::vector<double> mover_rates;
  std::vector<double> fio_rates;
  for (int i = 0; i < options.file_repetitions; ++i) {
    const bool mover_first = i % 2 == 0;
    const auto seed = static_cast<std::uint64_t>(i) + 1;
    double mover = mover_first ? MoverFileOnce(options, **backend, file_id, arena_id, seed) : 0;
    const std::optional<double> fio = FioOnce(options, file, i + 1);
    if (!fio) return PrintSkipped(id, "fio failed with its io_uring engine");
    if (!mover_first) mover = MoverFileOnce(options, **backend, file_id, arena_id, seed);
    ratios.push_back(mover / *fio);
    mover_rates.push_back(mover);
    fio_rates.push_back(*fio);
  }
  Print(id, SpreadOf(ratios), "ratio");
  Print("ssd_arena_mover", SpreadOf(mover_rates), "GB/s");
  Print("ssd_arena_fio", SpreadOf(fio_rates), "GB/s");
}

int Usage() {
  std::fputs(
      "usage: foreload_transport_bench [--dram | --ssd] [--directory DIR] [--repetitions N] [--small]\n"
      "  --directory DIR  where the 1 GiB file for the SSD part is written (default /var/tmp)\n"
      "  --small          a few MiB, once: shows that it runs, measures nothing\n",
      stderr);
  return 2;
}

int Main(int argc, char** argv) {
  BenchOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--dram") {
      options.ssd = false;
    } else if (argument == "--ssd") {
      options.dram = false;
    } else if (argument == "--directory" && has_value) {
      options.directory = argv[++i];
    } else if (argument == "--repetitions" && has_value) {
      options.repetitions = std::max(1, std::atoi(argv[++i]));
      options.file_repetitions = options.repetitions;
    } else if (argument == "--small") {
      options.working_set_bytes = std::uint64_t{8} << 20;
      options.file_bytes = std::uint64_t{8} << 20;
      options.file_depth = 4;
      options.file_seconds = 1;
      options.repetitions = 1;
      options.file_repetitions = 1;
    } else {
      return Usage();
    }
  }
  if (options.dram) RunDram(options);
  if (options.ssd) RunSsd(options);
  return 0;
}

}  // namespace
}  // namespace foreload

int main(int argc, char** argv) {
  return foreload::Main(argc, argv);
}
