// exp2 and log2 that give the same bits on every x86-64 machine: no libm, no fused multiply-add, fixed order of
// operations. Core and scoring use these alone, so that one recording gives the same decisions anywhere.
#pragma once

namespace foreload {

// 2^x. Relative error below 1e-14 (5e-11 above 1023.5); exact at integers; 0 at -1022 and below, +inf at 1024 and
// above; NaN gives 0.
double Exp2(double x);

// log2(x) for x > 0. Absolute error below 3e-13; exact at powers of two; -1074 for x <= 0 or NaN (callers clamp), 1024
// for +inf.
double Log2(double x);

// e^x and natural logarithm by the two above.
inline double Exp(double x) {
  return Exp2(x * 1.4426950408889634);
}
inline double Log(double x) {
  return Log2(x) * 0.6931471805599453;
}

}  // namespace foreload
