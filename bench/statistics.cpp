#include "bench/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvroof::bench {

double quantile(std::vector<double> values, double at) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double place = at * static_cast<double>(values.size() - 1);
  const std::size_t low = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (place - static_cast<double>(low));
}

double median(const std::vector<double>& values) { return quantile(values, 0.5); }

std::vector<double> pair_ratios(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    if (a[i] > 0 && b[i] > 0) ratios.push_back(a[i] / b[i]);
  return ratios;
}

Ratio summarize(const std::vector<double>& ratios) {
  Ratio ratio;
  if (ratios.empty()) return ratio;
  ratio.median = median(ratios);
  ratio.low = quantile(ratios, 0.25);
  ratio.high = quantile(ratios, 0.75);
  ratio.n = static_cast<int>(ratios.size());
  return ratio;
}

}  // namespace kvroof::bench
