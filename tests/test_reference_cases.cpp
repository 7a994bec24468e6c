// What went wrong in other engines, on the lane twin and on the oracle: window edges, empty rows, NaN and infinity,
// caps and sinks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <vector>

#include "tests/support/small_problems.hpp"

namespace kvroof::reference {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// ---- window and causality ------------------------------------------------------------------------------------------
TEST(ReferenceCases, WindowCountsTheQueryItself) {
  const std::int64_t all = std::numeric_limits<std::int64_t>::max();
  struct Row {
    std::int64_t T, window;
    float mean;
  };
  for (const Row& row : {Row{10, 4, 7.5f}, Row{50, 16, 41.5f}, Row{6, all, 2.5f}, Row{10, 1, 9.0f}, Row{10, 10, 4.5f},
                         Row{10, 11, 4.5f}, Row{10, 9, 5.0f}, Row{1536, 512, 1279.5f}, Row{1536, 513, 1279.0f}}) {
    const Answer a = answer(counting(row.T, 1, row.window));
    EXPECT_EQ(a.out[0], row.mean) << row.T << ' ' << row.window;
    EXPECT_NEAR(a.oracle.out[0], row.mean, 1e-9);
    EXPECT_LE(a.ratio, 1.0);
  }
}

TEST(ReferenceCases, ChunkIsAlignedToTheBottomRight) {
  AttentionProblem p = counting(6, 3, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(answer(p).out, (std::vector<float>{1.5f, 2.0f, 2.5f}));
  p.window = 2;
  EXPECT_EQ(answer(p).out, (std::vector<float>{2.5f, 3.5f, 4.5f}));
  p.kept_tokens = 1;
  EXPECT_EQ(answer(p).out, (std::vector<float>{5.0f / 3, 7.0f / 3, 3.0f}));
  p.kept_tokens = 100;  // more than there are: everything is visible, nothing twice
  EXPECT_EQ(answer(p).out, (std::vector<float>{1.5f, 2.0f, 2.5f}));
}

TEST(ReferenceCases, NarrowBandLeavesNoRowEmpty) {
  AttentionProblem p = random_problem(640, 512, 4, 21);
  p.window = 10;
  const Answer a = answer(p);
  for (const float x : a.out) EXPECT_TRUE(std::isfinite(x));
  EXPECT_LE(a.ratio, 1.0);
}

// ---- empty, NaN and infinity ---------------------------------------------------------------------------------------
TEST(ReferenceCases, OnlyScoresOfMinusInfinityIsAnEmptyRow) {
  for (const std::size_t T : {std::size_t{1}, std::size_t{20}, std::size_t{1200}}) {
    AttentionProblem p = scored(std::vector<float>(T, -kInf), std::vector<float>(T, 3.0f));
    Answer a = answer(p);
    EXPECT_EQ(float_bits(a.out[0]), 0u);
    EXPECT_EQ(a.lse[0], -kInf);
    EXPECT_EQ(a.ratio, 0.0);
    p.sink_logits = {2.5f};
    a = answer(p);
    EXPECT_EQ(float_bits(a.out[0]), 0u);
    EXPECT_EQ(a.lse[0], 2.5f) << "no rows but a sink";
    EXPECT_EQ(a.ratio, 0.0);
    p.sink_logits = {kNaN};
    a = answer(p);
    EXPECT_EQ(float_bits(a.out[0]), 0x7fc00000u);
    EXPECT_EQ(float_bits(a.lse[0]), 0x7fc00000u);
  }
}

TEST(ReferenceCases, NoNewTokensIsANoOp) {
  const AttentionProblem p = counting(0, 0, 1);
  const Answer a = answer(p);
  EXPECT_TRUE(a.out.empty());
  EXPECT_TRUE(a.lse.empty());
}

TEST(ReferenceCases, InvisibleRowsMayHoldAnything) {
  for (const std::int64_t kept : {0, 3, 600}) {
    AttentionProblem clean = random_problem(1300, 3, 20, 31);
    clean.window = 400;
    clean.kept_tokens = kept;
    const Answer expected = answer(clean);
    for (const float poison : {kNaN, kInf, -kInf, 1e30f}) {
      AttentionProblem p = clean;
      for (std::int64_t j = 0; j < p.T; ++j) {
        bool seen = false;
        for (std::int64_t r = 0; r < p.n; ++r) seen = seen || p.visible(p.T - p.n + r, j);
        if (seen) continue;
        std::fill_n(p.k.begin() + j * 40, 40, poison);
        std::fill_n(p.v.begin() + j * 40, 40, poison);
      }
      const Answer a = answer(p);
      expect_bits(a.out, expected.out);
      expect_bits(a.lse, expected.lse);
      EXPECT_EQ(a.oracle.out, expected.oracle.out);
    }
  }
}

TEST(ReferenceCases, EachQueryOfAChunkSkipsWhatOnlyOthersSee) {
  AttentionProblem p = random_problem(40, 4, 8, 77);
  const Answer clean = answer(p);
  // The newest row is seen by the last query alone.
  std::fill_n(p.k.begin() + 39 * 16, 16, kNaN);
  std::fill_n(p.v.begin() + 39 * 16, 16, kNaN);
  const Answer a = answer(p);
  for (std::size_t i = 0; i < a.out.size(); ++i) {
    if (i < 3 * 32) {
      EXPECT_EQ(float_bits(a.out[i]), float_bits(clean.out[i]));
    } else {
      EXPECT_EQ(float_bits(a.out[i]), 0x7fc00000u);
    }
  }
}

TEST(ReferenceCases, NanReachesItsOwnRowOrComponentAndNoOther) {
  const std::int64_t heads = 4, dim = 20;
  const AttentionProblem clean = random_problem(600, 2, dim, 41);
  const Answer expected = answer(clean);
  const auto check = [&](const AttentionProblem& p,
                         const std::function<bool(std::int64_t, std::int64_t, std::int64_t)>& nan_out,
                         const std::function<bool(std::int64_t, std::int64_t)>& nan_lse) {
    const Answer a = answer(p);
    EXPECT_LE(a.ratio, 1.0) << "oracle and twin agree on what is NaN";
    for (std::int64_t r = 0; r < 2; ++r) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::size_t row = static_cast<std::size_t>(r * heads + h);
        EXPECT_EQ(float_bits(a.lse[row]), nan_lse(r, h) ? 0x7fc00000u : float_bits(expected.lse[row]));
        for (std::int64_t d = 0; d < dim; ++d) {
          const std::size_t i = row * static_cast<std::size_t>(dim) + static_cast<std::size_t>(d);
          EXPECT_EQ(float_bits(a.out[i]), nan_out(r, h, d) ? 0x7fc00000u : float_bits(expected.out[i]));
        }
      }
    }
  };
  for (const float nan : {kNaN, -kNaN, bits_float(0x7f800001u), bits_float(0xffc12345u)}) {
    AttentionProblem p = clean;
    p.q[static_cast<std::size_t>((1 * heads + 2) * dim + 17)] = nan;
    check(
        p, [](auto r, auto h, auto) { return r == 1 && h == 2; }, [](auto r, auto h) { return r == 1 && h == 2; });
    p = clean;
    p.k[static_cast<std::size_t>((300 * 2 + 1) * dim + 3)] = nan;
    check(
        p, [](auto, auto h, auto) { return h >= 2; }, [](auto, auto h) { return h >= 2; });
    p = clean;
    p.v[static_cast<std::size_t>((599 * 2 + 0) * dim + 5)] = nan;  // the row that the last query alone sees
    check(
        p, [](auto r, auto h, auto d) { return r == 1 && h < 2 && d == 5; }, [](auto, auto) { return false; });
  }
}

TEST(ReferenceCases, InfinityFollowsTheDefinition) {
  // A score of -inf has weight 0, one of +inf gives NaN.
  std::vector<float> scores(700, 0.0f), values(700, 1.0f);
  scores[10] = -kInf;
  values[10] = 1000.0f;
  Answer a = answer(scored(scores, values));
  EXPECT_EQ(a.out[0], 1.0f);
  EXPECT_LE(a.ratio, 1.0);
  scores[10] = kInf;
  a = answer(scored(scores, values));
  EXPECT_EQ(float_bits(a.out[0]), 0x7fc00000u);
  EXPECT_EQ(float_bits(a.lse[0]), 0x7fc00000u);
  EXPECT_EQ(a.ratio, 0.0);
}

TEST(ReferenceCases, MergingWithEmptySegmentsChangesNothing) {
  // Segments that hold visible rows, all of score -inf, are empty partials; the same rows hidden by the window are
  // absent.
  for (const std::uint32_t empty : {0b001u, 0b010u, 0b100u, 0b011u, 0b110u, 0b101u, 0b111u}) {
    std::vector<float> scores, values;
    for (std::size_t t = 0; t < 1536; ++t) {
      const bool dead = (empty >> (t / 512) & 1) != 0;
      scores.push_back(dead ? -kInf : 4.0f * uniform(3, t));
      values.push_back(uniform(4, t));
    }
    const Answer a = answer(scored(scores, values));
    EXPECT_LE(a.ratio, 1.0) << empty;
    EXPECT_FALSE(std::isnan(a.out[0])) << empty;
    if (empty == 0b011u) {
      AttentionProblem hidden = scored(scores, values);
      hidden.window = 512;
      const Answer h = answer(hidden);
      expect_bits(a.out, h.out);
      expect_bits(a.lse, h.lse);
    }
    if (empty == 0b110u) {
      AttentionProblem alone = scored(std::vector<float>(scores.begin(), scores.begin() + 512), values);
      const Answer h = answer(alone);
      expect_bits(a.out, h.out);
      expect_bits(a.lse, h.lse);
    }
    EXPECT_EQ(a.lse[0] == -kInf, empty == 0b111u);
  }
}

TEST(ReferenceCases, VeryNegativeScoresStillAverage) {
  for (const std::size_t T : {std::size_t{4}, std::size_t{600}}) {
    std::vector<float> values(T, 1.0f);
    values[0] = 3.0f;
    const Answer a = answer(scored(std::vector<float>(T, -3.0e38f), values));
    EXPECT_NEAR(a.out[0], 1.0 + 2.0 / static_cast<double>(T), 1e-6);
    EXPECT_LE(a.ratio, 1.0);
  }
}

// ---- soft-cap, scale, sinks ----------------------------------------------------------------------------------------
TEST(ReferenceCases, SoftcapStaysFiniteAndBelowTheCap) {
  const float scores[] = {1.0f, 100.0f, 1000.0f, 4400.0f, 5000.0f, 1e4f, -1e4f};
  const double expected[] = {0.99987, 48.2014, 50, 50, 50, 50, -50};
  for (std::size_t i = 0; i < std::size(scores); ++i) {
    AttentionProblem p = scored({scores[i]}, {1.0f});
    p.softcap = 50.0f;
    const Answer a = answer(p);
    EXPECT_NEAR(a.lse[0], expected[i], 5e-5);  // one row: lse is the capped score
    EXPECT_LE(std::fabs(a.lse[0]), 50.0f);
    EXPECT_LE(a.ratio, 1.0);
  }
}

TEST(ReferenceCases, TheCapComesAfterTheScale) {
  AttentionProblem p = scored({500.0f}, {1.0f});
  p.scale = 1.0f / std::sqrt(128.0f);
  p.softcap = 50.0f;
  const Answer a = answer(p);
  EXPECT_NEAR(a.lse[0], 35.418, 5e-4);
  EXPECT_NEAR(a.oracle.lse[0], 35.418, 5e-4);
  EXPECT_LE(a.ratio, 1.0);
}

TEST(ReferenceCases, SinkTakesItsShareOnceHoweverManySegments) {
  for (const std::int64_t T : {4, 512, 513, 2048, 5000}) {
    AttentionProblem p = counting(T, 1, std::numeric_limits<std::int64_t>::max());
    std::fill(p.v.begin(), p.v.end(), 1.0f);
    p.sink_logits = {std::log(static_cast<float>(T))};
    Answer a = answer(p);
    EXPECT_NEAR(a.out[0], 0.5, 1e-6) << T;
    EXPECT_LE(a.ratio, 1.0) << T;
    p.sink_logits = {-kInf};
    a = answer(p);
    EXPECT_EQ(a.out[0], 1.0f) << T;
    EXPECT_LE(a.ratio, 1.0) << T;
    p.sink_logits = {100.0f};
    a = answer(p);
    EXPECT_GE(a.out[0], 0.0f);
    EXPECT_LE(a.out[0], 1.5e-43 * static_cast<double>(T) / 4) << T;
    EXPECT_EQ(a.lse[0], 100.0f);
    EXPECT_LE(a.ratio, 1.0) << T;
  }
}

TEST(ReferenceCases, SinkIsNeitherScaledNorCapped) {
  AttentionProblem p = scored({0.0f}, {1.0f});
  p.scale = 0.001f;
  p.softcap = 1.0f;
  p.sink_logits = {10.0f};
  const Answer a = answer(p);
  EXPECT_NEAR(a.lse[0], 10.0 + std::log1p(std::exp(-10.0)), 1e-6);
}

TEST(ReferenceCases, EmptySegmentsBesideASink) {
  AttentionProblem p = counting(4 + 1024, 1, std::numeric_limits<std::int64_t>::max());
  std::fill(p.v.begin(), p.v.end(), 1.0f);
  std::fill(p.k.begin(), p.k.begin() + 1024, -kInf);
  std::fill(p.k.begin() + 1024, p.k.end(), 0.0f);
  p.q = {1.0f};
  p.sink_logits = {std::log(4.0f)};
  EXPECT_NEAR(answer(p).out[0], 0.5, 1e-6);
}

TEST(ReferenceCases, AlibiLowersDistantRows) {
  AttentionProblem p = counting(5, 1, std::numeric_limits<std::int64_t>::max());
  p.alibi_slopes = {0.5f};
  double sum = 0, weighted = 0;
  for (int j = 0; j < 5; ++j) {
    sum += std::exp(0.5 * (j - 4));
    weighted += j * std::exp(0.5 * (j - 4));
  }
  const Answer a = answer(p);
  EXPECT_NEAR(a.out[0], weighted / sum, 1e-6);
  EXPECT_NEAR(a.lse[0], std::log(sum), 1e-6);
  EXPECT_LE(a.ratio, 1.0);
}

TEST(ReferenceCases, HalfRangeDoesNotLimitTheSum) {
  AttentionProblem p = counting(65536, 1, std::numeric_limits<std::int64_t>::max());
  std::fill(p.v.begin(), p.v.end(), 1.5f);
  EXPECT_EQ(answer(p).out[0], 1.5f);
}

TEST(ReferenceCases, QueryHeadsReadTheKeyHeadOfTheirGroup) {
  struct Heads {
    std::int64_t query, kv;
  };
  for (const Heads& heads :
       {Heads{28, 4}, Heads{32, 8}, Heads{12, 12}, Heads{14, 2}, Heads{15, 5}, Heads{9, 3}, Heads{71, 1}}) {
    AttentionProblem p;
    p.query_heads = heads.query;
    p.kv_heads = heads.kv;
    p.key_dim = p.value_dim = p.n = 1;
    p.T = 3;
    p.q.assign(static_cast<std::size_t>(heads.query), 0.0f);
    p.k.assign(static_cast<std::size_t>(3 * heads.kv), 0.0f);
    for (std::int64_t i = 0; i < 3 * heads.kv; ++i) p.v.push_back(static_cast<float>(i % heads.kv));
    const Answer a = answer(p);
    for (std::int64_t h = 0; h < heads.query; ++h) {
      EXPECT_EQ(a.out[static_cast<std::size_t>(h)], static_cast<float>(h / (heads.query / heads.kv)));
      EXPECT_DOUBLE_EQ(a.oracle.out[static_cast<std::size_t>(h)], static_cast<double>(h / (heads.query / heads.kv)));
    }
  }
}

}  // namespace
}  // namespace kvroof::reference
