// Compiled once for each name in KVROOF_SCALAR_NS; see scalar.hpp.
#include "reference/scalar.hpp"

#include <cfloat>
#include <cmath>

#include "reference/half.hpp"
#include "reference/mla_row.hpp"

#ifndef KVROOF_SCALAR_NS
#error "define KVROOF_SCALAR_NS as scalar_novec or scalar_vectorized"
#endif

namespace kvroof::reference::KVROOF_SCALAR_NS {
namespace {

struct F16 {
  std::uint16_t bits;
};
struct Bf16 {
  std::uint16_t bits;
};

inline float widen(float x) { return x; }
inline float widen(F16 x) { return f16_to_f32(x.bits); }
inline float widen(Bf16 x) { return bf16_to_f32(x.bits); }
inline float widen(std::int8_t x) { return static_cast<float>(x); }

template <class Element>
const Element* row_at(const void* base, std::int64_t byte_offset) {
  return reinterpret_cast<const Element*>(static_cast<const char*>(base) + byte_offset);
}

template <class Element>
float dot(const float* q, const Element* k, std::int64_t n) {
  float s = 0;
  for (std::int64_t i = 0; i < n; i++) s += q[i] * widen(k[i]);
  return s;
}

void softmax(float* x, std::int64_t n) {
  float largest = -FLT_MAX, sum = 0;
  for (std::int64_t i = 0; i < n; i++) {
    if (x[i] > largest) largest = x[i];
  }
  for (std::int64_t i = 0; i < n; i++) {
    x[i] = std::exp(x[i] - largest);
    sum += x[i];
  }
  for (std::int64_t i = 0; i < n; i++) x[i] /= sum;
}

template <class Key, class Value>
void one_head(const ScalarAttention& a, std::int64_t r, std::int64_t h, float* scores) {
  const std::int64_t kv = h / (a.query_heads / a.kv_heads);
  const float* q = a.q + (r * a.query_heads + h) * a.key_dim;
  float* out = a.out + (r * a.query_heads + h) * a.value_dim;
  const std::int64_t position = a.T - a.n + r;
  const std::int64_t first = a.window > position ? 0 : position - a.window + 1;
  const std::int64_t visible = position + 1 - first;

  for (std::int64_t j = 0; j < visible; j++) {
    const std::int64_t t = first + j;
    float s = dot(q, row_at<Key>(a.k, t * a.k_row_stride + kv * a.k_head_stride), a.key_dim);
    if (a.k_scale) s *= a.k_scale[t * a.k_scale_row_stride + kv * a.k_scale_head_stride];
    scores[j] = s * a.scale;
  }
  softmax(scores, visible);
  for (std::int64_t d = 0; d < a.value_dim; d++) out[d] = 0;
  for (std::int64_t j = 0; j < visible; j++) {
    const std::int64_t t = first + j;
    const Value* v = row_at<Value>(a.v, t * a.v_row_stride + kv * a.v_head_stride);
    float weight = scores[j];
    if (a.v_scale) weight *= a.v_scale[t * a.v_scale_row_stride + kv * a.v_scale_head_stride];
    for (std::int64_t d = 0; d < a.value_dim; d++) out[d] += weight * widen(v[d]);
  }
}

template <class Key, class Value>
void heads(const ScalarAttention& a, std::int64_t head_begin, std::int64_t head_end, float* scores) {
  for (std::int64_t r = 0; r < a.n; r++) {
    for (std::int64_t h = head_begin; h < head_end; h++) one_head<Key, Value>(a, r, h, scores);
  }
}

template <class Key>
void with_key(const ScalarAttention& a, std::int64_t head_begin, std::int64_t head_end, float* scores) {
  switch (a.v_storage) {
    case StorageKind::f32: return heads<Key, float>(a, head_begin, head_end, scores);
    case StorageKind::f16: return heads<Key, F16>(a, head_begin, head_end, scores);
    case StorageKind::bf16: return heads<Key, Bf16>(a, head_begin, head_end, scores);
    case StorageKind::int8: return heads<Key, std::int8_t>(a, head_begin, head_end, scores);
  }
}

void weighted_add(float weight, const float* x, std::int64_t n, float* sum) {
  for (std::int64_t i = 0; i < n; i++) sum[i] += weight * x[i];
}

void read_row(const ScalarMla& a, std::int64_t t, float* values) {
  const auto* row = row_at<std::byte>(a.rows, t * a.row_stride);
  mla_decode_row(a.storage, row, a.latent_dim, a.rope_dim, values);
}

// Calls one(r, h, query, output, first visible row, number of visible rows) for each query.
template <class One>
void each_query(const ScalarMla& a, std::int64_t head_begin, std::int64_t head_end, One one) {
  for (std::int64_t r = 0; r < a.n; r++) {
    const std::int64_t position = a.T - a.n + r;
    const std::int64_t first = a.window > position ? 0 : position - a.window + 1;
    for (std::int64_t h = head_begin; h < head_end; h++) {
      const std::int64_t row = r * a.heads + h;
      one(h, a.q + row * (a.nope_dim + a.rope_dim), a.out + row * a.value_dim, first, position + 1 - first);
    }
  }
}

}  // namespace

void attention(const ScalarAttention& a, std::int64_t head_begin, std::int64_t head_end, float* scores) {
  switch (a.k_storage) {
    case StorageKind::f32: return with_key<float>(a, head_begin, head_end, scores);
    case StorageKind::f16: return with_key<F16>(a, head_begin, head_end, scores);
    case StorageKind::bf16: return with_key<Bf16>(a, head_begin, head_end, scores);
    case StorageKind::int8: return with_key<std::int8_t>(a, head_begin, head_end, scores);
  }
}

void mla_reconstruct(const ScalarMla& a, std::int64_t head_begin, std::int64_t head_end, float* scratch) {
  float* scores = scratch;
  float* row = scores + a.T;
  float* key = row + a.latent_dim + a.rope_dim;
  float* value = key + a.nope_dim;
  each_query(a, head_begin, head_end,
             [&](std::int64_t h, const float* q, float* out, std::int64_t first, std::int64_t visible) {
               const float* w_uk = a.w_uk + h * a.nope_dim * a.latent_dim;
               const float* w_uv = a.w_uv + h * a.value_dim * a.latent_dim;
               for (std::int64_t j = 0; j < visible; j++) {
                 read_row(a, first + j, row);
                 for (std::int64_t d = 0; d < a.nope_dim; d++) key[d] = dot(w_uk + d * a.latent_dim, row, a.latent_dim);
                 scores[j] = (dot(q, key, a.nope_dim) + dot(q + a.nope_dim, row + a.latent_dim, a.rope_dim)) * a.scale;
               }
               softmax(scores, visible);
               for (std::int64_t d = 0; d < a.value_dim; d++) out[d] = 0;
               for (std::int64_t j = 0; j < visible; j++) {
                 read_row(a, first + j, row);
                 for (std::int64_t d = 0; d < a.value_dim; d++)
                   value[d] = dot(w_uv + d * a.latent_dim, row, a.latent_dim);
                 weighted_add(scores[j], value, a.value_dim, out);
               }
             });
}

void mla_absorbed(const ScalarMla& a, std::int64_t head_begin, std::int64_t head_end, float* scratch) {
  const std::int64_t width = a.latent_dim + a.rope_dim;
  float* scores = scratch;
  float* row = scores + a.T;
  float* query = row + width;
  float* latent = query + width;
  each_query(a, head_begin, head_end,
             [&](std::int64_t h, const float* q, float* out, std::int64_t first, std::int64_t visible) {
               const float* w_uk = a.w_uk + h * a.nope_dim * a.latent_dim;
               const float* w_uv = a.w_uv + h * a.value_dim * a.latent_dim;
               for (std::int64_t c = 0; c < a.latent_dim; c++) query[c] = latent[c] = 0;
               for (std::int64_t d = 0; d < a.nope_dim; d++)
                 weighted_add(q[d], w_uk + d * a.latent_dim, a.latent_dim, query);
               for (std::int64_t d = 0; d < a.rope_dim; d++) query[a.latent_dim + d] = q[a.nope_dim + d];
               for (std::int64_t j = 0; j < visible; j++) {
                 read_row(a, first + j, row);
                 scores[j] = dot(query, row, width) * a.scale;
               }
               softmax(scores, visible);
               for (std::int64_t j = 0; j < visible; j++) {
                 read_row(a, first + j, row);
                 weighted_add(scores[j], row, a.latent_dim, latent);
               }
               for (std::int64_t d = 0; d < a.value_dim; d++)
                 out[d] = dot(w_uv + d * a.latent_dim, latent, a.latent_dim);
             });
}

}  // namespace kvroof::reference::KVROOF_SCALAR_NS
