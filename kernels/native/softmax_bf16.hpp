// One query's scores of one segment to bf16 weights in native mode, in place: 16 weights take the room of 8 scores.
//
// exp as 2^n * p(f) with a cubic p, off by at most 2^-13.7: the weights are rounded to 8 bits anyway. The sum adds the
// rounded weights, lane = pair of positions, so it too follows from positions alone.
#pragma once

#include "kernels/native/bf16_dot.hpp"
#include "kernels/ops/softmax_segment.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// 2^x; 0 (or what rounds to it) far below, NaN stays.
KVROOF_INLINE inline __m512 exp2_bf16(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-160.0f), x);  // -inf would leave no fraction; the second operand wins if it is NaN
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(0x1.c3f76p-5f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.f0de1ap-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62f31ap-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.fff692p-1f));
  return _mm512_scalef_ps(p, n);
}

inline void hide_rows(float* s, int begin, int end, const Spans& visible) {
  int row = begin;
  for (int i = 0; i < visible.count; ++i) {
    for (; row < visible.span[i].begin; ++row) s[row] = -kInfinity;
    row = visible.span[i].end;
  }
  for (; row < end; ++row) s[row] = -kInfinity;
}

// As softmax_segment, which it stands in for.
KVROOF_ALONE inline Softmax softmax_segment_bf16(float* s, int begin, int end, const Spans& visible,
                                                 const ScoreOptions& options) {
  float scale = options.scale;
  // Beyond those powers scale * log2(e) would overflow or lose bits.
  const bool in_range = scale > 0x1p-100f && scale < 0x1p100f;
  if (options.softcap != kInfinity || options.distance != nullptr || !in_range) {
    const Vec16 cap = broadcast(options.softcap);
    for (int row = begin; row < end; row += kLanes) {
      Vec16 x = load(s + row) * broadcast(scale);
      if (options.softcap != kInfinity) x = cap * tanh16(x / cap);
      if (options.distance != nullptr) x = fma(broadcast(options.slope), load(options.distance + row), x);
      store(s + row, x);
    }
    scale = 1.0f;
  }
  if (visible.size() != end - begin) hide_rows(s, begin, end, visible);
  Vec16 top = broadcast(-kInfinity);
  for (int row = begin; row < end; row += kLanes) top = max(load(s + row), top);
  const float largest = max_lane(top) + 0.0f;  // no -0
  // 2^((s - largest) c), c = scale * log2(e); (s c - largest c) would overflow where scores come near FLT_MAX
  const __m512 factor = _mm512_set1_ps(scale * 0x1.715476p+0f);
  const __m512 shift = _mm512_set1_ps(largest == -kInfinity ? 0.0f : largest);
  const auto weight = [&](int row) { return exp2_bf16((_mm512_loadu_ps(s + row) - shift) * factor); };
  const Pairs ones = {_mm512_set1_epi16(0x3f80)};
  auto* weights = reinterpret_cast<std::uint16_t*>(s);
  Vec16 sum = zero();
  for (int row = begin & ~(kPairLanes - 1); row < end; row += kPairLanes) {
    const bool first = row >= begin, second = row + kLanes < end;
    const __m512 none = _mm512_setzero_ps();
    const __m512 low = first ? weight(row) : none;
    const __m512 high = second ? weight(row + kLanes) : none;
    const Pairs both = {reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low))};
    sum = dot_pairs(both, ones, sum);
    _mm512_mask_storeu_epi16(weights + row, (first ? 0xffffu : 0u) | (second ? 0xffff0000u : 0u), both.b);
  }
  return {largest * scale, tree_sum(sum)};
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
