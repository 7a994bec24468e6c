// What comes out for particular scores: soft-cap, scale, sinks, ALiBi, extreme scores, NaN and infinity.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/oracle.hpp"
#include "tests/support/attend.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kUnit = 0x1p-24;  // half an ULP of 1

class AttentionValues : public EachIsa {
 protected:
  Attention run(const Case& c, int parts = 2) const {
    How how;
    how.isa = isa();
    how.parts = parts;
    return attend(c, random_layout(7), how);
  }
  // Like the twin bit for bit as well, whatever else a test says about the result.
  Attention run_as_twin(const Case& c) const {
    const Attention a = run(c);
    expect_same_bits(a, twin(c), describe(c.spec), true);
    return a;
  }
};

// One head, one query, Dk = 1: score j is q * k[j] * scale, chosen freely.
Case scores(const std::vector<float>& k, float q = 1.0f) {
  CaseSpec spec;
  spec.key_dim = 1;
  spec.value_dim = 2;
  spec.T = static_cast<std::int64_t>(k.size());
  spec.scale = 1.0f;
  Case c = make_case(spec);
  c.problem.q = {q};
  c.problem.k = k;
  return c;
}

float mean(const std::vector<float>& v, std::size_t column) {
  double sum = 0;
  for (std::size_t i = column; i < v.size(); i += 2) sum += static_cast<double>(v[i]);
  return static_cast<float>(sum / (static_cast<double>(v.size()) / 2));
}

// With one row lse is that row's score: it shows the score itself.
TEST_P(AttentionValues, SoftcapNeitherOverflowsNorPassesItsCap) {
  for (const float s : {1.0f, 100.0f, 1000.0f, 4400.0f, 5000.0f, 1e4f, -1e4f, 1e30f, 0.0f, -3.0f, 1e-20f}) {
    Case c = scores({s});
    c.problem.softcap = 50.0f;
    const float lse = run_as_twin(c).lse.front();
    const double expected = 50.0 * std::tanh(static_cast<double>(s) / 50.0);
    EXPECT_LE(std::fabs(lse), 50.0f) << s;
    EXPECT_LE(std::fabs(static_cast<double>(lse) - expected), 4.5 * kUnit * std::fabs(expected))
        << s;  // tanh 2.5 u, two products
  }
}

TEST_P(AttentionValues, ScaleComesBeforeTheCap) {
  Case c = scores({500.0f});
  c.problem.scale = 1.0f / std::sqrt(128.0f);
  c.problem.softcap = 50.0f;
  EXPECT_NEAR(run_as_twin(c).lse.front(), 35.418, 0.001);  // the other order gives 4.419
}

TEST_P(AttentionValues, ScaleIsWhatTheCallerSays) {
  for (const float scale : {1.0f / 16.0f, 1.0f / std::sqrt(224.0f), 1.0f, -0.5f, 0.0f}) {
    CaseSpec spec;
    spec.key_dim = 256;
    spec.scale = scale;
    Case c = make_case(spec);
    std::fill(c.problem.q.begin(), c.problem.q.end(), 1.0f);
    std::fill(c.problem.k.begin(), c.problem.k.end(), 0.5f);
    EXPECT_EQ(run_as_twin(c).lse.front(), 128.0f * scale);
  }
}

TEST_P(AttentionValues, HugeHalfScoresBeforeTheCapAreFinite) {
  CaseSpec spec;
  spec.key_dim = spec.value_dim = 256;
  spec.T = 30;
  spec.scale = 1.0f;
  spec.softcap = 50.0f;
  spec.k_storage = spec.v_storage = Storage::f16;
  Case c = make_case(spec);
  std::fill(c.problem.q.begin(), c.problem.q.end(), 16.5f);
  std::fill(c.problem.k.begin(), c.problem.k.end(), 16.5f);  // 256 * 16.5^2 = 69696 > 65504
  for (const float x : run_as_twin(c).out) EXPECT_TRUE(std::isfinite(x));
}

TEST_P(AttentionValues, ExtremeScoresGiveTheMean) {  // no finite starting value of the maximum is low enough
  for (const float s : {-3.0e38f, 3.0e38f, -1.0e30f, 0.0f, -0.0f}) {
    const Case c = scores(std::vector<float>(64, s));
    const Attention a = run_as_twin(c);
    for (std::size_t d = 0; d < 2; ++d) EXPECT_NEAR(a.out[d], mean(c.problem.v, d), 64 * kUnit);
    EXPECT_FALSE(std::isnan(a.lse.front()));
  }
}

TEST_P(AttentionValues, MinusInfinityHasNoWeight) {
  Case c = scores({0.0f, -kInf, 0.0f, -kInf});
  c.problem.v = {1, 2, 100, 200, 3, 4, 300, 400};
  const Attention a = run_as_twin(c);
  EXPECT_EQ(a.out, (std::vector<float>{2.0f, 3.0f}));
  // one whole segment of -inf beside one that has weight
  std::vector<float> k(1030, -kInf);
  k[1029] = 1.0f;
  const Case tail = scores(k);
  const Attention b = run_as_twin(tail);
  EXPECT_EQ(b.out, (std::vector<float>{tail.problem.v[2058], tail.problem.v[2059]}));
  EXPECT_EQ(b.lse.front(), 1.0f);
}

// A segment without weight is left out of the merge, not multiplied by zero: infinite values in it change nothing.
TEST_P(AttentionValues, AnEmptySegmentIsLeftOutOfTheMerge) {
  for (const std::size_t empty : {0u, 1u, 2u}) {
    std::vector<float> k(3 * 512, 0.5f);
    std::fill_n(k.begin() + static_cast<std::ptrdiff_t>(empty * 512), 512, -kInf);
    Case c = scores(k);
    const Attention clean = run_as_twin(c);
    for (const float bad : {kInf, kNaN}) {
      std::fill_n(c.problem.v.begin() + static_cast<std::ptrdiff_t>(empty * 1024), 1024, bad);
      expect_same_bits(run_as_twin(c), clean, "segment " + std::to_string(empty) + " without weight");
    }
  }
}

TEST_P(AttentionValues, AllMinusInfinityIsAnEmptyRow) {
  for (const std::size_t rows : {1u, 5u, 600u, 1100u}) {
    Case c = scores(std::vector<float>(rows, -kInf));
    Attention a = run_as_twin(c);
    EXPECT_EQ(a.out, (std::vector<float>{0.0f, 0.0f}));
    EXPECT_EQ(a.lse.front(), -kInf);
    c.problem.sink_logits = {1.25f};  // nothing but a sink
    a = run_as_twin(c);
    EXPECT_EQ(a.out, (std::vector<float>{0.0f, 0.0f}));
    EXPECT_EQ(a.lse.front(), 1.25f);
  }
}

TEST_P(AttentionValues, PlusInfinityGivesNan) {
  const Attention a = run_as_twin(scores({0.0f, kInf, 0.0f}));
  for (const float x : a.out) EXPECT_TRUE(is_canonical_nan(x));
}

TEST_P(AttentionValues, SinkIsCountedOnce) {
  for (const std::int64_t T : {4, 2048}) {
    for (const int parts : {1, 2, 3, 7, 64}) {
      CaseSpec spec;
      spec.T = T;
      spec.inputs = Inputs::zero_q;
      Case c = make_case(spec);
      std::fill(c.problem.v.begin(), c.problem.v.end(), 1.0f);
      c.problem.sink_logits = {std::log(static_cast<float>(T))};
      const Attention a = run(c, parts);
      expect_same_bits(a, twin(c), describe(spec));
      // half of the mass; the logit is rounded to float (u * 7.7 of it), exp and log add a few u
      for (const float x : a.out) EXPECT_NEAR(x, 0.5, 12 * kUnit);
      EXPECT_NEAR(a.lse.front(), std::log(2.0 * static_cast<double>(T)), 40 * kUnit);

      c.problem.sink_logits = {-kInf};
      for (const float x : run(c, parts).out) EXPECT_EQ(x, 1.0f);

      c.problem.sink_logits = {100.0f + std::log(static_cast<float>(T) / 4.0f)};
      const Attention drowned = run(c, parts);
      for (const float x : drowned.out) {
        EXPECT_FALSE(std::isnan(x));
        EXPECT_LE(x, 1.5e-43f);
      }
    }
  }
}

TEST_P(AttentionValues, SinkIsNeitherScaledNorCapped) {
  Case c = scores({0.0f});
  c.problem.scale = 0.01f;
  c.problem.softcap = 1.0f;
  c.problem.sink_logits = {30.0f};
  EXPECT_EQ(run_as_twin(c).lse.front(), 30.0f);  // 30 + log(1 + exp(-30))
}

TEST_P(AttentionValues, SinksBelongToTheirHeads) {
  CaseSpec spec;
  spec.query_heads = 6;
  spec.kv_heads = 2;
  spec.T = 40;
  spec.inputs = Inputs::zero_q;
  Case c = make_case(spec);
  c.problem.sink_logits = {0.0f, 1.0f, 2.0f, 50.0f, 60.0f, 70.0f};
  const Attention a = run_as_twin(c);
  for (std::size_t h = 0; h < 6; ++h) {
    const double expected = std::log(40.0 + std::exp(static_cast<double>(c.problem.sink_logits[h])));
    EXPECT_NEAR(a.lse[h], expected, 8 * kUnit * expected);
  }
}

// slope * (j - i) against a key that carries slope * j: the same softmax, lse apart by slope * i.
TEST_P(AttentionValues, AlibiIsRelativeToTheQuery) {
  for (const std::int64_t n : {1, 5}) {
    CaseSpec spec;
    spec.n = n;
    spec.T = 90;
    spec.key_dim = 1;
    spec.value_dim = 6;
    spec.scale = 1.0f;
    spec.inputs = Inputs::zero_q;
    Case biased = make_case(spec);
    biased.problem.alibi_slopes = {0.25f};
    Case keyed = make_case(spec);
    std::fill(keyed.problem.q.begin(), keyed.problem.q.end(), 1.0f);
    for (std::size_t j = 0; j < keyed.problem.k.size(); ++j) keyed.problem.k[j] = 0.25f * static_cast<float>(j);
    const Attention a = run_as_twin(biased), b = run_as_twin(keyed);
    const auto bounds = reference::oracle_attention(keyed.problem);
    std::vector<double> expected, bound;
    for (std::size_t i = 0; i < a.out.size(); ++i) {
      expected.push_back(static_cast<double>(b.out[i]));
      bound.push_back(2 * bounds.out_bound[i]);
    }
    EXPECT_TRUE(within(a.out, expected, bound, "2 x the oracle's bound", describe(spec)));
    for (std::int64_t r = 0; r < n; ++r) {
      const double i = static_cast<double>(spec.T - n + r);
      const auto at = static_cast<std::size_t>(r);
      EXPECT_NEAR(a.lse[at], static_cast<double>(b.lse[at]) - 0.25 * i, 2 * bounds.lse_bound[at] + kUnit * 25);
    }
  }
}

// ---- NaN: reaches the queries that see it and no others -------------------------------------------------------------

CaseSpec nan_spec(Storage storage) {
  CaseSpec spec;
  spec.query_heads = 6;
  spec.kv_heads = 3;
  spec.key_dim = 20;
  spec.value_dim = 18;
  spec.n = 4;
  spec.T = 530;
  spec.k_storage = spec.v_storage = storage;
  return spec;
}

TEST_P(AttentionValues, NanInAQuerySpoilsItsRow) {
  for (const Storage storage : kStorages) {
    const CaseSpec spec = nan_spec(storage);
    Case c = make_case(spec);
    const Attention clean = run(c);
    for (const std::int64_t lane : {0, 7, 19}) {
      Case bad = c;
      bad.problem.q[static_cast<std::size_t>((2 * 6 + 3) * 20 + lane)] = kNaN;
      expect_spoiled(run(bad), clean, spec,
                     [](std::int64_t r, std::int64_t h, std::int64_t) { return r == 2 && h == 3; });
    }
  }
}

TEST_P(AttentionValues, NanInAVisibleKeySpoilsTheQueriesThatSeeIt) {
  for (const Storage storage : kStorages) {
    CaseSpec spec = nan_spec(storage);
    for (const std::int64_t window : {kAll, std::int64_t{3}}) {
      spec.window = window;
      const Case c = make_case(spec);
      const Attention clean = run(c);
      for (const std::int64_t t : {528, 529, 526}) {
        Case bad = c;
        if (storage == Storage::int8) {
          bad.problem.k_scale[static_cast<std::size_t>(t * 3 + 1)] = kNaN;
        } else {
          bad.problem.k[static_cast<std::size_t>((t * 3 + 1) * 20 + 11)] = kNaN;
        }
        expect_spoiled(run(bad), clean, spec, [&](std::int64_t r, std::int64_t h, std::int64_t) {
          return h / 2 == 1 && c.problem.visible(526 + r, t);
        });
      }
    }
  }
}

TEST_P(AttentionValues, NanInAVisibleValueSpoilsItsColumn) {
  for (const Storage storage : kStorages) {
    CaseSpec spec = nan_spec(storage);
    for (const std::int64_t window : {kAll, std::int64_t{2}}) {
      spec.window = window;
      const Case c = make_case(spec);
      const Attention clean = run(c);
      for (const std::int64_t t : {527, 529}) {
        Case bad = c;
        const bool whole_row = storage == Storage::int8;
        if (whole_row) {
          bad.problem.v_scale[static_cast<std::size_t>(t * 3 + 2)] = kNaN;
        } else {
          bad.problem.v[static_cast<std::size_t>((t * 3 + 2) * 18 + 17)] = kNaN;
        }
        expect_spoiled(run(bad), clean, spec, [&](std::int64_t r, std::int64_t h, std::int64_t d) {
          return h / 2 == 2 && (whole_row ? d >= 0 : d == 17) && c.problem.visible(526 + r, t);
        });
      }
    }
  }
}

TEST_P(AttentionValues, InfinitiesInValuesFollowTheDefinition) {
  for (const Storage storage : {Storage::f32, Storage::f16, Storage::bf16}) {
    CaseSpec spec = nan_spec(storage);
    Case c = make_case(spec);
    c.problem.v[static_cast<std::size_t>(3 * 18 * 100)] = kInf;
    c.problem.v[static_cast<std::size_t>(3 * 18 * 100 + 1)] = -kInf;
    c.problem.k[static_cast<std::size_t>(3 * 20 * 200)] = kInf;
    c.problem.k[static_cast<std::size_t>(3 * 20 * 517 + 25)] = -kInf;
    run_as_twin(c);
    c.problem.q[0] = kInf;
    c.problem.q[25] = -kInf;
    run_as_twin(c);
    c.problem.sink_logits = {kInf, -kInf, kNaN, 0.0f, 1.0f, -1.0f};
    run_as_twin(c);
    c.problem.alibi_slopes = {kInf, -kInf, kNaN, 0.0f, 1e38f, -1e38f};
    c.problem.sink_logits.clear();
    run_as_twin(c);
  }
}

KVROOF_INSTANTIATE_EACH_ISA(AttentionValues);

}  // namespace
}  // namespace kvroof::test
