// Foreload's own recordings as a workload: what was queued, when and by whom. Blocks are named by their salted hashes,
// so that sharing is preserved; the length of an output is known as far as it filled blocks.
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "prefetcher/core/codec.h"
#include "proto/trace.pb.h"
#include "replay/readers.h"
#include "telemetry/trace_file.h"

namespace foreload::replay {
namespace {

constexpr std::uint64_t kUnnamedBlock = 1ull << 63;  // | its id: a block whose definition was lost

RequestKind KindOf(core::RequestKind kind) {
  switch (kind) {
    case core::RequestKind::kHuman: return RequestKind::kHuman;
    case core::RequestKind::kTool: return RequestKind::kTool;
    case core::RequestKind::kWorkflow: return RequestKind::kWorkflow;
    default: return RequestKind::kUnknown;
  }
}

// Steps of a recording with the block names and engines that they refer to.
class StepReader {
 public:
  static Result<StepReader> Open(const std::string& path) {
    FORELOAD_ASSIGN_OR_RETURN(auto reader, telemetry::TraceReader::Open(path));
    return StepReader(std::move(reader), path);
  }

  // True and `batch` filled, or false at the end. A damaged file is an error; a step that cannot be decoded too.
  Result<bool> Next() {
    while (true) {
      FORELOAD_ASSIGN_OR_RETURN(auto record, reader_->Next());
      if (!record.has_value()) return false;
      if (record->has_key()) names_[record->key().block()] = record->key().salted_hash();
      if (!record->has_step()) continue;
      const trace::Step& step = record->step();
      ++steps_;
      now_ += step.now_delta_ns();
      if (!started_) start_ = now_;
      started_ = true;
      const std::string& bytes = step.events();
      const Status decoded =
          core::DecodeBatch({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, batch_);
      if (!decoded.ok()) return decoded.WithContext(path_ + ": step " + std::to_string(steps_));
      return true;
    }
  }

  const core::EventBatch& batch() const { return batch_; }
  TimeNs since_start() const { return now_ - start_; }
  bool complete() const { return reader_->complete(); }
  std::uint64_t NameOf(BlockId block) const {
    const auto it = names_.find(block.value);
    return it != names_.end() ? it->second : kUnnamedBlock | block.value;
  }

 private:
  StepReader(std::unique_ptr<telemetry::TraceReader> reader, std::string path)
      : reader_(std::move(reader)), path_(std::move(path)) {}

  std::unique_ptr<telemetry::TraceReader> reader_;
  std::string path_;
  std::unordered_map<std::uint32_t, std::uint64_t> names_;
  core::EventBatch batch_;
  TimeNs now_ = 0;
  TimeNs start_ = 0;
  std::uint64_t steps_ = 0;
  bool started_ = false;
};

class RecordingSource final : public TraceSource {
 public:
  RecordingSource(StepReader steps, std::vector<std::uint32_t> outputs, const TraceOptions& options, bool complete)
      : steps_(std::move(steps)), output_blocks_(std::move(outputs)), options_(options) {
    stats_.notes.push_back("output lengths are known in whole blocks alone");
    if (!complete) stats_.notes.push_back("the recording was not closed: its tail may be missing");
  }

  Result<bool> Next(TraceRequest& request) override {
    while (stats_.requests < options_.requests_max && !ended_) {
      while (next_event_ < steps_.batch().events.size()) {
        const core::Event& event = steps_.batch().events[next_event_++];
        if (const auto* up = std::get_if<core::EngineUp>(&event)) block_tokens_[up->engine.value] = up->block_tokens;
        const auto* queued = std::get_if<core::RequestQueued>(&event);
        if (queued == nullptr || queued->announced) continue;
        const std::uint64_t ordinal = ordinal_++;
        Status taken = Take(*queued, ordinal, request);
        if (taken.ok()) {
          ++stats_.requests;
          return true;
        }
        FORELOAD_RETURN_IF_ERROR(
            CountProblem(options_, stats_, "request " + std::to_string(ordinal) + ": " + taken.message()));
      }
      next_event_ = 0;
      auto more = steps_.Next();
      if (!more.ok()) FORELOAD_RETURN_IF_ERROR(CountProblem(options_, stats_, more.status().message()));
      ended_ = !more.ok() || !*more;
    }
    return false;
  }

  const TraceStats& stats() const override { return stats_; }

 private:
  Status Take(const core::RequestQueued& queued, std::uint64_t ordinal, TraceRequest& request) {
    const auto engine = block_tokens_.find(queued.engine.value);
    const std::uint32_t tokens = options_.block_tokens != 0      ? options_.block_tokens
                                 : engine != block_tokens_.end() ? engine->second
                                                                 : 0;
    if (tokens == 0) return InvalidArgument("its engine never said how many tokens a block has");
    const std::vector<BlockId>& pool = steps_.batch().blocks;
    if (queued.blocks.begin > pool.size() || queued.blocks.count > pool.size() - queued.blocks.begin) {
      return InvalidArgument("its block list lies outside its step");
    }
    if (queued.blocks.count > options_.request_blocks_max) return InvalidArgument("it has too many blocks");
    request.arrival = steps_.since_start();
    request.session = queued.session.valid() ? queued.session.value : kNoSession;
    request.stream = 0;
    request.turn = queued.turn;
    request.kind = KindOf(queued.kind);
    request.priority = queued.priority;
    request.block_tokens = tokens;
    request.blocks.clear();
    for (std::uint32_t i = 0; i < queued.blocks.count; ++i) {
      request.blocks.push_back(steps_.NameOf(pool[queued.blocks.begin + i]));
    }
    request.output_blocks.clear();
    request.input_tokens = std::max(queued.prompt_tokens, queued.blocks.count * tokens);
    const std::uint32_t output = ordinal < output_blocks_.size() ? output_blocks_[ordinal] : 0;
    request.output_tokens = std::max(1u, output * tokens);
    return OkStatus();
  }

  StepReader steps_;
  std::vector<std::uint32_t> output_blocks_;  // by order of arrival
  TraceOptions options_;
  std::unordered_map<std::uint32_t, std::uint32_t> block_tokens_;
  std::size_t next_event_ = 0;
  std::uint64_t ordinal_ = 0;
  bool ended_ = false;
  TraceStats stats_;
};

}  // namespace

Result<std::unique_ptr<TraceSource>> OpenRecording(const std::string& path, const TraceOptions& options) {
  // A request's output is known when it finishes, which the workload must know when it arrives: a pass of its own.
  FORELOAD_ASSIGN_OR_RETURN(StepReader scan, StepReader::Open(path));
  struct Live {
    std::uint64_t ordinal = 0;
    std::uint32_t prompt_blocks = 0;
  };
  std::unordered_map<std::uint32_t, Live> live;
  std::vector<std::uint32_t> outputs;
  while (outputs.size() < options.held_requests_max) {
    auto more = scan.Next();
    if (!more.ok() || !*more) break;  // the reading pass reports damage
    for (const core::Event& event : scan.batch().events) {
      if (const auto* queued = std::get_if<core::RequestQueued>(&event); queued != nullptr && !queued->announced) {
        live[queued->request.value] = {outputs.size(), queued->blocks.count};
        outputs.push_back(0);
      } else if (const auto* finished = std::get_if<core::RequestFinished>(&event)) {
        const auto it = live.find(finished->request.value);
        if (it == live.end()) continue;
        if (finished->blocks.count > it->second.prompt_blocks) {
          outputs[it->second.ordinal] = finished->blocks.count - it->second.prompt_blocks;
        }
        live.erase(it);
      }
    }
  }
  FORELOAD_ASSIGN_OR_RETURN(StepReader steps, StepReader::Open(path));
  return std::unique_ptr<TraceSource>(
      std::make_unique<RecordingSource>(std::move(steps), std::move(outputs), options, scan.complete()));
}

}  // namespace foreload::replay
