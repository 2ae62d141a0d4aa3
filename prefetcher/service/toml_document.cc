#include "prefetcher/service/toml_document.h"

#include <algorithm>

#include "prefetcher/service/toml_library.h"

namespace foreload::service {
namespace {

Status Flatten(const toml::node& node, const std::string& path, std::size_t depth, const std::string& file,
               std::vector<TomlValue>& out) {
  const std::uint32_t line = node.source().begin.line;
  const auto wrong = [&](const std::string& what) {
    return InvalidArgument(file + ":" + std::to_string(line) + ": " + path + ": " + what);
  };
  if (depth > kTomlDepthMax) return wrong("nested too deeply");
  const std::string prefix = path.empty() ? "" : path + ".";
  if (const auto* table = node.as_table()) {
    for (const auto& [key, value] : *table) {
      FORELOAD_RETURN_IF_ERROR(Flatten(value, prefix + std::string(key.str()), depth + 1, file, out));
    }
  } else if (const auto* array = node.as_array()) {
    for (std::size_t i = 0; i < array->size(); ++i) {
      FORELOAD_RETURN_IF_ERROR(Flatten((*array)[i], prefix + std::to_string(i), depth + 1, file, out));
    }
  } else if (const auto* text = node.as_string()) {
    out.push_back({path, text->get(), line});
  } else if (const auto* flag = node.as_boolean()) {
    out.push_back({path, flag->get(), line});
  } else if (const auto* whole = node.as_integer()) {
    out.push_back({path, whole->get(), line});
  } else if (const auto* real = node.as_floating_point()) {
    out.push_back({path, real->get(), line});
  } else {
    return wrong("dates and times have no use here");
  }
  return OkStatus();
}

}  // namespace

toml::parse_result ParseToml(std::string_view text, std::string_view file) {
  const auto forbidden = [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
  };
  const auto found = std::find_if(text.begin(), text.end(), forbidden);
  if (found == text.end()) return toml::parse(text, file);
  const std::string_view before(text.begin(), found);
  const auto line = static_cast<toml::source_index>(1 + std::count(before.begin(), before.end(), '\n'));
  const auto column = static_cast<toml::source_index>(before.size() - (before.rfind('\n') + 1) + 1);
  return toml::parse_result(toml::parse_error(
      "a control character (byte " + std::to_string(static_cast<unsigned char>(*found)) + "); is this a text file?",
      toml::source_position{line, column}));
}

Result<std::vector<TomlValue>> FlattenToml(std::string_view text, const std::string& file) {
  const toml::parse_result parsed = ParseToml(text, file);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return InvalidArgument(file + ":" + std::to_string(error.source().begin.line) + ": " +
                           std::string(error.description()));
  }
  std::vector<TomlValue> values;
  FORELOAD_RETURN_IF_ERROR(Flatten(parsed.table(), "", 0, file, values));
  std::stable_sort(values.begin(), values.end(), [](const auto& a, const auto& b) { return a.line < b.line; });
  return values;
}

}  // namespace foreload::service
