// Attention over a cache's view in one call, and the inputs that make its answers readable: with q = 0 all scores are
// equal, so the output is the mean of V over the rows that were read, and V[t] = t names them.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cache/rows.hpp"
#include "kernels/kernels.hpp"
#include "reference/inputs.hpp"

namespace kvroof::test_cache {

// Tokens first ... first+n-1 of one endless sequence: K random, V[t] = t in every column.
struct CountingRows {
  std::vector<float> k, v;
  NewRows rows;
  CountingRows(const CacheShape& shape, std::int64_t first, std::int64_t n)
      : k(static_cast<std::size_t>(n * shape.kv_heads * shape.key_dim)),
        v(static_cast<std::size_t>(n * shape.kv_heads * shape.value_dim)) {
    const std::int64_t k_token = shape.kv_heads * shape.key_dim, v_token = shape.kv_heads * shape.value_dim;
    for (std::size_t i = 0; i < k.size(); ++i)
      k[i] = reference::uniform(27, static_cast<std::uint64_t>(first * k_token) + i);
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] = static_cast<float>(first + static_cast<std::int64_t>(i) / v_token);
    rows = packed_rows(shape, n, k.data(), v.data());
  }
  CountingRows(CountingRows&&) = default;  // moving keeps the buffers that `rows` points to
  operator const NewRows&() const { return rows; }
};

// Random tokens of sequence `seed`, for comparisons by bits.
struct RandomRows {
  std::vector<float> k, v;
  NewRows rows;
  RandomRows(const CacheShape& shape, std::uint64_t seed, std::int64_t first, std::int64_t n)
      : k(static_cast<std::size_t>(n * shape.kv_heads * shape.key_dim)),
        v(static_cast<std::size_t>(n * shape.kv_heads * shape.value_dim)) {
    const auto k_first = static_cast<std::uint64_t>(first * shape.kv_heads * shape.key_dim);
    const auto v_first = static_cast<std::uint64_t>(first * shape.kv_heads * shape.value_dim);
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = reference::uniform(2 * seed, k_first + i);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = reference::uniform(2 * seed + 1, v_first + i);
    rows = packed_rows(shape, n, k.data(), v.data());
  }
  RandomRows(RandomRows&&) = default;  // moving keeps the buffers that `rows` points to
  operator const NewRows&() const { return rows; }
};

// out [n][Hq][Dv] of the n newest tokens' queries; q [n][Hq][Dk], empty for q = 0.
inline std::vector<float> attend(const KvView& kv, const CacheShape& shape, std::int64_t query_heads, std::int64_t n,
                                 AttentionOptions options = {}, std::vector<float> q = {}) {
  options.scale = 1.0f;
  q.resize(static_cast<std::size_t>(n * query_heads * shape.key_dim));
  std::vector<float> out(static_cast<std::size_t>(n * query_heads * shape.value_dim), -1.0f);
  AttentionSequence sequence;
  sequence.q = q.data();
  sequence.q_head_stride = shape.key_dim;
  sequence.q_row_stride = shape.key_dim * query_heads;
  sequence.n = n;
  sequence.kv = kv;
  sequence.out = out.data();
  sequence.out_head_stride = shape.value_dim;
  sequence.out_row_stride = shape.value_dim * query_heads;
  AttentionArgs args;
  args.shape = {query_heads, shape.kv_heads, shape.key_dim, shape.value_dim};
  args.options = options;
  args.sequences = {&sequence, 1};
  const std::size_t bytes = attention_workspace_bytes(args, 1);
  std::vector<std::byte> workspace(bytes + 64);
  const auto past = reinterpret_cast<std::uintptr_t>(workspace.data()) % 64;
  decode_attention(args, {workspace.data() + (64 - past) % 64, bytes}, 1);
  return out;
}

inline std::vector<float> random_queries(const CacheShape& shape, std::int64_t query_heads, std::int64_t n) {
  std::vector<float> q(static_cast<std::size_t>(n * query_heads * shape.key_dim));
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = reference::uniform(99, i);
  return q;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace kvroof::test_cache
