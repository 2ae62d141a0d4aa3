// A link that dies without a word: the publisher sits in a network namespace of its own, all packets are dropped, it
// restarts, the drop is lifted, and its kernel may send neither RST nor FIN for the old connection. A subscriber never
// sends, so TCP alone would stay "connected" for ever; ZeroMQ heartbeats find out. Needs root, iproute2 and iptables.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "telemetry/ingest.h"
#include "telemetry/tests/test_publisher.h"

namespace foreload::telemetry {
namespace {

using testing::CollectSink;
using testing::TestPublisher;
using Clock = std::chrono::steady_clock;

bool Shell(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// Namespace "fl<pid>" with a veth pair; 10.x addresses derived from the process id, so that two runs do not meet.
class Link {
 public:
  Link() : name_("fl" + std::to_string(getpid() % 100000)) {
    const int subnet = getpid() % 65536;
    prefix_ = "10." + std::to_string(subnet / 256) + "." + std::to_string(subnet % 256) + ".";
    up_ = Shell("ip netns add " + name_) &&
          Shell("ip link add " + name_ + "a type veth peer name " + name_ + "b netns " + name_) &&
          Shell("ip addr add " + prefix_ + "1/30 dev " + name_ + "a") && Shell("ip link set " + name_ + "a up") &&
          In("ip addr add " + prefix_ + "2/30 dev " + name_ + "b") && In("ip link set " + name_ + "b up") &&
          In("ip link set lo up") && In("iptables -w 5 -L -n");
  }
  ~Link() {
    Shell("ip link del " + name_ + "a");
    Shell("ip netns del " + name_);
  }

  bool up() const { return up_; }
  bool In(const std::string& command) const { return Shell("ip netns exec " + name_ + " " + command); }
  // The namespace's filter decides; RST and FIN of the old connection stay suppressed after the drop.
  bool Break() const {
    return In("iptables -w 5 -A OUTPUT -p tcp --tcp-flags RST RST -j DROP") &&
           In("iptables -w 5 -A OUTPUT -p tcp --tcp-flags FIN FIN -j DROP") && In("iptables -w 5 -I INPUT 1 -j DROP") &&
           In("iptables -w 5 -I OUTPUT 1 -j DROP");
  }
  bool Mend() const { return In("iptables -w 5 -D INPUT 1") && In("iptables -w 5 -D OUTPUT 1"); }
  std::string endpoint() const { return "tcp://" + prefix_ + "2:5557"; }
  std::string replay_endpoint() const { return "tcp://" + prefix_ + "2:5558"; }

  // Moves the calling thread into the namespace.
  bool Enter() const {
    const int file = open(("/var/run/netns/" + name_).c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const bool entered = setns(file, CLONE_NEWNET) == 0;
    close(file);
    return entered;
  }

 private:
  const std::string name_;
  std::string prefix_;
  bool up_ = false;
};

// A publisher on a thread inside the namespace: one message as often as it serves, a new incarnation on demand.
class RemoteEngine {
 public:
  RemoteEngine(const Link& link, bool replay) : link_(link), replay_(replay), thread_([this] { Run(); }) {}
  ~RemoteEngine() {
    stop_ = true;
    thread_.join();
  }
  // Returns once the new publisher is bound. Its blocks are 100 x the incarnation and up.
  void Restart() {
    const int wanted = ++wanted_;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return incarnation_ == wanted; });
  }
  void Talk(bool talking) { talking_ = talking; }

 private:
  void Run() {
    ASSERT_TRUE(link_.Enter());
    std::optional<TestPublisher> publisher;
    std::uint64_t next = 0;
    while (!stop_) {
      if (!publisher || incarnation_ != wanted_) {
        publisher.reset();
        const int incarnation = wanted_;
        TestPublisher::Options options;
        options.endpoint = "tcp://*:5557";
        options.replay_endpoint = replay_ ? "tcp://*:5558" : "";
        options.time = incarnation + 1;
        publisher.emplace(options);
        next = 100 * (static_cast<std::uint64_t>(incarnation) + 1);
        const std::lock_guard lock(mutex_);
        incarnation_ = incarnation;
        changed_.notify_all();
      }
      if (talking_) publisher->Store(next + (counter_++ % 100));
      publisher->Serve(100);
    }
  }

  const Link& link_;
  const bool replay_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> talking_ = true;
  std::atomic<int> wanted_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> incarnation_ = -1;
  std::uint64_t counter_ = 0;
  std::thread thread_;  // last: it uses the rest
};

bool WaitUntil(CollectSink& sink, const std::function<bool()>& done, std::chrono::seconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!done()) {
    if (Clock::now() > deadline) return false;
    sink.WaitForDelivery(std::chrono::milliseconds(100));
  }
  return true;
}

TEST(DeadLink, HealsWithinTheDocumentedTimeAsARestart) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root for a network namespace";
  if (!Shell("command -v ip") || !Shell("command -v iptables")) GTEST_SKIP() << "needs iproute2 and iptables";
  const Link link;
  if (!link.up()) GTEST_SKIP() << "no network namespace with a packet filter here";
  RemoteEngine engine(link, true);

  MetricRegistry registry;
  TelemetryMetrics metrics(registry);
  CollectSink sink;
  IngestOptions options;  // as shipped
  SourceConfig source;
  source.name = "remote";
  source.endpoint = link.endpoint();
  source.replay_endpoint = link.replay_endpoint();
  source.insecure = true;
  options.sources = {source};
  auto ingest = Ingest::Create(options, sink, metrics);
  ASSERT_TRUE(ingest.ok()) << ingest.status().ToString();
  ingest.value()->Start();
  const auto from_incarnation = [&](std::uint64_t n) {
    const auto blocks = sink.blocks();
    return blocks.lower_bound(100 * n) != blocks.lower_bound(100 * n + 100);
  };
  ASSERT_TRUE(WaitUntil(
      sink, [&] { return from_incarnation(1); }, std::chrono::seconds(30)));
  const std::uint64_t reconnects = metrics.reconnects.value();

  // Idle for longer than a heartbeat and its time-out: the engine is not torn down.
  engine.Talk(false);
  EXPECT_FALSE(WaitUntil(
      sink, [&] { return metrics.reconnects.value() != reconnects; }, std::chrono::seconds(22)));
  engine.Talk(true);

  ASSERT_TRUE(link.Break());
  engine.Restart();
  ASSERT_TRUE(link.Mend());
  EXPECT_TRUE(WaitUntil(
      sink, [&] { return from_incarnation(2); }, std::chrono::seconds(60)));
  EXPECT_FALSE(from_incarnation(1)) << "the old residency is dropped";
  EXPECT_EQ(sink.views(), "KRK");
  EXPECT_GT(metrics.reconnects.value(), reconnects);
  EXPECT_EQ(metrics.kv_restarts.value(), 1u);
}

}  // namespace
}  // namespace foreload::telemetry
