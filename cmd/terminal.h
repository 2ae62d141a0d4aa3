// Colour where a person looks: on a terminal, unless NO_COLOR is set or TERM is "dumb".
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace foreload::cmd {

class Terminal {
 public:
  explicit Terminal(std::FILE* stream) {
    const char* no_color = std::getenv("NO_COLOR");
    const char* term = std::getenv("TERM");
    const bool dumb = term != nullptr && std::string_view(term) == "dumb";
    color_ = ::isatty(::fileno(stream)) == 1 && (no_color == nullptr || *no_color == '\0') && !dumb;
  }

  std::string Green(std::string_view text) const { return Wrap("32", text); }
  std::string Yellow(std::string_view text) const { return Wrap("33", text); }
  std::string Bold(std::string_view text) const { return Wrap("1", text); }

 private:
  std::string Wrap(std::string_view code, std::string_view text) const {
    if (!color_) return std::string(text);
    return "\x1b[" + std::string(code) + "m" + std::string(text) + "\x1b[0m";
  }

  bool color_ = false;
};

}  // namespace foreload::cmd
