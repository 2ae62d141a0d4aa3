// Quantities as text: "64GiB", "500ms", "2.5GB/s". Binary units (KiB, MiB, GiB, TiB) are powers of 1024, decimal ones
// (kB, MB, GB, TB) powers of 1000; "B" is one byte. Never reads or writes the locale. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace foreload::service {

// nullopt: not of this form, negative, or beyond the type. Spaces between number and unit are allowed.
std::optional<std::uint64_t> ParseBytes(std::string_view text);  // a bare number is bytes
std::optional<double> ParseRate(std::string_view text);          // bytes a second; the unit is needed, except for 0
std::optional<DurationNs> ParseDuration(std::string_view text);  // ns us ms s min h d; needed, except for 0
std::optional<double> ParseNumber(std::string_view text);        // finite
std::optional<std::int64_t> ParseInteger(std::string_view text);

// The shortest text that reads back as the same value.
std::string FormatBytes(std::uint64_t bytes);
std::string FormatRate(double bytes_per_second);
std::string FormatDuration(DurationNs duration);
std::string FormatNumber(double value);

// Edits (insert, delete, replace, swap of neighbours) from `a` to `b`.
std::size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace foreload::service
