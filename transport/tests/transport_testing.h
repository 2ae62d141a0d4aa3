// What the transport tests share: files and memory as transfer ends, a clock that threads may move, backends by name.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "transport/backend.h"

namespace foreload::testing {

inline constexpr DurationNs kPatience = 60 * kSecond;  // a wait that takes longer is a failure

class AtomicClock final : public Clock {
 public:
  TimeNs Now() const override { return now_.load(); }
  void Advance(DurationNs by) { now_.fetch_add(by); }

 private:
  std::atomic<TimeNs> now_{0};
};

// Page-aligned memory, zeroed.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes) {
    base_ = static_cast<std::uint8_t*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    EXPECT_NE(static_cast<void*>(base_), MAP_FAILED);
  }
  ~Memory() { ::munmap(base_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::uint8_t* data() const { return base_; }
  std::size_t size() const { return bytes_; }
  Region region() const {
    Region region;
    region.base = base_;
    region.bytes = bytes_;
    return region;
  }

 private:
  std::uint8_t* base_ = nullptr;
  std::size_t bytes_;
};

inline std::string TestDirectory() {
  const char* given = std::getenv("TEST_TMPDIR");
  return given != nullptr ? given : "/tmp";
}

// An unlinked file. fd() is -1 when the file system has no O_DIRECT and it was asked for.
class TempFile {
 public:
  explicit TempFile(bool direct = false) : direct_(direct) {
    std::string path = TestDirectory() + "/foreload-transport-XXXXXX";
    const int plain = ::mkostemp(path.data(), O_CLOEXEC);
    EXPECT_GE(plain, 0) << path;
    buffered_fd_ = plain;
    fd_ = direct ? ::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC) : plain;
    ::unlink(path.c_str());
  }
  ~TempFile() {
    if (fd_ >= 0 && fd_ != buffered_fd_) ::close(fd_);
    ::close(buffered_fd_);
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  int fd() const { return fd_; }
  int buffered_fd() const { return buffered_fd_; }
  void Resize(std::uint64_t bytes) { ASSERT_EQ(::ftruncate(buffered_fd_, static_cast<off_t>(bytes)), 0); }
  Region region(std::uint64_t bytes) const {
    Region region;
    region.kind = Region::Kind::kFile;
    region.bytes = bytes;
    region.fd = fd_;
    region.direct = direct_;
    return region;
  }

 private:
  bool direct_;
  int fd_ = -1;
  int buffered_fd_ = -1;
};

// The byte that position `i` of the content named `seed` has.
inline std::uint8_t PatternByte(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t z = (seed * 0x9E3779B97F4A7C15ull) ^ (i * 0xBF58476D1CE4E5B9ull);
  z ^= z >> 29;
  return static_cast<std::uint8_t>((z * 0x94D049BB133111EBull) >> 56);
}

inline std::vector<std::uint8_t> Pattern(std::uint64_t seed, std::size_t bytes) {
  std::vector<std::uint8_t> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = PatternByte(seed, i);
  return out;
}

// Calls `step` until it says true or patience ends; yields between calls.
inline bool Eventually(const std::function<bool()>& step) {
  const TimeNs give_up = MonotonicNow() + kPatience;
  while (!step()) {
    if (MonotonicNow() > give_up) return false;
    std::this_thread::yield();
  }
  return true;
}

inline bool WaitReadable(int fd) {
  pollfd poll_fd{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&poll_fd, 1, static_cast<int>(kPatience / kMillisecond)) == 1;
}

inline bool ReadableNow(int fd) {
  pollfd poll_fd{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&poll_fd, 1, 0) == 1;
}

}  // namespace foreload::testing
