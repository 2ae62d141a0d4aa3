// A decorator that makes any backend misbehave inside its contract: fails, shortens, delays and reorders transfers and
// refuses submissions, by seed or by script. What it fails is not performed, or performed in part and then reported as
// failed (`fail_after_moving`): both happen on real devices.
//
// Delays are counted in calls of Poll. poll_fd stays pollable where the inner one is: it is also readable while this
// decorator holds something back, so that a caller that sleeps on it comes to poll.
//
// Thread: submission and polling as in the contract; the scripted hooks from any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/rng.h"
#include "transport/backend.h"

namespace foreload {

struct FaultOptions {
  std::uint64_t seed = 1;
  double fail_probability = 0;
  double fail_after_moving = 0.5;  // share of the failed ones that move their bytes first
  double short_probability = 0;    // moves a prefix, then kShort
  double delay_probability = 0;
  std::uint32_t delay_polls_max = 8;
  double refuse_probability = 0;  // a Submit that accepts nothing
  bool reorder = false;           // completions leave in random order
  std::uint64_t granule = 1;      // shortened lengths are multiples of it (4096 for direct files)
};

class FaultBackend final : public Backend {
 public:
  FaultBackend(std::unique_ptr<Backend> inner, FaultOptions options);
  ~FaultBackend() override;

  Status Probe() override { return inner_->Probe(); }
  Capabilities capabilities() const override;
  Result<RegionId> Register(const Region& region) override { return inner_->Register(region); }
  Status Unregister(RegionId region) override;
  std::size_t Submit(std::span<const Transfer> transfers) override;
  std::size_t Poll(std::span<Completion> completions) override;

  // Scripts; each is used up by the next `count` accepted transfers (or Submit calls), before the dice are thrown.
  void FailNext(TransferError error, int errnum, std::uint32_t count = 1);
  void ShortenNext(std::uint32_t count = 1);
  void DelayNext(std::uint32_t polls, std::uint32_t count = 1);
  void RefuseNextSubmits(std::uint32_t count);
  // Holds every completion back until Release: a hung device.
  void Hold();
  void Release();

  Backend& inner() { return *inner_; }

 private:
  enum class Fate : std::uint8_t { kPass, kFailAtOnce, kFailAfterMoving, kShorten };
  struct Flight {  // one accepted transfer, by its inner token
    std::uint64_t token = 0;
    std::uint64_t asked = 0;
    Transfer transfer;  // as the caller gave it, for Unregister
    Fate fate = Fate::kPass;
    TransferError error = TransferError::kNone;
    int errnum = 0;
    std::uint32_t delay_polls = 0;
    bool live = false;
  };
  struct Held {
    Completion completion;
    std::size_t flight = 0;
    std::uint32_t polls_left = 0;
  };
  struct Script {
    Fate fate = Fate::kPass;
    TransferError error = TransferError::kNone;
    int errnum = 0;
    std::uint32_t delay_polls = 0;
  };

  void Decide(Flight& flight);
  Completion Outcome(const Flight& flight, const Completion& inner) const;
  void CollectInner();
  void SignalHeld();

  const std::unique_ptr<Backend> inner_;
  const FaultOptions options_;
  int epoll_fd_ = -1;  // inner poll_fd and event_fd_ in one; -1 when the inner one has none
  int event_fd_ = -1;  // readable while something is held
  bool signalled_ = false;

  mutable std::mutex mutex_;  // everything below: the hooks come from other threads
  Rng rng_;
  std::deque<Script> scripts_;
  std::uint32_t refuse_submits_ = 0;
  bool hold_ = false;
  std::vector<Flight> flights_;
  std::vector<std::size_t> free_flights_;
  std::vector<Held> held_;
};

}  // namespace foreload
