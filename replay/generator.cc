#include "replay/generator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <queue>
#include <utility>

#include "base/exp_log.h"
#include "base/rng.h"

namespace foreload::replay {
namespace {

constexpr std::array<double, 8> kNextTurn{.34, .45, .57, .65, .70, .70, .80, .82};

// Split log-normal through the three published quantiles: ln(123/42) and ln(483/123) are 1.2816 standard deviations.
constexpr double kGapMedianSeconds = 123;
constexpr double kGapSigmaBelow = 1.07451 / 1.28155;
constexpr double kGapSigmaAbove = 1.36783 / 1.28155;

constexpr std::uint64_t kSystemBlockBase = 1ull << 62;
constexpr unsigned kSessionShift = 24;  // blocks of one session: 2^24
constexpr std::uint32_t kGeneratedTokensMax = 1u << 24;

// Acklam's rational approximation of the standard normal quantile; relative error below 1.2e-9.
double NormalQuantile(double p) {
  constexpr std::array<double, 6> a{-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                                    1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr std::array<double, 5> b{-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                                    6.680131188771972e+01, -1.328068155288572e+01};
  constexpr std::array<double, 6> c{-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                                    -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr std::array<double, 4> d{7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                                    3.754408661907416e+00};
  constexpr double kLow = 0.02425;
  const auto tail = [&](double q) {
    return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
           ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  };
  if (p < kLow) return tail(std::sqrt(-2 * Log(p)));
  if (p > 1 - kLow) return -tail(std::sqrt(-2 * Log(1 - p)));
  const double q = p - 0.5;
  const double r = q * q;
  return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
         (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

double Normal(Rng& rng) {
  return NormalQuantile((static_cast<double>(rng.Next() >> 11) + 0.5) * 0x1.0p-53);
}

double GapSeconds(Rng& rng) {
  const double z = Normal(rng);
  return kGapMedianSeconds * Exp(z * (z < 0 ? kGapSigmaBelow : kGapSigmaAbove));
}

// Log-normal with this mean, at least 1 token.
std::uint32_t Tokens(Rng& rng, double mean, double sigma) {
  const double tokens = mean * Exp(sigma * Normal(rng) - sigma * sigma / 2);
  return static_cast<std::uint32_t>(std::clamp(tokens, 1.0, static_cast<double>(kGeneratedTokensMax)));
}

struct Session {
  std::uint64_t id = 0;
  Rng rng{0};
  TimeNs next_turn = 0;
  std::uint32_t turn = 0;            // of the request that is due
  std::uint32_t system = 0;          // which system prompt
  std::uint32_t history_tokens = 0;  // prompt and output of all turns so far, system prompt included
};

struct Later {
  bool operator()(const Session& a, const Session& b) const {
    return std::pair(a.next_turn, a.id) > std::pair(b.next_turn, b.id);
  }
};

class Generator final : public TraceSource {
 public:
  explicit Generator(const GeneratorConfig& config) : config_(config), rng_(config.seed) {
    // Whole blocks of the system prompt can be shared; it is rounded to them.
    system_blocks_ = static_cast<std::uint32_t>(config.system_tokens * config.length_scale) / config.block_tokens;
    double total = 0;
    for (std::uint32_t i = 0; i < std::max(config.system_prompts, 1u); ++i) {
      total += 1.0 / (i + 1);
      zipf_.push_back(total);
    }
    next_start_ = -static_cast<TimeNs>(config.warm_start_seconds * 1e9);
    DrawStart();
  }

  Result<bool> Next(TraceRequest& request) override {
    while (stats_.requests < config_.requests) {
      while (due_.empty() || next_start_ <= due_.top().next_turn) StartSession();
      Session session = due_.top();
      due_.pop();
      const TimeNs arrival = session.next_turn;
      Turn(session, request);
      Continue(session);
      if (arrival < 0) continue;  // before the trace begins
      request.arrival = arrival;
      ++stats_.requests;
      return true;
    }
    return false;
  }

  const TraceStats& stats() const override { return stats_; }

 private:
  void DrawStart() {
    const double u = (static_cast<double>(rng_.Next() >> 11) + 0.5) * 0x1.0p-53;
    next_start_ += static_cast<TimeNs>(-Log(u) / config_.sessions_per_second * 1e9);
  }

  void StartSession() {
    Session session;
    session.id = sessions_++;
    session.rng = Rng(rng_.Next());
    session.next_turn = next_start_;
    session.turn = 1;
    const double pick = session.rng.Uniform() * zipf_.back();
    session.system = static_cast<std::uint32_t>(std::lower_bound(zipf_.begin(), zipf_.end(), pick) - zipf_.begin());
    session.history_tokens = config_.system_prompts > 0 ? system_blocks_ * config_.block_tokens : 0;
    due_.push(session);
    DrawStart();
  }

  std::uint64_t BlockAt(const Session& session, std::uint32_t index) const {
    if (config_.system_prompts > 0 && index < system_blocks_) {
      return kSystemBlockBase | (static_cast<std::uint64_t>(session.system) << kSessionShift) | index;
    }
    return (session.id << kSessionShift) | index;
  }

  void Turn(Session& session, TraceRequest& request) {
    const double mean = session.turn == 1 ? config_.first_turn_tokens : config_.later_turn_tokens;
    const std::uint32_t fresh = Tokens(session.rng, mean * config_.length_scale, config_.length_sigma);
    const std::uint32_t output =
        Tokens(session.rng, config_.output_tokens * config_.length_scale, config_.length_sigma);
    request.session = session.id;
    request.stream = 0;
    request.turn = session.turn;
    request.kind = RequestKind::kHuman;
    request.priority = 0;
    request.block_tokens = config_.block_tokens;
    request.input_tokens = std::min(session.history_tokens + fresh, config_.prompt_tokens_max);
    request.output_tokens = output;
    const std::uint32_t prompt_blocks = request.input_tokens / config_.block_tokens;
    const std::uint32_t all_blocks = (request.input_tokens + output) / config_.block_tokens;
    request.blocks.clear();
    request.output_blocks.clear();
    for (std::uint32_t i = 0; i < prompt_blocks; ++i) request.blocks.push_back(BlockAt(session, i));
    for (std::uint32_t i = prompt_blocks; i < all_blocks; ++i) request.output_blocks.push_back(BlockAt(session, i));
    session.history_tokens = request.input_tokens + output;
  }

  void Continue(Session& session) {
    const bool returns = session.rng.Uniform() < NextTurnProbability(session.turn);
    if (!returns || session.history_tokens >= config_.prompt_tokens_max) return;
    session.next_turn += static_cast<TimeNs>(GapSeconds(session.rng) * 1e9);
    ++session.turn;
    due_.push(session);
  }

  GeneratorConfig config_;
  Rng rng_;
  std::uint32_t system_blocks_ = 0;
  std::vector<double> zipf_;
  std::uint64_t sessions_ = 0;
  TimeNs next_start_ = 0;
  std::priority_queue<Session, std::vector<Session>, Later> due_;
  TraceStats stats_;
};

}  // namespace

double NextTurnProbability(std::uint32_t turn) {
  if (turn == 0) return 0;
  return kNextTurn[std::min<std::size_t>(turn, kNextTurn.size()) - 1];
}

Result<std::unique_ptr<TraceSource>> MakeGenerator(const GeneratorConfig& config) {
  if (!(config.sessions_per_second > 0)) return InvalidArgument("sessions_per_second must be above 0");
  if (config.block_tokens == 0) return InvalidArgument("block_tokens must be above 0");
  if (!(config.length_scale > 0 && config.length_scale <= 100)) {
    return InvalidArgument("length_scale must be above 0 and at most 100");
  }
  if (!(config.length_sigma >= 0 && config.length_sigma <= 3)) return InvalidArgument("length_sigma must be 0 to 3");
  if (config.prompt_tokens_max > kGeneratedTokensMax) return InvalidArgument("prompt_tokens_max must be at most 2^24");
  if (!(config.warm_start_seconds >= 0 && config.warm_start_seconds <= 1e6)) {
    return InvalidArgument("warm_start_seconds must be 0 to 1e6");
  }
  return std::unique_ptr<TraceSource>(std::make_unique<Generator>(config));
}

}  // namespace foreload::replay
