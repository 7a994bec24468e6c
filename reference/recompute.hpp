// The uncached path: a small stack of attention layers in which keys and values are projected again at every step. What
// a cached decoder must equal, bit for bit and position by position, because both do the same arithmetic (the lane
// twin's) on the same numbers.
//
// Layer: q, k, v = WQ x, WK x, WV x; RoPE on q and k where given; k and v rounded to the storage; attention; WO on the
// heads side by side. The result is the next layer's input, nothing between (no norm, no residual: those are not what
// is tested).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "reference/half.hpp"
#include "reference/problem.hpp"

namespace kvroof::reference {

struct RecomputeLayer {
  std::int64_t query_heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  std::vector<float> wq, wk, wv, wo;  // [Hq*Dk][model], [Hkv*Dk][model], [Hkv*Dv][model], [model][Hq*Dv]
  StorageKind k_storage = StorageKind::f32, v_storage = StorageKind::f32;
  float scale = 1.0f;
  std::int64_t window = std::numeric_limits<std::int64_t>::max();
  std::int64_t kept_tokens = 0;
  float softcap = std::numeric_limits<float>::infinity();
  std::vector<float> alibi_slopes, sink_logits;  // [Hq] or empty
  std::vector<double> inv_freq;                  // [Dk/2], or empty: no RoPE
  bool rope_interleaved = false;
};

struct RecomputeStack {
  std::int64_t model_dim = 0;
  std::vector<RecomputeLayer> layers;
};

// A row as a cache of this storage would give it back: rounded and widened; int8 leaves the integers and their scale.
void round_to_storage(StorageKind storage, float* row, std::int64_t d, float* scale);

// All T positions from scratch: x [T][model] -> y [T][model]. Returns the number of key/value projections made (one per
// token and layer).
std::int64_t recompute(const RecomputeStack& stack, const std::vector<float>& x, std::int64_t T, std::vector<float>& y);

// What the uncached decoder does to produce the output of position T-1: everything above, of which only the last row is
// new. y is resized to [model].
std::int64_t recompute_step(const RecomputeStack& stack, const std::vector<float>& x, std::int64_t T,
                            std::vector<float>& y);

}  // namespace kvroof::reference
