// Memory aligned to 4 KiB, as O_DIRECT wants it; zeroed, grown without keeping its content.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "base/check.h"
#include "transport/ssd/format.h"

namespace foreload::ssd {

class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::size_t bytes) { Reserve(bytes); }

  void Reserve(std::size_t bytes) {
    if (bytes <= bytes_) return;
    bytes_ = RoundUpToBlock(bytes);
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, bytes_)));
    FORELOAD_CHECK(data_ != nullptr, "out of memory");
    std::memset(data_.get(), 0, bytes_);
  }

  std::byte* data() { return data_.get(); }
  std::size_t size() const { return bytes_; }
  std::span<std::byte> first(std::size_t bytes) { return {data_.get(), bytes}; }
  std::span<std::byte, kBlockBytes> block(std::size_t index = 0) {
    return std::span<std::byte, kBlockBytes>(data_.get() + index * kBlockBytes, kBlockBytes);
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
};

}  // namespace foreload::ssd
