// Medians and quartiles of small samples.
#pragma once

#include <vector>

namespace kvroof::bench {

// Quantile by linear interpolation between order statistics; NaN of nothing.
double quantile(std::vector<double> values, double at);
double median(const std::vector<double>& values);

struct Ratio {
  double median = 0, low = 0, high = 0;  // quartiles
  int n = 0;                             // pairs; 0: nothing measured
};

// Ratios a[i]/b[i] of the pairs in which both were measured (both > 0).
std::vector<double> pair_ratios(const std::vector<double>& a, const std::vector<double>& b);
Ratio summarize(const std::vector<double>& ratios);

}  // namespace kvroof::bench
