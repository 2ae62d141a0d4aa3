// The first byte chooses a parser; the rest is its record.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "replay/session_script.h"
#include "replay/trace_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreload::replay;
  if (size == 0) return 0;
  constexpr std::uint32_t kBlocksMax = 4096;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  TraceJson json;
  json.Classify(text);
  switch (data[0] % 4) {
    case 0: {
      MooncakeRecord record;
      (void)json.ParseMooncake(text, kBlocksMax, record);
      break;
    }
    case 1: {  // lines, as a reader would feed them
      SessionScript script({.held_requests_max = 64});
      std::size_t begin = 0;
      while (begin < text.size()) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        WekaDeltaRecord record;
        const auto status = json.ParseWekaDelta(text.substr(begin, end - begin), kBlocksMax, record);
        begin = end + 1;
        if (!status.ok()) {
          script.LostRequest();
        } else if (record.header) {
          script.BeginSession(record.session, record.block_tokens, record.global_ids);
        } else {
          (void)script.Add({.at_seconds = record.at_seconds,
                            .stream = record.stream,
                            .input_tokens = record.input_tokens,
                            .output_tokens = record.output_tokens,
                            .keep = record.keep,
                            .runs = record.runs});
        }
      }
      TraceRequest request;
      while (script.Next(request)) {
        if (request.blocks.size() > 64u * kBlocksMax) __builtin_trap();
      }
      break;
    }
    case 2: {
      TraceJson::SessionSink sink;
      sink.on_entry = [](const WekaSessionHead&, const std::string&, WekaEntry&&) { return true; };
      sink.on_bad = [](const std::string&, const std::string&) { return true; };
      (void)json.ParseWekaSession(text, kBlocksMax, sink);
      break;
    }
    default: (void)FlattenJsonNumbers(text); break;
  }
  return 0;
}
