// Decode attention against float64: within the bound that reference/oracle.hpp states, element by element, for every
// instruction set, storage and option. The largest share of the bound that was used is recorded with the test's result.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/each_isa.hpp"
#include "tests/support/oracle_bound.hpp"

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
    bound_.expect_within(a, reference::oracle_attention(c.problem), "the bound of oracle.hpp",
                         describe(spec) + " " + describe(how));
  }
  void TearDown() override {
    if (!IsSkipped()) bound_.record();
  }

  OracleBound bound_;
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
  EXPECT_LE(bound_.loosest(), 1e-3);
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
