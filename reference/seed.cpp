#include "reference/seed.hpp"

#include <cfloat>
#include <cmath>
#include <cstddef>

namespace kvroof::reference {
namespace {

void softmax(float* x, int n) {
  float largest = -FLT_MAX, sum = 0;
  for (int i = 0; i < n; i++) {
    if (x[i] > largest) largest = x[i];
  }
  for (int i = 0; i < n; i++) {
    x[i] = std::exp(x[i] - largest);
    sum += x[i];
  }
  for (int i = 0; i < n; i++) x[i] /= sum;
}

template <int kIn>
float dot(const float* a, const float* b) {
  float s = 0;
  for (int i = 0; i < kIn; i++) s += a[i] * b[i];
  return s;
}

// Every position scored against `len` rows of keys and values, wherever those came from.
void attend(const float* q, const float (*keys)[kSeedKeyDim], const float (*values)[kSeedKeyDim], int len, float* out) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(kSeedKeyDim));
  float scores[kSeedTokens];
  for (int j = 0; j < len; j++) scores[j] = dot<kSeedKeyDim>(q, keys[j]) * scale;
  softmax(scores, len);
  for (int k = 0; k < kSeedKeyDim; k++) {
    out[k] = 0;
    for (int j = 0; j < len; j++) out[k] += scores[j] * values[j][k];
  }
}

void project(const float (*w)[kSeedModelDim], const float* x, float* y) {
  for (int k = 0; k < kSeedKeyDim; k++) y[k] = dot<kSeedModelDim>(w[k], x);
}

}  // namespace

std::int64_t seed_projections_without_cache(std::int64_t n) {
  std::int64_t total = 0;
  for (std::int64_t t = 1; t <= n; t++) total += t;
  return total;
}

std::int64_t seed_projections_with_cache(std::int64_t n) {
  std::int64_t total = 0;
  for (std::int64_t t = 1; t <= n; t++) total += 1;
  return total;
}

SeedExactness seed_exactness() {
  SeedExactness s{};
  SeedRandom random(42);
  for (int i = 0; i < kSeedKeyDim; i++) {
    for (int j = 0; j < kSeedModelDim; j++) {
      s.wq[i][j] = random.around_zero(0.3f);
      s.wk[i][j] = random.around_zero(0.3f);
      s.wv[i][j] = random.around_zero(0.3f);
    }
  }
  const float x[kSeedTokens][kSeedModelDim] = {
      {0.5f, -0.2f, 0.8f, 0.1f}, {0.3f, 0.7f, 0.1f, -0.2f}, {-0.1f, 0.4f, 0.6f, 0.3f}, {0.2f, -0.3f, 0.5f, 0.6f}};
  for (int i = 0; i < kSeedTokens; i++) {
    for (int j = 0; j < kSeedModelDim; j++) s.x[i][j] = x[i][j];
  }

  // From scratch at every position.
  for (int i = 0; i < kSeedTokens; i++) {
    float q[kSeedKeyDim], keys[kSeedTokens][kSeedKeyDim], values[kSeedTokens][kSeedKeyDim];
    project(s.wq, s.x[i], q);
    for (int j = 0; j <= i; j++) {
      project(s.wk, s.x[j], keys[j]);
      project(s.wv, s.x[j], values[j]);
    }
    attend(q, keys, values, i + 1, s.recomputed[i]);
  }

  // One projection per token, the rest read back.
  float keys[kSeedTokens][kSeedKeyDim], values[kSeedTokens][kSeedKeyDim];
  for (int len = 0; len < kSeedTokens; len++) {
    float q[kSeedKeyDim];
    project(s.wq, s.x[len], q);
    project(s.wk, s.x[len], keys[len]);
    project(s.wv, s.x[len], values[len]);
    attend(q, keys, values, len + 1, s.cached[len]);
  }
  return s;
}

SeedWalk seed_walk() {
  constexpr int kModelDim = 6, kKeyDim = 4, kTokens = 6;
  float wq[kKeyDim][kModelDim], wk[kKeyDim][kModelDim], wv[kKeyDim][kModelDim], wo[kModelDim][kKeyDim];
  SeedRandom random(42);
  for (int i = 0; i < kKeyDim; i++) {
    for (int j = 0; j < kModelDim; j++) {
      wq[i][j] = random.around_zero(0.2f);
      wk[i][j] = random.around_zero(0.2f);
      wv[i][j] = random.around_zero(0.2f);
    }
  }
  for (auto& row : wo) {
    for (float& w : row) w = random.around_zero(0.2f);
  }
  const float tokens[kTokens][kModelDim] = {
      {0.5f, -0.2f, 0.8f, 0.1f, -0.3f, 0.6f}, {0.3f, 0.7f, 0.1f, -0.2f, 0.5f, 0.4f},
      {-0.1f, 0.4f, 0.6f, 0.3f, -0.4f, 0.2f}, {0.2f, -0.3f, 0.5f, 0.6f, 0.1f, -0.5f},
      {0.8f, 0.2f, -0.1f, 0.4f, 0.3f, 0.6f},  {-0.4f, 0.1f, 0.3f, -0.2f, 0.7f, 0.5f}};

  SeedWalk walk;
  // Runs one way or the other: `first` is the first token whose key and value must be projected at this step.
  struct Rows {
    std::vector<float> keys, values;
    std::int64_t projections = 0;
  };
  const auto step = [&](Rows& rows, int first, int position, std::vector<float>& out) {
    for (int t = first; t <= position; t++) {
      for (int i = 0; i < kKeyDim; i++) {
        rows.keys.push_back(dot<kModelDim>(wk[i], tokens[t]));
        rows.values.push_back(dot<kModelDim>(wv[i], tokens[t]));
      }
      rows.projections += 1;
    }
    const int length = static_cast<int>(rows.keys.size()) / kKeyDim;
    float q[kKeyDim], scores[kTokens], head[kKeyDim] = {};
    for (int i = 0; i < kKeyDim; i++) q[i] = dot<kModelDim>(wq[i], tokens[position]);
    const float scale = 1.0f / std::sqrt(static_cast<float>(kKeyDim));
    for (int j = 0; j < length; j++) scores[j] = dot<kKeyDim>(q, rows.keys.data() + j * kKeyDim) * scale;
    softmax(scores, length);
    for (int j = 0; j < length; j++) {
      for (int k = 0; k < kKeyDim; k++) head[k] += scores[j] * rows.values[static_cast<std::size_t>(j * kKeyDim + k)];
    }
    for (const auto& row : wo) out.push_back(dot<kKeyDim>(row, head));
  };

  Rows cache;
  for (int t = 0; t < kTokens; t++) {
    const std::int64_t projections_before = cache.projections;
    walk.length_before.push_back(static_cast<std::int64_t>(cache.keys.size()) / kKeyDim);
    step(cache, t, t, walk.out);
    walk.length_after.push_back(static_cast<std::int64_t>(cache.keys.size()) / kKeyDim);
    walk.projections.push_back(cache.projections - projections_before);

    Rows scratch;
    step(scratch, 0, t, walk.out_without_cache);
    walk.projections_without_cache += scratch.projections;
  }
  walk.projections_with_cache = cache.projections;
  walk.cache_floats = static_cast<std::int64_t>(cache.keys.size() + cache.values.size());
  return walk;
}

SeedMla seed_mla() {
  constexpr int kFull = kSeedMlaHeads * kSeedMlaHeadDim;
  SeedMla m;
  SeedRandom random(42);
  for (int i = 0; i < kSeedMlaLatent * kSeedMlaModelDim; i++) m.w_dkv.push_back(random.around_zero(0.1f));
  for (int i = 0; i < kFull * kSeedMlaLatent; i++) {
    m.w_uk.push_back(random.around_zero(0.1f));
    m.w_uv.push_back(random.around_zero(0.1f));
  }
  for (int i = 0; i < kSeedMlaModelDim; i++) m.h.push_back(random.around_zero(0.5f));
  for (int i = 0; i < kSeedMlaLatent; i++) {
    m.latent.push_back(dot<kSeedMlaModelDim>(m.w_dkv.data() + i * kSeedMlaModelDim, m.h.data()));
  }
  for (int i = 0; i < kFull; i++) {
    m.k.push_back(dot<kSeedMlaLatent>(m.w_uk.data() + i * kSeedMlaLatent, m.latent.data()));
    m.v.push_back(dot<kSeedMlaLatent>(m.w_uv.data() + i * kSeedMlaLatent, m.latent.data()));
  }
  m.standard_floats = static_cast<std::int64_t>(m.k.size() + m.v.size());
  m.mla_floats = static_cast<std::int64_t>(m.latent.size()) + kSeedMlaRope;
  return m;
}

std::int64_t seed_cache_bytes(std::int64_t layers, std::int64_t batch, std::int64_t T, std::int64_t kv_heads,
                              std::int64_t head_dim, std::int64_t element_bytes) {
  return 2 * layers * batch * T * kv_heads * head_dim * element_bytes;
}

std::int64_t seed_mla_bytes(std::int64_t layers, std::int64_t T, std::int64_t latent, std::int64_t rope,
                            std::int64_t element_bytes) {
  return layers * T * (latent + rope) * element_bytes;
}

}  // namespace kvroof::reference
