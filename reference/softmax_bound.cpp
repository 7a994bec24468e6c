#include "reference/softmax_bound.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <limits>

namespace kvroof::reference {
namespace {

constexpr double kU = kUnitRoundoff;
constexpr double kExpError = 1.5 * kU, kTanhError = 2.5 * kU, kLogError = 3.0 * kU;
constexpr std::int64_t kSegmentRows = 512, kStripes = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

double score_roundings(const Arithmetic& arithmetic, std::int64_t dim) {
  const std::int64_t chain = arithmetic.pairs ? (dim + 1) / 2 * 2 : (dim + kStripes - 1) / kStripes;
  return static_cast<double>(chain + 4 + 1);
}

void cap_score(double cap, double& score, double& error) {
  if (cap == kInfinity) return;
  score = cap * std::tanh(score / cap);
  error += (2 * kU + kTanhError) * std::fabs(score) + kSmallest * (cap + 1);
}

Softmax softmax_with_bound(const std::vector<ScoredRow>& rows, const float* sink, std::int64_t T,
                           double extra_roundings, const Arithmetic& arithmetic) {
  Softmax s;
  s.flush = arithmetic.flush;
  const double t = sink != nullptr ? static_cast<double>(*sink) : -kInfinity;
  double largest = -kInfinity, worst_score_error = 0;
  s.nan = t != t;
  for (const ScoredRow& row : rows) {
    largest = std::max(largest, row.score);
    worst_score_error = std::max(worst_score_error, row.score_error);
    s.nan = s.nan || row.score != row.score;
  }
  if (s.nan) return s;
  if (largest == -kInfinity) {
    s.empty = true;
    s.lse = t;
    return s;
  }
  largest = std::max(largest, t);
  s.sum = sink != nullptr ? std::exp(t - largest) : 0.0;
  for (const ScoredRow& row : rows) s.sum += std::exp(row.score - largest);
  s.lse = largest + std::log(s.sum);

  int tree_levels = 0;
  while ((kSegmentRows << tree_levels) < T) ++tree_levels;
  const double levels = tree_levels, with_sink = sink != nullptr ? 1.0 : 0.0;
  const double sink_weight = sink != nullptr ? std::exp(t - largest) / s.sum : 0.0;
  if (sink_weight > 0) s.sink_moved = sink_weight * std::expm1(kU * (largest - t + 2 * worst_score_error) + kExpError);
  s.l_error = roundings(static_cast<double>(kSegmentRows / kStripes) + 4 + 2 * levels + with_sink);
  s.total = s.l_error + s.sink_moved + static_cast<double>(rows.size()) * 0x1p-126;

  const std::size_t count = rows.size();
  s.weight.resize(count);
  s.moved.resize(count);
  s.chained.resize(count);
  std::size_t segment_end = count;
  for (std::size_t i = count; i-- > 0;) {
    const ScoredRow& row = rows[i];
    if (i + 1 < count && rows[i + 1].position / kSegmentRows != row.position / kSegmentRows) segment_end = i + 1;
    const double weight = std::exp(row.score - largest) / s.sum;
    const double distance = largest - row.score + 2 * worst_score_error;
    const double exponent = row.score_error + kU * arithmetic.distance * distance +
                            kU * arithmetic.max * (std::fabs(row.score) + distance) +
                            kExpError * (1 + levels + with_sink);
    const double own = std::expm1(exponent), r = weight > 0 ? own + arithmetic.weight * (1 + own) : 0.0;
    s.weight[i] = weight;
    s.moved[i] = weight * r;
    s.chained[i] = weight * (1 + r) *
                   roundings(static_cast<double>(segment_end - i) + extra_roundings + arithmetic.value_chain +
                             2 * levels + with_sink);
    s.total += s.moved[i];
  }
  s.lse_bound = s.total < 0.5 ? -std::log1p(-s.total) + kLogError * std::log(s.sum) + kU * std::fabs(s.lse) + kSmallest
                              : kInfinity;
  return s;
}

double Softmax::out_bound(double o, const std::vector<double>& v, const std::vector<double>& size,
                          double size_roundings, double stored_max) const {
  const double rows = static_cast<double>(weight.size()), more = roundings(size_roundings);
  double error = (sink_moved + l_error) * std::fabs(o), value_max = 0;
  for (std::size_t i = 0; i < weight.size(); ++i) {
    error += moved[i] * std::fabs(v[i] - o) + (chained[i] * (1 + more) + (weight[i] + moved[i]) * more) * size[i];
    value_max = std::max(value_max, size[i]);
  }
  error += rows * (0x1p-126 * (value_max + std::fabs(o)) + flush * (8 + stored_max)) + 64 * flush;
  error = error / (1 - total);
  error += kU * (std::fabs(o) + error) + kSmallest;
  return total < 0.5 && value_max * sum * 2 < FLT_MAX ? error : kInfinity;
}

double error_over_bound(double actual, double expected, double bound) {
  if (std::isnan(expected) || std::isnan(actual)) return std::isnan(expected) && std::isnan(actual) ? 0.0 : kInfinity;
  if (std::isinf(expected) || std::isinf(actual)) {
    // A float may overflow where the bound admits it.
    return actual == expected || bound == kInfinity ? 0.0 : kInfinity;
  }
  if (!(bound >= 0)) return kInfinity;
  const double error = std::fabs(actual - expected);
  return error == 0.0 ? 0.0 : error / bound;
}

}  // namespace kvroof::reference
