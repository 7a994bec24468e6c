// Multi-head latent attention in the references: both forms of the twin within their own bounds of the oracle, the
// plain loops, stored rows, and the cases that went wrong elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "reference/half.hpp"
#include "reference/inputs.hpp"
#include "reference/lane_twin.hpp"
#include "reference/mla.hpp"
#include "reference/mla_row.hpp"
#include "reference/scalar.hpp"

namespace kvroof::reference {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr MlaForm kForms[] = {MlaForm::reconstruct, MlaForm::absorbed};
constexpr MlaShape kToy = {8, 8, 8, 8, 16};
constexpr MlaShape kV2Lite = {16, 128, 64, 128, 512};
constexpr MlaShape kV3 = {128, 128, 64, 128, 512};

std::vector<float> random_values(std::int64_t count, std::uint64_t seed, float size) {
  std::vector<float> x(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = size * uniform(seed, i);
  return x;
}

MlaProblem problem(const MlaShape& s, std::int64_t T, std::int64_t n, std::uint64_t seed,
                   StorageKind storage = StorageKind::f32) {
  MlaProblem p;
  p.shape = s;
  p.T = T;
  p.n = n;
  p.scale = 1.5f / std::sqrt(static_cast<float>(s.nope_dim + s.rope_dim));
  p.q = random_values(n * s.heads * (s.nope_dim + s.rope_dim), seed, 2.0f);
  // Weights of the usual size: outputs about as large as the latent.
  const float size = std::sqrt(3.0f / static_cast<float>(s.latent_dim));
  p.w_uk = random_values(s.heads * s.nope_dim * s.latent_dim, seed + 1, size);
  p.w_uv = random_values(s.heads * s.value_dim * s.latent_dim, seed + 2, size);
  const std::vector<float> rows = random_values(T * (s.latent_dim + s.rope_dim), seed + 3, 2.0f);
  std::vector<std::byte> stored(static_cast<std::size_t>(mla_row_bytes(storage, s.latent_dim, s.rope_dim)));
  std::vector<float> values(static_cast<std::size_t>(s.latent_dim + s.rope_dim));
  for (std::int64_t t = 0; t < T; ++t) {
    mla_encode_row(storage, rows.data() + t * (s.latent_dim + s.rope_dim), s.latent_dim, s.rope_dim, stored.data());
    mla_decode_row(storage, stored.data(), s.latent_dim, s.rope_dim, values.data());
    p.latent.insert(p.latent.end(), values.begin(), values.begin() + s.latent_dim);
    p.rope_key.insert(p.rope_key.end(), values.begin() + s.latent_dim, values.end());
  }
  return p;
}

struct Answer {
  std::vector<float> out, lse;
};
Answer twin(MlaForm form, const MlaProblem& p) {
  Answer a;
  mla_twin(form, p, a.out, a.lse);
  return a;
}
double ratio(MlaForm form, const MlaProblem& p) {
  const Answer a = twin(form, p);
  return worst_error_over_bound(mla_oracle(form, p), a.out, a.lse);
}
void expect_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_EQ(float_bits(a[i]), float_bits(b[i])) << i;
}

// ---- both forms against the oracle
// -----------------------------------------------------------------------------------
TEST(ReferenceMla, BothFormsWithinTheirBoundsForEveryStorage) {
  double worst[2] = {0, 0};
  for (const StorageKind storage : {StorageKind::f32, StorageKind::f16, StorageKind::bf16, StorageKind::int8}) {
    struct Size {
      MlaShape shape;
      std::int64_t T, n;
    };
    for (const Size& size : {Size{kToy, 1, 1}, Size{kToy, 700, 3}, Size{{4, 24, 16, 40, 100}, 64, 5},
                             Size{{2, 1, 2, 1, 1}, 20, 20}, Size{{3, 33, 6, 17, 130}, 530, 2}}) {
      const MlaProblem p = problem(size.shape, size.T, size.n, 100 * static_cast<std::uint64_t>(size.T), storage);
      for (const MlaForm form : kForms) {
        const double r = ratio(form, p);
        EXPECT_LE(r, 1.0) << "T " << size.T << " d_c " << size.shape.latent_dim;
        worst[static_cast<std::size_t>(form)] = std::max(worst[static_cast<std::size_t>(form)], r);
      }
    }
  }
  EXPECT_GE(worst[0], 0.02) << "a bound this far from what happens says nothing";
  EXPECT_GE(worst[1], 0.02);
}

TEST(ReferenceMla, BothFormsWithinTheirBoundsAtRealSizes) {
  for (const std::int64_t T : {1, 7}) {
    const MlaProblem p = problem(kV2Lite, T, 1, static_cast<std::uint64_t>(T));
    for (const MlaForm form : kForms) EXPECT_LE(ratio(form, p), 1.0) << T;
  }
  const MlaProblem p = problem(kV3, 2, 1, 3);
  for (const MlaForm form : kForms) EXPECT_LE(ratio(form, p), 1.0);
}

TEST(LongReferenceMla, BothFormsWithinTheirBoundsAtLongContext) {
  for (const std::int64_t T : {64, 1000}) {
    const MlaProblem p = problem(kV2Lite, T, 1, static_cast<std::uint64_t>(T));
    for (const MlaForm form : kForms) EXPECT_LE(ratio(form, p), 1.0) << T;
  }
}

TEST(ReferenceMla, FormsDifferInBitsAndInBounds) {
  const MlaProblem p = problem(kToy, 100, 1, 5);
  EXPECT_NE(twin(MlaForm::reconstruct, p).out, twin(MlaForm::absorbed, p).out);
  const OracleAnswer a = mla_oracle(MlaForm::reconstruct, p), b = mla_oracle(MlaForm::absorbed, p);
  EXPECT_EQ(a.out, b.out);
  EXPECT_NE(a.out_bound, b.out_bound);
}

TEST(ReferenceMla, TheBoundCatchesWhatItMust) {
  const MlaProblem good = problem({4, 32, 16, 32, 64}, 200, 2, 6);
  for (const MlaForm form : kForms) {
    const OracleAnswer oracle = mla_oracle(form, good);
    const auto changed = [&](const std::function<void(MlaProblem&)>& change) {
      MlaProblem p = good;
      change(p);
      const Answer a = twin(form, p);
      return worst_error_over_bound(oracle, a.out, a.lse);
    };
    EXPECT_LE(changed([](MlaProblem&) {}), 1.0);
    EXPECT_GT(changed([](MlaProblem& p) { p.scale *= 1.001f; }), 1.0);
    EXPECT_GT(changed([](MlaProblem& p) { p.window = 199; }), 1.0);
    EXPECT_GT(changed([](MlaProblem& p) { std::fill(p.rope_key.begin(), p.rope_key.end(), 0.0f); }), 1.0)
        << "no rotated key";
    EXPECT_GT(changed([](MlaProblem& p) { std::rotate(p.w_uk.begin(), p.w_uk.begin() + 32 * 64, p.w_uk.end()); }), 1.0)
        << "W_UK of another head";
    EXPECT_GT(changed([](MlaProblem& p) { std::rotate(p.w_uv.begin(), p.w_uv.begin() + 32 * 64, p.w_uv.end()); }), 1.0);
  }
}

TEST(ReferenceMla, AbsorbedQueryGivesTheSameScores) {
  // q . (W_UK c) = (W_UK^T q) . c, here in exact integers.
  MlaProblem p = problem(kToy, 9, 2, 7);
  for (auto* x : {&p.q, &p.latent, &p.rope_key, &p.w_uk, &p.w_uv}) {
    for (float& value : *x) value = std::nearbyint(value * 2);
  }
  const AttentionProblem a = mla_reconstructed_problem(p), b = mla_absorbed_problem(p);
  const auto dot = [](const float* x, const float* y, std::int64_t d) {
    double sum = 0;
    for (std::int64_t i = 0; i < d; ++i) sum += static_cast<double>(x[i]) * y[i];
    return sum;
  };
  for (std::int64_t r = 0; r < 2; ++r) {
    for (std::int64_t h = 0; h < 8; ++h) {
      for (std::int64_t j = 0; j < 9; ++j) {
        EXPECT_EQ(dot(a.q.data() + (r * 8 + h) * 16, a.k.data() + (j * 8 + h) * 16, 16),
                  dot(b.q.data() + (r * 8 + h) * 24, b.k.data() + j * 24, 24));
      }
    }
  }
}

// ---- cases
// -----------------------------------------------------------------------------------------------------------
TEST(ReferenceMla, ChunkEqualsOneTokenAtATime) {
  const MlaProblem chunk = problem(kToy, 530, 6, 8);
  for (const MlaForm form : kForms) {
    const Answer all = twin(form, chunk);
    for (std::int64_t r = 0; r < 6; ++r) {
      MlaProblem one = chunk;
      one.n = 1;
      one.T = 530 - 6 + r + 1;
      one.q.assign(chunk.q.begin() + r * 128, chunk.q.begin() + (r + 1) * 128);
      expect_bits(twin(form, one).out, std::vector<float>(all.out.begin() + r * 64, all.out.begin() + (r + 1) * 64));
    }
  }
}

TEST(ReferenceMla, OneRowDoesNotDependOnTheScaleTwoDo) {
  EXPECT_NEAR(1.58963 / std::sqrt(192.0), 0.114721, 1e-6);
  EXPECT_NEAR(1.87385 / std::sqrt(192.0), 0.135234, 1e-6);
  for (const MlaForm form : kForms) {
    for (const std::int64_t T : {1, 2}) {
      MlaProblem p = problem(kToy, T, 1, 9);
      p.scale = 0.114721f;
      const Answer a = twin(form, p);
      p.scale = 1.0f / std::sqrt(192.0f);
      const Answer b = twin(form, p);
      EXPECT_EQ(a.out == b.out, T == 1);
    }
    MlaProblem none = problem(kToy, 2, 1, 9);
    none.scale = MlaProblem().scale;
    for (const float x : twin(form, none).out) EXPECT_TRUE(std::isnan(x)) << "a scale that was not given shows";
  }
}

TEST(ReferenceMla, WindowSinkAndCapWorkAsInPlainAttention) {
  MlaProblem p = problem(kToy, 60, 2, 10);
  p.window = 20;
  p.kept_tokens = 2;
  p.softcap = 3.0f;
  p.sink_logits.assign(8, 1.0f);
  for (const MlaForm form : kForms) {
    EXPECT_LE(ratio(form, p), 1.0);
    MlaProblem poisoned = p;
    for (std::int64_t j = 2; j < 60 - 2 - 20 + 1; ++j) {
      std::fill_n(poisoned.latent.begin() + j * 16, 16, kNaN);
      std::fill_n(poisoned.rope_key.begin() + j * 8, 8, kNaN);
    }
    expect_bits(twin(form, poisoned).out, twin(form, p).out);
    expect_bits(twin(form, poisoned).lse, twin(form, p).lse);
    poisoned.rope_key[59 * 8] = kNaN;  // the newest row: the last query alone sees it
    const Answer a = twin(form, poisoned), clean = twin(form, p);
    for (std::size_t i = 0; i < 128; ++i) {
      EXPECT_EQ(float_bits(a.out[i]), i < 64 ? float_bits(clean.out[i]) : 0x7fc00000u);
    }
    EXPECT_LE(ratio(form, poisoned), 1.0);
  }
}

TEST(ReferenceMla, ARowOfNothingButMinusInfinityIsEmpty) {
  MlaProblem p = problem(kToy, 3, 1, 11);
  std::fill(p.rope_key.begin(), p.rope_key.end(), 0.0f);
  for (std::int64_t j = 0; j < 3; ++j) p.rope_key[static_cast<std::size_t>(j * 8)] = -kInf;
  for (std::int64_t h = 0; h < 8; ++h) {
    std::fill_n(p.q.begin() + h * 16 + 8, 8, 0.5f);
  }
  for (const MlaForm form : kForms) {
    const Answer a = twin(form, p);
    for (const float x : a.out) EXPECT_EQ(float_bits(x), 0u);
    for (const float x : a.lse) EXPECT_EQ(x, -kInf);
    EXPECT_EQ(ratio(form, p), 0.0);
  }
}

// ---- stored rows
// -----------------------------------------------------------------------------------------------------
TEST(ReferenceMla, RowBytes) {
  EXPECT_EQ(mla_row_bytes(StorageKind::f32, 512, 64), 2304);
  EXPECT_EQ(mla_row_bytes(StorageKind::bf16, 512, 64), 1152);
  EXPECT_EQ(mla_row_bytes(StorageKind::int8, 512, 64), 656);
  EXPECT_EQ(27 * mla_row_bytes(StorageKind::f16, 512, 64), 31104) << "V2-Lite, against 276480 dense";
  EXPECT_EQ(27 * 16 * (192 + 128) * 2, 276480);
  EXPECT_EQ(61 * mla_row_bytes(StorageKind::f16, 512, 64) * 32768, std::int64_t{2196} << 20);
}

TEST(ReferenceMla, Int8RowsScaleEachGroupOf128Apart) {
  std::vector<float> row(300 + 4, 1.0f), back(304);
  std::fill(row.begin() + 128, row.begin() + 256, 1000.0f);
  std::fill(row.begin() + 256, row.begin() + 300, 1e-3f);
  row[300] = 1.00390625f;  // needs 9 bits: rounds in bf16
  std::vector<std::byte> stored(static_cast<std::size_t>(mla_row_bytes(StorageKind::int8, 300, 4)));
  mla_encode_row(StorageKind::int8, row.data(), 300, 4, stored.data());
  mla_decode_row(StorageKind::int8, stored.data(), 300, 4, back.data());
  for (std::size_t i = 0; i < 300; ++i) EXPECT_NEAR(back[i], row[i], row[i] * 0x1p-22) << "constant groups come back";
  EXPECT_EQ(back[300], 1.0f);
  EXPECT_EQ(back[301], 1.0f);
  row[5] = kNaN;
  mla_encode_row(StorageKind::int8, row.data(), 300, 4, stored.data());
  mla_decode_row(StorageKind::int8, stored.data(), 300, 4, back.data());
  for (std::size_t i = 0; i < 304; ++i) EXPECT_EQ(std::isnan(back[i]), i < 128) << "NaN stays in its group";
}

TEST(ReferenceMla, CompressIsProjectionThenRope) {
  MlaCompressor m;
  m.model_dim = 64;
  m.latent_dim = 16;
  m.rope_dim = 8;
  m.w_dkv = random_values(16 * 64, 1, 0.1f);
  m.w_kr = random_values(8 * 64, 2, 0.1f);
  for (int i = 0; i < 4; ++i) m.inv_freq.push_back(std::pow(10000.0, -i / 4.0));
  const std::vector<float> h = random_values(64, 3, 0.5f);
  for (const bool interleaved : {false, true}) {
    m.interleaved = interleaved;
    float latent[16], at_zero[8], at_seven[8];
    mla_compress_twin(m, h.data(), 0, latent, at_zero);
    mla_compress_twin(m, h.data(), 7, latent, at_seven);
    for (int i = 0; i < 16; ++i) {
      double exact = 0;
      for (int d = 0; d < 64; ++d)
        exact += static_cast<double>(m.w_dkv[static_cast<std::size_t>(i * 64 + d)]) * h[static_cast<std::size_t>(d)];
      EXPECT_NEAR(latent[i], exact, 1e-6);
    }
    for (int i = 0; i < 4; ++i) {
      const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + 4;
      const double c = std::cos(7 * m.inv_freq[static_cast<std::size_t>(i)]),
                   s = std::sin(7 * m.inv_freq[static_cast<std::size_t>(i)]);
      EXPECT_NEAR(at_seven[a], at_zero[a] * c - at_zero[b] * s, 1e-6);
      EXPECT_NEAR(at_seven[b], at_zero[b] * c + at_zero[a] * s, 1e-6);
    }
  }
}

// ---- the plain loops
// -------------------------------------------------------------------------------------------------
TEST(ReferenceMla, PlainLoopsAgreeWithTheOracleForEveryStorage) {
  for (const StorageKind storage : {StorageKind::f32, StorageKind::f16, StorageKind::bf16, StorageKind::int8}) {
    MlaProblem p = problem({4, 24, 16, 40, 140}, 50, 2, 12, storage);
    p.window = 30;
    const MlaShape& s = p.shape;
    const std::int64_t bytes = mla_row_bytes(storage, s.latent_dim, s.rope_dim) + 6;
    std::vector<std::byte> rows(static_cast<std::size_t>(bytes * p.T));
    std::vector<float> values(static_cast<std::size_t>(s.latent_dim + s.rope_dim));
    for (std::int64_t t = 0; t < p.T; ++t) {
      std::copy_n(p.latent.begin() + t * s.latent_dim, s.latent_dim, values.begin());
      std::copy_n(p.rope_key.begin() + t * s.rope_dim, s.rope_dim, values.begin() + s.latent_dim);
      mla_encode_row(storage, values.data(), s.latent_dim, s.rope_dim, rows.data() + t * bytes);
    }
    ScalarMla a;
    a.heads = s.heads;
    a.nope_dim = s.nope_dim;
    a.rope_dim = s.rope_dim;
    a.value_dim = s.value_dim;
    a.latent_dim = s.latent_dim;
    a.n = p.n;
    a.T = p.T;
    a.scale = p.scale;
    a.window = p.window;
    a.storage = storage;
    a.rows = rows.data();
    a.row_stride = bytes;
    a.w_uk = p.w_uk.data();
    a.w_uv = p.w_uv.data();
    a.q = p.q.data();
    const OracleAnswer oracle = mla_oracle(MlaForm::reconstruct, p);
    std::vector<float> scratch(static_cast<std::size_t>(mla_scratch_floats(a)));
    for (auto* form : {scalar_novec::mla_reconstruct, scalar_novec::mla_absorbed, scalar_vectorized::mla_reconstruct,
                       scalar_vectorized::mla_absorbed}) {
      std::vector<float> out(oracle.out.size());
      a.out = out.data();
      form(a, 0, 3, scratch.data());
      form(a, 3, 4, scratch.data());
      // Plain sums: chains of d_c, nope and T roundings; re-encoding an int8 row can move it by a last place.
      for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], oracle.out[i], 2e-4) << i;
    }
  }
}

}  // namespace
}  // namespace kvroof::reference
