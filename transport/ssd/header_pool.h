// A fixed set of 4 KiB-aligned buffers for record headers in flight, registered with the backend as one region.
//
// Not thread-safe; the store guards it. The backend must outlive the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/backend.h"
#include "transport/ssd/aligned_buffer.h"

namespace foreload::ssd {

class HeaderPool {
 public:
  static Result<std::unique_ptr<HeaderPool>> Create(Backend& backend, std::size_t buffers, std::size_t buffer_bytes);
  ~HeaderPool();
  HeaderPool(const HeaderPool&) = delete;
  HeaderPool& operator=(const HeaderPool&) = delete;

  std::optional<std::uint32_t> Take();
  void Give(std::uint32_t buffer) { free_.push_back(buffer); }

  std::span<std::byte> buffer(std::uint32_t index) { return {memory_.data() + offset(index), buffer_bytes_}; }
  std::uint64_t offset(std::uint32_t index) const { return std::uint64_t{index} * buffer_bytes_; }
  RegionId region() const { return region_; }

 private:
  HeaderPool(Backend& backend, std::size_t buffers, std::size_t buffer_bytes);

  Backend& backend_;
  const std::size_t buffer_bytes_;
  AlignedBuffer memory_;
  RegionId region_;
  std::vector<std::uint32_t> free_;
};

}  // namespace foreload::ssd
