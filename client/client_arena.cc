// The arena's part of the client: grant, revoke, and the tables and rings that come with a grant.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "client/client.h"
#include "proto/control.pb.h"
#include "proto/limits.h"

namespace foreload::client {

int Client::SetArena(Arena arena, std::string* why) {
  if (arena_ || revoking_) {
    *why = "an arena is granted already: revoke it first";
    return FL_ESTATE;
  }
  arena_ = std::move(arena);
  next_grant_ = 0;
  link_.Wake();
  return FL_OK;
}

namespace {

int CheckGrant(const ClientOptions& options, std::uint32_t slots, std::uint64_t stride, std::uint32_t store_slots,
               std::string* why) {
  if (!options.worker) {
    *why = "only a worker grants memory";
  } else if (slots == 0 || slots > kArenaSlotsMax) {
    *why = "slot_count: 1 to " + std::to_string(kArenaSlotsMax);
  } else if (stride % 64 != 0 || stride < options.slot_bytes() || stride > kSlotBytesMax) {
    *why = "slot_stride must be a multiple of 64 and at least the end of the last extent (" +
           std::to_string(options.slot_bytes()) + ")";
  } else if (store_slots > kStoreSlotsMax) {
    *why = "store_slots: at most " + std::to_string(kStoreSlotsMax);
  } else {
    return FL_OK;
  }
  return FL_EINVAL;
}

}  // namespace

int Client::GrantHost(std::uint32_t slots, std::uint64_t stride, std::uint32_t store_slots, void** base,
                      std::string* why) {
  if (const int code = CheckGrant(options_, slots, stride, store_slots, why); code != FL_OK) return code;
  auto memory = SharedMemory::Create("foreload-arena", stride * slots);
  if (!memory.ok()) {
    *why = memory.status().message();
    return FL_ESYSTEM;
  }
  void* const address = memory->data();
  const std::lock_guard lock(mutex_);
  const int code = SetArena(
      {.memory = std::move(memory).value(), .fd = {}, .slots = slots, .stride = stride, .store_slots = store_slots},
      why);
  if (code == FL_OK) *base = address;
  return code;
}

int Client::GrantFd(int fd, std::uint32_t slots, std::uint64_t stride, std::uint32_t store_slots, std::string* why) {
  if (const int code = CheckGrant(options_, slots, stride, store_slots, why); code != FL_OK) return code;
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat status {};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd, &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) < stride * slots) {
    *why = "fd must be a memfd sealed with F_SEAL_SHRINK of at least slot_stride * slot_count bytes";
    return FL_EINVAL;
  }
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) {
    *why = std::string("dup: ") + std::strerror(errno);
    return FL_ESYSTEM;
  }
  const std::lock_guard lock(mutex_);
  return SetArena({.memory = {}, .fd = std::move(own), .slots = slots, .stride = stride, .store_slots = store_slots},
                  why);
}

std::uint32_t Client::granted_slots() {
  const std::lock_guard lock(mutex_);
  return slots_in_force_;
}

bool Client::HolderGone() const {
  return !holder_ || holder_->process.Dead(holder_->connection_ended);
}

TimeNs Client::MaybeGrant(TimeNs now) {
  if (!arena_ || revoking_ || grant_sent_) return now + kSecond;
  if (now < next_grant_) return next_grant_;
  // A sidecar of before may still be writing into this memory, stopped or cut off though it is.
  if (holder_ && holder_->boot_token != boot_token_ && !HolderGone()) {
    last_words_ = "a former sidecar (pid " + std::to_string(holder_->process.pid()) +
                  ") still lives and may write into the arena: it is not granted again before that one has ended";
    return now + kHolderPoll;
  }
  UniqueFd copy(::fcntl(arena_->descriptor(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return now + kSecond;  // out of descriptors: later
  control::ControlMessage message;
  message.set_request(grant_request_ = NextRequest());
  control::GrantArena& body = *message.mutable_grant_arena();
  body.set_bytes(arena_->stride * arena_->slots);
  body.set_slot_stride(arena_->stride);
  body.set_slot_count(arena_->slots);
  body.set_store_slots(arena_->store_slots);
  // The holder is another handle on the same peer: this one goes with the connection.
  UniqueFd pidfd(peer_.fd() >= 0 ? ::fcntl(peer_.fd(), F_DUPFD_CLOEXEC, 0) : -1);
  holder_ = Holder{.process = PeerProcess(peer_.pid(), std::move(pidfd)), .boot_token = boot_token_};
  std::vector<UniqueFd> descriptors;
  descriptors.push_back(std::move(copy));
  grant_sent_ = true;
  grant_accepted_ = false;
  ++grants_sent_;
  (void)link_.Send(message, std::move(descriptors));
  return now + kSecond;
}

// The sidecar has let go of the memory, or never took it.
void Client::GrantEnded(TimeNs now) {
  grant_sent_ = false;
  grant_accepted_ = false;
  slots_in_force_ = 0;
  next_grant_ = now + grant_backoff_;
  grant_backoff_ = std::min(grant_backoff_ * 2, kRegrantMax);
  stores_.Retire();
}

Status Client::OnGrantReply(const control::ControlMessage& message, std::vector<UniqueFd>& descriptors) {
  const control::GrantArenaReply& reply = message.grant_arena_reply();
  std::optional<StoreRingClient> ring;
  if (reply.descriptors_size() != 0) {
    if (reply.descriptors_size() != 2 || descriptors.size() != 2 ||
        reply.descriptors(0) != control::DESCRIPTOR_STORE_RING ||
        reply.descriptors(1) != control::DESCRIPTOR_STORE_DOORBELL) {
      return DataLoss("a grant reply with other descriptors than ring and doorbell");
    }
    auto opened = StoreRingClient::Open(std::move(descriptors[0]), std::move(descriptors[1]), message.boot_token());
    if (!opened.ok()) return opened.status();
    if (opened->slot_bytes() < options_.slot_bytes()) return DataLoss("a store ring whose slots are too small");
    ring.emplace(std::move(opened).value());
  }
  const std::lock_guard lock(mutex_);
  if (!grant_sent_ || message.request() != grant_request_) return OkStatus();  // revoked meanwhile
  grant_accepted_ = true;
  refused_code_ = FL_OK;
  refused_for_good_ = false;
  if (ring && !revoking_ && !stores_.Open(std::move(*ring))) {
    last_words_ = "too many store slots of former sidecars are still taken: commit or abort them";
  }
  changed_.notify_all();
  return OkStatus();
}

Status Client::OnArenaState(const control::ControlMessage& message, std::vector<UniqueFd>& descriptors) {
  const control::ArenaState& state = message.arena_state();
  std::unique_ptr<TableReader> table;
  if (state.descriptors_size() != 0) {
    if (state.descriptors_size() != 1 || descriptors.size() != 1 || state.descriptors(0) != control::DESCRIPTOR_TABLE) {
      return DataLoss("an arena state with other descriptors than a table");
    }
    FORELOAD_ASSIGN_OR_RETURN(table,
                              TableReader::Open(std::move(descriptors[0]), message.boot_token(), state.reader_bit()));
    if (table->slot_count() != state.slot_count()) return DataLoss("a table of another size than the arena");
  }
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kUp) return DataLoss("an arena state before the registration");
  if (state.slot_count() == 0) {
    last_words_ = "the arena is not in force: " + state.reason();
    // In other modes than `on` nothing is moved and nothing will come into force: no reason to grant again.
    if (grant_accepted_ && mode_ == "on") GrantEnded(MonotonicNow());
    slots_in_force_ = 0;
  } else {
    slots_in_force_ = state.slot_count();
    grant_backoff_ = kRegrantMin;
    last_words_ = "the arena is in force";
    if (options_.scheduler) {
      if (table == nullptr) return DataLoss("an arena in force without a table for its scheduler");
      table_.CloseLookups();
      next_table_ = std::move(table);
      table_pending_ = true;
      if (table_.TryReplace(next_table_)) {
        table_pending_ = false;
        table_.OpenLookups();
      }
    }
  }
  changed_.notify_all();
  return OkStatus();
}

int Client::RevokeWait(TimeNs deadline, std::string* why) {
  std::unique_lock lock(mutex_);
  if (!arena_) return FL_OK;
  revoking_ = true;
  stores_.Retire();
  std::uint64_t request = 0;  // of the revocation on its way
  int code = FL_ETIMEDOUT;
  while (code == FL_ETIMEDOUT) {
    if (HolderGone()) {
      code = FL_OK;
      break;
    }
    if (request == 0 && phase_ == Phase::kUp && holder_->boot_token == boot_token_) {
      control::ControlMessage message;
      message.set_request(request = NextRequest());
      message.mutable_revoke_arena();
      waiting_[request];
      (void)link_.Send(message);
    }
    if (request != 0 && waiting_[request].has_value()) {
      const Answer answer = *waiting_[request];
      waiting_.erase(request);
      request = 0;
      if (answer.code == FL_OK || answer.code == FL_EREFUSED) {
        code = answer.code;
        *why = answer.message;
        break;
      }
      continue;  // the connection ended; its process may live on
    }
    const TimeNs now = MonotonicNow();
    if (now >= deadline) break;
    changed_.wait_until(
        lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(std::min(deadline, now + kHolderPoll))));
  }
  if (request != 0) waiting_.erase(request);
  if (code == FL_ETIMEDOUT) {
    *why = "the sidecar neither let go of the arena nor died: its memory must not be reused";
    return code;
  }
  if (code == FL_OK) {
    arena_.reset();
    holder_.reset();
    revoking_ = false;
    grant_sent_ = false;
    grant_accepted_ = false;
    slots_in_force_ = 0;
    grant_backoff_ = kRegrantMin;
  }
  return code;
}

}  // namespace foreload::client
