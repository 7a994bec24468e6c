#include "reference/oracle.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "reference/softmax_bound.hpp"

namespace kvroof::reference {
namespace {

constexpr double kU = kUnitRoundoff;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

ScoredRow score(const AttentionProblem& p, const Arithmetic& arithmetic, std::int64_t head, std::int64_t i,
                const float* q, std::int64_t j, std::int64_t index) {
  const float* k = p.k.data() + index * p.key_dim;
  const double scale = std::fabs(static_cast<double>(p.scale));
  double s = 0, magnitude = 0, inputs = 0, largest_q = 0;
  for (std::int64_t d = 0; d < p.key_dim; ++d) {
    const double product = static_cast<double>(q[d]) * k[d];
    s += product;
    magnitude += std::fabs(product);
    inputs += std::fabs(static_cast<double>(q[d])) + std::fabs(static_cast<double>(k[d]));
    largest_q = std::max(largest_q, std::fabs(static_cast<double>(q[d])));
  }
  double error = roundings(score_roundings(arithmetic, p.key_dim) + (p.k_scale.empty() ? 0 : 1));
  error += arithmetic.query * (1 + error);
  double underflow = static_cast<double>(p.key_dim + 20) * arithmetic.flush + arithmetic.flushed_input * inputs;
  // native mode's distances are of unscaled products: two of them may be twice as far apart
  bool overflow = magnitude * (arithmetic.pairs ? 2 : 1) >= FLT_MAX || largest_q * (1 + arithmetic.query) >= FLT_MAX;
  if (!p.k_scale.empty()) {
    const double row_scale = p.k_scale[static_cast<std::size_t>(index)];
    s *= row_scale;
    magnitude *= std::fabs(row_scale);
    underflow = underflow * std::fabs(row_scale) + kSmallest;
    overflow = overflow || magnitude >= FLT_MAX;
  }
  s *= p.scale;
  error = error * magnitude * scale + underflow * scale + kSmallest;
  overflow = overflow || std::fabs(s) >= FLT_MAX;
  cap_score(p.softcap, s, error);
  if (!p.alibi_slopes.empty()) {
    const double bias =
        static_cast<double>(p.alibi_slopes[static_cast<std::size_t>(head)]) * static_cast<double>(j - i);
    s += bias;
    error += kU * std::fabs(bias) + kU * std::fabs(s) + kSmallest;
    overflow = overflow || std::fabs(s) >= FLT_MAX;
  }
  return {j, s, overflow ? kInfinity : error};
}

struct RowAnswer {
  double *out, *out_bound;  // [Dv]
  double &lse, &lse_bound;
};

void solve(const AttentionProblem& p, const Arithmetic& arithmetic, std::int64_t r, std::int64_t head,
           RowAnswer answer) {
  const std::int64_t i = p.T - p.n + r, kv_head = head / (p.query_heads / p.kv_heads);
  const float* q = p.q.data() + (r * p.query_heads + head) * p.key_dim;
  std::vector<ScoredRow> rows;
  std::vector<std::size_t> index;  // of each row in K and V
  for (std::int64_t j = 0; j < p.T; ++j) {
    if (!p.visible(i, j)) continue;
    index.push_back(static_cast<std::size_t>(j * p.kv_heads + kv_head));
    rows.push_back(score(p, arithmetic, head, i, q, j, j * p.kv_heads + kv_head));
  }
  const float* sink = p.sink_logits.empty() ? nullptr : &p.sink_logits[static_cast<std::size_t>(head)];
  const Softmax softmax = softmax_with_bound(rows, sink, p.T, p.v_scale.empty() ? 0 : 1, arithmetic);

  answer.lse = softmax.nan ? std::nan("") : softmax.lse;
  answer.lse_bound = softmax.lse_bound;
  std::vector<double> v(rows.size()), size(rows.size());
  for (std::int64_t d = 0; d < p.value_dim; ++d) {
    if (softmax.nan || softmax.empty) {
      answer.out[d] = softmax.nan ? std::nan("") : 0.0;
      answer.out_bound[d] = 0.0;
      continue;
    }
    double o = 0, stored_max = 0;
    for (std::size_t x = 0; x < rows.size(); ++x) {
      const double stored = p.v[index[x] * static_cast<std::size_t>(p.value_dim) + static_cast<std::size_t>(d)];
      v[x] = p.v_scale.empty() ? stored : stored * p.v_scale[index[x]];
      size[x] = std::fabs(v[x]);
      stored_max = std::max(stored_max, std::fabs(stored));
      o += softmax.weight[x] * v[x];
    }
    answer.out[d] = o;
    answer.out_bound[d] = softmax.out_bound(o, v, size, 0, stored_max);
  }
}

}  // namespace

OracleAnswer oracle_attention(const AttentionProblem& p, const Arithmetic& arithmetic) {
  OracleAnswer a;
  const std::size_t rows = static_cast<std::size_t>(p.n * p.query_heads);
  a.out.resize(rows * static_cast<std::size_t>(p.value_dim));
  a.out_bound.resize(a.out.size());
  a.lse.resize(rows);
  a.lse_bound.resize(rows);
  for (std::int64_t r = 0; r < p.n; ++r) {
    for (std::int64_t head = 0; head < p.query_heads; ++head) {
      const std::int64_t first = (r * p.query_heads + head) * p.value_dim;
      const std::size_t row = static_cast<std::size_t>(r * p.query_heads + head);
      solve(p, arithmetic, r, head, {a.out.data() + first, a.out_bound.data() + first, a.lse[row], a.lse_bound[row]});
    }
  }
  return a;
}

double worst_error_over_bound(const OracleAnswer& answer, const std::vector<float>& out,
                              const std::vector<float>& lse) {
  if (out.size() != answer.out.size() || lse.size() != answer.lse.size()) return kInfinity;
  double worst = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    worst = std::max(worst, error_over_bound(out[i], answer.out[i], answer.out_bound[i]));
  }
  for (std::size_t i = 0; i < lse.size(); ++i) {
    worst = std::max(worst, error_over_bound(lse[i], answer.lse[i], answer.lse_bound[i]));
  }
  return worst;
}

}  // namespace kvroof::reference
