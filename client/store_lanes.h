// The store rings of a worker: the one in force, and old ones whose slots the engine still fills. Any thread; one short
// lock, no system call unless the sidecar sleeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "client/foreload.h"
#include "residency/store_ring.h"

namespace foreload::client {

class StoreLanes {
 public:
  // Old rings with slots still taken; beyond it a new ring is refused until one of them is given back.
  static constexpr std::size_t kOldRingsMax = 8;

  // Puts a ring in force; the former one is retired. False: too many old rings.
  bool Open(StoreRingClient ring);
  // No new stores until the next Open; what was begun can be finished (and is refused at commit).
  void Retire();

  int Begin(fl_store* store);
  // FL_EUNAVAIL: its ring is no longer in force. FL_EINVAL: no such store, or wrong size.
  int Commit(const fl_store& store, const BlockKey& key, const BlockKey* parent);
  int Abort(const fl_store& store);

  struct Counts {
    std::uint64_t begun = 0;
    std::uint64_t full = 0;
    std::uint64_t committed = 0;
  };
  Counts counts() const;

 private:
  struct Lane {
    std::uint32_t epoch = 0;
    StoreRingClient ring;
  };
  // Token: epoch << 32 | slot.
  Lane* Find(const fl_store& store, std::uint32_t* slot);
  void RetireLocked();
  void DropUnused();

  mutable std::mutex mutex_;
  std::optional<Lane> current_;
  std::vector<Lane> old_;
  std::uint32_t next_epoch_ = 1;
  Counts counts_;
};

}  // namespace foreload::client
