// From the hidden state to the cache: compression equals its twin bit for bit, a cached context equals one that is
// computed anew at every step, positions and pairings matter, and what the compression loses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/inputs.hpp"
#include "reference/lane_twin.hpp"
#include "tests/support/attend_mla.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

using Form = reference::MlaForm;

MlaWeights weights_of(const CompressCase& c, std::span<const float> w_uk = {}, std::span<const float> w_uv = {},
                      MlaShape shape = {1, 1, 0, 1, 0, 0}) {
  static const std::vector<float> zeros(1024, 0.0f);  // where a test does not look at W_UK and W_UV
  shape.rope_dim = c.spec.rope_dim;
  shape.latent_dim = c.spec.latent_dim;
  shape.model_dim = c.spec.model_dim;
  if (w_uk.empty()) w_uk = w_uv = {zeros.data(), static_cast<std::size_t>(shape.latent_dim)};
  return MlaWeights(shape, {w_uk, w_uv, c.weights.w_dkv, c.weights.w_kr});
}

MlaTokens tokens_of(const CompressCase& c) {
  MlaTokens t;
  t.x = c.x.data();
  t.row_stride = c.spec.model_dim;
  t.n = c.spec.n;
  t.first_position = c.spec.first_position;
  t.inv_freq = c.weights.inv_freq;
  t.pairing = c.spec.interleaved ? RopePairing::interleaved : RopePairing::half_split;
  return t;
}

class MlaCompress : public EachIsa {
 protected:
  std::vector<float> compress(const MlaWeights& weights, const MlaTokens& tokens, int threads) const {
    const std::int64_t row = weights.shape().latent_dim + weights.shape().rope_dim;
    GuardedBuffer rows(static_cast<std::size_t>(tokens.n * row * 4), Edge::end, 4);
    rows.fill(kSignalling);
    mla_compress(weights, tokens, rows.as<float>(), threads, isa());
    EXPECT_TRUE(rows.intact());
    return {rows.as<float>(), rows.as<float>() + tokens.n * row};
  }
};

TEST_P(MlaCompress, EqualsTheTwin) {
  for (const CompressSpec& spec : golden_compress_cases()) {
    const CompressCase c = make_compress_case(spec);
    const MlaWeights weights = weights_of(c);
    for (const int threads : {1, 2, 7})
      EXPECT_TRUE(same_bits(compress(weights, tokens_of(c), threads), compress_twin(c), describe(spec)));
  }
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Choices choose(seed);
    CompressSpec spec{choose.between(1, 200),
                      choose.between(1, 200),
                      2 * choose.between(0, 40),
                      choose.between(1, 20),
                      choose.between(0, 200000),
                      choose.one_in(2),
                      seed};
    const CompressCase c = make_compress_case(spec);
    const MlaWeights weights = weights_of(c);
    EXPECT_TRUE(same_bits(compress(weights, tokens_of(c), static_cast<int>(choose.between(1, 8))), compress_twin(c),
                          describe(spec)));
  }
}

TEST_P(MlaCompress, PartsInAnyOrderAndTokensInAnyChunks) {
  const CompressCase c = make_compress_case({96, 100, 10, 13, 500, false, 3});
  const MlaWeights weights = weights_of(c);
  const std::vector<float> expected = compress_twin(c);
  for (int parts = 1; parts <= 8; ++parts) {
    std::vector<float> rows(expected.size());
    for (int part = parts; part-- > 0;) mla_compress_part(weights, tokens_of(c), rows.data(), parts, part, isa());
    EXPECT_TRUE(same_bits(rows, expected, "parts " + std::to_string(parts)));
  }
  for (const std::int64_t size : {1, 2, 5}) {
    std::vector<float> rows;
    for (std::int64_t at = 0; at < 13; at += size) {
      MlaTokens some = tokens_of(c);
      some.x += at * some.row_stride;
      some.n = std::min(size, 13 - at);
      some.first_position += at;
      const std::vector<float> chunk = compress(weights, some, 2);
      rows.insert(rows.end(), chunk.begin(), chunk.end());
    }
    EXPECT_TRUE(same_bits(rows, expected, "chunks of " + std::to_string(size)));
  }
  MlaTokens none = tokens_of(c);
  none.n = 0;
  EXPECT_TRUE(compress(weights, none, 3).empty());
}

TEST_P(MlaCompress, InterleavedIsAPermutedHalfSplitAndTheWrongOneShowsFromPositionOne) {
  for (const std::int64_t position : {0, 1, 4095}) {
    CompressCase a = make_compress_case({64, 16, 64, 1, position, true, 5}), b = a;
    b.spec.interleaved = b.weights.interleaved = false;
    const std::vector<float> turned = compress(weights_of(a), tokens_of(a), 1),
                             wrong = compress(weights_of(b), tokens_of(b), 1);
    for (std::int64_t i = 0; i < 32; ++i) {  // W_KR's rows in the other pairing's order
      std::copy_n(a.weights.w_kr.begin() + 2 * i * 64, 64, b.weights.w_kr.begin() + i * 64);
      std::copy_n(a.weights.w_kr.begin() + (2 * i + 1) * 64, 64, b.weights.w_kr.begin() + (32 + i) * 64);
    }
    const std::vector<float> split = compress(weights_of(b), tokens_of(b), 1);
    for (std::size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(float_bits(turned[16 + 2 * i]), float_bits(split[16 + i]));
      EXPECT_EQ(float_bits(turned[16 + 2 * i + 1]), float_bits(split[16 + 32 + i]));
    }
    EXPECT_EQ(turned == wrong, position == 0) << "at position 0 nothing turns";
  }
}

// ---- a whole layer ----
// Queries from hidden states by a matrix of their own, keys and values through the latent cache.
struct Layer {
  static constexpr std::int64_t kModel = 48, kHeads = 4, kNope = 8, kRope = 6, kValue = 12, kLatent = 20;
  CompressCase down = make_compress_case({kModel, kLatent, kRope, 30, 0, true, 11});
  MlaCase up;
  std::vector<float> w_q;

  explicit Layer(Storage storage) {
    MlaCaseSpec spec;
    spec.shape = {kHeads, kNope, kRope, kValue, kLatent};
    spec.storage = storage;
    spec.seed = 12;
    up = make_mla_case(spec);
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(kHeads * (kNope + kRope) * kModel); ++i)
      w_q.push_back(0.3f * reference::uniform(77, i));
  }
  MlaWeights weights() const {
    return weights_of(down, up.problem.w_uk, up.problem.w_uv, {kHeads, kNope, kRope, kValue, kLatent, kModel});
  }
  // The twin's answer to tokens [first, T), everything computed anew from the hidden states.
  Attention recomputed(Form form, std::int64_t first, std::int64_t T, std::int64_t window) const {
    MlaCase c = up;
    c.spec.T = c.problem.T = T;
    c.spec.n = c.problem.n = T - first;
    c.problem.window = window;
    CompressCase all = down;
    all.spec.n = T;
    c.rows = compress_twin(all);
    restore_rows(c);
    constexpr std::int64_t dim = kNope + kRope;
    c.problem.q.resize(static_cast<std::size_t>((T - first) * kHeads * dim));
    for (std::int64_t t = first; t < T; ++t) {
      float* q = c.problem.q.data() + (t - first) * kHeads * dim;
      reference::twin_project(w_q.data(), down.x.data() + t * kModel, kHeads * dim, kModel, q);
      for (std::int64_t h = 0; h < kHeads; ++h)
        reference::twin_rope(q + h * dim + kNope, kRope, t, down.weights.inv_freq.data(), true);
    }
    return mla_twin(form, c);
  }
};

TEST_P(MlaCompress, CachedEqualsRecomputedAtEveryStep) {
  constexpr std::int64_t dim = Layer::kNope + Layer::kRope, row = Layer::kLatent + Layer::kRope, window = 9;
  for (const Storage storage : kStorages) {
    const Layer layer(storage);
    const MlaWeights weights = layer.weights();
    std::vector<float> packed_q(packed_weight_floats(Layer::kHeads * dim, Layer::kModel));
    pack_weights(layer.w_q.data(), Layer::kHeads * dim, Layer::kModel, packed_q.data());
    for (const Form form : kMlaForms) {
      ContiguousCache contiguous(mla_cache_shape(weights.shape(), storage));
      RingOptions options;
      options.window = window;
      options.capacity = window + 4;
      RingCache ring(mla_cache_shape(weights.shape(), storage), options);
      std::int64_t at = 0;
      for (const std::int64_t n : {5, 1, 1, 4, 1, 3, 1, 1, 5, 1}) {  // a prompt, decode steps, chunks
        std::vector<float> rows(static_cast<std::size_t>(n * row)),
            q(static_cast<std::size_t>(n * Layer::kHeads * dim));
        MlaTokens tokens = tokens_of(layer.down);
        tokens.x += at * Layer::kModel;
        tokens.n = n;
        tokens.first_position = ring.next_position();
        mla_compress(weights, tokens, rows.data(), 2, isa());
        contiguous.append(packed_rows(contiguous.shape(), n, rows.data(), nullptr));
        ring.append(packed_rows(ring.shape(), n, rows.data(), nullptr));
        for (std::int64_t r = 0; r < n; ++r) {
          float* to = q.data() + r * Layer::kHeads * dim;
          project(packed_q.data(), tokens.x + r * Layer::kModel, Layer::kHeads * dim, Layer::kModel, to, isa());
          rope(to + Layer::kNope, Layer::kHeads, dim, Layer::kRope, at + r, tokens.inv_freq.data(), tokens.pairing,
               isa());
        }
        MlaCase call = layer.up;
        call.spec.n = n;
        call.spec.window = window;
        call.problem.q = q;
        const Attention expected = layer.recomputed(form, at, at + n, window);
        for (const KvView& view : {contiguous.view(), ring.view()}) {
          How how;
          how.isa = isa();
          how.parts = 2;
          const Attention cached = attend_mla(weights, call, view, form, how);
          EXPECT_TRUE(same_bits(cached.out, expected.out,
                                std::string(storage_name(storage)) + " tokens from " + std::to_string(at)));
          EXPECT_TRUE(same_bits(cached.lse, expected.lse, "lse"));
        }
        at += n;
      }
    }
  }
}

// Keys and values of 8 heads of 8 from a model of 64, through the best latents of size d_c there are: the output comes
// nearer to attention without compression as the latent grows, and is equal, to rounding, where nothing is cut off.
TEST_P(MlaCompress, IsLossyUntilTheLatentHasFullRank) {
  constexpr std::int64_t kModel = 64, kHeads = 8, kDim = 8, T = 40;
  std::vector<double> dense(2 * kHeads * kDim * kModel);
  for (std::size_t i = 0; i < dense.size(); ++i) dense[i] = 0.3 * reference::uniform(1, i);
  std::vector<float> x(static_cast<std::size_t>(T * kModel)), q(static_cast<std::size_t>(kHeads * kDim));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = reference::uniform(2, i);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = 2 * reference::uniform(3, i);

  reference::AttentionProblem plain;
  plain.query_heads = plain.kv_heads = kHeads;
  plain.key_dim = plain.value_dim = kDim;
  plain.n = 1;
  plain.T = T;
  plain.q = q;
  plain.scale = 0.35f;
  for (std::int64_t t = 0; t < T; ++t) {
    for (std::int64_t o = 0; o < 2 * kHeads * kDim; ++o) {
      double sum = 0;
      for (std::int64_t i = 0; i < kModel; ++i)
        sum += dense[static_cast<std::size_t>(o * kModel + i)] * x[static_cast<std::size_t>(t * kModel + i)];
      (o < kHeads * kDim ? plain.k : plain.v).push_back(static_cast<float>(sum));
    }
  }
  const std::vector<double> exact = reference::oracle_attention(plain).out;
  const auto error_at = [&](std::int64_t d_c, Form form) {
    const reference::MlaFactors f = reference::mla_factorise(dense, 2 * kHeads * kDim, kModel, d_c);
    MlaCase c;
    c.spec.shape = {kHeads, kDim, 0, kDim, d_c};
    c.spec.scale = 0.35f;
    c.problem.q = q;
    const auto half = f.up.begin() + kHeads * kDim * d_c;
    c.problem.w_uk.assign(f.up.begin(), half);
    c.problem.w_uv.assign(half, f.up.end());
    const std::vector<float> down(f.down.begin(), f.down.end());
    const MlaWeights weights({kHeads, kDim, 0, kDim, d_c, kModel}, {c.problem.w_uk, c.problem.w_uv, down, {}});
    std::vector<float> rows(static_cast<std::size_t>(T * d_c));
    MlaTokens tokens;
    tokens.x = x.data();
    tokens.row_stride = kModel;
    tokens.n = T;
    mla_compress(weights, tokens, rows.data(), 2, isa());
    ContiguousCache cache(mla_cache_shape(weights.shape(), Storage::f32));
    cache.append(packed_rows(cache.shape(), T, rows.data(), nullptr));
    How how;
    how.isa = isa();
    const Attention a = attend_mla(weights, c, cache.view(), form, how);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      error += (a.out[i] - exact[i]) * (a.out[i] - exact[i]);
      size += exact[i] * exact[i];
    }
    return std::sqrt(error / size);
  };
  for (const Form form : kMlaForms) {
    double before = 1e300;
    for (const std::int64_t d_c : {1, 8, 16, 32, 48, 64}) {
      const double error = error_at(d_c, form);
      RecordProperty((std::string(mla_form_name(form)) + "_error_at_" + std::to_string(d_c)).c_str(),
                     std::to_string(error));
      EXPECT_LT(error, before) << d_c;
      if (d_c <= 48) {
        EXPECT_GT(error, 1e-2) << d_c;
      } else {
        EXPECT_LT(error, 1e-5) << "full rank";
      }
      before = error;
    }
  }
}

KVROOF_INSTANTIATE_EACH_ISA(MlaCompress);

}  // namespace
}  // namespace kvroof::test
