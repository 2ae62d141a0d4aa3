#include <algorithm>

#include "replay/line_reader.h"
#include "replay/readers.h"
#include "replay/trace_json.h"

namespace foreload::replay {
namespace {

constexpr std::uint32_t kMooncakeBlockTokens = 512;

class MooncakeReader final : public TraceSource {
 public:
  MooncakeReader(std::unique_ptr<LineReader> lines, std::string path, const TraceOptions& options)
      : lines_(std::move(lines)),
        path_(std::move(path)),
        options_(options),
        block_tokens_(options.block_tokens != 0 ? options.block_tokens : kMooncakeBlockTokens) {}

  Result<bool> Next(TraceRequest& request) override {
    while (!ended_ && stats_.requests < options_.requests_max) {
      std::string_view line;
      auto outcome = lines_->Next(line);
      if (!outcome.ok()) {
        ended_ = true;
        FORELOAD_RETURN_IF_ERROR(CountProblem(options_, stats_, outcome.status().message()));
        break;
      }
      if (*outcome == LineReader::Outcome::kEnd) break;
      Status status = OkStatus();
      if (*outcome == LineReader::Outcome::kTooLong) {
        status = InvalidArgument("longer than " + std::to_string(options_.line_bytes_max) + " bytes");
      } else {
        if (line.empty()) continue;
        status = Take(line, request);
      }
      AddNotes(stats_, json_.TakeUnknownKeys(), path_);
      if (status.ok()) {
        ++stats_.requests;
        return true;
      }
      FORELOAD_RETURN_IF_ERROR(CountProblem(
          options_, stats_, path_ + ":" + std::to_string(lines_->line_number()) + ": " + status.message()));
    }
    ended_ = true;
    return false;
  }

  const TraceStats& stats() const override { return stats_; }

 private:
  Status Take(std::string_view line, TraceRequest& request) {
    FORELOAD_RETURN_IF_ERROR(json_.ParseMooncake(line, options_.request_blocks_max, record_));
    const std::uint64_t blocks = (static_cast<std::uint64_t>(record_.input_tokens) + block_tokens_ - 1) / block_tokens_;
    if (record_.blocks.size() > blocks) {
      return InvalidArgument("`hash_ids` has " + std::to_string(record_.blocks.size()) + " ids for " +
                             std::to_string(record_.input_tokens) + " tokens at " + std::to_string(block_tokens_) +
                             " a block");
    }
    auto arrival = static_cast<TimeNs>(record_.timestamp_ms * 1e6);
    if (arrival < last_arrival_) {
      if (!out_of_order_noted_) stats_.notes.push_back(path_ + ": timestamps go back; those requests arrive at once");
      out_of_order_noted_ = true;
      arrival = last_arrival_;
    }
    last_arrival_ = arrival;
    request.arrival = arrival;
    request.session = record_.session;
    request.stream = 0;
    request.turn = record_.turn;
    request.kind = RequestKind::kUnknown;
    request.priority = 0;
    request.block_tokens = block_tokens_;
    request.input_tokens = record_.input_tokens;
    request.output_tokens = record_.output_tokens;
    request.blocks = record_.blocks;
    request.output_blocks.clear();
    return OkStatus();
  }

  std::unique_ptr<LineReader> lines_;
  std::string path_;
  TraceOptions options_;
  std::uint32_t block_tokens_;
  TraceJson json_;
  MooncakeRecord record_;
  TimeNs last_arrival_ = 0;
  bool out_of_order_noted_ = false;
  bool ended_ = false;
  TraceStats stats_;
};

}  // namespace

Result<std::unique_ptr<TraceSource>> OpenMooncake(const std::string& path, const TraceOptions& options) {
  FORELOAD_ASSIGN_OR_RETURN(auto lines, LineReader::Open(path, {options.line_bytes_max, options.file_bytes_max}));
  return std::unique_ptr<TraceSource>(std::make_unique<MooncakeReader>(std::move(lines), path, options));
}

}  // namespace foreload::replay
