#include "prefetcher/service/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "prefetcher/service/exposition.h"
#include "prefetcher/service/tests/http_client.h"

namespace foreload::service {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(const HttpLimits& limits = {}) {
    auto server = HttpServer::Start("127.0.0.1:0", Handlers(), registry_, limits);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
    ASSERT_GT(server_->port(), 0);
  }

  HttpHandlers Handlers() {
    return {.metrics = [this] { return ExposeMetrics(registry_); },
            .status_json = [] { return std::string("{\"mode\":\"observe\"}"); },
            .livez =
                [this] {
                  return Health{live_, {{"loop", live_ ? "turns" : "stuck"}}};
                },
            .readyz =
                [] {
                  return Health{true, {{"ssd", "off: not configured"}}};
                },
            .reload = [this] { return reload_; }};
  }

  std::string Get(const std::string& path) { return HttpGet(server_->port(), path); }

  std::uint64_t CounterValue(const std::string& name, const MetricLabels& labels = {}) {
    for (const auto& family : registry_.Families()) {
      for (const auto& series : family.series) {
        if (family.name == name && series.labels == labels) return series.counter->value();
      }
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }
  std::uint64_t Closed(const char* reason) {
    return CounterValue("foreload_http_closed_connections_total", {{"reason", reason}});
  }

  MetricRegistry registry_;
  std::atomic<bool> live_{true};
  Status reload_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, ServesEveryPage) {
  Start();
  const std::string metrics = Get("/metrics");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(metrics, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(metrics, HasSubstr("\nforeload_http_requests_total{route=\"metrics\"} 1\n"));
  EXPECT_THAT(Get("/statusz"), EndsWith("{\"mode\":\"observe\"}"));
  EXPECT_THAT(Get("/nothing"), StartsWith("HTTP/1.1 404"));
  EXPECT_EQ(CounterValue("foreload_http_requests_total", {{"route", "other"}}), 1u);
}

TEST_F(HttpServerTest, HealthIsTheStatusCodeAndChecksOnRequest) {
  Start();
  EXPECT_THAT(Get("/livez"), EndsWith("\r\n\r\nok\n"));
  EXPECT_THAT(Get("/readyz?verbose"), EndsWith("ssd: off: not configured\nok\n"));
  live_ = false;
  const std::string failed = Get("/livez");
  EXPECT_THAT(failed, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(failed, EndsWith("loop: stuck\nfailed\n"));
}

TEST_F(HttpServerTest, ReloadIsAPostAndSaysWhatIsWrong) {
  Start();
  EXPECT_THAT(Get("/-/reload"), StartsWith("HTTP/1.1 404"));
  TestClient client(server_->port());
  ASSERT_TRUE(client.Send("POST /-/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
  EXPECT_THAT(client.ReadReply(), EndsWith("reloaded\n"));
  reload_ = InvalidArgument("foreload.toml:3:1: dram.capcity: unknown key");
  ASSERT_TRUE(client.Send("POST /-/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"));
  const std::string refused = client.ReadReply();
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(refused, EndsWith("foreload.toml:3:1: dram.capcity: unknown key\n"));
}

TEST_F(HttpServerTest, ReloadFromAnotherHostIsRefused) {
  HttpRouter router(Handlers(), registry_);
  const std::string request = "POST /-/reload HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
  EXPECT_THAT(router.Serve(request, "10.1.2.3").reply, StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(router.Serve(request, "127.0.0.1").reply, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(router.Serve(request, "::1").reply, StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, KeepsAConnectionForFurtherRequests) {
  Start({.requests_per_connection_max = 3});
  TestClient client(server_->port());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client.Send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"));
    EXPECT_THAT(client.ReadReply(), StartsWith("HTTP/1.1 200"));
  }
  ASSERT_TRUE(client.Send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 200"));  // and closed
}

TEST_F(HttpServerTest, AnswersRequestsThatCameTogetherInOrder) {
  Start();
  TestClient client(server_->port());
  ASSERT_TRUE(
      client.Send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /statusz HTTP/1.1\r\nHost: x\r\n\r\n"
                  "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  EXPECT_THAT(client.ReadReply(), EndsWith("ok\n"));
  EXPECT_THAT(client.ReadReply(), EndsWith("}"));
  EXPECT_THAT(client.ReadAll(), HasSubstr("foreload_build_info"));
}

TEST_F(HttpServerTest, ARequestMayArriveByteByByte) {
  Start();
  TestClient client(server_->port());
  for (const char c : std::string("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")) ASSERT_TRUE(client.Send({&c, 1}));
  EXPECT_THAT(client.ReadReply(), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, HoldsNothingForSlowHeaders) {
  Start({.request_timeout_ns = 200 * kMillisecond});
  std::vector<std::unique_ptr<TestClient>> slow;
  for (int i = 0; i < 64; ++i) {
    slow.push_back(std::make_unique<TestClient>(server_->port()));
    ASSERT_TRUE(slow.back()->Send("GET /livez HTTP/1.1\r\nX-Slow: "));
  }
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200"));
  for (auto& client : slow) EXPECT_EQ(client->ReadAll(), "");  // returns because the server closes
  EXPECT_EQ(Closed("timeout"), 64u);
}

TEST_F(HttpServerTest, TheMostSilentConnectionMakesRoom) {
  Start({.connections_max = 4, .request_timeout_ns = 600 * kSecond});
  std::vector<std::unique_ptr<TestClient>> silent;
  for (int i = 0; i < 16; ++i) silent.push_back(std::make_unique<TestClient>(server_->port()));
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200"));
  EXPECT_GE(Closed("too_many"), 13u);
  EXPECT_EQ(silent.front()->ReadAll(), "");
}

TEST_F(HttpServerTest, AHugeHeaderCostsItsSenderAlone) {
  Start();
  TestClient client(server_->port());
  const std::string line = "X-Filler: " + std::string(4000, 'x') + "\r\n";
  bool sent = client.Send("GET /metrics HTTP/1.1\r\n");
  for (std::size_t bytes = 0; sent && bytes < (10u << 20); bytes += line.size()) sent = client.Send(line);
  EXPECT_FALSE(sent);  // the server closed long before the end
  EXPECT_EQ(Closed("oversized"), 1u);
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ABodyThatIsTooLargeIsRefused) {
  Start();
  TestClient client(server_->port());
  ASSERT_TRUE(client.Send("POST /-/reload HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"));
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 431"));
}

TEST_F(HttpServerTest, GarbageIsAnsweredAndClosed) {
  Start();
  const std::string garbage[] = {"\x16\x03\x01\x02\r\n\r\n", "GET\r\n\r\n", "GET /livez HTTP/9.9\r\n\r\n",
                                 "POST /-/reload HTTP/1.1\r\nContent-Length: -1\r\n\r\n"};
  for (const std::string& bytes : garbage) {
    TestClient client(server_->port());
    ASSERT_TRUE(client.Send(bytes));
    EXPECT_THAT(client.ReadAll(), Not(HasSubstr("200 OK"))) << bytes;
  }
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, SurvivesAScrapeStorm) {
  for (int i = 0; i < 500; ++i) registry_.AddCounter("foreload_test_x_total", "x", {{"i", std::to_string(i)}});
  Start({.connections_max = 32});
  std::atomic<int> good{0};
  std::vector<std::jthread> clients;
  for (int t = 0; t < 8; ++t) {
    clients.emplace_back([&] {
      for (int i = 0; i < 50; ++i) good += Get("/metrics").find("process_threads") != std::string::npos;
    });
  }
  clients.clear();
  EXPECT_EQ(good, 400);
  EXPECT_EQ(Closed("too_many"), 0u);
}

TEST_F(HttpServerTest, APeerThatNeverReadsIsDropped) {
  // Eight pages of 8 MiB: more than the kernel buffers for a peer.
  for (int i = 0; i < 128; ++i) {
    registry_.AddGauge("foreload_test_wide", "x", {{"i", std::to_string(i) + std::string(64u << 10, 'x')}});
  }
  Start({.reply_timeout_ns = 200 * kMillisecond});
  TestClient deaf(server_->port());
  std::string many;
  for (int i = 0; i < 8; ++i) many += "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_TRUE(deaf.Send(many));
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200"));
  const TimeNs limit = MonotonicNow() + 20 * kSecond;
  while (Closed("timeout") == 0 && MonotonicNow() < limit) std::this_thread::yield();
  EXPECT_EQ(Closed("timeout"), 1u);
}

TEST_F(HttpServerTest, RecoversWhenDescriptorsRunOut) {
  Start();
  TestClient waiting(server_->port());  // accepted before
  ASSERT_TRUE(waiting.Send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"));
  ASSERT_THAT(waiting.ReadReply(), StartsWith("HTTP/1.1 200"));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::optional<TestClient> late;
  {
    // The next descriptor is the client's own; there is none for the server's side of it.
    const int next = ::dup(0);
    ASSERT_GE(next, 0);
    ::close(next);
    rlimit none = before;
    none.rlim_cur = static_cast<rlim_t>(next) + 1;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    late.emplace(server_->port());
    const TimeNs limit = MonotonicNow() + 20 * kSecond;
    while (CounterValue("foreload_http_accept_errors_total") == 0 && MonotonicNow() < limit) std::this_thread::yield();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  }
  EXPECT_GE(CounterValue("foreload_http_accept_errors_total"), 1u);
  ASSERT_TRUE(late->Send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_THAT(late->ReadReply(), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, AnAddressInUseIsSaid) {
  Start();
  const std::string taken = "127.0.0.1:" + std::to_string(server_->port());
  MetricRegistry other;
  auto second = HttpServer::Start(taken, Handlers(), other);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr("http_listen " + taken + ": Address already in use"));
}

TEST(HttpListen, HostsAndPortsAreSplit) {
  EXPECT_EQ(*SplitListen("127.0.0.1:9464"), std::pair(std::string("127.0.0.1"), std::string("9464")));
  EXPECT_EQ(*SplitListen("[::1]:0"), std::pair(std::string("::1"), std::string("0")));
  EXPECT_EQ(SplitListen("*:1")->first, "0.0.0.0");
  EXPECT_FALSE(SplitListen("9464").ok());
}

TEST(HttpRequestBytes, KnowsWhenARequestIsWhole) {
  EXPECT_EQ(HttpRequestBytes("GET / HTTP/1.1\r\n\r\nrest", 100), 18u);
  EXPECT_EQ(HttpRequestBytes("GET / HTTP/1.1\r\n", 100), 0u);
  EXPECT_EQ(HttpRequestBytes("P / H\r\ncontent-LENGTH: 2\r\n\r\nab", 100), 30u);
  EXPECT_EQ(HttpRequestBytes("P / H\r\nContent-Length: 2\r\n\r\na", 100), 0u);
  EXPECT_EQ(HttpRequestBytes("P / H\r\nContent-Length: 999\r\n\r\n", 100), SIZE_MAX);
  EXPECT_EQ(HttpRequestBytes("P / H\r\nContent-Length: x\r\n\r\n", 100), SIZE_MAX);
  EXPECT_EQ(HttpRequestBytes(std::string(100, 'x'), 100), SIZE_MAX);
}

}  // namespace
}  // namespace foreload::service
