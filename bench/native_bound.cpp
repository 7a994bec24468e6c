#include "bench/native_bound.hpp"

#include <algorithm>
#include <cmath>

namespace kvroof::bench {
namespace {

double chain(double roundings) { return roundings * 0x1p-24 / (1 - roundings * 0x1p-24); }

}  // namespace

reference::OracleAnswer native_answer(const reference::AttentionProblem& p) {
  constexpr double kNarrow = 0x1p-9, kRest = 0x1p-20;
  reference::OracleAnswer answer = reference::oracle_attention(p);
  const auto dk = static_cast<std::size_t>(p.key_dim), dv = static_cast<std::size_t>(p.value_dim);
  const auto rows = static_cast<std::size_t>(p.T);
  const double scale = static_cast<double>(p.scale);
  std::vector<double> weight(rows), off(rows);
  double largest_off = 0;
  for (std::size_t j = 0; j < rows; ++j) {
    double score = 0, magnitude = 0;
    for (std::size_t d = 0; d < dk; ++d) {
      const double term = static_cast<double>(p.q[d]) * static_cast<double>(p.k[j * dk + d]);
      score += term;
      magnitude += std::abs(term);
    }
    weight[j] = std::exp(score * scale - answer.lse[0]);
    off[j] = (kNarrow + chain(static_cast<double>(p.key_dim) + 8)) * magnitude * std::abs(scale);
    largest_off = std::max(largest_off, off[j]);
  }
  const double sums = chain(600);
  double total = sums;
  for (std::size_t j = 0; j < rows; ++j) {
    off[j] = std::expm1(off[j] + largest_off + kRest) * (1 + kNarrow) + kNarrow;
    total += weight[j] * off[j];
  }
  for (std::size_t d = 0; d < dv; ++d) {
    double moved = 0, size = 0;
    for (std::size_t j = 0; j < rows; ++j) {
      const double v = static_cast<double>(p.v[j * dv + d]);
      moved += weight[j] * off[j] * std::abs(v - answer.out[d]);
      size += weight[j] * (1 + off[j]) * std::abs(v);
    }
    answer.out_bound[d] = total < 0.5 ? (moved + sums * size) / (1 - total) : INFINITY;
  }
  answer.lse_bound[0] = total < 0.5 ? -std::log1p(-total) + kRest * (1 + std::abs(answer.lse[0])) : INFINITY;
  return answer;
}

}  // namespace kvroof::bench
