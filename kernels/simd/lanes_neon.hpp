// The 16-lane vector on Armv8-A NEON: four registers.
//   fcvtl widens halves and quiets NaN; ushll #16 makes f32 of bf16; sshll + scvtf of int8
#pragma once

namespace kvroof::KVROOF_NS {
namespace {

using Batch = xsimd::batch<float, xsimd::neon64>;
constexpr int kBatches = 4;
constexpr int kAccumulators = 4;  // 16 of the 32 registers

inline Batch batch_fma(Batch a, Batch b, Batch c) { return Batch(vfmaq_f32(c, a, b)); }
inline Batch batch_div(Batch a, Batch b) { return Batch(vdivq_f32(a, b)); }  // xsimd 8.1 only approximates it
inline Batch batch_max(Batch a, Batch b) { return Batch(vbslq_f32(vcgtq_f32(a, b), a, b)); }  // a > b ? a : b
inline Batch batch_below(Batch a, Batch b, Batch yes, Batch no) { return Batch(vbslq_f32(vcltq_f32(a, b), yes, no)); }
inline Batch batch_zero_below(Batch x, Batch limit, Batch y) {
  return batch_below(x, limit, Batch(vdupq_n_f32(0.0f)), y);
}
inline Batch batch_keep_nan(Batch x, Batch y) { return Batch(vbslq_f32(vceqq_f32(x, x), y, x)); }
inline Batch batch_add_exponent(Batch y, Batch t) {  // adds the low bits of t to y's exponent field
  return Batch(vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(y), vshlq_n_s32(vreinterpretq_s32_f32(t), 23))));
}
inline Batch batch_abs(Batch x) { return Batch(vabsq_f32(x)); }
inline Batch batch_with_sign(Batch magnitude, Batch sign) {
  return Batch(vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude));
}

struct Vec16 {
  Batch b[kBatches];
};

inline Vec16 wrap(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d) {
  return Vec16{{Batch(a), Batch(b), Batch(c), Batch(d)}};
}

template <Storage S>
inline Vec16 load_as(const std::byte* p) {
  if constexpr (S == Storage::f32) {
    const float* f = reinterpret_cast<const float*>(p);
    return wrap(vld1q_f32(f), vld1q_f32(f + 4), vld1q_f32(f + 8), vld1q_f32(f + 12));
  } else if constexpr (S == Storage::f16) {
    const std::uint16_t* h = reinterpret_cast<const std::uint16_t*>(p);
    const auto widen = [h](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h + i))); };
    return wrap(widen(0), widen(4), widen(8), widen(12));
  } else if constexpr (S == Storage::bf16) {
    const std::uint16_t* h = reinterpret_cast<const std::uint16_t*>(p);
    const auto widen = [h](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(h + i), 16)); };
    return wrap(widen(0), widen(4), widen(8), widen(12));
  } else {
    const int8x16_t q = vld1q_s8(reinterpret_cast<const std::int8_t*>(p));
    const int16x8_t lo = vmovl_s8(vget_low_s8(q)), hi = vmovl_s8(vget_high_s8(q));
    const auto widen = [](int16x4_t x) { return vcvtq_f32_s32(vmovl_s16(x)); };
    return wrap(widen(vget_low_s16(lo)), widen(vget_high_s16(lo)), widen(vget_low_s16(hi)), widen(vget_high_s16(hi)));
  }
}

// Element i of the result is the tree sum of x[i].
inline float32x4_t reduce_sums4(const Vec16* x) {
  const auto fold = [x](int i) {  // lanes i and i+8, then i and i+4
    return vaddq_f32(vaddq_f32(x[i].b[0], x[i].b[2]), vaddq_f32(x[i].b[1], x[i].b[3]));
  };
  const auto pair = [](float32x4_t a, float32x4_t b) {  // [a0+a2 a1+a3 b0+b2 b1+b3]
    return vaddq_f32(vcombine_f32(vget_low_f32(a), vget_low_f32(b)), vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
  };
  return vpaddq_f32(pair(fold(0), fold(1)), pair(fold(2), fold(3)));
}

// to(i)[r] = from[r][i]
template <class To>
inline void transpose16_to(const Vec16* from, To to) {
#pragma GCC unroll 4
  for (int rows = 0; rows < 16; rows += 4) {
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter) {
      const float32x4_t a = from[rows].b[quarter], b = from[rows + 1].b[quarter];
      const float32x4_t c = from[rows + 2].b[quarter], d = from[rows + 3].b[quarter];
      const float32x4_t ab0 = vtrn1q_f32(a, b), ab1 = vtrn2q_f32(a, b), cd0 = vtrn1q_f32(c, d), cd1 = vtrn2q_f32(c, d);
      const int i = 4 * quarter;
      vst1q_f32(to(i) + rows, vcombine_f32(vget_low_f32(ab0), vget_low_f32(cd0)));
      vst1q_f32(to(i + 1) + rows, vcombine_f32(vget_low_f32(ab1), vget_low_f32(cd1)));
      vst1q_f32(to(i + 2) + rows, vcombine_f32(vget_high_f32(ab0), vget_high_f32(cd0)));
      vst1q_f32(to(i + 3) + rows, vcombine_f32(vget_high_f32(ab1), vget_high_f32(cd1)));
    }
  }
}

KVROOF_INLINE inline void prefetch(const std::byte* p) { __builtin_prefetch(p); }
KVROOF_INLINE inline void prefetch_l2(const std::byte* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace
}  // namespace kvroof::KVROOF_NS
