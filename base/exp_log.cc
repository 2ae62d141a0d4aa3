#include "base/exp_log.h"

#include <bit>
#include <cstdint>

namespace foreload {

double Exp2(double x) {
  if (!(x > -1022.0)) return 0.0;  // also NaN
  if (x >= 1024.0) return std::bit_cast<double>(std::uint64_t{0x7FF} << 52);
  // x = n + f with f in [-0.5, 0.5]; 2^f = e^(f ln 2) by its Taylor series to degree 11 (remainder
  // (ln 2 / 2)^12 / 12! < 1e-14).
  const double shifted = x + (x >= 0.0 ? 0.5 : -0.5);
  auto n = static_cast<std::int64_t>(shifted);
  if (n == 1024) n = 1023;  // keeps the exponent field valid; f grows to at most 1: (ln 2)^12 / 12! < 3e-11
  const double f = (x - static_cast<double>(n)) * 0.6931471805599453;
  double sum = 1.0;
  for (int k = 11; k >= 1; --k) sum = 1.0 + sum * f / static_cast<double>(k);
  const double scale = std::bit_cast<double>(static_cast<std::uint64_t>(n + 1023) << 52);
  return sum * scale;
}

double Log2(double x) {
  if (!(x > 0.0)) return -1074.0;
  std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  if ((bits >> 52) == 0x7FF) return 1024.0;
  std::int64_t exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
  if ((bits >> 52) == 0) {  // subnormal: scale by 2^54
    bits = std::bit_cast<std::uint64_t>(x * 0x1.0p54);
    exponent = static_cast<std::int64_t>(bits >> 52) - 1023 - 54;
  }
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFull) | (std::uint64_t{1023} << 52));
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  // log(m) = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.1716, by its series to s^17 / 17 (the next term is < 2e-16).
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double sum = 0.0;
  for (int k = 17; k >= 1; k -= 2) sum = sum * s2 + 1.0 / static_cast<double>(k);
  return static_cast<double>(exponent) + 2.0 * s * sum * 1.4426950408889634;
}

}  // namespace foreload
