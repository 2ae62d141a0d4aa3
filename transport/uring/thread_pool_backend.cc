#include "transport/uring/thread_pool_backend.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "transport/file_io.h"

namespace foreload {

Result<std::unique_ptr<ThreadPoolBackend>> ThreadPoolBackend::Create(ThreadPoolBackendOptions options) {
  if (options.threads == 0 || options.queue_depth == 0) return InvalidArgument("a pool needs threads and a queue");
  const int event_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_fd < 0) return Status::FromErrno(errno, "eventfd for the I/O thread pool");
  return std::unique_ptr<ThreadPoolBackend>(new ThreadPoolBackend(options, event_fd));
}

ThreadPoolBackend::ThreadPoolBackend(ThreadPoolBackendOptions options, int event_fd)
    : options_(options), event_fd_(event_fd), regions_({.file_to_memory = true, .memory_to_file = true}) {
  workers_.reserve(options.threads);
  for (std::uint32_t i = 0; i < options.threads; ++i) workers_.emplace_back([this] { Work(); });
}

ThreadPoolBackend::~ThreadPoolBackend() {
  FORELOAD_CHECK(outstanding_ == 0, "poll until nothing is outstanding before destroying");
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  arrived_.notify_all();
  workers_.clear();
  ::close(event_fd_);
}

Capabilities ThreadPoolBackend::capabilities() const {
  Capabilities capabilities;
  capabilities.name = "threadpool";
  capabilities.file_to_memory = true;
  capabilities.memory_to_file = true;
  capabilities.queue_depth = options_.queue_depth;
  capabilities.transfer_bytes_max = UINT64_MAX;
  capabilities.alignment = kDirectAlignment;
  capabilities.poll_fd = event_fd_;
  return capabilities;
}

Status ThreadPoolBackend::Unregister(RegionId region) {
  auto removed = regions_.BeginRemove(region);
  if (!removed.ok()) return removed.status();
  regions_.FinishRemove(region);
  return OkStatus();
}

std::size_t ThreadPoolBackend::Submit(std::span<const Transfer> transfers) {
  const std::size_t accepted = std::min<std::size_t>(transfers.size(), options_.queue_depth - outstanding_);
  if (accepted == 0) return 0;
  {
    const std::lock_guard lock(mutex_);
    for (const Transfer& transfer : transfers.first(accepted)) {
      Job& job = jobs_.emplace_back();
      job.transfer = transfer;
      job.refused = !regions_.Acquire(transfer, job.source, job.destination);
    }
  }
  outstanding_ += accepted;
  if (accepted == 1) {
    arrived_.notify_one();
  } else {
    arrived_.notify_all();
  }
  return accepted;
}

std::size_t ThreadPoolBackend::Poll(std::span<Completion> completions) {
  std::size_t count = 0;
  const std::lock_guard lock(mutex_);
  while (count < completions.size() && !done_.empty()) {
    const Done& done = done_.front();
    if (!done.refused) regions_.Release(done.transfer);
    completions[count++] = done.completion;
    done_.pop_front();
  }
  if (count > 0 && done_.empty()) {
    std::uint64_t value = 0;
    FORELOAD_CHECK(::read(event_fd_, &value, sizeof value) == static_cast<ssize_t>(sizeof value),
                   "the eventfd was raised with the first");
  }
  outstanding_ -= count;
  return count;
}

void ThreadPoolBackend::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    arrived_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    lock.unlock();
    IoOutcome outcome{.bytes = 0, .error = TransferError::kBadRegion};
    if (!job.refused) outcome = MoveFileBytes(job.source, job.destination, job.transfer.bytes);
    lock.lock();
    done_.push_back({.transfer = job.transfer,
                     .completion = {.token = job.transfer.token,
                                    .bytes = outcome.bytes,
                                    .error = outcome.error,
                                    .errnum = outcome.errnum},
                     .refused = job.refused});
    if (done_.size() == 1) {
      const std::uint64_t value = 1;
      FORELOAD_CHECK(::write(event_fd_, &value, sizeof value) == static_cast<ssize_t>(sizeof value),
                     "the eventfd was at zero");
    }
  }
}

}  // namespace foreload
