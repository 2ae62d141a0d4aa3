#include "prefetcher/service/http_router.h"

#include <httplib.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>

#include "prefetcher/service/config_value.h"
#include "prefetcher/service/exposition.h"

namespace foreload::service {
namespace {

constexpr char kText[] = "text/plain; charset=utf-8";
constexpr char kJson[] = "application/json";

// A request in memory and a reply in memory, as the library's stream.
class MemoryStream final : public httplib::Stream {
 public:
  MemoryStream(std::string_view input, const std::string& peer) : input_(input), peer_(peer) {}

  bool is_readable() const override { return read_ < input_.size(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, std::size_t bytes) override {
    const std::size_t taken = std::min(bytes, input_.size() - read_);
    std::memcpy(to, input_.data() + read_, taken);
    read_ += taken;
    return static_cast<ssize_t>(taken);
  }
  ssize_t write(const char* from, std::size_t bytes) override {
    reply.append(from, bytes);
    return static_cast<ssize_t>(bytes);
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip = peer_;
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  // No descriptor: the library refuses those that select() cannot hold.
  socket_t socket() const override { return 0; }

  std::size_t consumed() const { return read_; }

  std::string reply;

 private:
  std::string_view input_;
  const std::string& peer_;
  std::size_t read_ = 0;
};

// Opens the library's parser and router to callers that own their sockets.
class Parser final : public httplib::Server {
 public:
  bool Process(httplib::Stream& stream, bool& closed) { return process_request(stream, false, closed, nullptr); }
};

bool IsLoopbackAddress(std::string_view ip) {
  return ip.starts_with("127.") || ip == "::1" || ip.starts_with("::ffff:127.");
}

void AnswerHealth(const Health& health, const httplib::Request& request, httplib::Response& response) {
  response.status = health.ok ? 200 : 503;
  std::string body;
  if (request.has_param("verbose") || !health.ok) {
    for (const auto& [name, state] : health.checks) body += name + ": " + state + "\n";
  }
  body += health.ok ? "ok\n" : "failed\n";
  response.set_content(body, kText);
}

}  // namespace

struct HttpRouter::Impl {
  HttpHandlers handlers;
  Parser parser;
  std::array<Counter*, 6> requests{};

  enum Route : std::size_t { kMetrics, kLivez, kReadyz, kStatusz, kReload, kOther };

  Impl(HttpHandlers given, MetricRegistry& metrics) : handlers(std::move(given)) {
    constexpr std::array<const char*, 6> kRoutes = {"metrics", "livez", "readyz", "statusz", "reload", "other"};
    for (std::size_t i = 0; i < kRoutes.size(); ++i) {
      requests[i] = &metrics.AddCounter("foreload_http_requests_total", "Requests by route.", {{"route", kRoutes[i]}});
    }
    AddRoutes();
  }

  void AddRoutes() {
    parser.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      requests[kMetrics]->Add();
      response.set_content(handlers.metrics(), kExpositionContentType);
    });
    parser.Get("/livez", [this](const httplib::Request& request, httplib::Response& response) {
      requests[kLivez]->Add();
      AnswerHealth(handlers.livez(), request, response);
    });
    parser.Get("/readyz", [this](const httplib::Request& request, httplib::Response& response) {
      requests[kReadyz]->Add();
      AnswerHealth(handlers.readyz(), request, response);
    });
    parser.Get("/statusz", [this](const httplib::Request&, httplib::Response& response) {
      requests[kStatusz]->Add();
      response.set_content(handlers.status_json(), kJson);
    });
    parser.Post("/-/reload", [this](const httplib::Request& request, httplib::Response& response) {
      requests[kReload]->Add();
      Reload(request, response);
    });
    parser.set_error_handler([this](const httplib::Request&, httplib::Response& response) {
      if (!response.body.empty()) return;  // ours, with its own words
      requests[kOther]->Add();
      response.set_content(
          response.status == 404 ? "no such page: try /metrics /livez /readyz /statusz\n" : "refused\n", kText);
    });
  }

  void Reload(const httplib::Request& request, httplib::Response& response) {
    if (!IsLoopbackAddress(request.remote_addr)) {
      response.status = 403;
      response.set_content("reload is taken from this host alone\n", kText);
      return;
    }
    const Status status = handlers.reload();
    response.status = status.ok() ? 200 : 400;
    response.set_content(status.ok() ? "reloaded\n" : status.message() + "\n", kText);
  }
};

HttpRouter::HttpRouter(HttpHandlers handlers, MetricRegistry& metrics)
    : impl_(std::make_unique<Impl>(std::move(handlers), metrics)) {}

HttpRouter::~HttpRouter() = default;

HttpExchange HttpRouter::Serve(std::string_view input, const std::string& peer) {
  MemoryStream stream(input, peer);
  bool closed = false;
  const bool served = impl_->parser.Process(stream, closed);
  HttpExchange exchange;
  exchange.consumed = stream.consumed();
  exchange.reply = std::move(stream.reply);
  // After a request that could not be read, nobody knows where the next one begins.
  const bool lost = exchange.reply.empty() || exchange.reply.find(" 400 ") == 8 || exchange.reply.find(" 414 ") == 8;
  exchange.close = !served || closed || lost;
  return exchange;
}

std::size_t HttpRequestBytes(std::string_view input, std::size_t bytes_max) {
  constexpr std::string_view kEnd = "\r\n\r\n";
  constexpr std::string_view kLength = "\r\ncontent-length:";
  const std::string_view seen = input.substr(0, bytes_max);
  const std::size_t end = seen.find(kEnd);
  if (end == std::string_view::npos) return input.size() >= bytes_max ? SIZE_MAX : 0;
  const std::string_view header = seen.substr(0, end + 2);
  const auto at = std::search(header.begin(), header.end(), kLength.begin(), kLength.end(),
                              [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; });
  std::size_t bytes = end + kEnd.size();
  if (at != header.end()) {
    const std::string_view value(at + kLength.size(), std::find(at + kLength.size(), header.end(), '\r'));
    const auto length = ParseInteger(value);
    if (!length || *length < 0 || static_cast<std::uint64_t>(*length) > bytes_max - bytes) return SIZE_MAX;
    bytes += static_cast<std::size_t>(*length);
  }
  return bytes > input.size() ? 0 : bytes;
}

}  // namespace foreload::service
