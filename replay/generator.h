// A seeded workload with published reuse statistics: multi-turn sessions that share system prompts.
//
// - Sessions start as a Poisson process; after turn k another turn follows with the probability measured on Mooncake's
//   conversation trace: .34 .45 .57 .65 .70 .70 .80 for turns 1 to 7, .82 from 8 on.
// - Gap between a session's turns: a split log-normal with p10 / p50 / p90 = 42 / 123 / 483 s (same trace).
// - Lengths: 12,035 prompt and 343 output tokens on average (Mooncake FAST'25, conversation), times `length_scale`. New
//   tokens of a turn and outputs are log-normal; a prompt holds the session's whole history.
// - System prompts: `system_prompts` of `system_tokens` each, chosen by Zipf's law, shared as whole blocks.
//
// The same configuration gives the same requests on every machine: no libm, no standard distributions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "replay/trace_source.h"

namespace foreload::replay {

struct GeneratorConfig {
  std::uint64_t seed = 1;
  std::uint64_t requests = 1000;
  double sessions_per_second = 1;  // of trace time; requests come 1.8 times as often once turns have built up
  double warm_start_seconds = 0;   // sessions that started this long ago or later have turns due in the trace
  std::uint32_t block_tokens = 16;
  double length_scale = 1;                 // of all token counts below
  std::uint32_t first_turn_tokens = 7850;  // mean of a first message
  std::uint32_t later_turn_tokens = 2270;  // mean of a later one
  std::uint32_t output_tokens = 343;
  double length_sigma = 0.6;  // of the logarithms
  std::uint32_t system_prompts = 8;
  std::uint32_t system_tokens = 1024;         // each
  std::uint32_t prompt_tokens_max = 131'072;  // a session ends when its next prompt would be longer
};

// P(another turn | `turn`), 1-based.
double NextTurnProbability(std::uint32_t turn);

Result<std::unique_ptr<TraceSource>> MakeGenerator(const GeneratorConfig& config);

}  // namespace foreload::replay
