// The 16-lane vector on AVX-512: one register.
//   vcvtph2ps zmm, m256   widens 16 halves; quiets NaN
//   vpmovzxwd + vpslld    bf16 is the upper half of f32
//   vpmovsxbd + vcvtdq2ps int8, exact
//   masked loads          never fault on lanes that are masked off
#pragma once

namespace kvroof::KVROOF_NS {
namespace {

using Batch = xsimd::batch<float, xsimd::avx512bw>;
constexpr int kBatches = 1;
constexpr int kAccumulators = 16;  // 16x16 in-register reduction; leaves 16 registers for operands

inline Batch batch_fma(Batch a, Batch b, Batch c) { return Batch(_mm512_fmadd_ps(a, b, c)); }
inline Batch batch_div(Batch a, Batch b) { return a / b; }
inline Batch batch_max(Batch a, Batch b) { return Batch(_mm512_max_ps(a, b)); }  // a > b ? a : b, b where unordered
inline Batch batch_zero_below(Batch x, Batch limit, Batch y) {                   // x < limit ? 0 : y
  return Batch(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), y));
}
inline Batch batch_keep_nan(Batch x, Batch y) {  // isnan(x) ? x : y
  return Batch(_mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x));
}
inline Batch batch_below(Batch a, Batch b, Batch yes, Batch no) {  // a < b ? yes : no
  return Batch(_mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), yes));
}
inline Batch batch_add_exponent(Batch y, Batch t) {  // adds the low bits of t to y's exponent field
  return Batch(
      _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), _mm512_slli_epi32(_mm512_castps_si512(t), 23))));
}
inline Batch batch_abs(Batch x) { return Batch(_mm512_abs_ps(x)); }
inline Batch batch_with_sign(Batch magnitude, Batch sign) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  return Batch(_mm512_castsi512_ps(
      _mm512_or_si512(_mm512_castps_si512(magnitude), _mm512_and_si512(_mm512_castps_si512(sign), mask))));
}

struct Vec16 {
  Batch b[kBatches];
};

inline Vec16 wrap(__m512 x) { return Vec16{{Batch(x)}}; }

template <Storage S>
inline Vec16 load_as(const std::byte* p) {
  if constexpr (S == Storage::f32) {
    return wrap(_mm512_loadu_ps(p));
  } else if constexpr (S == Storage::f16) {
    return wrap(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
  } else if constexpr (S == Storage::bf16) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return wrap(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
  } else {
    return wrap(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))));
  }
}

// The first n < 16 elements, zeros after them; touches nothing beyond.
template <Storage S>
inline Vec16 load_partial_as(const std::byte* p, int n) {
  const __mmask16 mask = static_cast<__mmask16>((1u << n) - 1u);
  if constexpr (S == Storage::f32) {
    return wrap(_mm512_maskz_loadu_ps(mask, p));
  } else if constexpr (S == Storage::f16) {
    return wrap(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p)));
  } else if constexpr (S == Storage::bf16) {
    return wrap(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16)));
  } else {
    return wrap(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, p))));
  }
}

inline void store_partial(float* p, Vec16 x, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1u), x.b[0]);
}

// x[i] + x[i+8] of two vectors, side by side.
inline __m512 fold8(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
inline __m512 fold4(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
inline __m512 fold2(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}
inline __m512 fold1(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

// Lane i of the result is the tree sum of x[i]. 45 instructions for 16 sums. The folds leave the sum of input slot s in
// lane 4*(s mod 4) + s/4, so vectors are fed in that order and no final permute is needed.
inline Vec16 reduce_sums(const Vec16* x) {
  const auto in = [x](int slot) -> __m512 { return x[4 * (slot % 4) + slot / 4].b[0]; };
  const __m512 a = fold4(fold8(in(0), in(1)), fold8(in(2), in(3)));
  const __m512 b = fold4(fold8(in(4), in(5)), fold8(in(6), in(7)));
  const __m512 c = fold4(fold8(in(8), in(9)), fold8(in(10), in(11)));
  const __m512 d = fold4(fold8(in(12), in(13)), fold8(in(14), in(15)));
  return wrap(fold1(fold2(a, b), fold2(c, d)));
}

// to(i)[r] = from[r][i]
template <class To>
KVROOF_INLINE inline void transpose16_to(const Vec16* from, To to) {
  __m512 r[16], t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(from[2 * i].b[0], from[2 * i + 1].b[0]);
    t[2 * i + 1] = _mm512_unpackhi_ps(from[2 * i].b[0], from[2 * i + 1].b[0]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // column i of each 128-bit lane: rows 0-3, 4-7, 8-11, 12-15
    const __m512 ab_lo = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88), ab_hi = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
    const __m512 cd_lo = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88);
    const __m512 cd_hi = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
    _mm512_storeu_ps(to(0 + i), _mm512_shuffle_f32x4(ab_lo, cd_lo, 0x88));
    _mm512_storeu_ps(to(4 + i), _mm512_shuffle_f32x4(ab_hi, cd_hi, 0x88));
    _mm512_storeu_ps(to(8 + i), _mm512_shuffle_f32x4(ab_lo, cd_lo, 0xdd));
    _mm512_storeu_ps(to(12 + i), _mm512_shuffle_f32x4(ab_hi, cd_hi, 0xdd));
  }
}

// Into the cache that fetch_order() names. The hint is part of the instruction, and a branch at every line costs half
// of what the better level gains, so the loops are compiled for each.
#ifdef KVROOF_FETCH_INTO_L2
#define KVROOF_FETCH_HINT _MM_HINT_T1
#else
#define KVROOF_FETCH_HINT _MM_HINT_T0
#endif
KVROOF_INLINE inline void prefetch(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), KVROOF_FETCH_HINT);
}
#undef KVROOF_FETCH_HINT
KVROOF_INLINE inline void prefetch_l2(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
