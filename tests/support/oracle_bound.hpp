// Results against float64 in the tests of one mode: within the oracle's bound element by element; how much of the bound
// was used at most, and how loose the bound is, are kept and recorded with the test's result.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "reference/oracle.hpp"
#include "tests/support/attend.hpp"
#include "tests/support/compare.hpp"

namespace kvroof::test {

class OracleBound {
 public:
  // `bound` names it in a failure's text.
  void expect_within(const Attention& a, const reference::OracleAnswer& answer, const std::string& bound,
                     const std::string& what) {
    EXPECT_TRUE(within(a.out, answer.out, answer.out_bound, bound + " for out", what));
    EXPECT_TRUE(within(a.lse, answer.lse, answer.lse_bound, bound + " for lse", what));
    const double share = reference::worst_error_over_bound(answer, a.out, a.lse);
    EXPECT_LE(share, 1.0) << what;
    worst_ = std::max(worst_, share);
    double value = 0;
    for (const double x : answer.out) value = std::max(value, std::fabs(x));
    const double largest = *std::max_element(answer.out_bound.begin(), answer.out_bound.end());
    loosest_ = std::max(loosest_, value > 0 ? largest / value : 0.0);
  }
  void record() const {
    testing::Test::RecordProperty("worst_error_over_bound", std::to_string(worst_));
    testing::Test::RecordProperty("loosest_bound_over_value", std::to_string(loosest_));
  }
  double worst() const { return worst_; }
  double loosest() const { return loosest_; }  // a bound far above the values would hold for anything

 private:
  double worst_ = 0, loosest_ = 0;
};

}  // namespace kvroof::test
