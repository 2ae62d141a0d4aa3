// Memory that two processes share by descriptor: a memfd sealed against shrinking, so that no peer can take mapped
// pages away (SIGBUS). No names in /dev/shm.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "proto/unique_fd.h"

namespace foreload {

// Owns the mapping and the descriptor. Move-only; the address is stable over moves.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // New zeroed memory, sealed against shrinking, growing and further seals. `name` shows in /proc/PID/maps.
  static Result<SharedMemory> Create(const char* name, std::uint64_t bytes);
  // Maps memory that a peer made. Refused (InvalidArgument) unless it is sealed against shrinking and at least
  // `bytes_min` long; maps the whole of it. Takes the descriptor.
  static Result<SharedMemory> Adopt(UniqueFd fd, std::uint64_t bytes_min);

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  static Result<SharedMemory> Map(UniqueFd fd, std::uint64_t bytes);
  void Unmap();

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace foreload
