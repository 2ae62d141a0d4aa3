// Files by pread and pwrite on a few threads of its own: for machines where io_uring is refused or absent.
//
// Completions leave in any order. poll_fd is an eventfd, readable while completions wait. A hung device occupies at
// most `threads` threads; Submit stays non-blocking and says "full".
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "transport/backend.h"
#include "transport/region_table.h"

namespace foreload {

struct ThreadPoolBackendOptions {
  std::uint32_t threads = 4;
  std::uint32_t queue_depth = 64;
};

class ThreadPoolBackend final : public Backend {
 public:
  // ResourceExhausted when there is no descriptor left for the eventfd.
  static Result<std::unique_ptr<ThreadPoolBackend>> Create(ThreadPoolBackendOptions options = {});
  ~ThreadPoolBackend() override;

  Status Probe() override { return OkStatus(); }
  Capabilities capabilities() const override;
  Result<RegionId> Register(const Region& region) override { return regions_.Add(region); }
  Status Unregister(RegionId region) override;
  std::size_t Submit(std::span<const Transfer> transfers) override;
  std::size_t Poll(std::span<Completion> completions) override;

 private:
  struct Job {
    Transfer transfer;
    TransferEnd source;
    TransferEnd destination;
    bool refused = false;
  };
  struct Done {
    Transfer transfer;
    Completion completion;
    bool refused = false;
  };

  ThreadPoolBackend(ThreadPoolBackendOptions options, int event_fd);
  void Work();

  const ThreadPoolBackendOptions options_;
  const int event_fd_;
  RegionTable regions_;
  std::size_t outstanding_ = 0;  // the caller's thread alone

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Job> jobs_;
  std::deque<Done> done_;
  bool stopping_ = false;
  std::vector<std::jthread> workers_;
};

}  // namespace foreload
