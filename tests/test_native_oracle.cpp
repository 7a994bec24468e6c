// Native mode against float64: within the bound that reference/oracle.hpp states for it, element by element. The
// largest share of the bound that was used is recorded with the test's result.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/native.hpp"
#include "tests/support/oracle_bound.hpp"

namespace kvroof::test {
namespace {

constexpr std::int64_t kGroups[] = {1, 2, 3, 4, 5, 8, 12, 16, 20, 32, 33, 128};

class NativeOracle : public NativeMode {
 protected:
  void check(const CaseSpec& spec, int parts = 3) {
    const Case c = make_case(spec);
    compare(c, attend(c, random_layout(spec.seed), how(parts)));
  }
  void compare(const Case& c, const Attention& a) {
    const reference::OracleAnswer answer = reference::oracle_attention(c.problem, reference::kNativeBf16Arithmetic);
    const std::string what = describe(c.spec);
    ++checked_;
    if (std::any_of(answer.lse_bound.begin(), answer.lse_bound.end(), [](double b) { return std::isinf(b); })) {
      ++unbounded_;  // scores so large that a rounded query may turn their order over
      for (const float x : a.out) EXPECT_TRUE(std::isfinite(x)) << what;
      return;
    }
    bound_.expect_within(a, answer, "native mode's bound of oracle.hpp", what);
  }
  void TearDown() override {
    if (IsSkipped()) return;
    bound_.record();
  }

  OracleBound bound_;
  int checked_ = 0, unbounded_ = 0;
};

TEST_F(NativeOracle, GroupsAndChunks) {
  std::uint64_t seed = 0;
  for (const std::int64_t group : kGroups) {
    for (std::int64_t n = 1; n <= 9; ++n) {
      const std::int64_t heads = group <= 5 ? 3 : group <= 33 ? 2 : 1;
      check(native_spec(group * heads, heads, 48, 40, n, group > 20 ? 150 : 530, ++seed));
    }
  }
  EXPECT_EQ(unbounded_, 0);
  EXPECT_LE(bound_.loosest(), 0.15);
  EXPECT_GE(bound_.worst(), 0.04) << "the bound says nothing any more";
}

// Values of either parity, not multiples of a register; key and value dims apart.
TEST_F(NativeOracle, HeadDims) {
  constexpr std::int64_t dims[] = {1,  2,   3,   5,   15,  16,  17,  31,  32,  33,  63,  64,  65,
                                   80, 100, 112, 127, 128, 129, 160, 192, 255, 256, 257, 512, 576};
  std::uint64_t seed = 100;
  for (const std::int64_t dk : dims) {
    for (const std::int64_t group : {1, 3, 12, 17}) {
      const std::int64_t dv = dims[(seed * 7) % std::size(dims)];
      ++seed;
      CaseSpec spec = native_spec(group, 1, dk, dv, 1 + static_cast<std::int64_t>(seed % 3), 150, seed);
      spec.scale = 1.0f / std::sqrt(static_cast<float>(dk));
      check(spec);
    }
  }
  EXPECT_EQ(unbounded_, 0);
  EXPECT_LE(bound_.loosest(), 0.4);
}

// Absorbed MLA: V is a part of the K row, and named so.
TEST_F(NativeOracle, LatentRows) {
  for (const std::int64_t heads : {16, 128}) {
    for (const std::int64_t n : {1, 2}) {
      CaseSpec spec = native_spec(heads, 1, 576, 512, n, 600, static_cast<std::uint64_t>(heads + n));
      spec.scale = 1.0f / std::sqrt(192.0f);
      const LatentCase latent(spec, 512);
      compare(latent.source, attend_view(latent.source, latent.view, how(2)));
    }
  }
  const LatentCase odd(native_spec(5, 1, 41, 33, 3, 700, 9), 33);
  compare(odd.source, attend_view(odd.source, odd.view, how(2)));
  EXPECT_EQ(unbounded_, 0);
}

TEST_F(NativeOracle, LengthsAroundSegments) {
  std::uint64_t seed = 300;
  for (const std::int64_t T : {1, 2, 3, 15, 16, 17, 31, 32, 33, 127, 128, 129, 511, 512, 513, 1023, 1025, 1536, 4097}) {
    for (const std::int64_t group : {1, 2, 12}) check(native_spec(group, 1, 33, 34, 1, T, ++seed));
  }
  EXPECT_EQ(unbounded_, 0);
}

TEST_F(NativeOracle, Options) {
  std::uint64_t seed = 400;
  for (const std::int64_t group : {1, 4, 12, 20}) {
    for (const float scale : {0.125f, -0.3f, 0.0f, 1.0f, 0x1p-120f}) {
      for (const std::int64_t window : {kAll, std::int64_t{1}, std::int64_t{7}, std::int64_t{300}}) {
        ++seed;
        CaseSpec spec = native_spec(2 * group, 2, 40, 24, 1 + static_cast<std::int64_t>(seed % 5), 700, seed);
        spec.scale = scale;
        spec.window = window;
        spec.kept_tokens = seed % 2 == 0 ? 0 : 5;
        spec.softcap = seed % 3 == 0 ? 5.0f : std::numeric_limits<float>::infinity();
        spec.alibi = seed % 4 < 2;
        spec.sink = seed % 5 < 3;
        check(spec);
      }
    }
  }
  EXPECT_EQ(unbounded_, 0);
}

// Values around 1 do not cancel, so the sums grow like T and every lost bit shows.
TEST_F(NativeOracle, LongContextWithMeanOne) {
  for (const std::int64_t group : {1, 12}) {
    CaseSpec spec = native_spec(group, 1, 16, 4, 1, 131072, 5);
    spec.inputs = Inputs::mean_one;
    check(spec, 1);
  }
  EXPECT_EQ(unbounded_, 0);
  EXPECT_LE(bound_.loosest(), 0.005) << "the bound must not grow with T";
}

TEST_F(NativeOracle, RandomCases) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) check(random_native_spec(seed + 40000, 400000));
  EXPECT_LE(unbounded_, checked_ / 3);
}

}  // namespace
}  // namespace kvroof::test
