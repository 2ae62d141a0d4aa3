#include "client/client.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "proto/control.pb.h"
#include "proto/limits.h"

namespace foreload::client {
namespace {

std::chrono::steady_clock::time_point At(TimeNs when) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(when));
}

std::string Bytes(const std::array<std::uint8_t, 16>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The same options will be refused again, however long one waits.
bool ForGood(std::uint32_t code) {
  return code == static_cast<std::uint32_t>(StatusCode::kInvalidArgument) ||
         code == static_cast<std::uint32_t>(StatusCode::kFailedPrecondition) ||
         code == static_cast<std::uint32_t>(StatusCode::kUnimplemented);
}

}  // namespace

Client::Client(ClientOptions options)
    : options_(std::move(options)), fetches_(options_.breaker_open_ns), link_(options_.socket_path, *this) {}

Result<std::unique_ptr<Client>> Client::Open(ClientOptions options) {
  std::unique_ptr<Client> client(new Client(std::move(options)));
  if (!client->options_.telemetry_endpoint.empty()) {
    FORELOAD_ASSIGN_OR_RETURN(client->emitter_, Emitter::Open(client->options_.telemetry_endpoint,
                                                              client->options_.engine, client->requests_));
  }
  FORELOAD_RETURN_IF_ERROR(client->link_.Start());
  return client;
}

Client::~Client() {
  std::string why;
  (void)RevokeWait(MonotonicNow() + kCloseRevokeMax, &why);
  link_.Stop();
}

void Client::Disown() {
  disowned_.store(true);
  link_.CloseInChild();
}

// --- connection
// --------------------------------------------------------------------------------------------------------

void Client::OnConnected(PeerProcess peer) {
  const std::lock_guard lock(mutex_);
  peer_ = std::move(peer);
  boot_token_ = 0;
  phase_ = Phase::kDraining;
  // Only a former table keeps look-ups closed; a scheduler that never had one has nothing to drain.
  table_.CloseLookups();
}

void Client::OnDisconnected(const std::string& why) {
  requests_.ForgetStored();
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kUp || refused_code_ == FL_OK) last_words_ = why;
    phase_ = Phase::kDown;
    slots_in_force_ = 0;
    grant_sent_ = false;
    grant_accepted_ = false;
    grant_backoff_ = kRegrantMin;
    next_grant_ = 0;
    table_pending_ = false;
    next_table_.reset();
    if (holder_) holder_->connection_ended = true;
    table_.OpenLookups();  // READY slots stay readable
    for (auto& [request, answer] : waiting_) {
      if (!answer) answer = Answer{.code = FL_EUNAVAIL, .message = "the sidecar went away: " + why, .text = {}};
    }
  }
  stores_.Retire();
  fetches_.LoseAll();
  changed_.notify_all();
}

TimeNs Client::OnTick(TimeNs now) {
  const std::lock_guard lock(mutex_);
  TimeNs next = now + kSecond;
  if (phase_ == Phase::kDraining) {
    std::unique_ptr<TableReader> none;
    if (!table_.TryReplace(none)) return now + kDrainPoll;
    Register(now);
  }
  if (phase_ == Phase::kRegistering) {
    if (now >= register_deadline_) link_.Drop("the sidecar does not answer the registration");
    next = std::min(next, register_deadline_);
  }
  if (phase_ == Phase::kUp) {
    next = std::min(next, MaybeGrant(now));
    if (table_pending_) {
      if (table_.TryReplace(next_table_)) {
        table_pending_ = false;
        table_.OpenLookups();
        changed_.notify_all();
      } else {
        next = std::min(next, now + kDrainPoll);
      }
    }
  }
  return next;
}

void Client::Register(TimeNs now) {
  control::ControlMessage message;
  message.set_request(register_request_ = NextRequest());
  control::Register& body = *message.mutable_register_();
  body.set_protocol_version(control::kProtocolVersion);
  body.set_engine(options_.engine);
  body.set_instance_id(Bytes(options_.instance_id));
  body.set_scheduler(options_.scheduler);
  body.set_worker(options_.worker);
  body.set_rank(options_.rank);
  body.set_rank_count(options_.rank_count);
  body.set_name_space(Bytes(options_.name_space.bytes));
  body.set_layout(Bytes(options_.layout));
  for (const fl_extent& extent : options_.extents) {
    control::Extent& entry = *body.add_extents();
    entry.set_layer_group(extent.layer_group);
    entry.set_offset(extent.offset);
    entry.set_bytes(extent.bytes);
  }
  body.set_block_tokens(options_.block_tokens);
  body.set_layer_major(options_.layer_major);
  body.set_recompute_seconds_per_token(options_.recompute_seconds_per_token);
  body.set_policy(options_.demand_only ? control::Register::POLICY_DEMAND_ONLY : control::Register::POLICY_DEFAULT);
  body.set_namespace_text(options_.namespace_text);
  phase_ = Phase::kRegistering;
  register_deadline_ = now + kRegisterTimeout;
  (void)link_.Send(message);  // a failure is a connection that ends; the link says so
}

bool Client::connected() {
  const std::lock_guard lock(mutex_);
  return phase_ == Phase::kUp;
}

// Whether nothing more is to come for start-up: a worker's grant is in force, or will not be in this mode.
bool Client::GrantSettled() const {
  if (phase_ != Phase::kUp) return false;
  if (!options_.worker || !arena_) return true;
  if (mode_ != "on") return grant_accepted_;
  return slots_in_force_ > 0 && !table_pending_;
}

int Client::ConnectWait(TimeNs deadline, std::string* why) {
  std::unique_lock lock(mutex_);
  const auto over = [this] { return GrantSettled() || refused_for_good_; };
  if (changed_.wait_until(lock, At(deadline), over) && !refused_for_good_) return FL_OK;
  *why = last_words_;
  return refused_code_ != FL_OK ? refused_code_ : FL_ETIMEDOUT;
}

// --- messages
// ----------------------------------------------------------------------------------------------------------

Status Client::OnMessage(const control::ControlMessage& message, std::vector<UniqueFd> descriptors) {
  {
    const std::lock_guard lock(mutex_);
    if (boot_token_ == 0) boot_token_ = message.boot_token();
    if (message.boot_token() == 0 || message.boot_token() != boot_token_) {
      return DataLoss("the sidecar's boot token changed within a connection");
    }
  }
  using Message = control::ControlMessage;
  switch (message.body_case()) {
    case Message::kRegisterReply: {
      const std::lock_guard lock(mutex_);
      if (phase_ != Phase::kRegistering || message.request() != register_request_) {
        return DataLoss("a register reply that nobody asked for");
      }
      phase_ = Phase::kUp;
      mode_ = message.register_reply().mode();
      refused_code_ = FL_OK;
      refused_for_good_ = false;
      last_words_ = "registered";
      ++registrations_;
      link_.ResetBackoff();
      fetches_.ResetBreaker();
      changed_.notify_all();
      return OkStatus();
    }
    case Message::kArenaState: return OnArenaState(message, descriptors);
    case Message::kGrantArenaReply: return OnGrantReply(message, descriptors);
    case Message::kDemandFetchReply: OnFetchReply(message); return OkStatus();
    case Message::kKeyListRequest: AnswerKeyList(message); return OkStatus();
    case Message::kRequestOutlook:
      requests_.SetStored(message.request_outlook().request_id(), message.request_outlook().stored_blocks());
      return OkStatus();
    case Message::kRevokeArenaReply:
    case Message::kPurgeReply:
    case Message::kFlushReply:
    case Message::kStatusReply: {
      const std::lock_guard lock(mutex_);
      const auto it = waiting_.find(message.request());
      if (it == waiting_.end()) return OkStatus();  // its caller has given up
      it->second = Answer{.code = FL_OK, .message = {}, .text = message.status_reply().json()};
      changed_.notify_all();
      return OkStatus();
    }
    case Message::kError: {
      const std::lock_guard lock(mutex_);
      OnError(message);
      changed_.notify_all();
      return OkStatus();
    }
    default: return DataLoss("the sidecar sent a message that only engines send");
  }
}

void Client::OnError(const control::ControlMessage& message) {
  const std::string& words = message.error().message();
  if (phase_ == Phase::kRegistering && message.request() == register_request_) {
    refused_code_ = FL_EREFUSED;
    refused_for_good_ = ForGood(message.error().code());
    last_words_ = "the sidecar refused the registration: " + words;
    link_.Drop(last_words_);
  } else if (grant_sent_ && message.request() == grant_request_) {
    refused_code_ = FL_EREFUSED;
    refused_for_good_ = message.error().code() == static_cast<std::uint32_t>(StatusCode::kInvalidArgument);
    last_words_ = "the sidecar refused the arena: " + words;
    holder_.reset();
    GrantEnded(MonotonicNow());
  } else if (const auto it = waiting_.find(message.request()); it != waiting_.end()) {
    it->second = Answer{.code = FL_EREFUSED, .message = "the sidecar refused: " + words, .text = {}};
  } else {
    fetches_.Refuse(message.request(), "the sidecar refused the fetch: " + words);
  }
}

void Client::OnFetchReply(const control::ControlMessage& message) {
  const control::DemandFetchReply& reply = message.demand_fetch_reply();
  fetches_.Complete(message.request(), {.ready_blocks = reply.ready_blocks(),
                                        .absent_blocks = reply.absent_blocks(),
                                        .failed_blocks = reply.failed_blocks(),
                                        .already_ready_blocks = reply.already_ready_blocks(),
                                        .joined_blocks = reply.joined_blocks(),
                                        .bytes_from_dram = reply.bytes_from_dram(),
                                        .bytes_from_ssd = reply.bytes_from_ssd()});
}

void Client::AnswerKeyList(const control::ControlMessage& message) {
  const std::string& id = message.key_list_request().request_id();
  const KeyList keys = requests_.Keys(id);
  std::uint32_t first = 0;
  do {  // an empty list is answered too: the sidecar need not ask again
    const std::uint32_t count = std::min<std::uint32_t>(keys.count() - first, kKeysPerChunk);
    control::ControlMessage reply;
    reply.set_request(message.request());
    control::KeyListChunk& chunk = *reply.mutable_key_list_chunk();
    chunk.set_request_id(id);
    chunk.set_name_space(Bytes(keys.name_space.bytes));
    chunk.set_digest_bytes(keys.digest_bytes);
    chunk.set_first_block(first);
    chunk.set_total_blocks(keys.count());
    if (count > 0) {
      chunk.set_digests(keys.digests.data() + std::size_t{first} * keys.digest_bytes,
                        std::size_t{count} * keys.digest_bytes);
    }
    if (!link_.Send(reply).ok()) return;  // it asks again after the next announcement
    first += count;
  } while (first < keys.count());
}

// --- demand and other requests
// -----------------------------------------------------------------------------------------

int Client::Fetch(const std::string& request_id, const KeyListView& keys, std::uint32_t first_block,
                  std::int64_t deadline_us, std::uint64_t* ticket, std::string* why) {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kUp) {
      *why = "no sidecar: " + last_words_;
      return FL_EUNAVAIL;
    }
    *ticket = NextRequest();
  }
  const TimeNs now = MonotonicNow();
  const DurationNs deadline = deadline_us * kMicrosecond;
  if (const auto stored = requests_.Stored(request_id); stored && first_block >= *stored) {
    fl_fetch_result absent{};
    absent.absent_blocks = keys.count;
    return fetches_.Answered(*ticket, now + deadline, absent, why);
  }
  if (const int code = fetches_.Begin(*ticket, now, now + deadline, why); code != FL_OK) return code;
  control::ControlMessage message;
  message.set_request(*ticket);
  control::DemandFetch& body = *message.mutable_demand_fetch();
  body.set_request_id(request_id);
  body.set_name_space(Bytes(keys.name_space.bytes));
  body.set_digest_bytes(keys.digest_bytes);
  body.set_digests(keys.digests, std::size_t{keys.count} * keys.digest_bytes);
  body.set_first_block(first_block);
  // The sidecar gets a little less, so that its answer at its deadline is not late at ours and opens the breaker.
  body.set_deadline_us((deadline - std::min<DurationNs>(deadline / 8, 10 * kMillisecond)) / kMicrosecond);
  if (const Status status = link_.Send(message); !status.ok()) {
    fetches_.Abandon(*ticket);
    *why = status.message();
    return FL_EUNAVAIL;
  }
  fetch_count_.fetch_add(1, std::memory_order_relaxed);
  return FL_OK;
}

Answer Client::Ask(control::ControlMessage& message, TimeNs deadline) {
  std::unique_lock lock(mutex_);
  if (phase_ != Phase::kUp) return {.code = FL_EUNAVAIL, .message = "no sidecar: " + last_words_, .text = {}};
  const std::uint64_t request = NextRequest();
  message.set_request(request);
  waiting_[request];
  const Status sent = link_.Send(message);
  Answer answer{.code = FL_EUNAVAIL, .message = sent.message(), .text = {}};
  if (sent.ok()) {
    if (changed_.wait_until(lock, At(deadline), [&] { return waiting_[request].has_value(); })) {
      answer = std::move(*waiting_[request]);
    } else {
      answer = {.code = FL_ETIMEDOUT, .message = "the sidecar did not answer in time", .text = {}};
    }
  }
  waiting_.erase(request);
  return answer;
}

void Client::CountLookup(std::uint32_t hits, std::uint32_t misses) {
  lookups_.fetch_add(1, std::memory_order_relaxed);
  hit_blocks_.fetch_add(hits, std::memory_order_relaxed);
  miss_blocks_.fetch_add(misses, std::memory_order_relaxed);
}

fl_counters Client::counters() {
  fl_counters counters{};
  counters.lookups = lookups_.load(std::memory_order_relaxed);
  counters.hit_blocks = hit_blocks_.load(std::memory_order_relaxed);
  counters.miss_blocks = miss_blocks_.load(std::memory_order_relaxed);
  const StoreLanes::Counts stores = stores_.counts();
  counters.stores_begun = stores.begun;
  counters.stores_full = stores.full;
  counters.stores_committed = stores.committed;
  counters.fetches = fetch_count_.load(std::memory_order_relaxed);
  counters.fetches_timed_out = fetches_.timed_out();
  counters.breaker_opened = fetches_.breaker_opened();
  if (emitter_ != nullptr) {
    counters.events_emitted = emitter_->emitted();
    counters.events_dropped = emitter_->dropped();
  }
  const std::lock_guard lock(mutex_);
  counters.reconnects = registrations_ == 0 ? 0 : registrations_ - 1;
  counters.regrants = grants_sent_ == 0 ? 0 : grants_sent_ - 1;
  return counters;
}

}  // namespace foreload::client
