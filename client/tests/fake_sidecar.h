// A sidecar small enough to read: it speaks the control protocol with the real table, ring and frames, loads what it is
// told to load, and misbehaves on request. Runs on a thread of the test or, as foreload_fake_sidecar, in a process that
// can be stopped and killed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "proto/control_frames.h"
#include "residency/shared_memory.h"
#include "residency/store_ring.h"
#include "residency/table_writer.h"

namespace foreload::client {

// Block `number` of a test: its 32-byte digest, and the byte that fills it.
std::vector<std::uint8_t> DigestsOf(std::uint64_t first, std::uint32_t count);
std::uint8_t FillOf(std::uint64_t boot_token, std::uint64_t number);

struct FakeOptions {
  std::string path{};
  std::uint64_t boot_token = 1;
  std::uint32_t ranks = 1;
  std::uint32_t preload = 0;  // blocks 0 .. n of namespace 0 become READY in slots 0 .. n
  std::string mode = "on";
  bool answer_fetches = true;
  bool hang_up_after_grant = false;  // ends every connection once an arena is in force, and accepts no more
  std::string refuse{};              // registration is refused with these words
};

class FakeSidecar {
 public:
  explicit FakeSidecar(FakeOptions options);
  ~FakeSidecar();

  void Run();    // until Stop; on the caller's thread
  void Start();  // Run on a thread
  void Stop();

  // With the fake's thread held off; waits for a condition for up to 20 s.
  bool WaitFor(const std::function<bool(FakeSidecar&)>& condition);
  void Do(const std::function<void(FakeSidecar&)>& action);

  // For conditions and actions.
  std::size_t connections() const { return peers_.size(); }
  std::size_t grants() const { return grants_; }
  std::size_t registrations() const { return registrations_; }
  TableWriter* table() { return table_.get(); }
  std::byte* arena() { return arenas_.begin()->second->data(); }
  std::vector<std::pair<BlockKey, std::vector<std::byte>>>& stored() { return stored_; }
  void TakeCommits();
  const std::map<std::string, std::vector<std::string>>& key_chunks() const { return key_chunks_; }
  // To every connection.
  void Send(control::ControlMessage& message, const std::vector<int>& descriptors = {});
  void SendRaw(const std::string& bytes);
  void Retire(std::uint32_t slot);
  void EndArena(const std::string& reason);
  FakeOptions options;

 private:
  struct Peer {
    UniqueFd socket;
    control::FrameReader reader;
    control::FrameWriter writer;
    bool scheduler = false;
    bool worker = false;
    std::uint32_t rank = 0;
    std::uint64_t slot_bytes = 0;
  };

  void Listen();
  void Round();
  // False: the connection is over.
  bool Serve(Peer& peer);
  void Handle(Peer& peer, const control::ControlMessage& message, std::vector<UniqueFd> descriptors);
  void Reply(Peer& peer, control::ControlMessage& message, std::uint64_t request, const std::vector<int>& descriptors);
  void BringIntoForce();

  std::mutex mutex_;
  UniqueFd listener_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::map<std::uint32_t, std::unique_ptr<SharedMemory>> arenas_;  // by rank
  std::map<std::uint32_t, std::unique_ptr<StoreRingWriter>> rings_;
  std::unique_ptr<TableWriter> table_;
  std::uint64_t stride_ = 0;
  std::uint32_t slots_ = 0;
  std::uint64_t epoch_ = 0;
  std::size_t grants_ = 0;
  std::size_t registrations_ = 0;
  std::vector<std::pair<BlockKey, std::vector<std::byte>>> stored_;
  std::map<std::string, std::vector<std::string>> key_chunks_;  // request -> digests of each chunk
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace foreload::client
