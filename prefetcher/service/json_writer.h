// Writes one JSON document into a string: numbers without locale, strings escaped, commas by itself.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace foreload::service {

class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }

  JsonWriter& Key(std::string_view key) {
    Separate();
    Quote(key);
    text_ += ':';
    fresh_ = true;
    return *this;
  }
  JsonWriter& Value(std::string_view value) {
    Separate();
    Quote(value);
    return *this;
  }
  JsonWriter& Value(const char* value) { return Value(std::string_view(value)); }
  JsonWriter& Value(bool value) {
    Separate();
    text_ += value ? "true" : "false";
    return *this;
  }
  template <std::integral T>
  JsonWriter& Value(T value) {
    Separate();
    char buffer[24];
    text_.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
    return *this;
  }
  JsonWriter& Value(double value) {
    Separate();
    char buffer[40];
    if (!std::isfinite(value)) {
      text_ += "null";
    } else {
      text_.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
    }
    return *this;
  }
  template <typename T>
  JsonWriter& Field(std::string_view key, const T& value) {
    Key(key);
    return Value(value);
  }

  std::string Take() { return std::move(text_); }

 private:
  JsonWriter& Open(char bracket) {
    Separate();
    text_ += bracket;
    fresh_ = true;
    return *this;
  }
  JsonWriter& Close(char bracket) {
    text_ += bracket;
    fresh_ = false;
    return *this;
  }
  void Separate() {
    if (!fresh_ && !text_.empty()) text_ += ',';
    fresh_ = false;
  }
  void Quote(std::string_view value) {
    static constexpr char kDigits[] = "0123456789abcdef";
    text_ += '"';
    for (const char c : value) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (byte < 0x20) {
        text_ += "\\u00";
        text_ += kDigits[byte >> 4];
        text_ += kDigits[byte & 15];
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_;
  bool fresh_ = true;
};

}  // namespace foreload::service
