// The plain float loops: head by head, one dot product per cached row, a softmax, a weighted sum of the values. What an
// engineer writes first, and so the baseline of the benchmark. Reads the cache where it lies and widens each element as
// it goes. Tolerances apply: it sums in the plain order and takes expf from the C library.
//
// Built twice from one source: scalar_novec with the vectorizer off, scalar_vectorized left to the compiler.
#pragma once

#include <cstdint>
#include <limits>

#include "reference/half.hpp"

namespace kvroof::reference {

// One sequence, positions 0 .. T-1 in one run. Element (t, h, d) of K lies at k + t*k_row_stride + h*k_head_stride
// (bytes) + d elements; its int8 scale at k_scale[t*k_scale_row_stride + h*k_scale_head_stride]. V likewise.
struct ScalarAttention {
  std::int64_t query_heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t n = 0;  // new tokens; query r has position T - n + r and sees rows up to its own
  std::int64_t T = 0;
  float scale = 1.0f;
  std::int64_t window = std::numeric_limits<std::int64_t>::max();
  StorageKind k_storage = StorageKind::f32, v_storage = StorageKind::f32;
  const void* k = nullptr;
  const void* v = nullptr;
  const float* k_scale = nullptr;  // int8 only
  const float* v_scale = nullptr;
  std::int64_t k_row_stride = 0, k_head_stride = 0, v_row_stride = 0, v_head_stride = 0;  // bytes
  std::int64_t k_scale_row_stride = 0, k_scale_head_stride = 0;                           // floats
  std::int64_t v_scale_row_stride = 0, v_scale_head_stride = 0;
  const float* q = nullptr;  // [n][Hq][Dk]
  float* out = nullptr;      // [n][Hq][Dv]
};

// The same for multi-head latent attention, one sequence. Row t of the cache is what mla_row.hpp describes, at rows + t
// * row_stride. Both forms are the plain loops: reconstruct makes every head's key and value again from the latent, row
// by row; absorbed folds W_UK into the query and applies W_UV to the weighted sum of latents.
struct ScalarMla {
  std::int64_t heads = 0, nope_dim = 0, rope_dim = 0, value_dim = 0, latent_dim = 0;
  std::int64_t n = 0, T = 0;
  float scale = std::numeric_limits<float>::quiet_NaN();
  std::int64_t window = std::numeric_limits<std::int64_t>::max();
  StorageKind storage = StorageKind::f32;
  const void* rows = nullptr;
  std::int64_t row_stride = 0;  // bytes
  const float* w_uk = nullptr;  // [H][nope][d_c]
  const float* w_uv = nullptr;  // [H][value][d_c]
  const float* q = nullptr;     // [n][H][nope + rope], the rope part rotated
  float* out = nullptr;         // [n][H][value]
};

// Query heads [head_begin, head_end) of all n tokens, so that threads can share the heads. `scores` holds T floats,
// `scratch` mla_scratch_floats(a); both belong to this call.
inline std::int64_t mla_scratch_floats(const ScalarMla& a) {
  return a.T + 3 * (a.latent_dim + a.rope_dim) + a.nope_dim + a.value_dim;
}
namespace scalar_novec {
void attention(const ScalarAttention& a, std::int64_t head_begin, std::int64_t head_end, float* scores);
void mla_reconstruct(const ScalarMla& a, std::int64_t head_begin, std::int64_t head_end, float* scratch);
void mla_absorbed(const ScalarMla& a, std::int64_t head_begin, std::int64_t head_end, float* scratch);
}  // namespace scalar_novec
namespace scalar_vectorized {
void attention(const ScalarAttention& a, std::int64_t head_begin, std::int64_t head_end, float* scores);
void mla_reconstruct(const ScalarMla& a, std::int64_t head_begin, std::int64_t head_end, float* scratch);
void mla_absorbed(const ScalarMla& a, std::int64_t head_begin, std::int64_t head_end, float* scratch);
}  // namespace scalar_vectorized

}  // namespace kvroof::reference
