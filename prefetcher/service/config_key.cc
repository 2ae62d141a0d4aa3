// One key's value: from a file or from text, checked, and back to text.
#include <cctype>
#include <type_traits>

#include "prefetcher/service/config_schema.h"
#include "prefetcher/service/config_value.h"

namespace foreload::service {
namespace {

using K = ValueKind;

std::string_view KindNoun(ValueKind kind) {
  switch (kind) {
    case K::kBool: return "true or false";
    case K::kCount: return "a whole number";
    case K::kBytes: return "a size such as \"64GiB\" (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)";
    case K::kRate: return "a rate such as \"2.5GB/s\"";
    case K::kDuration: return "a duration such as \"500ms\" (ns, us, ms, s, min, h, d)";
    case K::kNumber: return "a number";
    case K::kText: return "a string";
    case K::kPath: return "an absolute path";
    case K::kEndpoint: return "a ZeroMQ endpoint such as \"ipc:///run/engine.sock\" or \"tcp://127.0.0.1:5557\"";
    case K::kListen: return "\"host:port\"";
    case K::kChoice: return "one of the choices";
  }
  return "";
}

constexpr std::size_t kShownBytesMax = 80;  // of a wrong value in a message

std::string Shown(const RawValue& raw) {
  if (const auto* flag = std::get_if<bool>(&raw)) return *flag ? "true" : "false";
  if (const auto* whole = std::get_if<std::int64_t>(&raw)) return std::to_string(*whole);
  if (const auto* real = std::get_if<double>(&raw)) return FormatNumber(*real);
  const auto& text = std::get<std::string>(raw);
  std::string shown = "\"";
  for (const char c : text.substr(0, kShownBytesMax)) shown += std::iscntrl(static_cast<unsigned char>(c)) ? '?' : c;
  return shown + (text.size() > kShownBytesMax ? "...\"" : "\"");
}

std::string FormatKind(ValueKind kind, double value) {
  switch (kind) {
    case K::kBytes: return FormatBytes(static_cast<std::uint64_t>(value));
    case K::kDuration: return FormatDuration(static_cast<DurationNs>(value));
    case K::kRate: return FormatRate(value);
    default: return FormatNumber(value);
  }
}

// Numbers by kind. Text is parsed with units; a typed number is taken where its unit is plain (counts, bytes, numbers,
// and 0 everywhere).
struct Numeric {
  double value = 0;
  std::uint64_t whole = 0;
};
std::optional<Numeric> ToNumeric(ValueKind kind, const RawValue& raw, bool from_text) {
  const auto* text = std::get_if<std::string>(&raw);
  const auto* whole = std::get_if<std::int64_t>(&raw);
  const auto* real = std::get_if<double>(&raw);
  const bool plain = kind == K::kCount || kind == K::kBytes || (whole != nullptr && *whole == 0);
  if (whole != nullptr && plain && *whole >= 0) {
    return Numeric{static_cast<double>(*whole), static_cast<std::uint64_t>(*whole)};
  }
  if (kind == K::kNumber) {
    if (whole != nullptr) return Numeric{static_cast<double>(*whole), 0};
    if (real != nullptr && *real - *real == 0) return Numeric{*real, 0};  // finite
    if (text == nullptr || !from_text) return std::nullopt;
    const auto number = ParseNumber(*text);
    if (!number) return std::nullopt;
    return Numeric{*number, 0};
  }
  if (text == nullptr) return std::nullopt;
  switch (kind) {
    case K::kCount: {
      const auto count = from_text ? ParseInteger(*text) : std::nullopt;
      if (!count || *count < 0) return std::nullopt;
      return Numeric{static_cast<double>(*count), static_cast<std::uint64_t>(*count)};
    }
    case K::kBytes: {
      const auto bytes = ParseBytes(*text);
      if (!bytes) return std::nullopt;
      return Numeric{static_cast<double>(*bytes), *bytes};
    }
    case K::kDuration: {
      const auto duration = ParseDuration(*text);
      if (!duration) return std::nullopt;
      return Numeric{static_cast<double>(*duration), static_cast<std::uint64_t>(*duration)};
    }
    case K::kRate: {
      const auto rate = ParseRate(*text);
      if (!rate) return std::nullopt;
      return Numeric{*rate, 0};
    }
    default: return std::nullopt;
  }
}

// Whether `text` has the form of its kind; the message says what is missing.
std::optional<std::string> CheckText(ValueKind kind, const std::string& text, bool empty_allowed) {
  if (text.empty()) return empty_allowed ? std::nullopt : std::optional<std::string>("must not be empty");
  if (text.find('\0') != std::string::npos) return "holds a zero byte";
  const auto port_after_colon = [&text]() -> bool {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0) return false;
    const auto port = ParseInteger(std::string_view(text).substr(colon + 1));
    return port && *port >= 0 && *port <= 65535;
  };
  switch (kind) {
    case K::kPath:
      if (text.front() != '/') return "expects an absolute path, got " + Shown(text);
      break;
    case K::kListen:
      if (!port_after_colon()) return "expects \"host:port\" with a port of 0 to 65535, got " + Shown(text);
      break;
    case K::kEndpoint:
      if (text.starts_with("ipc://") && text.size() > 6) break;
      if (text.starts_with("tcp://") && text.size() > 6 && port_after_colon()) break;
      return "expects " + std::string(KindNoun(kind)) + ", got " + Shown(text);
    default: break;
  }
  return std::nullopt;
}

template <typename Owner>
std::string Choices(const KeySpec<Owner>& spec) {
  std::string text;
  for (const std::string_view choice : spec.choices) {
    if (!text.empty()) text += ", ";
    text += '"' + std::string(choice) + '"';
  }
  return text;
}

template <typename Owner>
std::string Wanted(const KeySpec<Owner>& spec, const RawValue& raw) {
  const std::string noun = spec.kind == K::kChoice ? "one of " + Choices(spec) : std::string(KindNoun(spec.kind));
  return "expects " + noun + ", got " + Shown(raw);
}

template <typename Owner>
std::optional<std::string> SetNumeric(const KeySpec<Owner>& spec, const RawValue& raw, bool from_text, Owner& owner) {
  const auto numeric = ToNumeric(spec.kind, raw, from_text);
  if (!numeric) return Wanted(spec, raw);
  if (numeric->value < spec.min || numeric->value > spec.max) {
    return "must be from " + FormatKind(spec.kind, spec.min) + " to " + FormatKind(spec.kind, spec.max) + ", got " +
           Shown(raw);
  }
  using U32Field = std::uint32_t& (*)(Owner&);
  using U64Field = std::uint64_t& (*)(Owner&);
  using I64Field = std::int64_t& (*)(Owner&);
  using RealField = double& (*)(Owner&);
  if (const auto* u32 = std::get_if<U32Field>(&spec.field)) (*u32)(owner) = static_cast<std::uint32_t>(numeric->whole);
  if (const auto* u64 = std::get_if<U64Field>(&spec.field)) (*u64)(owner) = numeric->whole;
  if (const auto* i64 = std::get_if<I64Field>(&spec.field)) (*i64)(owner) = static_cast<std::int64_t>(numeric->whole);
  if (const auto* real = std::get_if<RealField>(&spec.field)) (*real)(owner) = numeric->value;
  return std::nullopt;
}

}  // namespace

template <typename Owner>
std::optional<std::string> SetKey(const KeySpec<Owner>& spec, const RawValue& raw, bool from_text, Owner& owner) {
  const auto* text = std::get_if<std::string>(&raw);
  switch (spec.kind) {
    case K::kBool: {
      const auto* flag = std::get_if<bool>(&raw);
      const bool text_flag = from_text && text != nullptr && (*text == "true" || *text == "false");
      if (flag == nullptr && !text_flag) return Wanted(spec, raw);
      std::get<bool& (*)(Owner&)>(spec.field)(owner) = flag != nullptr ? *flag : *text == "true";
      return std::nullopt;
    }
    case K::kChoice: {
      if (text == nullptr) return Wanted(spec, raw);
      for (std::size_t i = 0; i < spec.choices.size(); ++i) {
        if (spec.choices[i] != *text) continue;
        std::get<ChoiceAccess<Owner>>(spec.field).set(owner, i);
        return std::nullopt;
      }
      return Wanted(spec, raw);
    }
    case K::kText:
    case K::kPath:
    case K::kEndpoint:
    case K::kListen: {
      if (text == nullptr) return Wanted(spec, raw);
      if (auto fault = CheckText(spec.kind, *text, spec.empty_allowed)) return fault;
      std::get<std::string& (*)(Owner&)>(spec.field)(owner) = *text;
      return std::nullopt;
    }
    default: return SetNumeric(spec, raw, from_text, owner);
  }
}

namespace {

std::string Quoted(std::string_view text) {
  static constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      quoted += "\\u00";
      quoted += kHex[byte >> 4];
      quoted += kHex[byte & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace

template <typename Owner>
std::string PrintKey(const KeySpec<Owner>& spec, const Owner& const_owner) {
  auto& owner = const_cast<Owner&>(const_owner);  // the accessors return references; nothing is written here
  const auto print = [&](const auto& field) -> std::string {
    using FieldType = std::decay_t<decltype(field)>;
    if constexpr (std::is_same_v<FieldType, ChoiceAccess<Owner>>) {
      return Quoted(spec.choices[field.get(owner)]);
    } else if constexpr (std::is_same_v<FieldType, bool& (*)(Owner&)>) {
      return field(owner) ? "true" : "false";
    } else if constexpr (std::is_same_v<FieldType, std::string& (*)(Owner&)>) {
      return Quoted(field(owner));
    } else {
      const auto value = field(owner);
      if (spec.kind == K::kBytes) return Quoted(FormatBytes(static_cast<std::uint64_t>(value)));
      if (spec.kind == K::kDuration) return Quoted(FormatDuration(static_cast<DurationNs>(value)));
      if (spec.kind == K::kRate) return Quoted(FormatRate(static_cast<double>(value)));
      return FormatNumber(static_cast<double>(value));
    }
  };
  return std::visit(print, spec.field);
}

template std::optional<std::string> SetKey(const KeySpec<ServiceConfig>&, const RawValue&, bool, ServiceConfig&);
template std::optional<std::string> SetKey(const KeySpec<EngineSettings>&, const RawValue&, bool, EngineSettings&);
template std::string PrintKey(const KeySpec<ServiceConfig>&, const ServiceConfig&);
template std::string PrintKey(const KeySpec<EngineSettings>&, const EngineSettings&);

}  // namespace foreload::service
