#include "reference/recompute.hpp"

#include <cstddef>
#include <utility>

#include "reference/lane_twin.hpp"

namespace kvroof::reference {
namespace {

// `rows` of the model's width through w [outputs][model].
std::vector<float> project_rows(const std::vector<float>& w, const std::vector<float>& x, std::int64_t rows,
                                std::int64_t outputs, std::int64_t inputs) {
  std::vector<float> y(static_cast<std::size_t>(rows * outputs));
  for (std::int64_t t = 0; t < rows; ++t) {
    twin_project(w.data(), x.data() + t * inputs, outputs, inputs, y.data() + t * outputs);
  }
  return y;
}

void rope_rows(const RecomputeLayer& layer, std::vector<float>& rows, std::int64_t T, std::int64_t heads) {
  if (layer.inv_freq.empty()) return;
  for (std::int64_t t = 0; t < T; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      float* head = rows.data() + (t * heads + h) * layer.key_dim;
      twin_rope(head, layer.key_dim, t, layer.inv_freq.data(), layer.rope_interleaved);
    }
  }
}

std::vector<float> store_rows(StorageKind storage, std::vector<float>& rows, std::int64_t count, std::int64_t d) {
  std::vector<float> scales(storage == StorageKind::int8 ? static_cast<std::size_t>(count) : 0);
  for (std::int64_t i = 0; i < count; ++i) {
    round_to_storage(storage, rows.data() + i * d, d, scales.empty() ? nullptr : scales.data() + i);
  }
  return scales;
}

}  // namespace

void round_to_storage(StorageKind storage, float* row, std::int64_t d, float* scale) {
  if (storage == StorageKind::int8) {
    std::vector<std::int8_t> q(static_cast<std::size_t>(d));
    *scale = quantize_int8_row(row, q.size(), q.data());
    for (std::size_t i = 0; i < q.size(); ++i) row[i] = static_cast<float>(q[i]);
    return;
  }
  for (std::int64_t i = 0; i < d; ++i) {
    switch (storage) {
      case StorageKind::f32: row[i] = f32_to_storage(row[i]); break;
      case StorageKind::f16: row[i] = f16_to_f32(f32_to_f16(row[i])); break;
      case StorageKind::bf16: row[i] = bf16_to_f32(f32_to_bf16(row[i])); break;
      case StorageKind::int8: break;
    }
  }
}

std::int64_t recompute(const RecomputeStack& stack, const std::vector<float>& x, std::int64_t T,
                       std::vector<float>& y) {
  const std::int64_t model = stack.model_dim;
  std::vector<float> input(x.begin(), x.begin() + T * model);
  std::int64_t projections = 0;
  for (const RecomputeLayer& layer : stack.layers) {
    AttentionProblem p;
    p.query_heads = layer.query_heads;
    p.kv_heads = layer.kv_heads;
    p.key_dim = layer.key_dim;
    p.value_dim = layer.value_dim;
    p.n = p.T = T;
    p.scale = layer.scale;
    p.window = layer.window;
    p.kept_tokens = layer.kept_tokens;
    p.softcap = layer.softcap;
    p.alibi_slopes = layer.alibi_slopes;
    p.sink_logits = layer.sink_logits;

    p.q = project_rows(layer.wq, input, T, p.query_heads * p.key_dim, model);
    p.k = project_rows(layer.wk, input, T, p.kv_heads * p.key_dim, model);
    p.v = project_rows(layer.wv, input, T, p.kv_heads * p.value_dim, model);
    projections += T;
    rope_rows(layer, p.q, T, p.query_heads);
    rope_rows(layer, p.k, T, p.kv_heads);
    p.k_scale = store_rows(layer.k_storage, p.k, T * p.kv_heads, p.key_dim);
    p.v_scale = store_rows(layer.v_storage, p.v, T * p.kv_heads, p.value_dim);

    std::vector<float> heads, lse;
    lane_twin_attention(p, heads, lse);
    input = project_rows(layer.wo, heads, T, model, p.query_heads * p.value_dim);
  }
  y = std::move(input);
  return projections;
}

std::int64_t recompute_step(const RecomputeStack& stack, const std::vector<float>& x, std::int64_t T,
                            std::vector<float>& y) {
  const std::int64_t projections = recompute(stack, x, T, y);
  y.erase(y.begin(), y.end() - stack.model_dim);
  return projections;
}

}  // namespace kvroof::reference
