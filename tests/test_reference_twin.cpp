// The lane twin against the oracle, within the stated bound. The kernels are held to the twin by bits, so what holds
// here holds for them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/cases.hpp"
#include "tests/support/small_problems.hpp"

namespace kvroof::reference {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(ReferenceTwin, WithinItsBoundOfTheOracleOverTheOptionSpace) {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const test::CaseSpec spec = test::random_spec(seed, 200000);
    const Answer a = answer(test::make_case(spec).problem);
    EXPECT_LE(a.ratio, 1.0) << test::describe(spec);
    worst = std::max(worst, a.ratio);
  }
  RecordProperty("worst_error_over_bound", std::to_string(worst));
  EXPECT_GE(worst, 0.05) << "a bound this far from what happens says nothing";
}

TEST(ReferenceTwin, WithinItsBoundAtLongContextWithValuesOfMeanOne) {
  for (const Storage storage : kStorages) {
    for (const std::int64_t T : {4095, 32769}) {
      test::CaseSpec spec;
      spec.T = T;
      spec.key_dim = spec.value_dim = 32;
      spec.k_storage = spec.v_storage = storage;
      spec.inputs = test::Inputs::mean_one;
      const Answer a = answer(test::make_case(spec).problem);
      EXPECT_LE(a.ratio, 1.0) << test::describe(spec);
      for (std::size_t d = 0; d < a.out.size(); ++d) {
        EXPECT_LE(a.oracle.out_bound[d], 1e-4) << "the bound must not grow with T";
      }
    }
  }
}

TEST(ReferenceTwin, TheBoundCatchesWhatItMust) {
  const AttentionProblem good = random_problem(700, 2, 48, 5);
  const OracleAnswer oracle = oracle_attention(good);
  const auto ratio = [&](const std::function<void(AttentionProblem&)>& change) {
    AttentionProblem p = good;
    change(p);
    std::vector<float> out, lse;
    lane_twin_attention(p, out, lse);
    return worst_error_over_bound(oracle, out, lse);
  };
  EXPECT_LE(ratio([](AttentionProblem&) {}), 1.0);
  EXPECT_GT(ratio([](AttentionProblem& p) { p.window = 698; }), 1.0) << "one row short for the last query";
  EXPECT_GT(ratio([](AttentionProblem& p) { p.scale *= 1.001f; }), 1.0);
  EXPECT_GT(ratio([](AttentionProblem& p) {
              for (std::size_t i = 1; i <= 20; ++i) p.v[p.v.size() - i] += 0.5f;
            }),
            1.0);
  EXPECT_GT(ratio([](AttentionProblem& p) { p.sink_logits.assign(4, 4.0f); }), 1.0);
  EXPECT_GT(ratio([](AttentionProblem& p) {
              for (float& x : p.k) x = bf16_to_f32(f32_to_bf16(x));
            }),
            1.0)
      << "keys rounded to bf16 are other keys";
  EXPECT_GT(ratio([](AttentionProblem& p) { p.v[0] = kNaN; }), 1.0);
  std::vector<float> out, lse;
  lane_twin_attention(good, out, lse);
  out.pop_back();
  EXPECT_GT(worst_error_over_bound(oracle, out, lse), 1.0) << "a missing element";
}

TEST(ReferenceTwin, ChunkEqualsOneTokenAtATime) {
  const AttentionProblem chunk = random_problem(1100, 30, 24, 9);
  std::vector<float> out, lse;
  lane_twin_attention(chunk, out, lse);
  for (std::int64_t r = 0; r < chunk.n; ++r) {
    AttentionProblem one = chunk;
    one.n = 1;
    one.T = chunk.T - chunk.n + r + 1;
    one.q.assign(chunk.q.begin() + r * 96, chunk.q.begin() + (r + 1) * 96);
    std::vector<float> o, l;
    lane_twin_attention(one, o, l);
    expect_bits(o, std::vector<float>(out.begin() + r * 96, out.begin() + (r + 1) * 96));
    expect_bits(l, std::vector<float>(lse.begin() + r * 4, lse.begin() + (r + 1) * 4));
  }
}

}  // namespace
}  // namespace kvroof::reference
