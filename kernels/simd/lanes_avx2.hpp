// The 16-lane vector on AVX2 + FMA + F16C: two registers, lanes 0-7 and 8-15.
#pragma once

namespace kvroof::KVROOF_NS {
namespace {

using Batch = xsimd::batch<float, xsimd::avx2>;
constexpr int kBatches = 2;
constexpr int kAccumulators = 4;  // 8 of the 16 registers; the rest holds operands

inline Batch batch_fma(Batch a, Batch b, Batch c) { return Batch(_mm256_fmadd_ps(a, b, c)); }
inline Batch batch_div(Batch a, Batch b) { return a / b; }
inline Batch batch_max(Batch a, Batch b) { return Batch(_mm256_max_ps(a, b)); }  // a > b ? a : b, b where unordered
inline Batch batch_zero_below(Batch x, Batch limit, Batch y) {                   // x < limit ? 0 : y
  return Batch(_mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), y));
}
inline Batch batch_keep_nan(Batch x, Batch y) {  // isnan(x) ? x : y
  return Batch(_mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
inline Batch batch_below(Batch a, Batch b, Batch yes, Batch no) {  // a < b ? yes : no
  return Batch(_mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ)));
}
inline Batch batch_add_exponent(Batch y, Batch t) {  // adds the low bits of t to y's exponent field
  return Batch(
      _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(_mm256_castps_si256(t), 23))));
}
inline Batch batch_abs(Batch x) { return Batch(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x)); }
inline Batch batch_with_sign(Batch magnitude, Batch sign) {
  return Batch(_mm256_or_ps(magnitude, _mm256_and_ps(_mm256_set1_ps(-0.0f), sign)));
}

struct Vec16 {
  Batch b[kBatches];
};

inline Vec16 wrap(__m256 lo, __m256 hi) { return Vec16{{Batch(lo), Batch(hi)}}; }

template <Storage S>
inline Vec16 load_as(const std::byte* p) {
  if constexpr (S == Storage::f32) {
    const float* f = reinterpret_cast<const float*>(p);
    return wrap(_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8));
  } else if constexpr (S == Storage::f16) {
    const __m128i* h = reinterpret_cast<const __m128i*>(p);
    return wrap(_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1)));
  } else if constexpr (S == Storage::bf16) {
    const __m128i* h = reinterpret_cast<const __m128i*>(p);
    return wrap(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(h)), 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1)), 16)));
  } else {
    return wrap(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))));
  }
}

// x[i] + x[i+4] of two folded vectors, side by side.
inline __m256 fold4(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

// Element i of the result is the tree sum of x[i].
inline __m128 reduce_sums4(const Vec16* x) {
  const auto fold8 = [x](int i) { return _mm256_add_ps(x[i].b[0], x[i].b[1]); };
  const __m256 p = fold4(fold8(0), fold8(2)), q = fold4(fold8(1), fold8(3));                     // [0|2] and [1|3]
  const __m256 w = _mm256_add_ps(_mm256_shuffle_ps(p, q, 0x44), _mm256_shuffle_ps(p, q, 0xee));  // [0 0 1 1|2 2 3 3]
  const __m256 s = _mm256_add_ps(_mm256_shuffle_ps(w, w, 0x08), _mm256_shuffle_ps(w, w, 0x0d));  // [0 1 . .|2 3 . .]
  return _mm_movelh_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

template <class To>
KVROOF_INLINE inline void transpose8(__m256 r0, __m256 r1, __m256 r2, __m256 r3, __m256 r4, __m256 r5, __m256 r6,
                                     __m256 r7, To to) {
  const __m256 a0 = _mm256_unpacklo_ps(r0, r1), a1 = _mm256_unpackhi_ps(r0, r1);
  const __m256 a2 = _mm256_unpacklo_ps(r2, r3), a3 = _mm256_unpackhi_ps(r2, r3);
  const __m256 a4 = _mm256_unpacklo_ps(r4, r5), a5 = _mm256_unpackhi_ps(r4, r5);
  const __m256 a6 = _mm256_unpacklo_ps(r6, r7), a7 = _mm256_unpackhi_ps(r6, r7);
  const __m256 lo[4] = {_mm256_shuffle_ps(a0, a2, 0x44), _mm256_shuffle_ps(a0, a2, 0xee),
                        _mm256_shuffle_ps(a1, a3, 0x44), _mm256_shuffle_ps(a1, a3, 0xee)};
  const __m256 hi[4] = {_mm256_shuffle_ps(a4, a6, 0x44), _mm256_shuffle_ps(a4, a6, 0xee),
                        _mm256_shuffle_ps(a5, a7, 0x44), _mm256_shuffle_ps(a5, a7, 0xee)};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to(i), _mm256_permute2f128_ps(lo[i], hi[i], 0x20));
    _mm256_storeu_ps(to(4 + i), _mm256_permute2f128_ps(lo[i], hi[i], 0x31));
  }
}

// to(i)[r] = from[r][i]
template <class To>
KVROOF_INLINE inline void transpose16_to(const Vec16* from, To to) {
#pragma GCC unroll 2
  for (int rows = 0; rows < 16; rows += 8) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Vec16* f = from + rows;
      transpose8(f[0].b[half], f[1].b[half], f[2].b[half], f[3].b[half], f[4].b[half], f[5].b[half], f[6].b[half],
                 f[7].b[half], [=](int i) { return to(8 * half + i) + rows; });
    }
  }
}

KVROOF_INLINE inline void prefetch(const std::byte* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
KVROOF_INLINE inline void prefetch_l2(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
