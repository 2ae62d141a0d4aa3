// False hits never: a writer recycles slots under new keys while readers pin them and compare the content.
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <thread>

#include "base/rng.h"
#include "residency/tests/table_fixture.h"

namespace foreload {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kLoads = 20000;
#else
constexpr int kLoads = 200000;
#endif
constexpr std::uint32_t kSlots = 32;
constexpr std::uint32_t kKeys = 64;  // few, so that keys come back in other slots all the time
constexpr std::size_t kSlotWords = 16;

// Relaxed words, as plain as memory is: what orders them is the table. The thread sanitizer cannot see that order,
// since writer and readers have the table mapped at addresses of their own.
struct Arena {
  std::vector<std::atomic<std::uint64_t>> words = std::vector<std::atomic<std::uint64_t>>(kSlots * kSlotWords);
  void Fill(std::uint32_t slot, std::uint64_t number) {
    for (std::size_t i = 0; i < kSlotWords; ++i) {
      words[slot * kSlotWords + i].store(number * 1000 + i, std::memory_order_relaxed);
    }
  }
  bool Holds(std::uint32_t slot, std::uint64_t number) const {
    for (std::size_t i = 0; i < kSlotWords; ++i) {
      if (words[slot * kSlotWords + i].load(std::memory_order_relaxed) != number * 1000 + i) return false;
    }
    return true;
  }
};

struct ReaderResult {
  std::uint64_t hits = 0;
  std::uint64_t wrong = 0;
  std::uint64_t unpins_failed = 0;
};

void ReadUntil(TableReader& reader, const Arena& arena, std::uint64_t seed, const std::atomic<bool>& stop,
               ReaderResult& result) {
  Rng rng(seed);
  std::deque<std::pair<PinnedBlock, std::uint64_t>> held;  // nested and overlapping pins
  const auto drop = [&] {
    const auto& [block, number] = held.front();
    result.wrong += arena.Holds(block.slot, number) && reader.StillValid(block.slot, block.generation) ? 0 : 1;
    result.unpins_failed += reader.Unpin(block.slot, block.generation, rng.Below(2) != 0) ? 0 : 1;
    held.pop_front();
  };
  while (!stop.load(std::memory_order_relaxed)) {
    const std::vector<std::uint64_t> numbers = {rng.Below(kKeys), rng.Below(kKeys), rng.Below(kKeys)};
    PinnedBlock pinned[3];
    const std::uint32_t hits = reader.LookupPinPrefix(Digests(numbers).view(), pinned);
    for (std::uint32_t i = 0; i < hits; ++i) {
      result.wrong += arena.Holds(pinned[i].slot, numbers[i]) ? 0 : 1;
      held.emplace_back(pinned[i], numbers[i]);
    }
    result.hits += hits;
    while (held.size() > rng.Below(6)) drop();
  }
  while (!held.empty()) drop();
}

class Recycler {
 public:
  Recycler(TableWriter& writer, Arena& arena)
      : writer_(writer), arena_(arena), slot_of_(kKeys, -1), number_of_(kSlots, 0) {}

  // One step of the life of a random slot; true when a load was completed.
  bool Step(Rng& rng) {
    const SlotIndex slot{static_cast<std::uint32_t>(rng.Below(kSlots))};
    switch (writer_.state(slot)) {
      case FL_SLOT_FREE: {
        const std::uint64_t number = rng.Below(kKeys);
        if (slot_of_[number] >= 0) return false;
        EXPECT_TRUE(writer_.Reserve(slot, KeyOf(number)).ok());
        EXPECT_TRUE(writer_.StartLoad(slot).ok());
        slot_of_[number] = static_cast<int>(slot.value);
        number_of_[slot.value] = number;
        return false;
      }
      case FL_SLOT_IN_FLIGHT:
        if (rng.Below(8) == 0) {  // the load failed
          EXPECT_TRUE(writer_.Retire(slot).ok());
          slot_of_[number_of_[slot.value]] = -1;
          return false;
        }
        arena_.Fill(slot.value, number_of_[slot.value]);
        EXPECT_TRUE(writer_.Publish(slot, 0b111).ok());
        EXPECT_TRUE(writer_.MarkReady(slot).ok());
        return true;
      case FL_SLOT_READY:
        EXPECT_TRUE(writer_.Retire(slot).ok());
        slot_of_[number_of_[slot.value]] = -1;
        return false;
      default: EXPECT_TRUE(writer_.TryFree(slot).ok()); return false;
    }
  }

 private:
  TableWriter& writer_;
  Arena& arena_;
  std::vector<int> slot_of_;
  std::vector<std::uint64_t> number_of_;
};

class TableStressTest : public TableTest {};

TEST_F(TableStressTest, APinnedSlotAlwaysHoldsItsKey) {
  MakeTable(kSlots);
  Arena arena;
  const auto first = NewReader();   // two threads of one process
  const auto second = NewReader();  // and another process
  std::atomic<bool> stop{false};
  ReaderResult results[3];
  std::vector<std::thread> threads;
  threads.emplace_back([&] { ReadUntil(*first, arena, 11, stop, results[0]); });
  threads.emplace_back([&] { ReadUntil(*first, arena, 12, stop, results[1]); });
  threads.emplace_back([&] { ReadUntil(*second, arena, 13, stop, results[2]); });
  Recycler recycler(*writer_, arena);
  Rng rng(14);
  const auto hits = [&] { return writer_->CollectCounters().hit_blocks; };
  for (int loads = 0; loads < kLoads || hits() < 1000;) loads += recycler.Step(rng) ? 1 : 0;
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  for (const ReaderResult& result : results) {
    EXPECT_EQ(result.wrong, 0u);
    EXPECT_EQ(result.unpins_failed, 0u);
  }
  EXPECT_EQ(first->pins() + second->pins(), 0);
  EXPECT_TRUE(writer_->CheckIntegrity(kSlots).ok());
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) EXPECT_EQ(writer_->holders(SlotIndex{slot}), 0u);
}

// Kills the process at any system call but exit_group.
void AllowOnlyExit() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  const sock_fprog program{sizeof filter / sizeof filter[0], filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    ::_exit(77);
  }
}

int RunWithoutSystemCalls(const std::function<bool()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    AllowOnlyExit();
    ::syscall(SYS_exit_group, work() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST_F(TableStressTest, LookingUpAndUnpinningMakesNoSystemCall) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "sanitizers make system calls of their own";
#endif
  MakeTable(512);
  const auto reader = NewReader();
  std::vector<std::uint64_t> numbers;
  for (std::uint32_t slot = 0; slot < 512; ++slot) {
    if (slot < 256) Load(slot, slot);
    numbers.push_back(slot);
  }
  const Digests digests(numbers);
  std::vector<PinnedBlock> pinned(512);
  const int caught = RunWithoutSystemCalls([] { return ::syscall(SYS_getppid) > 0; });
  if (WIFEXITED(caught) && WEXITSTATUS(caught) == 77) GTEST_SKIP() << "seccomp filters are not allowed here";
  ASSERT_TRUE(WIFSIGNALED(caught)) << "the filter must be able to catch one";
  const int status = RunWithoutSystemCalls([&] {
    bool ok = true;
    for (int round = 0; round < 100; ++round) {
      const std::uint32_t hits = reader->LookupPinPrefix(digests.view(), pinned.data());
      ok = ok && hits == 256 && reader->CountPrefix(digests.view()) == 256;
      for (std::uint32_t i = 0; i < hits; ++i) ok = ok && reader->Unpin(pinned[i].slot, pinned[i].generation, true);
    }
    return ok;
  });
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status) << ": a system call was made";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace foreload
