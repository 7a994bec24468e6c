// One query's scores of one segment to weights: (x row scale) x scale, soft-cap, ALiBi, mask, exp, sum; in place.
#pragma once

#include "kernels/ops/segment_rows.hpp"
#include "kernels/simd/math.hpp"

namespace kvroof::KVROOF_NS {
namespace {

struct ScoreOptions {
  float scale, softcap;
  const float* k_scale;  // a float a row of the segment, or null
  const float* v_scale;
  float slope;            // used if distance is not null
  const float* distance;  // float(j - i) a row, or null
};

struct Softmax {
  float max, sum;
};

// Rows [begin, end), multiples of 16; those outside `visible` are hidden.
KVROOF_ALONE inline Softmax softmax_segment(float* s, int begin, int end, const Spans& visible,
                                            const ScoreOptions& options) {
  const Vec16 scale = broadcast(options.scale);
  const bool capped = options.softcap != kInfinity;
  const Vec16 cap = broadcast(options.softcap);
  Vec16 top = broadcast(-kInfinity);
  for (int row = begin; row < end; row += kLanes) {
    Vec16 x = load(s + row);
    if (options.k_scale != nullptr) x = x * load(options.k_scale + row);
    x = x * scale;
    if (capped) x = cap * tanh16(x / cap);
    if (options.distance != nullptr) x = fma(broadcast(options.slope), load(options.distance + row), x);
    store(s + row, x);
    top = max(x, top);
  }
  if (visible.size() != end - begin) {
    int row = begin;
    for (int i = 0; i < visible.count; ++i) {
      for (; row < visible.span[i].begin; ++row) s[row] = -kInfinity;
      row = visible.span[i].end;
    }
    for (; row < end; ++row) s[row] = -kInfinity;
    top = broadcast(-kInfinity);
    for (row = begin; row < end; row += kLanes) top = max(load(s + row), top);
  }
  const float m = max_lane(top) + 0.0f;  // no -0
  const Vec16 shift = broadcast(m == -kInfinity ? 0.0f : m);
  Vec16 sum = zero();
  for (int row = begin; row < end; row += kLanes) {
    Vec16 p = exp16(load(s + row) - shift);
    sum = sum + p;
    if (options.v_scale != nullptr) p = p * load(options.v_scale + row);
    store(s + row, p);
  }
  return {m, tree_sum(sum)};
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
