// The sources' facts about latent compression: what it saves, what it loses, and why the rotated key is kept apart.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/inputs.hpp"
#include "reference/mla.hpp"
#include "reference/mla_row.hpp"
#include "reference/seed.hpp"

namespace kvroof::reference {
namespace {

using Matrix = std::vector<double>;

Matrix multiply(const Matrix& a, const Matrix& b, std::size_t rows, std::size_t inner, std::size_t columns) {
  Matrix c(rows * columns, 0.0);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t k = 0; k < inner; ++k) {
      for (std::size_t j = 0; j < columns; ++j) c[i * columns + j] += a[i * inner + k] * b[k * columns + j];
    }
  }
  return c;
}

double distance(const Matrix& a, const Matrix& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double norm(const Matrix& a) { return distance(a, Matrix(a.size(), 0.0)); }

// Keys and values of 8 heads of 8 from a model of 64: the weights that the latent replaces, stacked.
Matrix dense_weights() {
  SeedRandom random(42);
  Matrix w(128 * 64);
  for (double& x : w) x = random.around_zero(0.1f);
  return w;
}

TEST(FactsMla, CompressionLosesLessAsTheLatentGrowsAndNothingAtFullRank) {
  const Matrix dense = dense_weights();
  Matrix h(64 * 10);  // ten hidden states, one a column
  for (std::size_t i = 0; i < h.size(); ++i) h[i] = static_cast<double>(uniform(3, i));
  const Matrix exact = multiply(dense, h, 128, 64, 10);
  double before = norm(dense) * (1 + 1e-12);
  for (std::int64_t d_c = 1; d_c <= 64; ++d_c) {
    const MlaFactors f = mla_factorise(dense, 128, 64, d_c);
    const auto rank = static_cast<std::size_t>(d_c);
    const double loss = distance(multiply(f.up, f.down, 128, rank, 64), dense);
    EXPECT_LT(loss, before) << "latent of " << d_c;
    before = loss;
    // The keys and values themselves, through the latent.
    const Matrix latent = multiply(f.down, h, rank, 64, 10);
    const double error = distance(multiply(f.up, latent, 128, rank, 10), exact) / norm(exact);
    if (d_c <= 60) {
      EXPECT_GT(error, 1e-3) << "lossy: compressing and decompressing does not give the original back";
    }
    if (d_c == 64) {
      EXPECT_LT(error, 1e-13) << "full rank: nothing lost but rounding";
    }
  }
}

TEST(FactsMla, TheFactorsAreTheBestThereAre) {
  // Eckart-Young: no other pair of this rank is nearer. Random perturbations of the best one must all be worse.
  const Matrix dense = dense_weights();
  const MlaFactors best = mla_factorise(dense, 128, 64, 16);
  const double least = distance(multiply(best.up, best.down, 128, 16, 64), dense);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    MlaFactors f = best;
    for (std::size_t i = 0; i < f.up.size(); ++i) f.up[i] += 1e-3 * static_cast<double>(uniform(seed, i));
    for (std::size_t i = 0; i < f.down.size(); ++i) f.down[i] += 1e-3 * static_cast<double>(uniform(seed + 100, i));
    EXPECT_GT(distance(multiply(f.up, f.down, 128, 16, 64), dense), least);
  }
}

TEST(FactsMla, TheToysLatentIsAnApproximation) {
  // The sources' own toy: a latent of 16 from 64 keeps at most 16 independent directions of keys and values.
  const SeedMla m = seed_mla();
  EXPECT_EQ(m.latent.size(), 16u);
  EXPECT_EQ(m.k.size() + m.v.size(), 128u);
  // From the rebuilt keys of 17 different states, the 17th is a combination of the first 16: rank 16, as nothing wider
  // fits through. Shown by the eigenvalues of the rebuilt weight's Gram matrix: from the 17th on they vanish.
  Matrix up(128 * 16), down(16 * 64);
  for (std::size_t i = 0; i < 64 * 16; ++i) up[i] = m.w_uk[i], up[64 * 16 + i] = m.w_uv[i];
  for (std::size_t i = 0; i < 16 * 64; ++i) down[i] = m.w_dkv[i];
  const Matrix through = multiply(up, down, 128, 16, 64);
  const auto loss = [&](std::int64_t rank) {
    const MlaFactors f = mla_factorise(through, 128, 64, rank);
    return distance(multiply(f.up, f.down, 128, static_cast<std::size_t>(rank), 64), through) / norm(through);
  };
  EXPECT_GT(loss(15), 1e-3);
  EXPECT_LT(loss(16), 1e-7);
}

// ---- why the position cannot go through the latent
// -------------------------------------------------------------------
void rotate(double* x, std::size_t d, double position) {
  for (std::size_t i = 0; i < d / 2; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(d));
    const double a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * std::cos(angle) - b * std::sin(angle);
    x[2 * i + 1] = b * std::cos(angle) + a * std::sin(angle);
  }
}

TEST(FactsMla, RopeCannotGoThroughTheLatent) {
  constexpr std::size_t kDim = 8, kLatent = 16;
  Matrix w(kDim * kLatent), c(kLatent), q(kDim);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<double>(uniform(1, i));
  for (std::size_t i = 0; i < kLatent; ++i) c[i] = static_cast<double>(uniform(2, i));
  for (std::size_t i = 0; i < kDim; ++i) q[i] = static_cast<double>(uniform(3, i));
  const auto dot = [](const Matrix& a, const Matrix& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  const auto turned = [](Matrix x, double position) {
    rotate(x.data(), x.size(), position);
    return x;
  };
  Matrix w_transposed(kLatent * kDim);
  for (std::size_t i = 0; i < kDim; ++i) {
    for (std::size_t j = 0; j < kLatent; ++j) w_transposed[j * kDim + i] = w[i * kLatent + j];
  }
  const Matrix key = multiply(w, c, kDim, kLatent, 1);
  const double i = 9;
  // What a rotated full key gives, by distance.
  const auto wanted = [&](double j) { return dot(turned(q, i), turned(key, j)); };
  // One fold of W_UK into the query, made once for the query, scored against unrotated latents: the key's position is
  // gone. Right at distance 0 from whichever position it was folded for, wrong at every other.
  const auto folded = [&](double folded_for) {
    return dot(multiply(w_transposed, turned(turned(q, i), -folded_for), kLatent, kDim, 1), c);
  };
  EXPECT_NEAR(folded(4), wanted(4), 1e-12);
  for (const double j : {0.0, 1.0, 3.0, 5.0, 9.0}) EXPECT_GT(std::fabs(folded(4) - wanted(j)), 1e-3) << j;
  // Rotating the latent before it is cached is another key altogether: W_UK and the rotation do not commute.
  for (const double j : {1.0, 3.0, 9.0}) {
    EXPECT_GT(distance(multiply(w, turned(c, j), kDim, kLatent, 1), turned(key, j)), 1e-2) << j;
  }
  // Without a position both ways are one: the part of the key that comes from the latent can be folded.
  EXPECT_NEAR(dot(q, key), dot(multiply(w_transposed, q, kLatent, kDim, 1), c), 1e-12);
}

TEST(FactsMla, TheDecoupledKeyCarriesThePosition) {
  // Same content at every position: only the rotated key tells rows apart, and both forms see it.
  MlaProblem p;
  p.shape = {1, 8, 8, 1, 16};
  p.T = 12;
  p.n = 1;
  p.scale = 1.0f;
  for (std::uint64_t i = 0; i < 8 * 16; ++i) p.w_uk.push_back(uniform(1, i));
  for (std::uint64_t i = 0; i < 16; ++i) p.w_uv.push_back(uniform(2, i));
  MlaCompressor m;
  m.model_dim = 4;
  m.latent_dim = 16;
  m.rope_dim = 8;
  for (std::uint64_t i = 0; i < 16 * 4; ++i) m.w_dkv.push_back(uniform(4, i));
  for (std::uint64_t i = 0; i < 8 * 4; ++i) m.w_kr.push_back(uniform(5, i));
  for (int i = 0; i < 4; ++i) m.inv_freq.push_back(std::pow(10000.0, -i / 4.0));
  const float h[4] = {0.5f, -0.2f, 0.8f, 0.1f};
  for (std::int64_t t = 0; t < p.T; ++t) {
    float latent[16], rope_key[8];
    mla_compress_twin(m, h, t, latent, rope_key);
    p.latent.insert(p.latent.end(), latent, latent + 16);
    p.rope_key.insert(p.rope_key.end(), rope_key, rope_key + 8);
  }
  for (std::uint64_t i = 0; i < 8; ++i) p.q.push_back(uniform(6, i));
  p.q.insert(p.q.end(), p.rope_key.begin(), p.rope_key.begin() + 8);  // aligned with position 0
  const OracleAnswer with = mla_oracle(MlaForm::absorbed, p);
  MlaProblem turned = p;
  std::copy(p.rope_key.begin() + 5 * 8, p.rope_key.begin() + 6 * 8, turned.q.begin() + 8);
  EXPECT_GT(std::fabs(mla_oracle(MlaForm::absorbed, turned).lse[0] - with.lse[0]), 1e-3);
}

}  // namespace
}  // namespace kvroof::reference
