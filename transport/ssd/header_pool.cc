#include "transport/ssd/header_pool.h"

namespace foreload::ssd {

HeaderPool::HeaderPool(Backend& backend, std::size_t buffers, std::size_t buffer_bytes)
    : backend_(backend), buffer_bytes_(buffer_bytes), memory_(buffers * buffer_bytes) {
  for (std::size_t i = buffers; i > 0; --i) free_.push_back(static_cast<std::uint32_t>(i - 1));
}

Result<std::unique_ptr<HeaderPool>> HeaderPool::Create(Backend& backend, std::size_t buffers,
                                                       std::size_t buffer_bytes) {
  std::unique_ptr<HeaderPool> pool(new HeaderPool(backend, buffers, buffer_bytes));
  FORELOAD_ASSIGN_OR_RETURN(pool->region_, backend.Register({.kind = Region::Kind::kHostMemory,
                                                             .base = pool->memory_.data(),
                                                             .bytes = pool->memory_.size()}));
  return pool;
}

HeaderPool::~HeaderPool() {
  if (region_.valid()) {
    FORELOAD_CHECK(backend_.Unregister(region_).ok(), "record headers are still in flight");
  }
}

std::optional<std::uint32_t> HeaderPool::Take() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t buffer = free_.back();
  free_.pop_back();
  return buffer;
}

}  // namespace foreload::ssd
