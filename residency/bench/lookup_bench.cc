// Cost of look-up + pin (and of unpin) a block: a table of 1 M entries, uniform keys in batches of 256, with a writer
// that recycles slots all the while. Prints one JSON line a figure; value: median over repetitions, spread: quartile
// distance.
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "residency/table_reader.h"
#include "residency/table_writer.h"

namespace foreload {
namespace {

constexpr std::uint32_t kBatch = 256;
constexpr std::uint32_t kDigestBytes = 32;
constexpr std::uint64_t kBootToken = 1;

struct Digest {
  std::uint64_t words[4];
};

Digest DigestOf(std::uint64_t number) {
  Rng rng(number);  // a digest is uniform
  return {{rng.Next(), rng.Next(), rng.Next(), rng.Next()}};
}

BlockKey KeyOf(std::uint64_t number) {
  const Digest digest = DigestOf(number);
  return BlockKey::From({}, {reinterpret_cast<const std::uint8_t*>(&digest), sizeof digest});
}

void Load(TableWriter& table, SlotIndex slot, std::uint64_t number) {
  FORELOAD_CHECK(table.Reserve(slot, KeyOf(number)).ok() && table.StartLoad(slot).ok() && table.Publish(slot, 1).ok() &&
                     table.MarkReady(slot).ok(),
                 "the table is ours alone");
}

// The last slots are the writer's to recycle; look-ups are for the others, so that every one of them hits.
void Recycle(TableWriter& table, std::uint32_t stable, std::uint32_t slots, const std::atomic<bool>& stop) {
  Rng rng(3);
  for (std::uint64_t number = std::uint64_t{1} << 40; !stop.load(std::memory_order_relaxed); ++number) {
    const SlotIndex slot{stable + static_cast<std::uint32_t>(rng.Below(slots - stable))};
    FORELOAD_CHECK(table.Retire(slot).ok() && table.TryFree(slot).value().freed, "nobody looks these up");
    Load(table, slot, number);
  }
}

struct Figure {
  double median = 0;
  double spread = 0;
};

Figure Summarise(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return {values[n / 2], values[n * 3 / 4] - values[n / 4]};
}

void Print(const char* id, const Figure& figure) {
  std::printf("{\"id\": \"%s\", \"value\": %.1f, \"unit\": \"ns\", \"spread\": %.1f}\n", id, figure.median,
              figure.spread);
}

int Main(std::uint32_t slots, int repetitions, std::uint64_t batches) {
  const std::uint32_t stable = slots - slots / 16;
  auto table = TableWriter::Create({.slot_count = slots, .boot_token = kBootToken, .layer_group_mask = 1});
  FORELOAD_CHECK(table.ok(), table.status().message().c_str());
  for (std::uint32_t i = 0; i < slots; ++i) Load(*table, SlotIndex{i}, i);
  const std::uint32_t bit = table->AddReader().value();
  auto opened = TableReader::Open(UniqueFd(::fcntl(table->fd(), F_DUPFD_CLOEXEC, 0)), kBootToken, bit);
  FORELOAD_CHECK(opened.ok(), opened.status().message().c_str());
  TableReader& reader = **opened;

  std::atomic<bool> stop{false};
  std::thread writer([&] { Recycle(*table, stable, slots, stop); });
  Rng rng(4);
  std::vector<Digest> digests(kBatch * batches);
  std::vector<PinnedBlock> pinned(kBatch);
  std::vector<double> lookup_ns;
  std::vector<double> unpin_ns;
  for (int repetition = 0; repetition <= repetitions; ++repetition) {
    for (Digest& digest : digests) digest = DigestOf(rng.Below(stable));
    DurationNs looking = 0;
    DurationNs unpinning = 0;
    for (std::uint64_t batch = 0; batch < batches; ++batch) {
      const KeyListView keys{.name_space = {},
                             .digests = reinterpret_cast<const std::uint8_t*>(&digests[batch * kBatch]),
                             .digest_bytes = kDigestBytes,
                             .count = kBatch};
      const TimeNs start = MonotonicNow();
      const std::uint32_t hits = reader.LookupPinPrefix(keys, pinned.data());
      const TimeNs found = MonotonicNow();
      // A false miss (an entry on its way between buckets) ends a prefix; the batch then counts by what it did.
      for (std::uint32_t i = 0; i < hits; ++i) (void)reader.Unpin(pinned[i].slot, pinned[i].generation, true);
      unpinning += MonotonicNow() - found;
      looking += hits == kBatch ? found - start : (found - start) * kBatch / std::max(hits, 1u);
    }
    if (repetition == 0) continue;  // warms up
    lookup_ns.push_back(static_cast<double>(looking) / static_cast<double>(batches * kBatch));
    unpin_ns.push_back(static_cast<double>(unpinning) / static_cast<double>(batches * kBatch));
  }
  stop.store(true);
  writer.join();
  Print("main.lookup_ns", Summarise(lookup_ns));
  Print("main.unpin_ns", Summarise(unpin_ns));
  return 0;
}

}  // namespace
}  // namespace foreload

// --smoke: a small run that only shows that the benchmark works.
int main(int argc, char** argv) {
  const bool smoke = argc > 1 && std::strcmp(argv[1], "--smoke") == 0;
  return smoke ? foreload::Main(1u << 14, 3, 20) : foreload::Main(1u << 20, 15, 1000);
}
