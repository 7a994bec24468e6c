// The uncached path and the plain loops, held to independent arithmetic in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/half.hpp"
#include "reference/inputs.hpp"
#include "reference/lane_twin.hpp"
#include "reference/oracle.hpp"
#include "reference/recompute.hpp"
#include "reference/scalar.hpp"

namespace kvroof::reference {
namespace {

std::vector<float> random_values(std::size_t count, std::uint64_t seed, float size) {
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = size * uniform(seed, i);
  return x;
}

// ---- projection and RoPE -------------------------------------------------------------------------------------------
TEST(ReferenceProject, IsOneAscendingChain) {
  const auto w = random_values(3 * 37, 1, 1.0f), x = random_values(37, 2, 1.0f);
  std::vector<float> y(3);
  twin_project(w.data(), x.data(), 3, 37, y.data());
  for (std::size_t o = 0; o < 3; ++o) {
    float chain = 0.0f;
    double exact = 0, magnitude = 0;
    for (std::size_t k = 0; k < 37; ++k) {
      chain = std::fma(w[o * 37 + k], x[k], chain);
      exact += static_cast<double>(w[o * 37 + k]) * x[k];
      magnitude += std::fabs(static_cast<double>(w[o * 37 + k]) * x[k]);
    }
    EXPECT_EQ(float_bits(y[o]), float_bits(chain));
    EXPECT_LE(std::fabs(y[o] - exact), 37 * 0x1p-24 / (1 - 37 * 0x1p-24) * magnitude);
  }
}

TEST(ReferenceProject, NanIsWrittenCanonically) {
  const float w[2] = {std::numeric_limits<float>::infinity(), 1.0f}, x[2] = {0.0f, 1.0f};
  float y;
  twin_project(w, x, 1, 2, &y);
  EXPECT_EQ(float_bits(y), 0x7fc00000u);
}

std::vector<double> frequencies(std::int64_t d) {
  std::vector<double> f;
  for (std::int64_t i = 0; i < d / 2; ++i)
    f.push_back(std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(d)));
  return f;
}

TEST(ReferenceRope, RotatesEachPairByItsAngle) {
  const std::int64_t d = 64;
  const auto inv_freq = frequencies(d);
  for (const std::int64_t position :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{20}, std::int64_t{131071}, std::int64_t{1} << 30}) {
    const auto x = random_values(64, 3, 2.0f);
    auto y = x;
    twin_rope(y.data(), d, position, inv_freq.data(), true);
    for (std::size_t i = 0; i < 32; ++i) {
      const long double angle = static_cast<long double>(static_cast<double>(position) * inv_freq[i]);
      const long double a = x[2 * i], b = x[2 * i + 1], c = std::cos(angle), s = std::sin(angle);
      // Cosine, sine and the product b*s rounded once each, then the sum: under 2 u of the pair's length each.
      const double bound = 4 * 0x1p-24 * std::hypot(x[2 * i], x[2 * i + 1]);
      EXPECT_NEAR(y[2 * i], static_cast<double>(a * c - b * s), bound) << position << ' ' << i;
      EXPECT_NEAR(y[2 * i + 1], static_cast<double>(b * c + a * s), bound) << position << ' ' << i;
    }
    EXPECT_EQ(y == x, position == 0);
  }
}

TEST(ReferenceRope, InterleavedIsHalfSplitPermuted) {
  const std::int64_t d = 64;
  const auto inv_freq = frequencies(d);
  const auto x = random_values(64, 4, 1.0f);
  auto interleaved = x;
  twin_rope(interleaved.data(), d, 1, inv_freq.data(), true);
  std::vector<float> half(64), wrong = x;
  for (std::size_t i = 0; i < 32; ++i) half[i] = x[2 * i], half[i + 32] = x[2 * i + 1];
  twin_rope(half.data(), d, 1, inv_freq.data(), false);
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(float_bits(half[i]), float_bits(interleaved[2 * i]));
    EXPECT_EQ(float_bits(half[i + 32]), float_bits(interleaved[2 * i + 1]));
  }
  twin_rope(wrong.data(), d, 1, inv_freq.data(), false);
  EXPECT_NE(wrong, interleaved) << "the wrong pairing shows at position 1";
}

TEST(ReferenceRope, ScoresDependOnTheDistanceAlone) {
  const std::int64_t d = 32;
  const auto inv_freq = frequencies(d);
  const auto q = random_values(32, 5, 1.0f), k = random_values(32, 6, 1.0f);
  const auto score = [&](std::int64_t i, std::int64_t j) {
    auto a = q, b = k;
    twin_rope(a.data(), d, i, inv_freq.data(), false);
    twin_rope(b.data(), d, j, inv_freq.data(), false);
    double s = 0;
    for (std::size_t x = 0; x < 32; ++x) s += static_cast<double>(a[x]) * b[x];
    return s;
  };
  EXPECT_NEAR(score(7, 3), score(100007, 100003), 1e-5);
  EXPECT_GT(std::fabs(score(7, 3) - score(7, 4)), 1e-3);
}

// ---- the uncached stack --------------------------------------------------------------------------------------------
// The same stack in float64, written from the description: an independent check that recompute does what it says.
std::vector<double> exact_stack(const RecomputeStack& stack, const std::vector<float>& x, std::int64_t T) {
  const auto m = static_cast<std::size_t>(stack.model_dim);
  const auto rows = static_cast<std::size_t>(T);
  std::vector<double> input(x.begin(), x.begin() + T * stack.model_dim);
  for (const RecomputeLayer& layer : stack.layers) {
    const auto hq = static_cast<std::size_t>(layer.query_heads), hkv = static_cast<std::size_t>(layer.kv_heads);
    const auto dk = static_cast<std::size_t>(layer.key_dim), dv = static_cast<std::size_t>(layer.value_dim);
    const auto project = [&](const std::vector<float>& w, std::size_t outputs) {
      std::vector<double> y(rows * outputs);
      for (std::size_t t = 0; t < rows; ++t) {
        for (std::size_t o = 0; o < outputs; ++o) {
          for (std::size_t i = 0; i < m; ++i) y[t * outputs + o] += w[o * m + i] * input[t * m + i];
        }
      }
      return y;
    };
    auto q = project(layer.wq, hq * dk), k = project(layer.wk, hkv * dk), v = project(layer.wv, hkv * dv);
    for (auto* side : {&q, &k}) {
      const std::size_t heads = side == &q ? hq : hkv;
      for (std::size_t t = 0; t < rows && !layer.inv_freq.empty(); ++t) {
        for (std::size_t h = 0; h < heads; ++h) {
          double* r = side->data() + (t * heads + h) * dk;
          for (std::size_t i = 0; i < dk / 2; ++i) {
            const std::size_t first = layer.rope_interleaved ? 2 * i : i,
                              second = layer.rope_interleaved ? 2 * i + 1 : i + dk / 2;
            const double angle = static_cast<double>(t) * layer.inv_freq[i], a = r[first], b = r[second];
            r[first] = a * std::cos(angle) - b * std::sin(angle);
            r[second] = b * std::cos(angle) + a * std::sin(angle);
          }
        }
      }
    }
    std::vector<double> heads(rows * hq * dv), next(rows * m);
    for (std::size_t t = 0; t < rows; ++t) {
      for (std::size_t h = 0; h < hq; ++h) {
        const std::size_t kv = h * hkv / hq;
        double sum = 0;
        for (std::size_t j = 0; j <= t; ++j) {
          if (static_cast<std::int64_t>(t - j) >= layer.window) continue;
          double s = 0;
          for (std::size_t d = 0; d < dk; ++d) s += q[(t * hq + h) * dk + d] * k[(j * hkv + kv) * dk + d];
          const double weight = std::exp(s * layer.scale);
          sum += weight;
          for (std::size_t d = 0; d < dv; ++d) heads[(t * hq + h) * dv + d] += weight * v[(j * hkv + kv) * dv + d];
        }
        for (std::size_t d = 0; d < dv; ++d) heads[(t * hq + h) * dv + d] /= sum;
      }
      for (std::size_t o = 0; o < m; ++o) {
        for (std::size_t i = 0; i < hq * dv; ++i) next[t * m + o] += layer.wo[o * hq * dv + i] * heads[t * hq * dv + i];
      }
    }
    input = next;
  }
  return input;
}

RecomputeStack hybrid_stack(StorageKind storage) {
  RecomputeStack stack;
  stack.model_dim = 24;
  for (std::uint64_t i = 0; i < 3; ++i) {
    RecomputeLayer layer;
    layer.query_heads = 4;
    layer.kv_heads = i == 1 ? 1 : 2;
    layer.key_dim = 8;
    layer.value_dim = 6;
    layer.k_storage = layer.v_storage = storage;
    layer.scale = 0.35f;
    if (i != 0) layer.window = 5;
    if (i != 2) layer.inv_freq = frequencies(8);
    layer.rope_interleaved = i == 1;
    layer.wq = random_values(4 * 8 * 24, 10 * i + 1, 0.4f);
    layer.wk = random_values(static_cast<std::size_t>(layer.kv_heads) * 8 * 24, 10 * i + 2, 0.4f);
    layer.wv = random_values(static_cast<std::size_t>(layer.kv_heads) * 6 * 24, 10 * i + 3, 0.4f);
    layer.wo = random_values(24 * 4 * 6, 10 * i + 4, 0.4f);
    stack.layers.push_back(layer);
  }
  return stack;
}

TEST(ReferenceRecompute, AgreesWithFloat64AndEachStorageLosesWhatItShould) {
  const std::int64_t T = 23;
  const auto x = random_values(23 * 24, 99, 1.0f);
  const auto exact = exact_stack(hybrid_stack(StorageKind::f32), x, T);
  double size = 0;
  for (const double e : exact) size = std::max(size, std::fabs(e));
  double before = 0;
  for (const StorageKind storage : {StorageKind::f32, StorageKind::f16, StorageKind::bf16}) {
    std::vector<float> y;
    EXPECT_EQ(recompute(hybrid_stack(storage), x, T, y), 3 * T);
    ASSERT_EQ(y.size(), exact.size());
    double worst = 0;
    for (std::size_t i = 0; i < y.size(); ++i) worst = std::max(worst, std::fabs(y[i] - exact[i]) / size);
    // Three layers, each a few dozen roundings of the storage's unit: far from the next coarser storage.
    const double unit = storage == StorageKind::f32 ? 0x1p-24 : storage == StorageKind::f16 ? 0x1p-11 : 0x1p-8;
    EXPECT_LE(worst, 30 * unit);
    EXPECT_GT(worst, before);
    before = worst;
  }
  std::vector<float> y;
  recompute(hybrid_stack(StorageKind::int8), x, T, y);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], exact[i], 0.05 * size);
}

TEST(ReferenceRecompute, AStepIsTheLastRowOfTheWhole) {
  for (const StorageKind storage : {StorageKind::f32, StorageKind::f16, StorageKind::bf16, StorageKind::int8}) {
    const RecomputeStack stack = hybrid_stack(storage);
    const auto x = random_values(12 * 24, 98, 1.0f);
    std::vector<float> all, last;
    recompute(stack, x, 12, all);
    for (std::int64_t T = 1; T <= 12; ++T) {
      EXPECT_EQ(recompute_step(stack, x, T, last), 3 * T);
      ASSERT_EQ(last.size(), 24u);
      for (std::size_t i = 0; i < 24; ++i) {
        ASSERT_EQ(float_bits(last[i]), float_bits(all[static_cast<std::size_t>(T - 1) * 24 + i])) << T;
      }
    }
  }
}

// ---- the plain loops -----------------------------------------------------------------------------------------------
// Rows in memory: head-major or token-major, with odd gaps, in one of the storages.
struct PlainCache {
  std::vector<std::byte> k, v;
  std::vector<float> k_scale, v_scale;
  ScalarAttention a;
};

std::size_t bytes_of(StorageKind storage) {
  return storage == StorageKind::f32 ? 4 : storage == StorageKind::int8 ? 1 : 2;
}

void put(StorageKind storage, float value, std::byte* at) {
  const auto copy = [&](const auto& x) { std::copy_n(reinterpret_cast<const std::byte*>(&x), sizeof x, at); };
  switch (storage) {
    case StorageKind::f32: return copy(value);
    case StorageKind::f16: return copy(f32_to_f16(value));
    case StorageKind::bf16: return copy(f32_to_bf16(value));
    case StorageKind::int8: return copy(static_cast<std::int8_t>(value));
  }
}

PlainCache store(const AttentionProblem& p, StorageKind storage, bool head_major) {
  PlainCache c;
  ScalarAttention& a = c.a;
  a.query_heads = p.query_heads;
  a.kv_heads = p.kv_heads;
  a.key_dim = p.key_dim;
  a.value_dim = p.value_dim;
  a.n = p.n;
  a.T = p.T;
  a.scale = p.scale;
  a.window = p.window;
  a.k_storage = a.v_storage = storage;
  const auto size = static_cast<std::int64_t>(bytes_of(storage));
  const std::int64_t k_row = (p.key_dim + 3) * size, v_row = (p.value_dim + 5) * size;
  a.k_row_stride = head_major ? k_row : k_row * p.kv_heads;
  a.k_head_stride = head_major ? k_row * p.T : k_row;
  a.v_row_stride = head_major ? v_row : v_row * p.kv_heads;
  a.v_head_stride = head_major ? v_row * p.T : v_row;
  a.k_scale_row_stride = a.v_scale_row_stride = p.kv_heads;
  a.k_scale_head_stride = a.v_scale_head_stride = 1;
  c.k.resize(static_cast<std::size_t>(k_row * p.kv_heads * p.T));
  c.v.resize(static_cast<std::size_t>(v_row * p.kv_heads * p.T));
  for (std::int64_t t = 0; t < p.T; ++t) {
    for (std::int64_t h = 0; h < p.kv_heads; ++h) {
      for (std::int64_t d = 0; d < p.key_dim; ++d) {
        put(storage, p.k[static_cast<std::size_t>((t * p.kv_heads + h) * p.key_dim + d)],
            c.k.data() + t * a.k_row_stride + h * a.k_head_stride + d * size);
      }
      for (std::int64_t d = 0; d < p.value_dim; ++d) {
        put(storage, p.v[static_cast<std::size_t>((t * p.kv_heads + h) * p.value_dim + d)],
            c.v.data() + t * a.v_row_stride + h * a.v_head_stride + d * size);
      }
    }
  }
  c.k_scale = p.k_scale;
  c.v_scale = p.v_scale;
  a.k = c.k.data();
  a.v = c.v.data();
  if (!c.k_scale.empty()) a.k_scale = c.k_scale.data();
  if (!c.v_scale.empty()) a.v_scale = c.v_scale.data();
  a.q = p.q.data();
  return c;
}

TEST(ReferenceScalar, BothBuildsAgreeWithTheOracleForEveryStorageAndLayout) {
  for (const StorageKind storage : {StorageKind::f32, StorageKind::f16, StorageKind::bf16, StorageKind::int8}) {
    for (const bool head_major : {false, true}) {
      AttentionProblem p;
      p.query_heads = 6;
      p.kv_heads = 2;
      p.key_dim = 40;
      p.value_dim = 24;
      p.n = 3;
      p.T = 130;
      p.scale = 0.3f;
      if (head_major) p.window = 50;
      p.q = random_values(3 * 6 * 40, 1, 1.0f);
      p.k = random_values(130 * 2 * 40, 2, 1.0f);
      p.v = random_values(130 * 2 * 24, 3, 1.0f);
      if (storage == StorageKind::int8) p.k_scale.resize(260), p.v_scale.resize(260);
      for (std::int64_t i = 0; i < 260; ++i) {
        const auto at = static_cast<std::size_t>(i);
        round_to_storage(storage, p.k.data() + i * 40, 40, p.k_scale.empty() ? nullptr : &p.k_scale[at]);
        round_to_storage(storage, p.v.data() + i * 24, 24, p.v_scale.empty() ? nullptr : &p.v_scale[at]);
      }
      PlainCache cache = store(p, storage, head_major);
      const OracleAnswer oracle = oracle_attention(p);
      std::vector<float> scores(130), novec(3 * 6 * 24), vectorized(3 * 6 * 24);
      cache.a.out = novec.data();
      scalar_novec::attention(cache.a, 0, 6, scores.data());
      cache.a.out = vectorized.data();
      scalar_vectorized::attention(cache.a, 0, 2, scores.data());  // heads can be shared out
      scalar_vectorized::attention(cache.a, 2, 6, scores.data());
      for (std::size_t i = 0; i < novec.size(); ++i) {
        // Plain sums: T + Dk roundings on values below 1, and the C library's expf.
        const double bound = (130 + 40 + 10) * 0x1p-24;
        EXPECT_NEAR(novec[i], oracle.out[i], bound);
        EXPECT_NEAR(vectorized[i], oracle.out[i], bound);
      }
    }
  }
}

}  // namespace
}  // namespace kvroof::reference
