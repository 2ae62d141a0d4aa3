#include "cmd/drive/live_port.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "cmd/drive/kv_publisher.h"

namespace foreload::drive {
namespace {

constexpr std::uint64_t kExtentAlignment = 64;
constexpr std::size_t kStatusBytes = 4u << 20;

Status FromClient(int code, const std::string& what) {
  const std::string message = what + ": " + fl_error_text();
  switch (code) {
    case FL_EINVAL: return InvalidArgument(message);
    case FL_EUNAVAIL: return Unavailable(message);
    case FL_ETIMEDOUT: return DeadlineExceeded(message);
    case FL_EREFUSED:
    case FL_ESTATE: return FailedPrecondition(message);
    case FL_EFULL: return ResourceExhausted(message);
    default: return IoError(message);
  }
}

struct ClientCloser {
  void operator()(fl_client* client) const { fl_close(client); }
};
using Client = std::unique_ptr<fl_client, ClientCloser>;

int KindOf(replay::RequestKind kind) {
  switch (kind) {
    case replay::RequestKind::kHuman: return FL_KIND_HUMAN;
    case replay::RequestKind::kTool: return FL_KIND_TOOL;
    case replay::RequestKind::kWorkflow: return FL_KIND_WORKFLOW;
    default: return FL_KIND_UNKNOWN;
  }
}

int StateOf(RequestState state) {
  switch (state) {
    case RequestState::kQueued: return FL_REQUEST_QUEUED;
    case RequestState::kScheduled: return FL_REQUEST_SCHEDULED;
    case RequestState::kFirstToken: return FL_REQUEST_FIRST_TOKEN;
    default: return FL_REQUEST_FINISHED;
  }
}

// Waits for fetches, each on a thread of its own, and says when one has ended.
class FetchWaiters {
 public:
  FetchWaiters(fl_client* client, std::uint32_t threads) : client_(client) {
    for (std::uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }
  ~FetchWaiters() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Add(std::uint64_t ticket) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(ticket);
    }
    work_.notify_one();
  }

  struct Ended {
    int code = 0;
    fl_fetch_result result{};
  };
  std::optional<Ended> Take(std::uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    const auto it = ended_.find(ticket);
    if (it == ended_.end()) return std::nullopt;
    const Ended ended = it->second;
    ended_.erase(it);
    return ended;
  }

  void WaitUntil(TimeNs deadline) {
    std::unique_lock lock(mutex_);
    const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline)};
    ended_one_.wait_until(lock, until, [this] { return !ended_.empty(); });
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const std::uint64_t ticket = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      Ended ended;
      ended.code = fl_fetch_wait(client_, ticket, &ended.result);
      lock.lock();
      ended_.emplace(ticket, ended);
      ended_one_.notify_one();
    }
  }

  fl_client* client_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable ended_one_;
  std::deque<std::uint64_t> waiting_;
  std::unordered_map<std::uint64_t, Ended> ended_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

class Port final : public LivePort {
 public:
  explicit Port(const LivePortOptions& options) : options_(options), encoder_(options.hash_form) {
    rank_bytes_ = options.block_bytes / options.ranks;
    page_.resize(rank_bytes_ / sizeof(std::uint64_t));
  }
  ~Port() override {
    waiters_.reset();
    publisher_.reset();
    while (!clients_.empty()) clients_.pop_back();  // workers before the scheduler
  }

  Status Open();

  Status WaitReady(DurationNs timeout, bool observing) override;
  void WaitUntil(TimeNs deadline) override { waiters_->WaitUntil(deadline); }
  Result<std::string> StatusJson(DurationNs timeout) override;
  Status Flush(DurationNs timeout) override;
  Status Purge(DurationNs timeout) override;
  LiveCounts counts() const override {
    LiveCounts counts = counts_;
    counts.kv_batches = publisher_->published();
    counts.kv_batches_dropped = publisher_->dropped();
    return counts;
  }
  fl_counters client_counters() const override {
    fl_counters total{};
    for (const Client& client : clients_) {
      fl_counters one{};
      if (fl_get_counters(client.get(), &one) != FL_OK) continue;
      if (&client == &clients_.front())
        total = one;
      else
        total.stores_full += one.stores_full;
    }
    return total;
  }

  void Announce(EngineRequest& request, RequestState state) override;
  Result<std::uint32_t> ReadReady(const EngineRequest& request, std::uint32_t first) override;
  std::optional<std::uint64_t> StartFetch(const EngineRequest& request, std::uint32_t first,
                                          DurationNs deadline) override;
  std::optional<FetchOutcome> PollFetch(std::uint64_t ticket) override;
  StoreOutcome Store(const EngineRequest& request, std::uint32_t index) override;
  void PublishStored(const EngineRequest& request, std::uint32_t first, std::uint32_t count) override;
  void PublishRemoved(std::span<const std::uint64_t> blocks) override;
  void EndStep() override {
    if (!encoder_.empty()) publisher_->Publish(encoder_.Take(static_cast<double>(WallNow()) / 1e9));
  }

 private:
  static const std::uint8_t* DigestAt(const EngineRequest& request, std::uint32_t index) {
    return request.digests.data() + sizeof(Digest) * index;
  }
  fl_keys Keys(const EngineRequest& request, std::uint32_t first, std::uint32_t end) const {
    return {name_space_.data(), DigestAt(request, first), sizeof(Digest), end - first};
  }
  bool ReadOne(const EngineRequest& request, std::uint32_t index, const fl_pinned& pinned);
  void CountFetch(TimeNs started, const fl_fetch_result& result);

  LivePortOptions options_;
  Namespace name_space_{};
  std::uint64_t rank_bytes_ = 0;
  std::uint64_t stride_ = 0;
  std::vector<Client> clients_;
  std::vector<const std::byte*> arenas_;
  std::vector<std::uint64_t> page_;  // where a block is copied to, as the engine's own page would be
  std::unique_ptr<KvPublisher> publisher_;
  KvBatchEncoder encoder_;
  std::unique_ptr<FetchWaiters> waiters_;
  std::unordered_map<std::uint64_t, TimeNs> fetch_started_;
  std::vector<fl_pinned> pins_;
  std::vector<Digest> digests_;
  LiveCounts counts_;
};

Status Port::Open() {
  const std::string revision = options_.model_revision;
  const fl_namespace_fields fields{revision.c_str(), nullptr, nullptr, 0, 0};
  if (const int rc = fl_namespace(&fields, name_space_.data()); rc != FL_OK) return FromClient(rc, "fl_namespace");
  const fl_layout_fields layout_fields{"bfloat16", options_.block_tokens, "drive", "splitmix64", "1", options_.ranks};

  std::vector<fl_extent> extents(options_.layer_groups);
  const std::uint64_t extent_bytes = rank_bytes_ / options_.layer_groups;
  for (std::uint32_t i = 0; i < options_.layer_groups; ++i) extents[i] = {i, extent_bytes * i, extent_bytes};
  stride_ = (rank_bytes_ + 4095) / 4096 * 4096;

  fl_options client_options{};
  client_options.api_version = FL_API_VERSION;
  client_options.socket_path = options_.control_socket.c_str();
  client_options.engine = options_.engine.c_str();
  fl_random_id(client_options.instance_id);
  client_options.worker = 1;
  client_options.rank_count = options_.ranks;
  std::memcpy(client_options.name_space, name_space_.data(), name_space_.size());
  if (const int rc = fl_layout(&layout_fields, client_options.layout); rc != FL_OK) return FromClient(rc, "fl_layout");
  client_options.namespace_text = revision.c_str();
  client_options.extents = extents.data();
  client_options.extent_count = options_.layer_groups;
  client_options.block_tokens = options_.block_tokens;
  client_options.recompute_seconds_per_token = options_.recompute_seconds_per_token;
  client_options.demand_only = options_.demand_only ? 1 : 0;
  client_options.breaker_open_ms = options_.breaker_open_ms;

  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    client_options.rank = rank;
    client_options.scheduler = rank == 0 ? 1 : 0;
    client_options.telemetry_endpoint = rank == 0 ? options_.access_endpoint.c_str() : nullptr;
    fl_client* client = nullptr;
    if (const int rc = fl_open(&client_options, &client); rc != FL_OK) return FromClient(rc, "fl_open");
    clients_.emplace_back(client);
    void* base = nullptr;
    const int rc = fl_grant_host(client, options_.arena_slots, stride_, options_.store_slots, &base);
    if (rc != FL_OK) return FromClient(rc, "fl_grant_host");
    arenas_.push_back(static_cast<const std::byte*>(base));
  }
  FORELOAD_ASSIGN_OR_RETURN(publisher_,
                            KvPublisher::Start({options_.kv_endpoint, options_.kv_replay_endpoint, "kv-events"}));
  waiters_ = std::make_unique<FetchWaiters>(clients_.front().get(), options_.fetches_max);
  return OkStatus();
}

Status Port::WaitReady(DurationNs timeout, bool observing) {
  const TimeNs until = MonotonicNow() + timeout;
  for (const Client& client : clients_) {
    const std::int64_t left_us = std::max<std::int64_t>(0, (until - MonotonicNow()) / kMicrosecond);
    const int rc = fl_connect_wait(client.get(), left_us);
    if (rc == FL_OK || (observing && fl_connected(client.get()) == 1)) continue;
    return FromClient(rc, "the sidecar on " + options_.control_socket + " is not ready");
  }
  return OkStatus();
}

Result<std::string> Port::StatusJson(DurationNs timeout) {
  std::string text(kStatusBytes, '\0');
  const int rc = fl_status_wait(clients_.front().get(), text.data(), text.size(), timeout / kMicrosecond);
  if (rc < 0) return FromClient(rc, "fl_status_wait");
  text.resize(std::min<std::size_t>(static_cast<std::size_t>(rc), std::strlen(text.c_str())));
  return text;
}

Status Port::Flush(DurationNs timeout) {
  const int rc = fl_flush_wait(clients_.front().get(), timeout / kMicrosecond);
  return rc == FL_OK ? OkStatus() : FromClient(rc, "fl_flush_wait");
}

Status Port::Purge(DurationNs timeout) {
  const int rc = fl_purge_wait(clients_.front().get(), name_space_.data(), timeout / kMicrosecond);
  return rc == FL_OK ? OkStatus() : FromClient(rc, "fl_purge_wait");
}

void Port::Announce(EngineRequest& request, RequestState state) {
  const std::uint32_t prompt = request.record.full_blocks;
  const auto all = static_cast<std::uint32_t>(prompt + request.trace.output_blocks.size());
  std::string session;
  fl_request_event event{};
  if (state == RequestState::kQueued) {
    request.id = "request-" + std::to_string(request.record.number);
    request.digests.resize(sizeof(Digest) * all);
    for (std::uint32_t i = 0; i < all; ++i) {
      const Digest digest =
          DigestOf(name_space_, i < prompt ? request.trace.blocks[i] : request.trace.output_blocks[i - prompt]);
      std::memcpy(request.digests.data() + sizeof(Digest) * i, digest.data(), digest.size());
    }
    event.keys = Keys(request, 0, prompt);
  } else if (state == RequestState::kFinished) {
    event.keys = Keys(request, 0, all);
  }
  event.request_id = request.id.c_str();
  if (request.trace.session != replay::kNoSession) {
    session = std::to_string(request.trace.session) + "." + std::to_string(request.trace.stream);
    event.session_id = session.c_str();
  }
  event.state = StateOf(state);
  event.kind = KindOf(request.trace.kind);
  event.priority = request.trace.priority;
  event.expected_start_ms = -1;
  event.prompt_tokens = request.trace.input_tokens;
  event.turn = request.trace.turn;
  fl_emit_request(clients_.front().get(), &event);  // drops are the library's to count
}

bool Port::ReadOne(const EngineRequest& request, std::uint32_t index, const fl_pinned& pinned) {
  const std::span<const std::uint8_t> digest(DigestAt(request, index), sizeof(Digest));
  const std::span<std::byte> page(reinterpret_cast<std::byte*>(page_.data()), rank_bytes_);
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    std::memcpy(page.data(), arenas_[rank] + stride_ * pinned.slot, page.size());
    const auto wrong = FindMismatch(ContentSeed(name_space_, digest, rank), page);
    if (wrong.has_value()) {
      std::fprintf(stderr, "MISMATCH: %s block %u rank %u slot %u generation %u: first wrong word at byte %zu of %zu\n",
                   request.id.c_str(), index, rank, pinned.slot, pinned.generation, *wrong, page.size());
      return false;
    }
  }
  return true;
}

Result<std::uint32_t> Port::ReadReady(const EngineRequest& request, std::uint32_t first) {
  const std::uint32_t count = request.usable_blocks - first;
  if (count == 0) return 0u;
  pins_.resize(std::max<std::size_t>(pins_.size(), count));
  const fl_keys keys = Keys(request, first, request.usable_blocks);
  const int n = fl_lookup_pin(clients_.front().get(), &keys, pins_.data());
  if (n <= 0) return 0u;
  const auto ready = static_cast<std::uint32_t>(n);
  bool right = true;
  for (std::uint32_t i = 0; i < ready && right; ++i) right = ReadOne(request, first + i, pins_[i]);
  fl_unpin(clients_.front().get(), pins_.data(), ready, 1);
  if (!right) {
    ++counts_.mismatches;
    return DataLoss("wrong bytes in the arena (" + request.id + ")");
  }
  counts_.verified_blocks += ready;
  counts_.verified_bytes += ready * rank_bytes_ * options_.ranks;
  return ready;
}

std::optional<std::uint64_t> Port::StartFetch(const EngineRequest& request, std::uint32_t first, DurationNs deadline) {
  const fl_keys keys = Keys(request, first, request.usable_blocks);
  std::uint64_t ticket = 0;
  const TimeNs now = MonotonicNow();
  const int rc = fl_fetch(clients_.front().get(), request.id.c_str(), &keys, first,
                          std::max<std::int64_t>(1, deadline / kMicrosecond), &ticket);
  if (rc != FL_OK) return std::nullopt;
  fetch_started_.emplace(ticket, now);
  waiters_->Add(ticket);
  return ticket;
}

std::optional<FetchOutcome> Port::PollFetch(std::uint64_t ticket) {
  const auto ended = waiters_->Take(ticket);
  if (!ended.has_value()) return std::nullopt;
  const auto started = fetch_started_.extract(ticket);
  const DurationNs waited = MonotonicNow() - started.mapped();
  const double seconds = static_cast<double>(waited) / 1e9;
  counts_.fetch_seconds.push_back(seconds);
  FetchOutcome outcome;
  outcome.waited_ns = waited;
  outcome.timed_out = ended->code == FL_ETIMEDOUT;
  if (ended->code >= 0) {
    outcome.dram_blocks = static_cast<std::uint32_t>(ended->result.bytes_from_dram / options_.block_bytes);
    outcome.ssd_blocks = static_cast<std::uint32_t>(ended->result.bytes_from_ssd / options_.block_bytes);
    if (outcome.dram_blocks + outcome.ssd_blocks > 0) counts_.loaded_fetch_seconds.push_back(seconds);
  }
  return outcome;
}

StoreOutcome Port::Store(const EngineRequest& request, std::uint32_t index) {
  const fl_keys key = Keys(request, index, index + 1);
  const std::uint8_t* parent = index > 0 ? DigestAt(request, index - 1) : nullptr;
  const std::span<const std::uint8_t> digest(DigestAt(request, index), sizeof(Digest));
  // Slots of all ranks first: a block of which one rank has no place is stored by none.
  std::vector<fl_store> slots(options_.ranks);
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    const int rc = fl_store_begin(clients_[rank].get(), &slots[rank]);
    if (rc == FL_OK) continue;
    for (std::uint32_t done = 0; done < rank; ++done) fl_store_abort(clients_[done].get(), &slots[done]);
    return rc == FL_EFULL ? StoreOutcome::kFull : StoreOutcome::kUnavailable;
  }
  StoreOutcome outcome = StoreOutcome::kStored;
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    FillContent(ContentSeed(name_space_, digest, rank), {static_cast<std::byte*>(slots[rank].data), rank_bytes_});
    if (fl_store_commit(clients_[rank].get(), &slots[rank], &key, parent) != FL_OK)
      outcome = StoreOutcome::kUnavailable;
  }
  return outcome;
}

void Port::PublishStored(const EngineRequest& request, std::uint32_t first, std::uint32_t count) {
  digests_.resize(count);
  std::memcpy(digests_.data(), DigestAt(request, first), sizeof(Digest) * count);
  Digest parent{};
  if (first > 0) std::memcpy(parent.data(), DigestAt(request, first - 1), parent.size());
  encoder_.AddStored(digests_, first > 0 ? &parent : nullptr, options_.block_tokens);
}

void Port::PublishRemoved(std::span<const std::uint64_t> blocks) {
  digests_.clear();
  for (const std::uint64_t block : blocks) digests_.push_back(DigestOf(name_space_, block));
  encoder_.AddRemoved(digests_);
}

}  // namespace

Result<std::unique_ptr<LivePort>> LivePort::Open(const LivePortOptions& options) {
  if (options.ranks == 0 || options.ranks > kRanksMax) return InvalidArgument("ranks must be 1 to 16");
  if (options.layer_groups == 0 || options.layer_groups > 64) return InvalidArgument("layer_groups must be 1 to 64");
  if (options.block_bytes == 0 ||
      options.block_bytes % (kExtentAlignment * options.ranks * options.layer_groups) != 0) {
    return InvalidArgument("block_bytes must be a multiple of 64 x ranks x layer_groups");
  }
  auto port = std::make_unique<Port>(options);
  FORELOAD_RETURN_IF_ERROR(port->Open());
  return std::unique_ptr<LivePort>(std::move(port));
}

}  // namespace foreload::drive
