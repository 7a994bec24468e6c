// exp, tanh and log with one fixed order of operations, in lanes and for one value. The coefficients are ours, fitted
// for the intervals below (weighted minimax); see reference/lane_twin.hpp for the definition and test_reference_math
// for the errors in ulp.
#pragma once

#include "kernels/simd/lanes.hpp"

namespace kvroof::KVROOF_NS {
namespace {

constexpr float kInfinity = __builtin_huge_valf();
constexpr float kExpMagic = 0x1.8p23f;        // adding it rounds to an integer, nearest even, in the low bits
constexpr float kExpFloor = -0x1.5d589ep+6f;  // below this exp is 0: the result would be subnormal

inline Vec16 exp16(Vec16 x) {
  const Vec16 magic = broadcast(kExpMagic);
  const Vec16 t = fma(x, broadcast(0x1.715476p+0f), magic);
  const Vec16 n = t - magic;
  Vec16 r = fma(n, broadcast(-0x1.62e43p-1f), x);
  r = fma(n, broadcast(0x1.05c61p-29f), r);
  Vec16 q = broadcast(0x1.6a23ccp-10f);
  q = fma(q, r, broadcast(0x1.123a2p-7f));
  q = fma(q, r, broadcast(0x1.5558f2p-5f));
  q = fma(q, r, broadcast(0x1.555492p-3f));
  q = fma(q, r, broadcast(0x1.fffffcp-2f));
  const Vec16 y = add_exponent(fma(q, r * r, r) + broadcast(1.0f), t);
  return keep_nan(x, zero_below(x, broadcast(kExpFloor), y));
}

inline Vec16 tanh16(Vec16 x) {
  const Vec16 z = abs(x), u = z * z;
  Vec16 p = broadcast(-0x1.768464p-8f);
  p = fma(p, u, broadcast(0x1.524e5cp-6f));
  p = fma(p, u, broadcast(-0x1.b8430ep-5f));
  p = fma(p, u, broadcast(0x1.11076p-3f));
  p = fma(p, u, broadcast(-0x1.555534p-2f));
  const Vec16 small = fma(z * u, p, z);
  const Vec16 ten = broadcast(10.0f), one = broadcast(1.0f), two = broadcast(2.0f);
  const Vec16 c = below(ten, z, ten, z);
  const Vec16 large = one - two / (exp16(two * c) + one);
  return keep_nan(x, with_sign(below(z, broadcast(0.625f), small, large), x));
}

inline float exp1(float x) {
  alignas(64) float y[16];
  store(y, exp16(broadcast(x)));
  return y[0];
}

inline float log1(float x) {  // x > 0 and normal, 0, +inf or NaN
  if (x != x || x == kInfinity) return x;
  if (x == 0.0f) return -kInfinity;
  const std::int32_t i = __builtin_bit_cast(std::int32_t, x) - 0x3f3504f3;
  const float k = static_cast<float>(i >> 23);
  const float f = __builtin_bit_cast(float, (i & 0x7fffff) + 0x3f3504f3);
  const float s = (f - 1.0f) / (f + 1.0f), z = s * s;
  float p = 0x1.e2fdd6p-3f;
  p = __builtin_fmaf(p, z, 0x1.2438a8p-2f);
  p = __builtin_fmaf(p, z, 0x1.999a7cp-2f);
  p = __builtin_fmaf(p, z, 0x1.555554p-1f);
  float r = __builtin_fmaf(s * z, p, s + s);
  r = __builtin_fmaf(k, -0x1.05c61p-29f, r);
  return __builtin_fmaf(k, 0x1.62e43p-1f, r);
}

inline float quiet_nan() { return __builtin_bit_cast(float, 0x7fc00000u); }
inline float canonical(float x) { return x != x ? quiet_nan() : x; }
inline Vec16 canonical(Vec16 x) {  // only NaN fails both comparisons
  return below(x, broadcast(1.0f), x, below(zero(), x, x, broadcast(quiet_nan())));
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
