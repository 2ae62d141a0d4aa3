// A folder of its own, options of a one-process engine, and sidecars as threads or processes.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "client/foreload.h"
#include "client/tests/fake_sidecar.h"

extern char** environ;

namespace foreload::client {

inline constexpr std::int64_t kLongUs = 20'000'000;  // no test waits that long unless it fails

inline bool Eventually(const std::function<bool()>& condition) {
  const TimeNs deadline = MonotonicNow() + kLongUs * kMicrosecond;
  while (MonotonicNow() < deadline) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return false;
}

class SidecarProcess {
 public:
  SidecarProcess(const std::string& path, std::uint64_t boot_token, std::uint32_t preload,
                 const std::vector<std::string>& flags = {}) {
    std::vector<std::string> words = {FORELOAD_FAKE_SIDECAR, path, std::to_string(boot_token), std::to_string(preload)};
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&pid_, argv[0], nullptr, nullptr, argv.data(), environ), 0);
  }
  ~SidecarProcess() { Kill(); }
  void Signal(int signal) const { ::kill(pid_, signal); }
  void Stop() const {
    Signal(SIGSTOP);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void Kill() {
    if (pid_ <= 0) return;
    Signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

class ClientTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kSlots = 16;
  static constexpr std::uint64_t kStride = 4096;

  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "foreload-client-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    socket_ = folder_ + "/control";
    options_.api_version = FL_API_VERSION;
    options_.socket_path = socket_.c_str();
    options_.engine = "engine";
    options_.scheduler = 1;
    options_.worker = 1;
    options_.rank_count = 1;
    options_.extents = &extent_;
    options_.extent_count = 1;
    options_.block_tokens = 16;
    fl_random_id(options_.instance_id);
  }
  void TearDown() override {
    if (client_ != nullptr) fl_close(client_);
    std::filesystem::remove_all(folder_);
  }

  void StartSidecar(FakeOptions options) {
    options.path = socket_;
    sidecar_ = std::make_unique<FakeSidecar>(std::move(options));
    sidecar_->Start();
  }
  void Open() { ASSERT_EQ(fl_open(&options_, &client_), FL_OK) << fl_error_text(); }
  void Grant(std::uint32_t store_slots = 0) {
    void* base = nullptr;
    ASSERT_EQ(fl_grant_host(client_, kSlots, kStride, store_slots, &base), FL_OK) << fl_error_text();
    arena_ = static_cast<std::uint8_t*>(base);
  }
  void Connect() { ASSERT_EQ(fl_connect_wait(client_, kLongUs), FL_OK) << fl_error_text(); }

  // Blocks first .. first + count; valid as long as the fixture.
  fl_keys Keys(std::uint64_t first, std::uint32_t count) {
    const auto& digests = digests_.emplace_back(DigestsOf(first, count));
    return {.name_space = nullptr, .digests = digests.data(), .digest_bytes = 32, .count = count};
  }
  int Pin(std::uint64_t first, std::uint32_t count) {
    pinned_.resize(count);
    const fl_keys keys = Keys(first, count);
    return fl_lookup_pin(client_, &keys, pinned_.data());
  }
  bool Holds(std::uint32_t slot, std::uint8_t fill) const {
    for (std::uint64_t i = 0; i < kStride; ++i) {
      if (arena_[slot * kStride + i] != fill) return false;
    }
    return true;
  }
  fl_counters Counters() {
    fl_counters counters{};
    EXPECT_EQ(fl_get_counters(client_, &counters), FL_OK);
    return counters;
  }

  std::string folder_;
  std::string socket_;
  fl_extent extent_{.layer_group = 0, .offset = 0, .bytes = 4000};
  fl_options options_{};
  fl_client* client_ = nullptr;
  std::uint8_t* arena_ = nullptr;
  std::list<std::vector<std::uint8_t>> digests_;
  std::vector<fl_pinned> pinned_;
  std::unique_ptr<FakeSidecar> sidecar_;
};

}  // namespace foreload::client
