#include "prefetcher/core/codec.h"

#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

namespace foreload::core {
namespace {

constexpr std::array<std::uint8_t, 2> kConfigTag = {'F', 'C'};
constexpr std::array<std::uint8_t, 2> kBatchTag = {'F', 'E'};

// ---- fields in order of encoding: one list serves both directions -------------------------------------------------

template <typename V, typename T>
void Visit(V&, T&);  // only the overloads below exist

#define FORELOAD_FIELDS(Type, ...)                                          \
  template <typename V>                                                     \
  void Visit(V& v, Type& m) {                                               \
    [[maybe_unused]] auto all = [&](auto&... fields) { (v(fields), ...); }; \
    __VA_ARGS__;                                                            \
  }

FORELOAD_FIELDS(BlockRange, all(m.begin, m.count))
FORELOAD_FIELDS(LinkConfig, all(m.bytes_per_second, m.latency_ns, m.inflight_bytes_max))
FORELOAD_FIELDS(CoreConfig,
                all(m.dram_bytes, m.ssd_bytes, m.links[0], m.links[1], m.links[2], m.prefetch, m.blocks_max,
                    m.requests_max, m.request_blocks_max, m.sessions_max, m.plan_blocks_max, m.plan_loads_max,
                    m.admission_margin, m.link_utilisation_max, m.arena_prefetch_share_max, m.prefetch_ttl_ns,
                    m.session_promote_horizon_ns, m.session_promote_probability_min, m.dirty_age_max_ns,
                    m.dirty_bytes_max, m.ssd_write_bytes_per_day, m.ssd_second_use_admission, m.hold_out_fraction,
                    m.engines_max, m.slots_max, m.demands_max, m.purges_max))

FORELOAD_FIELDS(EngineUp, all(m.engine, m.block_tokens, m.block_bytes, m.recompute_seconds_per_token, m.policy))
FORELOAD_FIELDS(EngineDown, all(m.engine))
FORELOAD_FIELDS(ArenaGranted, all(m.engine, m.slot_count))
FORELOAD_FIELDS(ArenaRevoked, all(m.engine))
FORELOAD_FIELDS(KvStored, all(m.engine, m.block, m.parent, m.tier))
FORELOAD_FIELDS(KvRemoved, all(m.engine, m.block, m.tier))
FORELOAD_FIELDS(KvCleared, all(m.engine))
FORELOAD_FIELDS(KvUnknown, all(m.engine))
FORELOAD_FIELDS(RequestQueued, all(m.engine, m.request, m.session, m.kind, m.priority, m.turn, m.prompt_tokens,
                                   m.expected_start, m.announced, m.blocks))
FORELOAD_FIELDS(RequestScheduled, all(m.request))
FORELOAD_FIELDS(RequestFirstToken, all(m.request))
FORELOAD_FIELDS(RequestFinished, all(m.request, m.blocks))
FORELOAD_FIELDS(RequestAborted, all(m.request))
FORELOAD_FIELDS(HintGiven, all(m.engine, m.action, m.session, m.eta_ns, m.sigma_ns, m.ttl_ns, m.blocks))
FORELOAD_FIELDS(StoreOffered, all(m.store, m.engine, m.block, m.parent, m.bytes))
FORELOAD_FIELDS(SsdRecovered, all(m.block, m.parent, m.bytes))
FORELOAD_FIELDS(SsdDropped, all(m.block))
FORELOAD_FIELDS(DemandAsked, all(m.demand, m.engine, m.request, m.deadline, m.blocks))
FORELOAD_FIELDS(DemandDropped, all(m.demand))
FORELOAD_FIELDS(TransferDone, all(m.transfer, m.status, m.bytes, m.service_ns))
FORELOAD_FIELDS(SlotUsed, all(m.engine, m.slot))
FORELOAD_FIELDS(SlotFree, all(m.engine, m.slot))
FORELOAD_FIELDS(NamespacePurged, all(m.purge, m.blocks))
FORELOAD_FIELDS(FlushAsked, all(m.flush))
FORELOAD_FIELDS(PolicyChanged, all(m.prefetch))

FORELOAD_FIELDS(LoadToDram, all(m.transfer, m.block, m.traffic, m.deadline))
FORELOAD_FIELDS(LoadToArena, all(m.transfer, m.block, m.engine, m.slot, m.traffic, m.deadline))
FORELOAD_FIELDS(Spill, all(m.transfer, m.block))
FORELOAD_FIELDS(Promote, all(m.transfer, m.deadline))
FORELOAD_FIELDS(Cancel, all(m.transfer))
FORELOAD_FIELDS(RetireSlot, all(m.engine, m.slot))
FORELOAD_FIELDS(EvictDram, all(m.block))
FORELOAD_FIELDS(DropSsd, all(m.block))
FORELOAD_FIELDS(AcceptStore, all(m.store, m.transfer, m.block))
FORELOAD_FIELDS(RejectStore, all(m.store, m.reason))
FORELOAD_FIELDS(DemandDone, all(m.demand, m.engine, m.ready_blocks, m.absent_blocks, m.failed_blocks,
                                m.already_ready_blocks, m.joined_blocks, m.bytes_from_dram, m.bytes_from_ssd))
FORELOAD_FIELDS(PurgeDone, all(m.purge, m.blocks))
FORELOAD_FIELDS(FlushDone, all(m.flush, m.durable_blocks))
FORELOAD_FIELDS(ForgetBlock, all(m.block))

#undef FORELOAD_FIELDS

// ---- enums: how many values each has -------------------------------------------------------------------------------

constexpr std::uint8_t EnumCount(Tier) {
  return kTierCount;
}
constexpr std::uint8_t EnumCount(RequestKind) {
  return kRequestKindCount;
}
constexpr std::uint8_t EnumCount(EnginePolicy) {
  return 2;
}
constexpr std::uint8_t EnumCount(HintAction) {
  return 5;
}
constexpr std::uint8_t EnumCount(TransferStatus) {
  return 8;
}
constexpr std::uint8_t EnumCount(Traffic) {
  return 3;
}
constexpr std::uint8_t EnumCount(StoreRefusal) {
  return kStoreRefusalCount;
}

// ---- writer and reader ---------------------------------------------------------------------------------------------

template <typename T>
struct IsId : std::false_type {};
template <typename Tag, typename Rep>
struct IsId<Id<Tag, Rep>> : std::true_type {};

template <typename Sink>
class Writer {
 public:
  explicit Writer(Sink sink) : sink_(std::move(sink)) {}

  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      sink_(value ? 1 : 0);
    } else if constexpr (std::is_same_v<T, double>) {
      Put(std::bit_cast<std::uint64_t>(value));
    } else if constexpr (std::is_enum_v<T>) {
      sink_(static_cast<std::uint8_t>(value));
    } else if constexpr (std::is_integral_v<T>) {
      Put(static_cast<std::make_unsigned_t<T>>(value));
    } else if constexpr (IsId<T>::value) {
      Put(value.value);
    } else {
      Visit(*this, value);
    }
  }
  // const access: the visitors only read here.
  template <typename T>
  void Write(const T& value) {
    (*this)(const_cast<T&>(value));
  }

 private:
  template <typename U>
  void Put(U value) {
    for (std::size_t i = 0; i < sizeof(U); ++i) sink_(static_cast<std::uint8_t>(value >> (8 * i)));
  }
  Sink sink_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = Get<std::uint8_t>();
      if (byte > 1) ok_ = false;
      value = byte == 1;
    } else if constexpr (std::is_same_v<T, double>) {
      value = std::bit_cast<double>(Get<std::uint64_t>());
    } else if constexpr (std::is_enum_v<T>) {
      const auto byte = Get<std::uint8_t>();
      if (byte >= EnumCount(T{})) ok_ = false;
      value = static_cast<T>(ok_ ? byte : 0);
    } else if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(Get<std::make_unsigned_t<T>>());
    } else if constexpr (IsId<T>::value) {
      value.value = Get<typename T::rep>();
    } else {
      Visit(*this, value);
    }
  }

  bool ok() const { return ok_; }
  bool at_end() const { return next_ == bytes_.size(); }
  std::size_t left() const { return bytes_.size() - next_; }

 private:
  template <typename U>
  U Get() {
    if (!ok_ || left() < sizeof(U)) {
      ok_ = false;
      return 0;
    }
    U value = 0;
    for (std::size_t i = 0; i < sizeof(U); ++i) value = static_cast<U>(value | U{bytes_[next_++]} << (8 * i));
    return value;
  }
  std::span<const std::uint8_t> bytes_;
  std::size_t next_ = 0;
  bool ok_ = true;
};

template <typename W, typename Variant>
void WriteVariant(W& writer, const Variant& variant) {
  writer.Write(static_cast<std::uint8_t>(variant.index()));
  std::visit([&writer](const auto& value) { writer.Write(value); }, variant);
}

template <std::size_t I = 0>
bool ReadEvent(Reader& reader, std::uint8_t kind, Event& event) {
  if constexpr (I == std::variant_size_v<Event>) {
    return false;
  } else {
    if (kind != I) return ReadEvent<I + 1>(reader, kind, event);
    std::variant_alternative_t<I, Event> value;
    reader(value);
    event = value;
    return reader.ok();
  }
}

Status ReadHeader(Reader& reader, const std::array<std::uint8_t, 2>& tag, const char* what) {
  std::array<std::uint8_t, 2> found{};
  std::uint16_t version = 0;
  reader(found[0]);
  reader(found[1]);
  reader(version);
  if (!reader.ok() || found != tag) return DataLoss(std::string("not an encoded ") + what);
  if (version != kCodecVersion) {
    return Unimplemented(std::string("encoded ") + what + " has version " + std::to_string(version) + ", this reads " +
                         std::to_string(kCodecVersion));
  }
  return OkStatus();
}

template <typename W>
void WriteHeader(W& writer, const std::array<std::uint8_t, 2>& tag) {
  writer.Write(tag[0]);
  writer.Write(tag[1]);
  writer.Write(kCodecVersion);
}

auto AppendTo(std::vector<std::uint8_t>& out) {
  return [&out](std::uint8_t byte) { out.push_back(byte); };
}

Status ReadBatch(Reader& reader, EventBatch& batch) {
  FORELOAD_RETURN_IF_ERROR(ReadHeader(reader, kBatchTag, "event batch"));
  std::uint32_t blocks = 0;
  reader(blocks);
  if (!reader.ok() || blocks > kDecodedBlocksMax || blocks > reader.left() / sizeof(std::uint32_t)) {
    return DataLoss("event batch: its block pool is longer than its bytes");
  }
  batch.blocks.resize(blocks);
  for (BlockId& block : batch.blocks) reader(block);
  std::uint32_t events = 0;
  reader(events);
  if (!reader.ok() || events > kDecodedEventsMax || events > reader.left()) {
    return DataLoss("event batch: more events than bytes");
  }
  batch.events.reserve(events);
  for (std::uint32_t i = 0; i < events; ++i) {
    std::uint8_t kind = 0;
    reader(kind);
    Event event;
    if (!reader.ok() || !ReadEvent(reader, kind, event)) {
      return DataLoss("event batch: event " + std::to_string(i) + " is cut short or of no known kind");
    }
    batch.events.push_back(event);
  }
  return reader.at_end() ? OkStatus() : DataLoss("event batch: bytes after its last event");
}

}  // namespace

std::vector<std::uint8_t> EncodeConfig(const CoreConfig& config) {
  std::vector<std::uint8_t> out;
  Writer writer(AppendTo(out));
  WriteHeader(writer, kConfigTag);
  writer.Write(config);
  return out;
}

Result<CoreConfig> DecodeConfig(std::span<const std::uint8_t> bytes) {
  Reader reader(bytes);
  FORELOAD_RETURN_IF_ERROR(ReadHeader(reader, kConfigTag, "core configuration"));
  CoreConfig config;
  reader(config);
  if (!reader.ok() || !reader.at_end()) return DataLoss("core configuration: wrong length");
  FORELOAD_RETURN_IF_ERROR(Validate(config));
  return config;
}

void EncodeBatch(const EventBatch& batch, std::vector<std::uint8_t>& out) {
  Writer writer(AppendTo(out));
  WriteHeader(writer, kBatchTag);
  writer.Write(static_cast<std::uint32_t>(batch.blocks.size()));
  for (const BlockId& block : batch.blocks) writer.Write(block);
  writer.Write(static_cast<std::uint32_t>(batch.events.size()));
  for (const Event& event : batch.events) WriteVariant(writer, event);
}

Status DecodeBatch(std::span<const std::uint8_t> bytes, EventBatch& batch) {
  batch.Clear();
  Reader reader(bytes);
  Status status = ReadBatch(reader, batch);
  if (!status.ok()) batch.Clear();
  return status;
}

void EncodeCommands(std::span<const Command> commands, std::vector<std::uint8_t>& out) {
  Writer writer(AppendTo(out));
  for (const Command& command : commands) WriteVariant(writer, command);
}

std::uint64_t CommandDigest(std::span<const Command> commands) {
  // Eight bytes at a time through the finisher of SplitMix64; the length closes it.
  std::uint64_t hash = 0x464F52454C4F4144ull;  // "FORELOAD"
  std::uint64_t word = 0;
  std::uint64_t bytes = 0;
  const auto mix = [&hash](std::uint64_t value) {
    hash ^= value;
    hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9ull;
    hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBull;
    hash ^= hash >> 31;
  };
  Writer writer([&](std::uint8_t byte) {
    word |= std::uint64_t{byte} << (8 * (bytes % 8));
    if (++bytes % 8 == 0) {
      mix(word);
      word = 0;
    }
  });
  for (const Command& command : commands) WriteVariant(writer, command);
  mix(word);
  mix(bytes);
  return hash;
}

}  // namespace foreload::core
