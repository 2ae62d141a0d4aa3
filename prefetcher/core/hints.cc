#include "prefetcher/core/hints.h"

#include <algorithm>

namespace foreload::core {
namespace {

// Hints come from outside: a year is for ever.
constexpr DurationNs kHintTimeMax = 365ll * 86400 * kSecond;
constexpr DurationNs kPinUntilUsedMax = 3600 * kSecond;  // a pin without ttl ends by itself

DurationNs Clamp(DurationNs value) {
  return std::clamp<DurationNs>(value, 0, kHintTimeMax);
}

}  // namespace

std::span<const BlockId> Hints::Chain(const HintGiven& event, std::span<const BlockId> blocks) {
  chain_.clear();
  if (!blocks.empty()) {
    blocks = blocks.first(std::min<std::size_t>(blocks.size(), state_.config.request_blocks_max));
    for (const BlockId id : blocks) {
      if (state_.catalog.Find(id) == nullptr) break;
      chain_.push_back(id);
    }
    return chain_;
  }
  const std::uint32_t session = state_.sessions.Find(SessionKey(event.session));
  if (session == kNone) return chain_;
  BlockId id = state_.sessions[session].leaf;
  for (std::uint32_t left = state_.config.request_blocks_max; left > 0 && state_.catalog.Find(id) != nullptr; --left) {
    chain_.push_back(id);
    id = state_.catalog.At(id).parent;
  }
  std::reverse(chain_.begin(), chain_.end());
  return chain_;
}

void Hints::Given(const HintGiven& event, std::span<const BlockId> blocks) {
  const Engine* engine = state_.FindEngine(event.engine);
  if (engine == nullptr) return state_.Ignore(IgnoredReason::kUnknownEngine);
  const std::span<const BlockId> chain = Chain(event, blocks);
  if (chain.empty()) return state_.Ignore(IgnoredReason::kUnknownBlock);
  switch (event.action) {
    case HintAction::kExpect: return Expect(event, chain);
    case HintAction::kPrefetch: {
      const TimeNs start = Later(state_.now, Clamp(event.eta_ns));
      const DurationNs ttl = event.ttl_ns > 0 ? Clamp(event.ttl_ns) : state_.config.prefetch_ttl_ns;
      return admission_.Hinted(event.engine, chain, start, Later(start, ttl));
    }
    case HintAction::kRetain:
    case HintAction::kPin:
    case HintAction::kDemote:
      for (const BlockId id : chain) Protect(event, id);
      return;
  }
  state_.Ignore(IgnoredReason::kUnknownRequest);  // an action that this version does not know
}

void Hints::Expect(const HintGiven& event, std::span<const BlockId> chain) {
  std::uint64_t key = SessionKey(event.session);
  if (state_.sessions.Find(key) == kNone) key = AnonymousKey(chain.back());
  const std::uint32_t i = state_.sessions.Find(key);
  if (i == kNone) return state_.Ignore(IgnoredReason::kUnknownBlock);
  Session& session = state_.sessions[i];
  session.expect_at = Later(state_.now, Clamp(event.eta_ns));
  session.expect_sigma = std::max<DurationNs>(Clamp(event.sigma_ns), kMillisecond);
  // One horizon ahead the return is as likely as not; one sigma later it is probable, should the first time not do.
  const TimeNs ahead = session.expect_at - std::min(session.expect_at, state_.config.session_promote_horizon_ns);
  planner_.ConsiderAt(std::max(ahead, state_.now), key);
  planner_.ConsiderAt(std::max(Later(ahead, session.expect_sigma), state_.now), key);
  state_.plan_due = true;
}

void Hints::Protect(const HintGiven& event, BlockId id) {
  Block& block = state_.catalog.At(id);
  if (event.action == HintAction::kDemote) {
    block.demoted = true;
    block.retain_until = block.pin_until = 0;
    block.retain_until_used = false;
    return;
  }
  block.demoted = false;
  const bool pin = event.action == HintAction::kPin;
  if (event.ttl_ns <= 0) block.retain_until_used = true;
  const TimeNs until = Later(state_.now, event.ttl_ns > 0 ? Clamp(event.ttl_ns) : kPinUntilUsedMax);
  if (pin) block.pin_until = std::max(block.pin_until, until);
  if (!pin && event.ttl_ns > 0) block.retain_until = std::max(block.retain_until, until);
}

}  // namespace foreload::core
