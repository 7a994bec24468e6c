// One sequence's attention problem in the plainest form: every row decoded to its stored meaning, row-major, position =
// index. References read this; they know nothing of caches, views or kernels.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace kvroof::reference {

struct AttentionProblem {
  std::int64_t query_heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t n = 0;                   // new tokens; query r has position T - n + r
  std::int64_t T = 0;                   // rows, positions 0 .. T-1 (rows that no query sees may hold anything)
  std::vector<float> q;                 // [n][Hq][Dk]
  std::vector<float> k;                 // [T][Hkv][Dk] as stored: f16/bf16 already widened, int8 as its integers
  std::vector<float> v;                 // [T][Hkv][Dv]
  std::vector<float> k_scale, v_scale;  // [T][Hkv] for int8, else empty (each on its own)
  float scale = 1.0f;
  std::int64_t window = std::numeric_limits<std::int64_t>::max();
  std::int64_t kept_tokens = 0;
  float softcap = std::numeric_limits<float>::infinity();
  std::vector<float> alibi_slopes, sink_logits;  // [Hq] or empty

  // key j visible to the query at position i
  bool visible(std::int64_t i, std::int64_t j) const { return j <= i && (i - j < window || j < kept_tokens); }
};

}  // namespace kvroof::reference
