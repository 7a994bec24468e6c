// Decode attention against float64: within the bound that reference/oracle.hpp states, element by element, for every
// instruction set, storage and option. The largest share of the bound that was used is recorded with the test's result.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/oracle.hpp"
#include "tests/support/attend.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

class AttentionOracle : public EachIsa {
 protected:
  void check(const CaseSpec& spec) {
    const Case c = make_case(spec);
    How how;
    how.isa = isa();
    how.parts = 3;
    const Attention a = attend(c, random_layout(spec.seed), how);
    const reference::OracleAnswer answer = reference::oracle_attention(c.problem);
    const std::string what = describe(spec) + " " + describe(how);
    EXPECT_TRUE(within(a.out, answer.out, answer.out_bound, "the bound of oracle.hpp for out", what));
    EXPECT_TRUE(within(a.lse, answer.lse, answer.lse_bound, "the bound of oracle.hpp for lse", what));
    const double share = reference::worst_error_over_bound(answer, a.out, a.lse);
    EXPECT_LE(share, 1.0) << what;
    worst_ = std::max(worst_, share);
    // A bound far above the values would hold for anything.
    double largest = 0, bound = 0;
    for (std::size_t i = 0; i < answer.out.size(); ++i) {
      largest = std::max(largest, std::fabs(answer.out[i]));
      bound = std::max(bound, answer.out_bound[i]);
    }
    loosest_ = std::max(loosest_, largest > 0 ? bound / largest : 0.0);
  }
  void TearDown() override {
    if (IsSkipped()) return;
    RecordProperty("worst_error_over_bound", std::to_string(worst_));
    RecordProperty("loosest_bound_over_value", std::to_string(loosest_));
  }

  double worst_ = 0, loosest_ = 0;
};

TEST_P(AttentionOracle, StoragesAndGroups) {
  for (const Storage k : kStorages) {
    for (const Storage v : kStorages) {
      for (const std::int64_t group : {1, 4, 7, 16}) {
        CaseSpec spec;
        spec.query_heads = group;
        spec.T = 700;
        spec.value_dim = 50;
        spec.k_storage = k;
        spec.v_storage = v;
        spec.seed = static_cast<std::uint64_t>(group) + 3;
        check(spec);
      }
    }
  }
  EXPECT_LE(loosest_, 1e-3);
}

TEST_P(AttentionOracle, HeadDims) {
  for (const std::int64_t d : {1, 8, 33, 64, 65, 80, 112, 128, 160, 192, 256, 512, 576}) {
    for (const Storage storage : kStorages) {
      CaseSpec spec;
      spec.query_heads = 2;
      spec.key_dim = spec.value_dim = d;
      spec.T = 150;
      spec.scale = 1.0f / std::sqrt(static_cast<float>(d));
      spec.k_storage = spec.v_storage = storage;
      spec.seed = static_cast<std::uint64_t>(d);
      check(spec);
    }
  }
}

// Values around 1 do not cancel, so the sums grow like T and every lost bit shows.
TEST_P(AttentionOracle, LongContextWithMeanOne) {
  for (const Storage storage : kStorages) {
    CaseSpec spec;
    spec.T = 65536;
    spec.key_dim = 16;
    spec.value_dim = 4;
    spec.k_storage = spec.v_storage = storage;
    spec.inputs = Inputs::mean_one;
    check(spec);
    spec.inputs = Inputs::rising;
    check(spec);
  }
}

TEST_P(AttentionOracle, RandomCases) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    CaseSpec spec = random_spec(seed + 9000, 500000);
    check(spec);
  }
}

KVROOF_INSTANTIATE_EACH_ISA(AttentionOracle);

}  // namespace
}  // namespace kvroof::test
