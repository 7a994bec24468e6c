// The 16-lane vector, the one width every kernel is written in. Vec16 is kBatches registers; each lanes_<isa>.hpp
// supplies the handful of operations xsimd lacks or does not fix to the bit (fused FMA, max with NaN, half loads, the
// reduction).
#pragma once

#include "kernels/simd/isa.hpp"
#include "kernels/storage.hpp"

// A loop over registers is compiled alone: inlined into its callers with its sister instances, GCC runs out of
// registers and keeps sums in memory, which halves the speed.
#define KVROOF_ALONE [[gnu::noinline]]
// GCC takes a function that does nothing but prefetch for one without effect and drops its calls: such are inlined.
#define KVROOF_INLINE [[gnu::always_inline]]

#if KVROOF_ROW == KVROOF_ROW_avx512
#include "kernels/simd/lanes_avx512.hpp"
#elif KVROOF_ROW == KVROOF_ROW_avx2
#include "kernels/simd/lanes_avx2.hpp"
#elif KVROOF_ROW == KVROOF_ROW_neon
#include "kernels/simd/lanes_neon.hpp"
#else
#include "kernels/simd/lanes_portable.hpp"
#endif

namespace kvroof::KVROOF_NS {
namespace {

#if KVROOF_ROW == KVROOF_ROW_portable
#define KVROOF_UNROLL_BATCHES _Pragma("GCC unroll 1")  // 16 floats: unrolling only makes the compiler slow
#else
#define KVROOF_UNROLL_BATCHES _Pragma("GCC unroll 4")
#endif

#define KVROOF_EACH_BATCH(expression)                                             \
  Vec16 r;                                                                        \
  KVROOF_UNROLL_BATCHES for (int i = 0; i < kBatches; ++i) r.b[i] = (expression); \
  return r

inline Vec16 broadcast(float x) { KVROOF_EACH_BATCH(Batch(x)); }
inline Vec16 zero() { return broadcast(0.0f); }
inline Vec16 operator+(Vec16 x, Vec16 y) { KVROOF_EACH_BATCH(x.b[i] + y.b[i]); }
inline Vec16 operator-(Vec16 x, Vec16 y) { KVROOF_EACH_BATCH(x.b[i] - y.b[i]); }
inline Vec16 operator*(Vec16 x, Vec16 y) { KVROOF_EACH_BATCH(x.b[i] * y.b[i]); }
inline Vec16 operator/(Vec16 x, Vec16 y) { KVROOF_EACH_BATCH(batch_div(x.b[i], y.b[i])); }
inline Vec16 fma(Vec16 x, Vec16 y, Vec16 z) { KVROOF_EACH_BATCH(batch_fma(x.b[i], y.b[i], z.b[i])); }
inline Vec16 max(Vec16 x, Vec16 y) { KVROOF_EACH_BATCH(batch_max(x.b[i], y.b[i])); }  // x > y ? x : y
inline Vec16 below(Vec16 x, Vec16 y, Vec16 yes, Vec16 no) {                           // x < y ? yes : no
  KVROOF_EACH_BATCH(batch_below(x.b[i], y.b[i], yes.b[i], no.b[i]));
}
inline Vec16 zero_below(Vec16 x, Vec16 limit, Vec16 y) {
  KVROOF_EACH_BATCH(batch_zero_below(x.b[i], limit.b[i], y.b[i]));
}
inline Vec16 keep_nan(Vec16 x, Vec16 y) { KVROOF_EACH_BATCH(batch_keep_nan(x.b[i], y.b[i])); }
inline Vec16 add_exponent(Vec16 y, Vec16 t) { KVROOF_EACH_BATCH(batch_add_exponent(y.b[i], t.b[i])); }
inline Vec16 abs(Vec16 x) { KVROOF_EACH_BATCH(batch_abs(x.b[i])); }
inline Vec16 with_sign(Vec16 magnitude, Vec16 sign) { KVROOF_EACH_BATCH(batch_with_sign(magnitude.b[i], sign.b[i])); }

#undef KVROOF_EACH_BATCH

inline Vec16 load(const float* p) { return load_as<Storage::f32>(reinterpret_cast<const std::byte*>(p)); }

inline void store(float* p, Vec16 x) {
#if KVROOF_ROW == KVROOF_ROW_portable
  __builtin_memcpy(p, x.b, sizeof x.b);
#else
#pragma GCC unroll 16
  for (int i = 0; i < kBatches; ++i) x.b[i].store_unaligned(p + i * (16 / kBatches));
#endif
}

#if KVROOF_ROW != KVROOF_ROW_avx512
// The first n < 16 elements, zeros after them; touches nothing beyond.
template <Storage S>
inline Vec16 load_partial_as(const std::byte* p, int n) {
  alignas(64) std::byte copy[16 * sizeof(float)] = {};
  __builtin_memcpy(copy, p, static_cast<std::size_t>(n) * storage_bytes(S));
  return load_as<S>(copy);
}

inline void store_partial(float* p, Vec16 x, int n) {
  alignas(64) float copy[16];
  store(copy, x);
  __builtin_memcpy(p, copy, static_cast<std::size_t>(n) * sizeof(float));
}
#endif

inline Vec16 load_partial(const float* p, int n) {
  return load_partial_as<Storage::f32>(reinterpret_cast<const std::byte*>(p), n);
}

// to[i*to_stride + r] = from[r][i]
inline void transpose16(const Vec16* from, float* to, std::int64_t to_stride) {
  transpose16_to(from, [=](int i) { return to + i * to_stride; });
}

// Stripes in the order in which the tree of 16 sums adds them up: an involution.
constexpr unsigned char kTreeOrder[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

// One vector's tree sum: x[i]+x[i+8], +4, +2, +1.
inline float tree_sum(Vec16 v) {
  alignas(64) float x[16];
  store(x, v);
#pragma GCC unroll 4
  for (int width = 8; width > 0; width /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < width; ++i) x[i] = x[i] + x[i + width];
  }
  return x[0];
}

inline float max_lane(Vec16 v) {
  alignas(64) float x[16];
  store(x, v);
#pragma GCC unroll 4
  for (int width = 8; width > 0; width /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < width; ++i) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
  }
  return x[0];
}

// Tree sums of kAccumulators vectors acc[h*R + r] to to[h*to_stride + r], r < R.
template <int R, int H>
inline void store_sums(const Vec16* acc, float* to, std::int64_t to_stride) {
  static_assert(R * H == kAccumulators);
#if KVROOF_ROW == KVROOF_ROW_avx512
  const __m512 s = reduce_sums(acc).b[0];
  if constexpr (R == 16) {
    _mm512_storeu_ps(to, s);
  } else if constexpr (R == 8) {
    _mm256_storeu_ps(to, _mm512_castps512_ps256(s));
    _mm256_storeu_ps(to + to_stride, _mm512_extractf32x8_ps(s, 1));
  } else if constexpr (R == 2) {
    const auto pair = [to](__m128 x, std::int64_t at, std::int64_t next) {
      _mm_storel_pi(reinterpret_cast<__m64*>(to + at), x);
      _mm_storeh_pi(reinterpret_cast<__m64*>(to + next), x);
    };
    pair(_mm512_castps512_ps128(s), 0, to_stride);
    pair(_mm512_extractf32x4_ps(s, 1), 2 * to_stride, 3 * to_stride);
    pair(_mm512_extractf32x4_ps(s, 2), 4 * to_stride, 5 * to_stride);
    pair(_mm512_extractf32x4_ps(s, 3), 6 * to_stride, 7 * to_stride);
  } else {
    static_assert(R == 4);
    _mm_storeu_ps(to, _mm512_castps512_ps128(s));
    _mm_storeu_ps(to + to_stride, _mm512_extractf32x4_ps(s, 1));
    _mm_storeu_ps(to + 2 * to_stride, _mm512_extractf32x4_ps(s, 2));
    _mm_storeu_ps(to + 3 * to_stride, _mm512_extractf32x4_ps(s, 3));
  }
#else
  alignas(16) float s[4];
#if KVROOF_ROW == KVROOF_ROW_avx2
  _mm_store_ps(s, reduce_sums4(acc));
#elif KVROOF_ROW == KVROOF_ROW_neon
  vst1q_f32(s, reduce_sums4(acc));
#else
  for (int i = 0; i < 4; ++i) s[i] = tree_sum(acc[i]);
#endif
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) to[h * to_stride + r] = s[h * R + r];
  }
#endif
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
