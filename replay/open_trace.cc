#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "replay/line_reader.h"
#include "replay/readers.h"
#include "replay/trace_json.h"

namespace foreload::replay {
namespace {

constexpr std::size_t kNotesMax = 20;
constexpr std::size_t kProbeLinesMax = 100;  // until one can be told
constexpr std::size_t kSessionFilesMax = 100'000;

Result<std::vector<std::string>> SessionFilesOf(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool json =
        name.size() > 5 && (name.ends_with(".json") || name.ends_with(".json.gz") || name.ends_with(".json.zst"));
    if (json && paths.size() < kSessionFilesMax) paths.push_back(it->path().string());
  }
  if (error) return IoError("read folder " + folder + ": " + error.message());
  if (paths.empty()) return NotFound(folder + ": no .json, .json.gz or .json.zst file in this folder");
  std::sort(paths.begin(), paths.end());  // the folder's own order differs between machines
  return paths;
}

bool IsRecording(const std::string& path) {
  constexpr std::string_view kMagic = "FLTRACE1";
  std::string head(kMagic.size(), '\0');
  std::ifstream stream(path, std::ios::binary);
  stream.read(head.data(), static_cast<std::streamsize>(head.size()));
  return stream && head == kMagic;
}

Result<JsonShape> ShapeOf(const std::string& path, const TraceOptions& options) {
  FORELOAD_ASSIGN_OR_RETURN(auto lines, LineReader::Open(path, {options.line_bytes_max, options.file_bytes_max}));
  TraceJson json;
  bool object = false;
  for (std::size_t i = 0; i < kProbeLinesMax; ++i) {
    std::string_view line;
    FORELOAD_ASSIGN_OR_RETURN(const LineReader::Outcome outcome, lines->Next(line));
    if (outcome == LineReader::Outcome::kEnd) break;
    if (outcome == LineReader::Outcome::kTooLong) {
      object = true;  // a whole session on one line is longer than any line of the other formats
      continue;
    }
    if (const JsonShape shape = json.Classify(line); shape != JsonShape::kUnknown) return shape;
    const std::size_t first = line.find_first_not_of(" \t");
    if (first != std::string_view::npos && line[first] == '{') object = true;
  }
  if (object) return JsonShape::kWekaSession;
  return InvalidArgument(path +
                         ": not a trace that this build knows (Mooncake JSONL, Weka delta JSONL, Weka session, "
                         "Foreload recording)");
}

}  // namespace

Status CountProblem(const TraceOptions& options, TraceStats& stats, std::string problem) {
  if (options.strict) return InvalidArgument(std::move(problem));
  ++stats.skipped;
  if (stats.problems.size() < kProblemsMax) stats.problems.push_back(std::move(problem));
  return OkStatus();
}

void AddNotes(TraceStats& stats, const std::vector<std::string>& unknown_keys, const std::string& file) {
  for (const std::string& key : unknown_keys) {
    const std::string prefix = "unknown key `" + key + "` is ignored";
    const bool known = std::any_of(stats.notes.begin(), stats.notes.end(),
                                   [&](const std::string& note) { return note.starts_with(prefix); });
    if (!known && stats.notes.size() < kNotesMax) stats.notes.push_back(prefix + " (first met in " + file + ")");
  }
}

Result<std::unique_ptr<TraceSource>> OpenTrace(const std::string& path, const TraceOptions& options) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    FORELOAD_ASSIGN_OR_RETURN(const auto paths, SessionFilesOf(path));
    return OpenWekaSessions(paths, options);
  }
  if (IsRecording(path)) return OpenRecording(path, options);
  FORELOAD_ASSIGN_OR_RETURN(const JsonShape shape, ShapeOf(path, options));
  switch (shape) {
    case JsonShape::kMooncake: return OpenMooncake(path, options);
    case JsonShape::kWekaDelta: return OpenWekaDelta(path, options);
    default: return OpenWekaSessions({path}, options);
  }
}

}  // namespace foreload::replay
