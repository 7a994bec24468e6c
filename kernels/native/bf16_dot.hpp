// AVX512-BF16: 16 sums, each of a pair of products of bf16, two instructions a cycle on Zen 5. Subnormal inputs count
// as zero and subnormal results become zero.
#pragma once

#include "kernels/simd/lanes.hpp"

namespace kvroof::KVROOF_NS {
namespace {

constexpr int kPairLanes = 32;  // bf16 of a register

struct Pairs {
  __m512i b;
};

inline Pairs load_pairs(const void* p) { return {_mm512_loadu_si512(p)}; }
// The first n < 32 elements, zeros after them; touches nothing beyond.
inline Pairs load_pairs_partial(const void* p, int n) {
  return {_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << n) - 1u), p)};
}
// One pair in all lanes.
inline Pairs broadcast_pair(const void* p) {
  int pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return {_mm512_set1_epi32(pair)};
}

// sum[i] += a[2i]*b[2i] + a[2i+1]*b[2i+1]
inline Vec16 dot_pairs(Pairs a, Pairs b, Vec16 sum) {
  return wrap(_mm512_dpbf16_ps(sum.b[0], reinterpret_cast<__m512bh>(a.b), reinterpret_cast<__m512bh>(b.b)));
}

// 16 floats as bf16, ties to even, NaN quieted; subnormals become zero.
inline void store_bf16(void* p, Vec16 x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.b[0])));
}

// Columns of two rows side by side, so that a pair is one column of both. Within each 128-bit lane the first four
// columns go to `low`, the last four to `high`: sums keep that order until they are stored.
struct PairedRows {
  Pairs low, high;
};

inline PairedRows pair_rows(Pairs even, Pairs odd) {
  return {{_mm512_unpacklo_epi16(even.b, odd.b)}, {_mm512_unpackhi_epi16(even.b, odd.b)}};
}

// Sums of 32 columns in the order of pair_rows. n: how many of them there are in memory; the rest is zero.
struct PairedSums {
  Vec16 low, high;
};

inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u); }

inline PairedSums load_sums(const float* p, int n) {
  const __m512 a = _mm512_maskz_loadu_ps(first_lanes(n), p), b = _mm512_maskz_loadu_ps(first_lanes(n - 16), p + 16);
  return {wrap(_mm512_shuffle_f32x4(a, b, 0x88)), wrap(_mm512_shuffle_f32x4(a, b, 0xdd))};
}

inline void store_sums(float* p, int n, PairedSums x) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i last = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  _mm512_mask_storeu_ps(p, first_lanes(n), _mm512_permutex2var_ps(x.low.b[0], first, x.high.b[0]));
  _mm512_mask_storeu_ps(p + 16, first_lanes(n - 16), _mm512_permutex2var_ps(x.low.b[0], last, x.high.b[0]));
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
