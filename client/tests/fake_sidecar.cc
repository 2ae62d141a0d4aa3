#include "client/tests/fake_sidecar.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "proto/control.pb.h"

namespace foreload::client {

using control::ControlMessage;

std::vector<std::uint8_t> DigestsOf(std::uint64_t first, std::uint32_t count) {
  std::vector<std::uint8_t> digests(std::size_t{count} * 32);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t words[2] = {first + i, (first + i + 1) * 0x9E3779B97F4A7C15ull};
    std::memcpy(digests.data() + std::size_t{i} * 32, words, sizeof words);
  }
  return digests;
}

std::uint8_t FillOf(std::uint64_t boot_token, std::uint64_t number) {
  return static_cast<std::uint8_t>(boot_token * 16 + number % 16);
}

FakeSidecar::FakeSidecar(FakeOptions given) : options(std::move(given)) {
  Listen();
}

FakeSidecar::~FakeSidecar() {
  Stop();
}

void FakeSidecar::Listen() {
  ::unlink(options.path.c_str());
  listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  options.path.copy(address.sun_path, sizeof address.sun_path - 1);
  FORELOAD_CHECK(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "bind");
  FORELOAD_CHECK(::listen(listener_.get(), 16) == 0, "listen");
}

void FakeSidecar::Start() {
  thread_ = std::thread([this] { Run(); });
}

void FakeSidecar::Stop() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

void FakeSidecar::Run() {
  while (!stop_.load()) Round();
}

void FakeSidecar::Do(const std::function<void(FakeSidecar&)>& action) {
  const std::lock_guard lock(mutex_);
  action(*this);
}

bool FakeSidecar::WaitFor(const std::function<bool(FakeSidecar&)>& condition) {
  const TimeNs deadline = MonotonicNow() + 20 * kSecond;
  while (MonotonicNow() < deadline) {
    {
      const std::lock_guard lock(mutex_);
      if (condition(*this)) return true;
    }
    std::this_thread::yield();
  }
  return false;
}

void FakeSidecar::Round() {
  std::vector<pollfd> entries;
  {
    const std::lock_guard lock(mutex_);
    entries.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
    for (const auto& peer : peers_) entries.push_back({.fd = peer->socket.get(), .events = POLLIN, .revents = 0});
  }
  ::poll(entries.data(), entries.size(), 5);
  const std::lock_guard lock(mutex_);
  if (listener_.valid()) {
    const int accepted = ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted >= 0) {
      peers_.push_back(std::make_unique<Peer>());
      peers_.back()->socket.reset(accepted);
    }
  }
  std::vector<const Peer*> gone;  // first all are served: what one says may be passed to the others
  for (const auto& peer : peers_) {
    if (!Serve(*peer)) gone.push_back(peer.get());
  }
  std::erase_if(peers_,
                [&](const auto& peer) { return std::find(gone.begin(), gone.end(), peer.get()) != gone.end(); });
  if (options.hang_up_after_grant && table_ != nullptr) {
    listener_.reset();
    peers_.clear();
  }
}

bool FakeSidecar::Serve(Peer& peer) {
  for (;;) {
    control::Frame frame;
    const auto outcome = peer.reader.Read(peer.socket.get(), frame);
    if (!outcome.ok() || outcome.value() == control::FrameReader::Outcome::kEnd) {
      arenas_.erase(peer.worker ? peer.rank : UINT32_MAX);
      return false;
    }
    if (outcome.value() == control::FrameReader::Outcome::kWouldBlock) break;
    ControlMessage message;
    FORELOAD_CHECK(control::DecodeMessage(frame.body, message).ok(), "the client sent garbage");
    Handle(peer, message, std::move(frame.descriptors));
  }
  (void)peer.writer.Flush(peer.socket.get());
  return true;
}

void FakeSidecar::Reply(Peer& peer, ControlMessage& message, std::uint64_t request,
                        const std::vector<int>& descriptors) {
  message.set_request(request);
  message.set_boot_token(options.boot_token);
  std::vector<UniqueFd> copies;
  for (const int fd : descriptors) copies.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  (void)peer.writer.Queue(control::EncodeMessage(message).value(), std::move(copies));
  (void)peer.writer.Flush(peer.socket.get());
}

void FakeSidecar::Send(ControlMessage& message, const std::vector<int>& descriptors) {
  for (const auto& peer : peers_) Reply(*peer, message, message.request(), descriptors);
}

void FakeSidecar::SendRaw(const std::string& bytes) {
  for (const auto& peer : peers_) (void)!::send(peer->socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

void FakeSidecar::Handle(Peer& peer, const ControlMessage& message, std::vector<UniqueFd> descriptors) {
  ControlMessage reply;
  const std::uint64_t request = message.request();
  switch (message.body_case()) {
    case ControlMessage::kRegister: {
      if (!options.refuse.empty()) {
        reply.mutable_error()->set_code(static_cast<std::uint32_t>(StatusCode::kInvalidArgument));
        reply.mutable_error()->set_message(options.refuse);
        return Reply(peer, reply, request, {});
      }
      peer.scheduler = message.register_().scheduler();
      peer.worker = message.register_().worker();
      peer.rank = message.register_().rank();
      for (const auto& extent : message.register_().extents()) peer.slot_bytes = extent.offset() + extent.bytes();
      ++registrations_;
      reply.mutable_register_reply()->set_mode(options.mode);
      Reply(peer, reply, request, {});
      return BringIntoForce();
    }
    case ControlMessage::kGrantArena: {
      const control::GrantArena& grant = message.grant_arena();
      FORELOAD_CHECK(descriptors.size() == 1, "a grant without its arena");
      auto memory = SharedMemory::Adopt(std::move(descriptors[0]), grant.bytes());
      FORELOAD_CHECK(memory.ok(), memory.status().message().c_str());
      arenas_[peer.rank] = std::make_unique<SharedMemory>(std::move(memory).value());
      stride_ = grant.slot_stride();
      slots_ = grant.slot_count();
      ++grants_;
      std::vector<int> handed;
      reply.mutable_grant_arena_reply();
      if (grant.store_slots() > 0) {
        auto ring = StoreRingWriter::Create(
            {.slot_count = grant.store_slots(), .slot_bytes = peer.slot_bytes, .boot_token = options.boot_token});
        FORELOAD_CHECK(ring.ok(), ring.status().message().c_str());
        auto& kept = rings_[peer.rank] = std::make_unique<StoreRingWriter>(std::move(ring).value());
        kept->GrantAll();
        reply.mutable_grant_arena_reply()->set_store_slots(grant.store_slots());
        reply.mutable_grant_arena_reply()->add_descriptors(control::DESCRIPTOR_STORE_RING);
        reply.mutable_grant_arena_reply()->add_descriptors(control::DESCRIPTOR_STORE_DOORBELL);
        handed = {kept->fd(), kept->doorbell_fd()};
      }
      Reply(peer, reply, request, handed);
      return BringIntoForce();
    }
    case ControlMessage::kRevokeArena:
      EndArena("revoked");
      reply.mutable_revoke_arena_reply();
      return Reply(peer, reply, request, {});
    case ControlMessage::kDemandFetch:
      if (!options.answer_fetches) return;
      reply.mutable_demand_fetch_reply()->set_ready_blocks(
          static_cast<std::uint32_t>(message.demand_fetch().digests().size() / message.demand_fetch().digest_bytes()));
      return Reply(peer, reply, request, {});
    case ControlMessage::kStatusRequest:
      reply.mutable_status_reply()->set_json("{\"fake\": true}");
      return Reply(peer, reply, request, {});
    case ControlMessage::kFlush: reply.mutable_flush_reply(); return Reply(peer, reply, request, {});
    case ControlMessage::kPurge:
      reply.mutable_error()->set_code(static_cast<std::uint32_t>(StatusCode::kUnimplemented));
      reply.mutable_error()->set_message("no purge here");
      return Reply(peer, reply, request, {});
    case ControlMessage::kKeyListChunk:
      key_chunks_[message.key_list_chunk().request_id()].push_back(message.key_list_chunk().digests());
      return;
    default: FORELOAD_CHECK(false, "the client sent what only sidecars send");
  }
}

void FakeSidecar::BringIntoForce() {
  const bool scheduled = std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer->scheduler; });
  if (table_ != nullptr || options.mode != "on" || arenas_.size() < options.ranks || !scheduled) return;
  auto table = TableWriter::Create({.slot_count = slots_, .boot_token = options.boot_token, .layer_group_mask = 1});
  FORELOAD_CHECK(table.ok(), table.status().message().c_str());
  table_ = std::make_unique<TableWriter>(std::move(table).value());
  const auto digests = DigestsOf(0, options.preload);
  for (std::uint32_t i = 0; i < options.preload; ++i) {
    const BlockKey key = BlockKey::From({}, {digests.data() + std::size_t{i} * 32, 32});
    FORELOAD_CHECK(table_->Reserve(SlotIndex{i}, key).ok() && table_->StartLoad(SlotIndex{i}).ok(), "load");
    for (const auto& [rank, memory] : arenas_) {
      std::memset(memory->data() + stride_ * i, FillOf(options.boot_token, i), stride_);
    }
    FORELOAD_CHECK(table_->Publish(SlotIndex{i}, 1).ok() && table_->MarkReady(SlotIndex{i}).ok(), "publish");
  }
  ++epoch_;
  for (const auto& peer : peers_) {
    ControlMessage message;
    control::ArenaState& state = *message.mutable_arena_state();
    state.set_slot_count(slots_);
    state.set_grant_epoch(epoch_);
    std::vector<int> descriptors;
    if (peer->scheduler) {
      state.set_reader_bit(table_->AddReader().value());
      state.set_table_bytes(table_->bytes());
      state.add_descriptors(control::DESCRIPTOR_TABLE);
      descriptors.push_back(table_->fd());
    }
    Reply(*peer, message, 0, descriptors);
  }
}

void FakeSidecar::EndArena(const std::string& reason) {
  if (table_ != nullptr) table_->Close();
  table_.reset();
  arenas_.clear();
  rings_.clear();
  ControlMessage message;
  message.mutable_arena_state()->set_reason(reason);
  message.mutable_arena_state()->set_grant_epoch(++epoch_);
  Send(message);
}

void FakeSidecar::TakeCommits() {
  for (const auto& [rank, ring] : rings_) {
    StoreCommit commits[16];
    const auto taken = ring->PollCommits(commits);
    FORELOAD_CHECK(taken.ok(), taken.status().message().c_str());
    for (std::size_t i = 0; i < taken.value(); ++i) {
      stored_.emplace_back(commits[i].key, std::vector<std::byte>(commits[i].data.begin(), commits[i].data.end()));
      ring->Grant(commits[i].slot);
    }
  }
}

}  // namespace foreload::client
