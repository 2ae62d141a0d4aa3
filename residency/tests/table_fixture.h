// A writer and readers of one table in one process, and keys made from numbers.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "proto/unique_fd.h"
#include "residency/atomic_word.h"
#include "residency/table_reader.h"
#include "residency/table_writer.h"

namespace foreload {

inline constexpr std::uint64_t kBootToken = 0x1122334455667788;

inline UniqueFd Duplicate(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

// Digests of 32 bytes made from numbers, as a request's key list.
class Digests {
 public:
  explicit Digests(const std::vector<std::uint64_t>& numbers) : bytes_(numbers.size() * 32) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const std::uint64_t number = numbers[i] * 0x9E3779B97F4A7C15ull;
      std::memcpy(bytes_.data() + i * 32, &numbers[i], 8);
      std::memcpy(bytes_.data() + i * 32 + 24, &number, 8);
    }
  }
  KeyListView view() const {
    return {.name_space = {},
            .digests = bytes_.data(),
            .digest_bytes = 32,
            .count = static_cast<std::uint32_t>(bytes_.size() / 32)};
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

inline BlockKey KeyOf(std::uint64_t number) {
  return Digests({number}).view().key(0);
}

class TableTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kGroups = 0b111;

  void MakeTable(std::uint32_t slots) {
    auto made = TableWriter::Create(
        {.engine_id = 7, .slot_count = slots, .boot_token = kBootToken, .layer_group_mask = kGroups});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    writer_ = std::make_unique<TableWriter>(std::move(made).value());
  }
  std::unique_ptr<TableReader> NewReader() {
    auto bit = writer_->AddReader();
    EXPECT_TRUE(bit.ok());
    auto reader = TableReader::Open(Duplicate(writer_->fd()), kBootToken, bit.value());
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    return std::move(reader).value();
  }
  std::uint32_t Load(std::uint32_t slot, std::uint64_t number) {
    const auto generation = writer_->Reserve(SlotIndex{slot}, KeyOf(number));
    EXPECT_TRUE(generation.ok());
    EXPECT_TRUE(writer_->StartLoad(SlotIndex{slot}).ok());
    EXPECT_TRUE(writer_->Publish(SlotIndex{slot}, kGroups).ok());
    EXPECT_TRUE(writer_->MarkReady(SlotIndex{slot}).ok());
    return generation.value();
  }
  bool Free(std::uint32_t slot) {
    const auto freed = writer_->TryFree(SlotIndex{slot});
    EXPECT_TRUE(freed.ok()) << freed.status().ToString();
    return freed.ok() && freed.value().freed;
  }

  std::unique_ptr<TableWriter> writer_;
};

// The mapping as a hostile reader sees it: anything may be written anywhere.
class RawTable {
 public:
  explicit RawTable(int fd) {
    auto memory = SharedMemory::Adopt(Duplicate(fd), sizeof(fl_table_header));
    EXPECT_TRUE(memory.ok());
    memory_ = std::move(memory).value();
  }
  fl_table_header& header() { return *reinterpret_cast<fl_table_header*>(memory_.data()); }
  fl_slot& slot(std::uint32_t i) { return reinterpret_cast<fl_slot*>(memory_.data() + header().slots_offset)[i]; }
  fl_reader& reader(std::uint32_t i) {
    return reinterpret_cast<fl_reader*>(memory_.data() + header().readers_offset)[i];
  }
  std::span<std::uint64_t> words() {
    return {reinterpret_cast<std::uint64_t*>(memory_.data()), memory_.bytes() / sizeof(std::uint64_t)};
  }

 private:
  SharedMemory memory_;
};

}  // namespace foreload
