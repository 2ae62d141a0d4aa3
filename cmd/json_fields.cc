#include "cmd/json_fields.h"

#include <charconv>

namespace foreload::cmd {
namespace {

// Recursive descent over RFC 8259; bounded by kJsonDepthMax.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool ReadDocument() {
    if (!ReadValue("", 0)) return false;
    SkipSpace();
    return text_.empty();
  }
  std::map<std::string, std::string> fields;

 private:
  void SkipSpace() {
    const std::size_t at = text_.find_first_not_of(" \t\r\n");
    text_.remove_prefix(at == std::string_view::npos ? text_.size() : at);
  }
  bool Take(char wanted) {
    SkipSpace();
    if (text_.empty() || text_.front() != wanted) return false;
    text_.remove_prefix(1);
    return true;
  }
  static std::string Join(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  }

  bool ReadValue(const std::string& path, int depth) {
    if (depth > kJsonDepthMax) return false;
    SkipSpace();
    if (text_.empty()) return false;
    switch (text_.front()) {
      case '{': return ReadObject(path, depth);
      case '[': return ReadArray(path, depth);
      case '"': return ReadString(fields[path]);
      default: return ReadLiteral(fields[path]);
    }
  }

  bool ReadObject(const std::string& path, int depth) {
    text_.remove_prefix(1);
    if (Take('}')) return true;
    do {
      std::string key;
      SkipSpace();
      if (!ReadString(key) || !Take(':') || !ReadValue(Join(path, key), depth + 1)) return false;
    } while (Take(','));
    return Take('}');
  }

  bool ReadArray(const std::string& path, int depth) {
    text_.remove_prefix(1);
    if (Take(']')) return true;
    std::size_t index = 0;
    do {
      if (!ReadValue(Join(path, std::to_string(index++)), depth + 1)) return false;
    } while (Take(','));
    return Take(']');
  }

  bool ReadLiteral(std::string& value) {
    const std::size_t end = std::min(text_.find_first_of(",]} \t\r\n"), text_.size());
    value = text_.substr(0, end);
    text_.remove_prefix(end);
    if (value == "true" || value == "false" || value == "null") return true;
    double number = 0;
    const auto parsed = std::from_chars(value.data(), value.data() + value.size(), number);
    return parsed.ec == std::errc() && parsed.ptr == value.data() + value.size();
  }

  bool ReadString(std::string& value) {
    if (text_.empty() || text_.front() != '"') return false;
    text_.remove_prefix(1);
    value.clear();
    while (!text_.empty()) {
      const char c = text_.front();
      text_.remove_prefix(1);
      if (c == '"') return true;
      if (c != '\\') {
        value += c;
      } else if (!ReadEscape(value)) {
        return false;
      }
    }
    return false;
  }

  bool ReadEscape(std::string& value) {
    if (text_.empty()) return false;
    const char c = text_.front();
    text_.remove_prefix(1);
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kBytes = "\"\\/\b\f\n\r\t";
    const std::size_t at = kNames.find(c);
    if (at != std::string_view::npos) {
      value += kBytes[at];
      return true;
    }
    if (c != 'u' || text_.size() < 4) return false;
    unsigned code = 0;
    const auto parsed = std::from_chars(text_.data(), text_.data() + 4, code, 16);
    if (parsed.ptr != text_.data() + 4) return false;
    text_.remove_prefix(4);
    value += code < 0x80 ? static_cast<char>(code) : '?';  // our own writer escapes control characters alone
    return true;
  }

  std::string_view text_;
};

}  // namespace

Result<std::map<std::string, std::string>> JsonFields(std::string_view json) {
  Reader reader(json);
  if (!reader.ReadDocument()) return InvalidArgument("not a JSON document");
  return std::move(reader.fields);
}

}  // namespace foreload::cmd
