// Slope tables for ALiBi, both rules, from the published descriptions: powers of two exactly, other head counts by
// rule.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/rope.hpp"

namespace kvroof {
namespace {

void expect_log2(const std::vector<float>& slopes, const std::vector<double>& log2) {
  ASSERT_EQ(slopes.size(), log2.size());
  for (std::size_t h = 0; h < slopes.size(); ++h) {
    EXPECT_EQ(slopes[h], static_cast<float>(std::exp2(log2[h]))) << "head " << h << " of " << slopes.size();
  }
}

TEST(FactsAlibi, PowersOfTwoStartAtTheirOwnRatio) {
  const std::vector<float> slopes = alibi_slopes(8);
  EXPECT_EQ(slopes, (std::vector<float>{0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f}));
  expect_log2(alibi_slopes(1), {-8});
  expect_log2(alibi_slopes(2), {-4, -8});
  expect_log2(alibi_slopes(4), {-2, -4, -6, -8});
  expect_log2(alibi_slopes(16), {-.5, -1, -1.5, -2, -2.5, -3, -3.5, -4, -4.5, -5, -5.5, -6, -6.5, -7, -7.5, -8});
}

TEST(FactsAlibi, InterleavedIsTheDefaultAndTheRuleModelsWereTrainedWith) {
  expect_log2(alibi_slopes(6), {-2, -4, -6, -8, -1, -3});
  expect_log2(alibi_slopes(12), {-1, -2, -3, -4, -5, -6, -7, -8, -.5, -1.5, -2.5, -3.5});
  expect_log2(alibi_slopes(3), {-4, -8, -2});
  const std::vector<float> forty = alibi_slopes(40);
  ASSERT_EQ(forty.size(), 40u);
  EXPECT_EQ(forty[0], static_cast<float>(std::exp2(-0.25)));
  EXPECT_EQ(forty[31], static_cast<float>(std::exp2(-8.0)));
  EXPECT_EQ(forty[32], static_cast<float>(std::exp2(-0.125)));
  EXPECT_EQ(forty[39], static_cast<float>(std::exp2(-1.875)));
  EXPECT_EQ(alibi_slopes(12), alibi_slopes(12, AlibiRule::interleaved));
}

TEST(FactsAlibi, GeometricIsOneSeries) {
  for (const std::int64_t heads : {1, 3, 6, 8, 12, 40}) {
    std::vector<double> log2;
    for (std::int64_t h = 0; h < heads; ++h)
      log2.push_back(-8.0 * static_cast<double>(h + 1) / static_cast<double>(heads));
    expect_log2(alibi_slopes(heads, AlibiRule::geometric), log2);
  }
  EXPECT_EQ(alibi_slopes(8, AlibiRule::geometric), alibi_slopes(8)) << "the rules agree on powers of two";
  EXPECT_NE(alibi_slopes(12, AlibiRule::geometric), alibi_slopes(12));
}

TEST(FactsAlibi, NoHeadsAreRefused) {
  EXPECT_THROW(alibi_slopes(0), Error);
  EXPECT_THROW(alibi_slopes(-8, AlibiRule::geometric), Error);
}

}  // namespace
}  // namespace kvroof
