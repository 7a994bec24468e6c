// Rotary position embedding: pair (a, b) -> (a cos - b sin, b cos + a sin), angle = position * inv_freq in double, sine
// and cosine rounded to float once. Heads share a position, so the angles of 64 pairs at a time are computed once for
// all.
#include "kernels/simd/lanes.hpp"

#include "kernels/ops/ops.hpp"
#include "kernels/simd/float_environment.hpp"
#include "kernels/simd/math.hpp"

namespace kvroof::KVROOF_NS {
namespace {

struct SineCosine {
  float sine, cosine;
};

SineCosine sincos_rounded(double angle) {
  const double magic = 0x1.8p52;  // rounds to an integer, nearest even
  const double n = (angle * 0x1.45f306dc9c883p-1 + magic) - magic;
  double r = __builtin_fma(-n, 0x1.921fb544p+0, angle);  // pi/2 in three parts
  r = __builtin_fma(-n, 0x1.0b4611a6p-34, r);
  r = __builtin_fma(-n, 0x1.3198a2e037073p-69, r);
  const double z = r * r;
  double s = 0x1.5e0a4fc16be59p-33;
  s = __builtin_fma(s, z, -0x1.ae6008d114485p-26);
  s = __builtin_fma(s, z, 0x1.71de37946ed6dp-19);
  s = __builtin_fma(s, z, -0x1.a01a019e820aep-13);
  s = __builtin_fma(s, z, 0x1.1111111110babp-7);
  s = __builtin_fma(s, z, -0x1.5555555555555p-3);
  const double sine = __builtin_fma(r * z, s, r);
  double c = -0x1.907cd8ff5ede7p-37;
  c = __builtin_fma(c, z, 0x1.1eeb67d026ec6p-29);
  c = __builtin_fma(c, z, -0x1.27e4fa16cc2d1p-22);
  c = __builtin_fma(c, z, 0x1.a01a019f4ddfdp-16);
  c = __builtin_fma(c, z, -0x1.6c16c16c16963p-10);
  c = __builtin_fma(c, z, 0x1.5555555555555p-5);
  const double cosine = __builtin_fma(z * z, c, __builtin_fma(z, -0.5, 1.0));
  switch (static_cast<std::int64_t>(n) & 3) {
    case 0: return {static_cast<float>(sine), static_cast<float>(cosine)};
    case 1: return {static_cast<float>(cosine), static_cast<float>(-sine)};
    case 2: return {static_cast<float>(-sine), static_cast<float>(-cosine)};
    default: return {static_cast<float>(-cosine), static_cast<float>(sine)};
  }
}

}  // namespace

void rope(float* x, std::int64_t heads, std::int64_t head_stride, std::int64_t d, std::int64_t position,
          const double* inv_freq, bool interleaved) {
  const FloatEnvironment environment;
  constexpr std::int64_t kPairs = 64;
  const std::int64_t step = interleaved ? 2 : 1, partner = interleaved ? 1 : d / 2;
  for (std::int64_t first = 0; first < d / 2; first += kPairs) {
    const std::int64_t count = d / 2 - first < kPairs ? d / 2 - first : kPairs;
    SineCosine angle[kPairs];
    for (std::int64_t i = 0; i < count; ++i)
      angle[i] = sincos_rounded(static_cast<double>(position) * inv_freq[first + i]);
    for (std::int64_t head = 0; head < heads; ++head) {
      float* pair = x + head * head_stride + first * step;
      for (std::int64_t i = 0; i < count; ++i, pair += step) {
        const float a = pair[0], b = pair[partner], s = angle[i].sine, c = angle[i].cosine;
        pair[0] = canonical(__builtin_fmaf(a, c, -(b * s)));
        pair[partner] = canonical(__builtin_fmaf(b, c, a * s));
      }
    }
  }
}

}  // namespace kvroof::KVROOF_NS
