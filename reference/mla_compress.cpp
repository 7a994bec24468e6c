#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "reference/lane_twin.hpp"
#include "reference/mla.hpp"

namespace kvroof::reference {

void mla_compress_twin(const MlaCompressor& m, const float* h, std::int64_t position, float* latent, float* rope_key) {
  twin_project(m.w_dkv.data(), h, m.latent_dim, m.model_dim, latent);
  twin_project(m.w_kr.data(), h, m.rope_dim, m.model_dim, rope_key);
  twin_rope(rope_key, m.rope_dim, position, m.inv_freq.data(), m.interleaved);
}

namespace {

// Eigenvectors of a symmetric matrix by cyclic Jacobi rotations (Golub and Van Loan, section 8.5): columns of
// `vectors`.
void jacobi(std::vector<double>& a, std::size_t n, std::vector<double>& vectors) {
  vectors.assign(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) vectors[i * n + i] = 1.0;
  for (int sweep = 0; sweep < 60; ++sweep) {
    double off = 0, diagonal = 0;
    for (std::size_t i = 0; i < n; ++i) {
      diagonal += a[i * n + i] * a[i * n + i];
      for (std::size_t j = i + 1; j < n; ++j) off += a[i * n + j] * a[i * n + j];
    }
    if (off <= 1e-30 * diagonal) return;
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        if (a[p * n + q] == 0.0) continue;
        const double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
        const double t = (theta >= 0 ? 1.0 : -1.0) / (std::fabs(theta) + std::hypot(theta, 1.0));
        const double c = 1 / std::hypot(t, 1.0), s = t * c;
        const auto rotate = [&](double& x, double& y) {
          const double old = x;
          x = c * old - s * y;
          y = s * old + c * y;
        };
        for (std::size_t i = 0; i < n; ++i) rotate(a[i * n + p], a[i * n + q]);
        for (std::size_t i = 0; i < n; ++i) rotate(a[p * n + i], a[q * n + i]);
        for (std::size_t i = 0; i < n; ++i) rotate(vectors[i * n + p], vectors[i * n + q]);
      }
    }
  }
}

}  // namespace

MlaFactors mla_factorise(const std::vector<double>& dense, std::int64_t outputs, std::int64_t model_dim,
                         std::int64_t latent_dim) {
  const auto n = static_cast<std::size_t>(model_dim), rank = static_cast<std::size_t>(latent_dim);
  const auto rows = static_cast<std::size_t>(outputs);
  std::vector<double> gram(n * n, 0.0), vectors;
  for (std::size_t o = 0; o < rows; ++o) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) gram[i * n + j] += dense[o * n + i] * dense[o * n + j];
    }
  }
  jacobi(gram, n, vectors);
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t x, std::size_t y) { return gram[x * n + x] > gram[y * n + y]; });

  MlaFactors f;
  f.down.resize(rank * n);
  f.up.assign(rows * rank, 0.0);
  for (std::size_t c = 0; c < rank; ++c) {
    for (std::size_t i = 0; i < n; ++i) f.down[c * n + i] = vectors[i * n + order[c]];
  }
  for (std::size_t o = 0; o < rows; ++o) {
    for (std::size_t c = 0; c < rank; ++c) {
      for (std::size_t i = 0; i < n; ++i) f.up[o * rank + c] += dense[o * n + i] * f.down[c * n + i];
    }
  }
  return f;
}

}  // namespace kvroof::reference
