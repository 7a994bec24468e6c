// The 16-lane vector without SIMD: float[16] and std::fma. Runs anywhere; what it computes is the definition all others
// must match.
#pragma once

namespace kvroof::KVROOF_NS {
namespace {

using Batch = float;
constexpr int kBatches = 16;
constexpr int kAccumulators = 4;

inline std::uint32_t float_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
inline float bits_float(std::uint32_t u) { return __builtin_bit_cast(float, u); }

inline Batch batch_fma(Batch a, Batch b, Batch c) { return __builtin_fmaf(a, b, c); }
inline Batch batch_div(Batch a, Batch b) { return a / b; }
inline Batch batch_max(Batch a, Batch b) { return a > b ? a : b; }
inline Batch batch_below(Batch a, Batch b, Batch yes, Batch no) { return a < b ? yes : no; }
inline Batch batch_zero_below(Batch x, Batch limit, Batch y) { return x < limit ? 0.0f : y; }
inline Batch batch_keep_nan(Batch x, Batch y) { return x != x ? x : y; }
inline Batch batch_add_exponent(Batch y, Batch t) { return bits_float(float_bits(y) + (float_bits(t) << 23)); }
inline Batch batch_abs(Batch x) { return bits_float(float_bits(x) & 0x7fffffffu); }
inline Batch batch_with_sign(Batch magnitude, Batch sign) {
  return bits_float(float_bits(magnitude) | (float_bits(sign) & 0x80000000u));
}

struct Vec16 {
  Batch b[kBatches];
};

inline float widen_f16(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00u)
    return bits_float(sign | 0x7f800000u | (rest > 0x7c00u ? 0x400000u : 0u) | ((rest & 0x3ffu) << 13));
  return bits_float(sign | float_bits(bits_float(rest << 13) * 0x1p112f));  // exact, subnormals included
}

template <Storage S>
inline float widen(const std::byte* p, int i) {
  if constexpr (S == Storage::f32) {
    float x;
    __builtin_memcpy(&x, p + 4 * i, 4);
    return x;
  } else if constexpr (S == Storage::int8) {
    return static_cast<float>(static_cast<std::int8_t>(p[i]));
  } else {
    std::uint16_t h;
    __builtin_memcpy(&h, p + 2 * i, 2);
    return S == Storage::f16 ? widen_f16(h) : bits_float(static_cast<std::uint32_t>(h) << 16);
  }
}

template <Storage S>
inline Vec16 load_as(const std::byte* p) {
  Vec16 x;
  for (int i = 0; i < 16; ++i) x.b[i] = widen<S>(p, i);
  return x;
}

template <class To>
inline void transpose16_to(const Vec16* from, To to) {  // to(i)[r] = from[r][i]
  for (int i = 0; i < 16; ++i)
    for (int r = 0; r < 16; ++r) to(i)[r] = from[r].b[i];
}

KVROOF_INLINE inline void prefetch(const std::byte* p) { __builtin_prefetch(p); }
KVROOF_INLINE inline void prefetch_l2(const std::byte* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace
}  // namespace kvroof::KVROOF_NS
