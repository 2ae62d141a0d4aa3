// The engines that are here: their processes, ranks, layouts, arenas and store rings.
//
// An engine instance is one scheduler client and N rank clients. Its arena is in force while every
// rank has granted the same number of slots and every process of it lives and is connected; then there is one table. A
// grant that ended lives on, closed to look-ups, until the last transfer into it has ended: transfers hold it by
// shared_ptr, and only then is its memory unmapped and a waiting RevokeArena answered.
//
// Thread: the core thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/block_key.h"
#include "base/ids.h"
#include "base/status.h"
#include "prefetcher/core/event.h"
#include "prefetcher/service/config.h"
#include "prefetcher/service/control_server.h"
#include "prefetcher/service/event_builder.h"
#include "prefetcher/service/interner.h"
#include "residency/shared_memory.h"
#include "residency/store_ring.h"
#include "residency/table_writer.h"
#include "transport/backend.h"

namespace foreload::service {

// How one block lies in DRAM and on SSD: each extent of each rank at a 4 KiB-aligned place, rank after rank.
struct BlockImage {
  struct Extent {
    std::uint32_t rank = 0;
    std::uint32_t layer_group = 0;
    std::uint64_t slot_offset = 0;   // in the rank's slot (arena and store ring alike)
    std::uint64_t image_offset = 0;  // a multiple of 4096
    std::uint64_t bytes = 0;
  };
  std::vector<Extent> extents;
  std::uint64_t bytes = 0;          // of the image
  std::uint64_t payload_bytes = 0;  // without padding
  std::uint64_t layer_group_mask = 0;
  std::vector<std::uint64_t> share_bytes;  // per rank: end of its last extent in a slot
};

// Memory that one worker granted. Unregistered and unmapped at the end: whoever moves bytes holds it.
struct RankMemory {
  ~RankMemory();
  Backend* host = nullptr;
  SharedMemory arena;
  RegionId arena_region;
  std::uint64_t slot_stride = 0;
  std::uint32_t slot_count = 0;
};

// One worker's store ring; our memory, so it may outlive the worker while a store is being copied out of it.
struct StoreLane {
  ~StoreLane();
  Backend* host = nullptr;
  std::uint32_t rank = 0;
  std::unique_ptr<StoreRingWriter> ring;
  RegionId region;
};

// One grant in force, or ending. Destroyed when nothing refers to it: then no transfer touches the memory any more.
struct ArenaGrant {
  ~ArenaGrant();
  std::unique_ptr<TableWriter> table;
  std::vector<std::shared_ptr<RankMemory>> ranks;  // by rank
  std::uint32_t slot_count = 0;
  std::vector<SlotIndex> retiring;  // RETIRED, still held by a reader
  std::function<void()> on_end;     // answers RevokeArena
};

struct EngineClient {
  ConnectionId connection;
  pid_t pid = 0;
  bool scheduler = false;
  bool worker = false;
  std::uint32_t rank = 0;
  std::optional<std::uint32_t> reader_bit;  // in the current table
  std::shared_ptr<RankMemory> memory;       // granted by this worker
  std::shared_ptr<StoreLane> lane{};        // null: this worker does not store
};

struct EngineInstance {
  EngineId id;
  std::string name;
  std::string namespace_text;
  std::array<std::uint8_t, 16> instance_id{};
  NamespaceFingerprint name_space;
  LayoutFingerprint layout_fingerprint;
  LayoutIndex layout = 0;
  std::uint32_t rank_count = 1;
  std::uint32_t block_tokens = 0;
  double recompute_seconds_per_token = 0;
  core::EnginePolicy policy = core::EnginePolicy::kPredict;
  std::vector<std::optional<std::vector<BlockImage::Extent>>> rank_extents;  // image_offset not filled
  std::shared_ptr<const BlockImage> image;                                   // once every rank has registered
  std::vector<EngineClient> clients;
  std::shared_ptr<ArenaGrant> grant;  // in force
  std::uint64_t grant_epoch = 0;
  std::string arena_reason = "no rank has granted memory yet";

  bool alive() const { return !clients.empty(); }
};

struct EngineRegistryMetrics {
  explicit EngineRegistryMetrics(MetricRegistry& registry);
  Counter& registered;
  Counter& refused;
  Counter& died;
  Counter& arenas_granted;
  Counter& arenas_ended;
  Counter& hostile;  // arenas taken from an engine that wrote garbage into shared memory
  Gauge& live;
};

class EngineRegistry {
 public:
  struct Options {
    Mode mode = Mode::kOn;
    std::uint64_t boot_token = 0;
    std::uint32_t engines_max = 64;
    std::uint32_t store_slots_max = 1024;  // of one worker's ring
    std::uint64_t store_ring_bytes_max = 1ull << 30;
  };

  EngineRegistry(const Options& options, Backend& host, BlockInterner& interner, MetricRegistry& metrics,
                 EventBuilder& events);

  void set_control(ControlServer* control) { control_ = control; }
  // Called when an engine's scheduler is gone, with the core's EngineDown.
  void set_on_down(std::function<void(EngineId)> on_down) { on_down_ = std::move(on_down); }

  // The id that an engine's name (and data-parallel rank) has, made when unseen; nothing at engines_max.
  std::optional<EngineId> IdFor(const std::string& name, std::uint32_t data_parallel_rank = 0);
  // Null for an engine that only publishes events.
  EngineInstance* Find(EngineId id);
  EngineInstance* FindByConnection(ConnectionId connection);
  EngineClient* Client(ConnectionId connection);
  // The configured identity of an engine that never registers: what its events' keys mean.
  void SetDefaults(EngineId id, const EngineSettings& settings);
  NamespaceFingerprint NamespaceOf(EngineId id) const;
  // How blocks of this layout lie; null while no engine of the layout has registered since start.
  const BlockImage* ImageOf(LayoutIndex layout) const {
    return layout < images_.size() ? images_[layout].get() : nullptr;
  }
  const std::string& NameOf(EngineId id) const { return names_[id.value]; }
  std::size_t known_engines() const { return names_.size(); }

  // Frames that concern registration and arenas; false: not one of those.
  bool Handle(const ControlFrame& frame);
  // The process is gone or has hung up. Of a worker or the last scheduler: the arena ends. A table that ended is never
  // used again, so holder bits of a process that lives on protect what it still reads there.
  void Closed(ConnectionId connection);
  // The engine wrote garbage into shared memory: it loses its arena, in words.
  void TakeArena(EngineInstance& engine, const std::string& why);

  template <typename Fn>
  void ForEach(Fn&& fn) {
    for (auto& [id, engine] : instances_) fn(*engine);
  }

  // Everything ends (shutdown): arenas are closed, engines told why.
  void CloseAll(const std::string& why);

 private:
  void Register(const ControlFrame& frame);
  Status CheckRegister(const ControlFrame& frame, EngineInstance** instance);
  void GrantArena(const ControlFrame& frame);
  Status MakeRankMemory(const EngineInstance& engine, EngineClient& client, const ControlFrame& frame);
  void RevokeArena(const ControlFrame& frame);
  void BringIntoForce(EngineInstance& engine);
  void EndGrant(EngineInstance& engine, const std::string& why, std::function<void()> on_end);
  void AnnounceArena(EngineInstance& engine);
  void TellEngineUp(const EngineInstance& engine);
  void Refuse(const ControlFrame& frame, const Status& status);

  const Options options_;
  Backend& host_;
  BlockInterner& interner_;
  EventBuilder& events_;
  EngineRegistryMetrics metrics_;
  ControlServer* control_ = nullptr;
  std::function<void(EngineId)> on_down_;
  std::vector<std::string> names_;                         // by EngineId
  std::vector<NamespaceFingerprint> default_spaces_;       // by EngineId
  std::vector<std::shared_ptr<const BlockImage>> images_;  // by LayoutIndex
  std::unordered_map<std::string, EngineId> ids_;
  std::unordered_map<EngineId, std::unique_ptr<EngineInstance>> instances_;
  std::unordered_map<ConnectionId, EngineId> by_connection_;
};

}  // namespace foreload::service
