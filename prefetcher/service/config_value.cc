#include "prefetcher/service/config_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <vector>

namespace foreload::service {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

// Largest first within each family, so that formatting takes the first one that divides.
constexpr std::array<Unit, 9> kByteUnits = {{{"TiB", 1ll << 40},
                                             {"GiB", 1ll << 30},
                                             {"MiB", 1ll << 20},
                                             {"KiB", 1ll << 10},
                                             {"TB", 1'000'000'000'000},
                                             {"GB", 1'000'000'000},
                                             {"MB", 1'000'000},
                                             {"kB", 1'000},
                                             {"B", 1}}};
constexpr std::array<Unit, 7> kDurationUnits = {{{"d", 86'400 * kSecond},
                                                 {"h", 3'600 * kSecond},
                                                 {"min", 60 * kSecond},
                                                 {"s", kSecond},
                                                 {"ms", kMillisecond},
                                                 {"us", kMicrosecond},
                                                 {"ns", 1}}};

std::string_view Trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

struct Quantity {
  double value = 0;
  std::int64_t whole = -1;  // the same when it was written without a fraction, else -1
  std::string_view unit;
};

// Splits "2.5GB/s" into a number and a unit. Nothing negative, no "inf", no hexadecimal.
std::optional<Quantity> Split(std::string_view text) {
  text = Trim(text);
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view digits = text.substr(0, end);
  Quantity quantity;
  quantity.unit = Trim(text.substr(end));
  const std::optional<double> value = ParseNumber(digits);
  if (!value) return std::nullopt;
  quantity.value = *value;
  if (const std::optional<std::int64_t> whole = ParseInteger(digits)) quantity.whole = *whole;
  return quantity;
}

std::optional<std::int64_t> Scale(const Quantity& quantity, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    if (unit.name != quantity.unit) continue;
    if (quantity.whole >= 0) {
      std::int64_t product = 0;
      if (__builtin_mul_overflow(quantity.whole, unit.factor, &product)) return std::nullopt;
      return product;
    }
    const double product = quantity.value * static_cast<double>(unit.factor);
    if (!(product < 0x1p63)) return std::nullopt;
    return std::llround(product);
  }
  return std::nullopt;
}

std::string FormatWhole(std::int64_t value, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    if (value % unit.factor == 0) return std::to_string(value / unit.factor) + std::string(unit.name);
  }
  return {};  // not reached: each family ends with factor 1
}

}  // namespace

std::optional<double> ParseNumber(std::string_view text) {
  text = Trim(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> ParseInteger(std::string_view text) {
  text = Trim(text);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> ParseBytes(std::string_view text) {
  std::optional<Quantity> quantity = Split(text);
  if (!quantity) return std::nullopt;
  if (quantity->unit.empty()) {
    if (quantity->whole < 0) return std::nullopt;
    quantity->unit = "B";
  }
  const std::optional<std::int64_t> bytes = Scale(*quantity, kByteUnits);
  if (!bytes) return std::nullopt;
  return static_cast<std::uint64_t>(*bytes);
}

std::optional<double> ParseRate(std::string_view text) {
  std::optional<Quantity> quantity = Split(text);
  if (!quantity) return std::nullopt;
  if (quantity->unit.empty()) return quantity->value == 0 ? std::optional<double>(0.0) : std::nullopt;
  constexpr std::string_view kPerSecond = "/s";
  if (!quantity->unit.ends_with(kPerSecond)) return std::nullopt;
  quantity->unit.remove_suffix(kPerSecond.size());
  for (const Unit& unit : kByteUnits) {
    if (unit.name == quantity->unit) return quantity->value * static_cast<double>(unit.factor);
  }
  return std::nullopt;
}

std::optional<DurationNs> ParseDuration(std::string_view text) {
  const std::optional<Quantity> quantity = Split(text);
  if (!quantity) return std::nullopt;
  if (quantity->unit.empty()) return quantity->value == 0 ? std::optional<DurationNs>(0) : std::nullopt;
  return Scale(*quantity, kDurationUnits);
}

std::string FormatNumber(double value) {
  std::array<char, 64> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), end};
}

std::string FormatBytes(std::uint64_t bytes) {
  if (bytes == 0) return "0";
  if (bytes > static_cast<std::uint64_t>(INT64_MAX)) return std::to_string(bytes) + "B";
  return FormatWhole(static_cast<std::int64_t>(bytes), kByteUnits);
}

std::string FormatRate(double bytes_per_second) {
  if (bytes_per_second == 0) return "0";
  // Decimal units alone: link speeds are stated in them. A unit is taken when the text reads back as the same value.
  for (const Unit& unit : kByteUnits) {
    if (unit.name.ends_with("iB")) continue;
    const double scaled = bytes_per_second / static_cast<double>(unit.factor);
    if (scaled < 1 && unit.factor != 1) continue;
    std::array<char, 400> digits{};  // fixed notation of the largest double has 309 digits
    const auto [end, error] =
        std::to_chars(digits.data(), digits.data() + digits.size(), scaled, std::chars_format::fixed);
    std::string text(digits.data(), end);
    text += unit.name;
    text += "/s";
    if (ParseRate(text) == bytes_per_second) return text;
  }
  return FormatNumber(bytes_per_second) + "B/s";
}

std::string FormatDuration(DurationNs duration) {
  if (duration == 0) return "0s";
  return FormatWhole(duration, kDurationUnits);
}

std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replace});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace foreload::service
