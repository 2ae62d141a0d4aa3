#include "prefetcher/service/engine_registry.h"

#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/units.h"
#include "proto/control.pb.h"
#include "proto/control_frames.h"
#include "proto/limits.h"
#include "proto/namespace.h"
#include "proto/sha256.h"

namespace foreload::service {
namespace {

constexpr std::uint64_t kImageAlignment = 4096;  // O_DIRECT and the SSD record's extents

Status CheckExtents(const control::Register& request) {
  if (request.worker() && request.extents_size() == 0) return InvalidArgument("a worker must name at least one extent");
  if (request.extents_size() > static_cast<int>(kLayerGroupsMax)) {
    return InvalidArgument("at most " + std::to_string(kLayerGroupsMax) + " extents a slot");
  }
  std::uint64_t groups = 0;
  std::uint64_t end = 0;
  for (const control::Extent& extent : request.extents()) {
    if (extent.layer_group() >= kLayerGroupsMax) return InvalidArgument("layer_group must be under 64");
    if (groups & (std::uint64_t{1} << extent.layer_group())) return InvalidArgument("a layer group appears twice");
    if (extent.bytes() == 0 || extent.bytes() > kSlotBytesMax) return InvalidArgument("an extent of impossible size");
    if (extent.offset() % 64 != 0 || extent.offset() < end) {
      return InvalidArgument("extents must be in order of offset, at multiples of 64, without overlap");
    }
    groups |= std::uint64_t{1} << extent.layer_group();
    end = extent.offset() + extent.bytes();
    if (end > kSlotBytesMax) return InvalidArgument("a slot of impossible size");
  }
  return OkStatus();
}

std::vector<BlockImage::Extent> ExtentsOf(const control::Register& request) {
  std::vector<BlockImage::Extent> extents;
  for (const control::Extent& extent : request.extents()) {
    extents.push_back({.rank = request.rank(),
                       .layer_group = extent.layer_group(),
                       .slot_offset = extent.offset(),
                       .image_offset = 0,
                       .bytes = extent.bytes()});
  }
  return extents;
}

std::shared_ptr<const BlockImage> MakeImage(
    const std::vector<std::optional<std::vector<BlockImage::Extent>>>& rank_extents) {
  auto image = std::make_shared<BlockImage>();
  for (const auto& extents : rank_extents) {
    std::uint64_t share = 0;
    for (BlockImage::Extent extent : *extents) {
      extent.image_offset = image->bytes;
      image->bytes += AlignUp(extent.bytes, kImageAlignment);
      image->payload_bytes += extent.bytes;
      image->layer_group_mask |= std::uint64_t{1} << extent.layer_group;
      share = extent.slot_offset + extent.bytes;
      image->extents.push_back(extent);
    }
    image->share_bytes.push_back(share);
  }
  return image;
}

// What the bytes of an image mean: the engine's layout and how the ranks cut it.
LayoutFingerprint ImageLayout(const LayoutFingerprint& layout, const BlockImage& image) {
  std::string text("foreload image v1");
  text.append(reinterpret_cast<const char*>(layout.bytes.data()), layout.bytes.size());
  const auto add = [&text](std::uint64_t value) {
    for (int i = 0; i < 8; ++i) text += static_cast<char>(value >> (8 * i));
  };
  for (const BlockImage::Extent& extent : image.extents) {
    add(extent.rank);
    add(extent.layer_group);
    add(extent.slot_offset);
    add(extent.bytes);
  }
  const auto digest = Sha256(text.data(), text.size());
  LayoutFingerprint fingerprint;
  std::copy_n(digest.begin(), fingerprint.bytes.size(), fingerprint.bytes.begin());
  return fingerprint;
}

}  // namespace

RankMemory::~RankMemory() {
  if (!arena_region.valid()) return;
  const Status status = host->Unregister(arena_region);  // transfers hold the memory, so none is outstanding any more
  FORELOAD_CHECK(status.ok(), "an arena was unregistered with transfers outstanding");
}

StoreLane::~StoreLane() {
  if (!region.valid()) return;
  const Status status = host->Unregister(region);
  FORELOAD_CHECK(status.ok(), "a store ring was unregistered with transfers outstanding");
}

ArenaGrant::~ArenaGrant() {
  ranks.clear();
  if (on_end) on_end();
}

EngineRegistryMetrics::EngineRegistryMetrics(MetricRegistry& registry)
    : registered(registry.AddCounter("foreload_engine_registrations_total", "Engine processes registered.")),
      refused(registry.AddCounter("foreload_engine_refusals_total", "Registrations and grants refused.")),
      died(registry.AddCounter("foreload_engine_ends_total", "Engine processes that ended or hung up.")),
      arenas_granted(registry.AddCounter("foreload_engine_arenas_granted_total", "Arenas that came into force.")),
      arenas_ended(registry.AddCounter("foreload_engine_arenas_ended_total", "Arenas that ended, for any reason.")),
      hostile(registry.AddCounter("foreload_engine_hostile_memory_total",
                                  "Arenas taken away because the engine wrote garbage into shared memory.")),
      live(registry.AddGauge("foreload_engine_live_instances", "Engine instances registered now.")) {}

EngineRegistry::EngineRegistry(const Options& options, Backend& host, BlockInterner& interner, MetricRegistry& metrics,
                               EventBuilder& events)
    : options_(options), host_(host), interner_(interner), events_(events), metrics_(metrics) {}

std::optional<EngineId> EngineRegistry::IdFor(const std::string& name, std::uint32_t data_parallel_rank) {
  const std::string full = data_parallel_rank == 0 ? name : name + "/dp" + std::to_string(data_parallel_rank);
  if (const auto it = ids_.find(full); it != ids_.end()) return it->second;
  if (names_.size() >= options_.engines_max) return std::nullopt;
  const EngineId id{static_cast<std::uint32_t>(names_.size())};
  names_.push_back(full);
  default_spaces_.push_back(FingerprintOf(NamespaceFields{.model_revision = "engine:" + name}));
  ids_.emplace(full, id);
  return id;
}

void EngineRegistry::SetDefaults(EngineId id, const EngineSettings& settings) {
  if (!settings.model_revision.empty()) {
    default_spaces_[id.value] = FingerprintOf(
        NamespaceFields{.model_revision = settings.model_revision, .weights_epoch = settings.weights_epoch});
  }
}

EngineInstance* EngineRegistry::Find(EngineId id) {
  const auto it = instances_.find(id);
  return it == instances_.end() ? nullptr : it->second.get();
}

EngineInstance* EngineRegistry::FindByConnection(ConnectionId connection) {
  const auto it = by_connection_.find(connection);
  return it == by_connection_.end() ? nullptr : Find(it->second);
}

EngineClient* EngineRegistry::Client(ConnectionId connection) {
  EngineInstance* engine = FindByConnection(connection);
  if (engine == nullptr) return nullptr;
  for (EngineClient& client : engine->clients) {
    if (client.connection == connection) return &client;
  }
  return nullptr;
}

NamespaceFingerprint EngineRegistry::NamespaceOf(EngineId id) const {
  const auto it = instances_.find(id);
  return it == instances_.end() ? default_spaces_[id.value] : it->second->name_space;
}

bool EngineRegistry::Handle(const ControlFrame& frame) {
  switch (frame.message->body_case()) {
    case control::ControlMessage::kRegister: Register(frame); return true;
    case control::ControlMessage::kGrantArena: GrantArena(frame); return true;
    case control::ControlMessage::kRevokeArena: RevokeArena(frame); return true;
    default: return false;
  }
}

void EngineRegistry::Refuse(const ControlFrame& frame, const Status& status) {
  metrics_.refused.Add();
  spdlog::warn("engine (pid {}): refused: {}", frame.pid, status.message());
  control::ControlMessage reply;
  reply.set_request(frame.message->request());
  reply.mutable_error()->set_code(static_cast<std::uint32_t>(status.code()));
  reply.mutable_error()->set_message(status.message());
  control_->Send(frame.connection, std::move(reply));
}

Status EngineRegistry::CheckRegister(const ControlFrame& frame, EngineInstance** instance) {
  const control::Register& request = frame.message->register_();
  *instance = nullptr;
  if (request.protocol_version() != control::kProtocolVersion) {
    return InvalidArgument("control protocol " + std::to_string(request.protocol_version()) + ", this sidecar speaks " +
                           std::to_string(control::kProtocolVersion) + ": install matching versions");
  }
  if (options_.mode == Mode::kOff) return FailedPrecondition("the sidecar's mode is off");
  if (by_connection_.contains(frame.connection)) return FailedPrecondition("this process has registered already");
  if (request.engine().empty() || request.engine().size() > kIdBytesMax) {
    return InvalidArgument("the engine's name must have 1 to " + std::to_string(kIdBytesMax) + " bytes");
  }
  if (request.instance_id().size() != 16 || request.name_space().size() != 16 || request.layout().size() != 16) {
    return InvalidArgument("instance_id, name_space and layout must have 16 bytes each");
  }
  if (request.rank_count() == 0 || request.rank_count() > kRanksMax) return InvalidArgument("rank_count: 1 to 64");
  if (request.worker() && request.rank() >= request.rank_count())
    return InvalidArgument("rank must be under rank_count");
  if (!request.worker() && !request.scheduler()) return InvalidArgument("neither scheduler nor worker");
  FORELOAD_RETURN_IF_ERROR(CheckExtents(request));

  const auto id = IdFor(request.engine());
  if (!id) return ResourceExhausted("limits.engines_max (" + std::to_string(options_.engines_max) + ") is reached");
  EngineInstance* engine = Find(*id);
  if (engine == nullptr) return OkStatus();
  if (std::memcmp(engine->instance_id.data(), request.instance_id().data(), 16) != 0) {
    return AlreadyExists("an engine named \"" + request.engine() + "\" is connected (pid " +
                         std::to_string(engine->clients.front().pid) + "): give each engine a name of its own");
  }
  if (engine->rank_count != request.rank_count() ||
      std::memcmp(engine->layout_fingerprint.bytes.data(), request.layout().data(), 16) != 0 ||
      std::memcmp(engine->name_space.bytes.data(), request.name_space().data(), 16) != 0) {
    return InvalidArgument("rank_count, layout and name_space must be equal in all processes of an engine");
  }
  for (const EngineClient& client : engine->clients) {
    if (request.worker() && client.worker && client.rank == request.rank()) {
      return AlreadyExists("rank " + std::to_string(request.rank()) + " is registered (pid " +
                           std::to_string(client.pid) + ")");
    }
  }
  *instance = engine;
  return OkStatus();
}

void EngineRegistry::Register(const ControlFrame& frame) {
  const control::Register& request = frame.message->register_();
  EngineInstance* engine = nullptr;
  if (const Status status = CheckRegister(frame, &engine); !status.ok()) {
    Refuse(frame, status);
    control_->Close(frame.connection);
    return;
  }
  const EngineId id = *IdFor(request.engine());
  if (engine == nullptr) {
    auto made = std::make_unique<EngineInstance>();
    made->id = id;
    made->name = request.engine();
    made->namespace_text = request.namespace_text().substr(0, kTextBytesMax);
    std::memcpy(made->instance_id.data(), request.instance_id().data(), 16);
    std::memcpy(made->name_space.bytes.data(), request.name_space().data(), 16);
    std::memcpy(made->layout_fingerprint.bytes.data(), request.layout().data(), 16);
    made->rank_count = request.rank_count();
    made->block_tokens = request.block_tokens();
    made->policy = request.policy() == control::Register::POLICY_DEMAND_ONLY ? core::EnginePolicy::kDemandOnly
                                                                             : core::EnginePolicy::kPredict;
    made->rank_extents.resize(made->rank_count);
    engine = made.get();
    instances_.emplace(id, std::move(made));
  }
  if (request.recompute_seconds_per_token() > 0 && request.recompute_seconds_per_token() < 1e3) {
    engine->recompute_seconds_per_token = request.recompute_seconds_per_token();
  }
  EngineClient client{.connection = frame.connection,
                      .pid = frame.pid,
                      .scheduler = request.scheduler(),
                      .worker = request.worker(),
                      .rank = request.rank(),
                      .reader_bit = std::nullopt,
                      .memory = nullptr};
  if (client.worker) {
    engine->rank_extents[client.rank] = ExtentsOf(request);
    const bool complete = std::all_of(engine->rank_extents.begin(), engine->rank_extents.end(),
                                      [](const auto& extents) { return extents.has_value(); });
    if (complete) {
      engine->image = MakeImage(engine->rank_extents);
      engine->layout = interner_.InternLayout(ImageLayout(engine->layout_fingerprint, *engine->image));
      if (images_.size() <= engine->layout) images_.resize(engine->layout + 1);
      images_[engine->layout] = engine->image;
    }
  }
  engine->clients.push_back(std::move(client));
  by_connection_.emplace(frame.connection, id);
  metrics_.registered.Add();
  metrics_.live.Set(static_cast<double>(instances_.size()));
  spdlog::info("engine {}: pid {} registered as {}{}{}", engine->name, frame.pid,
               request.scheduler() ? "scheduler" : "", request.scheduler() && request.worker() ? " and " : "",
               request.worker() ? "rank " + std::to_string(request.rank()) : std::string());

  control::ControlMessage reply;
  reply.set_request(frame.message->request());
  reply.mutable_register_reply()->set_engine_id(id.value);
  reply.mutable_register_reply()->set_mode(std::string(ModeName(options_.mode)));
  control_->Send(frame.connection, std::move(reply));
  TellEngineUp(*engine);
}

void EngineRegistry::TellEngineUp(const EngineInstance& engine) {
  events_.Add(core::EngineUp{.engine = engine.id,
                             .block_tokens = engine.block_tokens,
                             .block_bytes = engine.image == nullptr ? 0 : engine.image->bytes,
                             .recompute_seconds_per_token = engine.recompute_seconds_per_token,
                             .policy = engine.policy});
}

Status EngineRegistry::MakeRankMemory(const EngineInstance& engine, EngineClient& client, const ControlFrame& frame) {
  const control::GrantArena& request = frame.message->grant_arena();
  if (frame.descriptors.size() != 1) return InvalidArgument("a grant carries exactly one descriptor, the arena");
  if (request.slot_count() == 0 || request.slot_count() > kArenaSlotsMax) {
    return InvalidArgument("slot_count: 1 to " + std::to_string(kArenaSlotsMax));
  }
  const auto& extents = *engine.rank_extents[client.rank];
  const std::uint64_t share = extents.back().slot_offset + extents.back().bytes;
  if (request.slot_stride() < share || request.slot_stride() % 64 != 0 || request.slot_stride() > kSlotBytesMax) {
    return InvalidArgument("slot_stride must be a multiple of 64 and at least the end of the last extent (" +
                           std::to_string(share) + ")");
  }
  auto memory = std::make_shared<RankMemory>();
  memory->host = &host_;
  memory->slot_count = request.slot_count();
  memory->slot_stride = request.slot_stride();
  const std::uint64_t bytes = request.slot_stride() * request.slot_count();
  FORELOAD_ASSIGN_OR_RETURN(memory->arena, SharedMemory::Adopt(std::move(*frame.descriptors[0]), bytes));
  FORELOAD_ASSIGN_OR_RETURN(
      memory->arena_region,
      host_.Register({.kind = Region::Kind::kHostMemory, .base = memory->arena.data(), .bytes = bytes}));
  std::shared_ptr<StoreLane> lane;
  if (request.store_slots() > 0) {
    const std::uint64_t fits = options_.store_ring_bytes_max / AlignUp(share, kImageAlignment);
    const auto slots = static_cast<std::uint32_t>(
        std::min<std::uint64_t>({request.store_slots(), options_.store_slots_max, std::max<std::uint64_t>(fits, 1)}));
    FORELOAD_ASSIGN_OR_RETURN(
        auto ring,
        StoreRingWriter::Create({.slot_count = slots, .slot_bytes = share, .boot_token = options_.boot_token}));
    lane = std::make_shared<StoreLane>();
    lane->host = &host_;
    lane->rank = client.rank;
    lane->ring = std::make_unique<StoreRingWriter>(std::move(ring));
    const auto memory_span = lane->ring->memory();
    FORELOAD_ASSIGN_OR_RETURN(
        lane->region,
        host_.Register({.kind = Region::Kind::kHostMemory, .base = memory_span.data(), .bytes = memory_span.size()}));
  }
  client.memory = std::move(memory);
  client.lane = std::move(lane);
  return OkStatus();
}

void EngineRegistry::GrantArena(const ControlFrame& frame) {
  EngineInstance* engine = FindByConnection(frame.connection);
  EngineClient* client = Client(frame.connection);
  if (engine == nullptr || !client->worker) {
    Refuse(frame, FailedPrecondition("only a registered worker grants an arena"));
    return;
  }
  if (client->memory != nullptr) {
    Refuse(frame, FailedPrecondition("an arena is granted already: revoke it first"));
    return;
  }
  control::ControlMessage reply;
  reply.set_request(frame.message->request());
  control::GrantArenaReply& body = *reply.mutable_grant_arena_reply();
  if (options_.mode == Mode::kObserve) {
    // No memory is touched; the core plans on an arena of this size in thought.
    events_.Add(core::ArenaGranted{engine->id, frame.message->grant_arena().slot_count()});
    engine->arena_reason = "mode is observe: nothing is moved";
    control_->Send(frame.connection, std::move(reply));
    AnnounceArena(*engine);
    return;
  }
  if (const Status status = MakeRankMemory(*engine, *client, frame); !status.ok()) {
    engine->arena_reason = "rank " + std::to_string(client->rank) + " was refused: " + status.message();
    Refuse(frame, status);
    return;
  }
  std::vector<int> descriptors;
  if (client->lane != nullptr) {
    StoreRingWriter& ring = *client->lane->ring;
    ring.GrantAll();
    body.set_store_slots(ring.slot_count());
    body.add_descriptors(control::DESCRIPTOR_STORE_RING);
    body.add_descriptors(control::DESCRIPTOR_STORE_DOORBELL);
    descriptors = {ring.fd(), ring.doorbell_fd()};
    control_->WatchDoorbell(frame.connection, ring.doorbell_fd());
  }
  control_->Send(frame.connection, std::move(reply), descriptors);
  BringIntoForce(*engine);
}

void EngineRegistry::BringIntoForce(EngineInstance& engine) {
  if (engine.grant != nullptr || engine.image == nullptr) return;
  std::vector<std::shared_ptr<RankMemory>> ranks(engine.rank_count);
  for (const EngineClient& client : engine.clients) {
    if (client.worker) ranks[client.rank] = client.memory;
  }
  for (const auto& memory : ranks) {
    if (memory == nullptr) {
      engine.arena_reason = "not every rank has granted memory yet";
      return;
    }
    if (memory->slot_count != ranks[0]->slot_count) {
      EndGrant(engine, "ranks granted different numbers of slots: make them equal", nullptr);
      AnnounceArena(engine);
      return;
    }
  }
  auto table = TableWriter::Create({.engine_id = engine.id.value,
                                    .slot_count = ranks[0]->slot_count,
                                    .boot_token = options_.boot_token,
                                    .layer_group_mask = engine.image->layer_group_mask});
  if (!table.ok()) {
    engine.arena_reason = table.status().message();
    spdlog::error("engine {}: no residency table: {}", engine.name, engine.arena_reason);
    AnnounceArena(engine);
    return;
  }
  auto grant = std::make_shared<ArenaGrant>();
  grant->slot_count = ranks[0]->slot_count;
  grant->ranks = std::move(ranks);
  grant->table = std::make_unique<TableWriter>(std::move(table).value());
  engine.grant = std::move(grant);
  engine.arena_reason.clear();
  metrics_.arenas_granted.Add();
  spdlog::info("engine {}: arena of {} slots in force", engine.name, engine.grant->slot_count);
  TellEngineUp(engine);
  events_.Add(core::ArenaGranted{engine.id, engine.grant->slot_count});
  AnnounceArena(engine);
}

void EngineRegistry::AnnounceArena(EngineInstance& engine) {
  ++engine.grant_epoch;
  for (EngineClient& client : engine.clients) {
    control::ControlMessage message;
    control::ArenaState& state = *message.mutable_arena_state();
    state.set_slot_count(engine.grant == nullptr ? 0 : engine.grant->slot_count);
    state.set_grant_epoch(engine.grant_epoch);
    state.set_reason(engine.arena_reason);
    std::vector<int> descriptors;
    if (engine.grant != nullptr && client.scheduler) {
      const auto bit = engine.grant->table->AddReader();
      if (bit.ok()) {
        client.reader_bit = bit.value();
        state.set_table_bytes(engine.grant->table->bytes());
        state.set_reader_bit(bit.value());
        state.add_descriptors(control::DESCRIPTOR_TABLE);
        descriptors.push_back(engine.grant->table->fd());
      } else {
        state.set_slot_count(0);
        state.set_reason(bit.status().message());
      }
    }
    control_->Send(client.connection, std::move(message), descriptors);
  }
}

void EngineRegistry::EndGrant(EngineInstance& engine, const std::string& why, std::function<void()> on_end) {
  for (EngineClient& client : engine.clients) {
    client.memory.reset();
    client.lane.reset();
    client.reader_bit.reset();
  }
  std::shared_ptr<ArenaGrant> grant = std::move(engine.grant);
  engine.grant.reset();
  engine.arena_reason = why;
  if (grant == nullptr) {
    if (on_end) on_end();
    return;
  }
  metrics_.arenas_ended.Add();
  spdlog::info("engine {}: arena ended: {}", engine.name, why);
  grant->table->Close();
  grant->on_end = std::move(on_end);
  events_.Add(core::ArenaRevoked{engine.id});
  AnnounceArena(engine);
}

void EngineRegistry::RevokeArena(const ControlFrame& frame) {
  EngineInstance* engine = FindByConnection(frame.connection);
  if (engine == nullptr) {
    Refuse(frame, FailedPrecondition("not registered"));
    return;
  }
  const auto reply = [control = control_, connection = frame.connection, request = frame.message->request()] {
    control::ControlMessage message;
    message.set_request(request);
    message.mutable_revoke_arena_reply();
    control->Send(connection, std::move(message));
  };
  if (options_.mode == Mode::kObserve) events_.Add(core::ArenaRevoked{engine->id});
  EndGrant(*engine, "rank " + std::to_string(Client(frame.connection)->rank) + " revoked its arena", reply);
}

void EngineRegistry::TakeArena(EngineInstance& engine, const std::string& why) {
  metrics_.hostile.Add();
  spdlog::error("engine {}: its arena is taken away: {}", engine.name, why);
  EndGrant(engine, why, nullptr);
}

void EngineRegistry::Closed(ConnectionId connection) {
  EngineInstance* engine = FindByConnection(connection);
  if (engine == nullptr) return;
  by_connection_.erase(connection);
  const auto it = std::find_if(engine->clients.begin(), engine->clients.end(),
                               [&](const EngineClient& client) { return client.connection == connection; });
  const EngineClient gone = *it;
  engine->clients.erase(it);
  metrics_.died.Add();
  const bool scheduler_left = std::any_of(engine->clients.begin(), engine->clients.end(),
                                          [](const EngineClient& client) { return client.scheduler; });
  if (gone.worker || !scheduler_left) {
    EndGrant(*engine,
             "pid " + std::to_string(gone.pid) + (gone.worker ? " (rank " + std::to_string(gone.rank) + ")" : "") +
                 " of the engine ended",
             nullptr);
  } else if (gone.reader_bit && engine->grant != nullptr) {
    if (const Status status = engine->grant->table->ClearReader(*gone.reader_bit); !status.ok()) {
      TakeArena(*engine, status.message());
    }
  }
  if (!scheduler_left) {
    events_.Add(core::EngineDown{engine->id});
    if (on_down_) on_down_(engine->id);
  }
  if (engine->clients.empty()) instances_.erase(engine->id);
  metrics_.live.Set(static_cast<double>(instances_.size()));
}

void EngineRegistry::CloseAll(const std::string& why) {
  for (auto& [id, engine] : instances_) EndGrant(*engine, why, nullptr);
}

}  // namespace foreload::service
