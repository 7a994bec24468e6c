// Native mode: what comes out for particular scores, NaN and infinity, and what rows that nobody sees may hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/compare.hpp"
#include "tests/support/native.hpp"

namespace kvroof::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class NativeValues : public NativeMode {
 protected:
  Attention run(const Case& c, int parts = 2) const { return attend(c, random_layout(7), how(parts)); }
};

// One KV head whose `group` query heads are all alike, Dk = 1: score j is k[j], which bf16 must hold.
Case scores(const std::vector<float>& k, std::int64_t group) {
  CaseSpec spec = native_spec(group, 1, 1, 2, 1, static_cast<std::int64_t>(k.size()), 1);
  spec.scale = 1.0f;
  Case c = make_case(spec);
  std::fill(c.problem.q.begin(), c.problem.q.end(), 1.0f);
  c.problem.k = k;
  return c;
}

constexpr std::int64_t kFormGroups[] = {1, 2, 12, 17};  // every way of laying out queries

TEST_F(NativeValues, MinusInfinityHasNoWeight) {
  for (const std::int64_t group : kFormGroups) {
    Case c = scores({0.0f, -kInf, 0.0f, -kInf}, group);
    c.problem.v = {1, 2, 100, 200, 3, 4, 300, 400};
    const Attention a = run(c);
    for (std::int64_t h = 0; h < group; ++h) {
      EXPECT_EQ(a.out[static_cast<std::size_t>(2 * h)], 2.0f);
      EXPECT_EQ(a.out[static_cast<std::size_t>(2 * h + 1)], 3.0f);
    }
    std::vector<float> k(1030, -kInf);  // whole segments of -inf beside one row that has weight
    k[1029] = 1.0f;
    const Case tail = scores(k, group);
    const Attention b = run(tail);
    EXPECT_EQ(b.out[0], tail.problem.v[2058]);
    EXPECT_EQ(b.out[1], tail.problem.v[2059]);
    EXPECT_EQ(b.lse.front(), 1.0f);
  }
}

TEST_F(NativeValues, AllMinusInfinityIsAnEmptyRow) {
  for (const std::int64_t group : kFormGroups) {
    for (const std::size_t rows : {1u, 5u, 600u, 1100u}) {
      Case c = scores(std::vector<float>(rows, -kInf), group);
      Attention a = run(c);
      for (const float x : a.out) EXPECT_EQ(float_bits(x), 0u);
      for (const float x : a.lse) EXPECT_EQ(x, -kInf);
      c.problem.sink_logits.assign(static_cast<std::size_t>(group), 1.25f);  // nothing but a sink
      a = run(c);
      for (const float x : a.out) EXPECT_EQ(float_bits(x), 0u);
      for (const float x : a.lse) EXPECT_EQ(x, 1.25f);
    }
  }
}

TEST_F(NativeValues, AnEmptySegmentIsLeftOutOfTheMerge) {
  for (const std::size_t empty : {0u, 1u, 2u}) {
    std::vector<float> k(3 * 512, 0.5f);
    std::fill_n(k.begin() + static_cast<std::ptrdiff_t>(empty * 512), 512, -kInf);
    Case c = scores(k, 2);
    const Attention clean = run(c);
    for (const float bad : {kInf, kNaN}) {
      std::fill_n(c.problem.v.begin() + static_cast<std::ptrdiff_t>(empty * 1024), 1024, bad);
      expect_same_bits(run(c), clean, "segment " + std::to_string(empty) + " without weight");
    }
  }
}

TEST_F(NativeValues, PlusInfinityGivesNan) {
  for (const std::int64_t group : kFormGroups) {
    for (const float x : run(scores({0.0f, kInf, 0.0f}, group)).out) EXPECT_TRUE(is_canonical_nan(x));
  }
}

// Powers of two, so that nothing is rounded: near FLT_MAX the scores' distance must not overflow.
TEST_F(NativeValues, ExtremeScoresGiveTheMean) {
  for (const std::int64_t group : kFormGroups) {
    for (const float s : {-0x1.8p127f, 0x1.8p127f, 0x1.fep127f, -0x1p100f, 0.0f, -0.0f, 0x1p-126f}) {
      Case c = scores(std::vector<float>(64, s), group);
      for (std::size_t i = 0; i < c.problem.v.size(); ++i) c.problem.v[i] = static_cast<float>(i % 4);
      const Attention a = run(c);
      EXPECT_EQ(a.out[0], 1.0f) << s;
      EXPECT_EQ(a.out[1], 2.0f) << s;
      EXPECT_TRUE(std::isfinite(a.lse.front())) << s;
    }
  }
}

TEST_F(NativeValues, SinkIsCountedOnce) {
  for (const std::int64_t T : {4, 2048}) {
    for (const int parts : {1, 2, 3, 7, 64}) {
      CaseSpec spec = native_spec(1, 1, 32, 32, 1, T, 1);
      spec.inputs = Inputs::zero_q;
      Case c = make_case(spec);
      std::fill(c.problem.v.begin(), c.problem.v.end(), 1.0f);
      c.problem.sink_logits = {std::log(static_cast<float>(T))};
      const Attention a = run(c, parts);
      for (const float x : a.out) EXPECT_NEAR(x, 0.5, 12 * 0x1p-24);  // equal weights are all exactly 1
      c.problem.sink_logits = {-kInf};
      for (const float x : run(c, parts).out) EXPECT_EQ(x, 1.0f);
    }
  }
}

// ---- NaN: reaches the queries that see it and no others -------------------------------------------------------------

CaseSpec nan_spec(std::int64_t group, std::int64_t window) {
  CaseSpec spec = native_spec(3 * group, 3, 20, 41, 4, 530, 11);
  spec.window = window;
  return spec;
}

TEST_F(NativeValues, NanInAQuerySpoilsItsRow) {
  for (const std::int64_t group : kFormGroups) {
    const CaseSpec spec = nan_spec(group, kAll);
    const Case c = make_case(spec);
    const Attention clean = run(c);
    for (const std::int64_t lane : {0, 7, 19}) {
      Case bad = c;
      const std::int64_t head = 2 * group - 1;
      bad.problem.q[static_cast<std::size_t>((2 * spec.query_heads + head) * 20 + lane)] = kNaN;
      expect_spoiled(run(bad), clean, spec,
                     [&](std::int64_t r, std::int64_t h, std::int64_t) { return r == 2 && h == head; });
    }
  }
}

// Positions 526 .. 529 are the chunk's own: earlier queries do not see the rows of later ones.
TEST_F(NativeValues, NanInAVisibleKeySpoilsTheQueriesThatSeeIt) {
  for (const std::int64_t group : kFormGroups) {
    for (const std::int64_t window : {kAll, std::int64_t{3}}) {
      const CaseSpec spec = nan_spec(group, window);
      const Case c = make_case(spec);
      const Attention clean = run(c);
      for (const std::int64_t t : {3, 500, 526, 527, 528, 529}) {
        Case bad = c;
        bad.problem.k[static_cast<std::size_t>((t * 3 + 1) * 20 + 11)] = kNaN;
        expect_spoiled(run(bad), clean, spec, [&](std::int64_t r, std::int64_t h, std::int64_t) {
          return h / group == 1 && c.problem.visible(526 + r, t);
        });
      }
    }
  }
}

TEST_F(NativeValues, NanInAVisibleValueSpoilsItsColumn) {
  for (const std::int64_t group : kFormGroups) {
    for (const std::int64_t window : {kAll, std::int64_t{2}}) {
      const CaseSpec spec = nan_spec(group, window);
      const Case c = make_case(spec);
      const Attention clean = run(c);
      for (const std::int64_t t : {2, 525, 526, 527, 528, 529}) {
        for (const std::int64_t column : {0, 17, 31, 32, 40}) {
          Case bad = c;
          bad.problem.v[static_cast<std::size_t>((t * 3 + 2) * 41 + column)] = kNaN;
          expect_spoiled(run(bad), clean, spec, [&](std::int64_t r, std::int64_t h, std::int64_t d) {
            return h / group == 2 && d == column && c.problem.visible(526 + r, t);
          });
        }
      }
    }
  }
}

// Hidden rows, ring slots, page slots, padding: NaN (signalling too), infinities and huge values change no bit.
TEST_F(NativeValues, PoisonOutsideTheVisibleRowsChangesNothing) {
  for (const std::int64_t group : kFormGroups) {
    for (const std::int64_t T : {1, 13, 15, 16, 17, 520}) {
      CaseSpec spec = native_spec(2 * group, 2, 20, 44, std::min<std::int64_t>(T, 3), T, 3);
      spec.window = 7;
      spec.kept_tokens = 2;
      const Case c = make_case(spec);
      Attention expected;
      for (const Layout& layout : poisoned_layouts(static_cast<std::uint64_t>(T))) {
        const Attention a = attend(c, layout, how(2));
        for (const float x : a.out) ASSERT_TRUE(std::isfinite(x)) << describe(spec) << " " << describe(layout);
        if (expected.out.empty()) expected = a;
        expect_same_bits(a, expected, describe(spec) + " " + describe(layout));
      }
    }
  }
}

TEST_F(NativeValues, SignallingNansBetweenVisibleRowsChangeNothing) {
  for (const std::int64_t group : kFormGroups) {
    CaseSpec spec = native_spec(group, 1, 40, 36, 1, 900, 8);
    spec.window = 40;
    spec.kept_tokens = 5;
    Case c = make_case(spec);
    const Attention clean = attend(c, {}, how(1));
    std::vector<std::uint16_t> k(900 * 40, 0x7f81), v(900 * 36, 0xff81);  // signalling, both signs
    for (std::int64_t t = 0; t < 900; ++t) {
      if (!c.problem.visible(899, t)) continue;
      encode_row(Storage::bf16, c.problem.k.data() + t * 40, 40, reinterpret_cast<std::byte*>(k.data() + t * 40));
      encode_row(Storage::bf16, c.problem.v.data() + t * 36, 36, reinterpret_cast<std::byte*>(v.data() + t * 36));
    }
    RowRun row;
    row.k = reinterpret_cast<const std::byte*>(k.data());
    row.v = reinterpret_cast<const std::byte*>(v.data());
    row.rows = 900;
    KvView view;
    view.runs = &row;
    view.run_count = 1;
    view.end_position = 900;
    view.k_storage = view.v_storage = Storage::bf16;
    view.k_row_stride = 80;
    view.v_row_stride = 72;
    view.k_head_stride = 900 * 80;
    view.v_head_stride = 900 * 72;
    expect_same_bits(attend_view(c, view, how(2)), clean, describe(spec));
  }
}

}  // namespace
}  // namespace kvroof::test
