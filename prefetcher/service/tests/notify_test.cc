#include "prefetcher/service/notify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "proto/unique_fd.h"

namespace foreload::service {
namespace {

// systemd's side of the protocol: a bound datagram socket.
class Manager {
 public:
  explicit Manager(const std::string& name) : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), length), 0) << name;
  }

  // A datagram on a UNIX socket is there when sendto has returned.
  std::string Next() {
    std::array<char, 512> buffer;
    const ssize_t got = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
    return got < 0 ? "none" : std::string(buffer.data(), static_cast<std::size_t>(got));
  }

 private:
  UniqueFd fd_;
};

TEST(Notify, SaysEachStateInOneDatagram) {
  const std::string name = "@foreload-notify-" + std::to_string(::getpid());
  Manager manager(name);
  const Notifier notifier(name);
  EXPECT_TRUE(notifier.Ready("observing 2 engines").ok());
  EXPECT_EQ(manager.Next(), "READY=1\nSTATUS=observing 2 engines");
  EXPECT_TRUE(notifier.Reloading(1234567).ok());
  EXPECT_EQ(manager.Next(), "RELOADING=1\nMONOTONIC_USEC=1234");
  EXPECT_TRUE(notifier.Watchdog().ok());
  EXPECT_EQ(manager.Next(), "WATCHDOG=1");
  EXPECT_TRUE(notifier.Stopping().ok());
  EXPECT_EQ(manager.Next(), "STOPPING=1");
}

TEST(Notify, ReachesASocketInTheFileSystem) {
  const std::string path = "/tmp/foreload-notify-" + std::to_string(::getpid());
  ::unlink(path.c_str());
  Manager manager(path);
  EXPECT_TRUE(Notifier(path).Stopping().ok());
  EXPECT_EQ(manager.Next(), "STOPPING=1");
  ::unlink(path.c_str());
}

TEST(Notify, WithoutAManagerNothingIsSaid) {
  EXPECT_FALSE(Notifier("").enabled());
  EXPECT_TRUE(Notifier("").Ready("x").ok());
}

TEST(Notify, AWrongSocketIsAnErrorNotACrash) {
  EXPECT_EQ(Notifier("relative").Stopping().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Notifier("@" + std::string(200, 'x')).Stopping().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(Notifier("/nonexistent/notify").Stopping().ok());
}

TEST(Notify, AFullManagerDoesNotBlock) {
  const std::string name = "@foreload-notify-full-" + std::to_string(::getpid());
  const Manager manager(name);
  const Notifier notifier(name);
  constexpr int kMany = 10000;  // above any net.unix.max_dgram_qlen
  int refused = 0;
  for (int i = 0; i < kMany; ++i) refused += notifier.Watchdog().ok() ? 0 : 1;
  EXPECT_GT(refused, 0);
}

TEST(Watchdog, IsFedAtHalfItsInterval) {
  const std::string own = std::to_string(::getpid());
  EXPECT_EQ(WatchdogInterval("10000000", own.c_str()), 5 * kSecond);
  EXPECT_EQ(WatchdogInterval("10000000", nullptr), 5 * kSecond);
  EXPECT_EQ(WatchdogInterval("10000000", "1"), std::nullopt);
  EXPECT_EQ(WatchdogInterval(nullptr, nullptr), std::nullopt);
  EXPECT_EQ(WatchdogInterval("0", nullptr), std::nullopt);
  EXPECT_EQ(WatchdogInterval("junk", nullptr), std::nullopt);
}

}  // namespace
}  // namespace foreload::service
