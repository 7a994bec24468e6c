// Which rows a query sees and which KV head it reads, told from the result: with q = 0 every visible row has the same
// weight, so the output is the mean of the visible values, and v[t] = t names the rows that were read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/attend.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

class AttentionMasks : public EachIsa {
 protected:
  Attention run(const Case& c, int parts = 2, std::uint64_t layout_seed = 5) const {
    How how;
    how.isa = isa();
    how.parts = parts;
    return attend(c, random_layout(layout_seed), how);
  }
};

// v[t][h][d] = t, in every storage (int8: code 1 with scale t); exact while t < 256, where bf16 ends.
Case row_names(std::int64_t n, std::int64_t T, std::int64_t window, Storage storage, std::int64_t kept = 0) {
  CaseSpec spec;
  spec.query_heads = 3;
  spec.kv_heads = 3;
  spec.key_dim = 17;
  spec.value_dim = 5;
  spec.n = n;
  spec.T = T;
  spec.window = window;
  spec.kept_tokens = kept;
  spec.k_storage = spec.v_storage = storage;
  spec.inputs = Inputs::zero_q;
  Case c = make_case(spec);
  for (std::size_t i = 0; i < c.problem.v.size(); ++i) {
    const auto t = static_cast<float>(static_cast<std::int64_t>(i) / (spec.kv_heads * spec.value_dim));
    c.problem.v[i] = storage == Storage::int8 ? 1.0f : t;
  }
  for (std::size_t i = 0; i < c.problem.v_scale.size(); ++i) {
    c.problem.v_scale[i] = static_cast<float>(static_cast<std::int64_t>(i) / spec.kv_heads);
  }
  return c;
}

// The mean of the rows that query r sees, by the definition's own words; sums and counts are exact, one division.
float mean_of_visible(const Case& c, std::int64_t r) {
  std::int64_t sum = 0, count = 0;
  const std::int64_t i = c.problem.T - c.problem.n + r;
  for (std::int64_t j = 0; j < c.problem.T; ++j) {
    const bool visible = j <= i && (c.problem.window == kAll || i - j < c.problem.window || j < c.problem.kept_tokens);
    if (visible) sum += j, ++count;
  }
  return static_cast<float>(sum) / static_cast<float>(count);
}

void expect_means(const Case& c, const Attention& a) {
  std::vector<float> expected;
  for (std::int64_t r = 0; r < c.problem.n; ++r) {
    const float mean = mean_of_visible(c, r);
    expected.insert(expected.end(), static_cast<std::size_t>(c.problem.query_heads * c.problem.value_dim), mean);
  }
  EXPECT_TRUE(exact(a.out, expected, describe(c.spec)));
}

float only_value(const Attention& a) {  // all heads and columns agree
  for (const float x : a.out) EXPECT_EQ(x, a.out.front());
  return a.out.front();
}

TEST_P(AttentionMasks, WindowCountsTheQueryItself) {
  for (const Storage storage : kStorages) {
    EXPECT_EQ(only_value(run(row_names(1, 10, 4, storage))), 7.5f)
        << storage_name(storage);  // W+1 gives 7, W-1 gives 8
    EXPECT_EQ(only_value(run(row_names(1, 50, 16, storage))), 41.5f) << storage_name(storage);
  }
}

TEST_P(AttentionMasks, ShortChunkIsAlignedBottomRight) {
  for (const Storage storage : kStorages) {
    EXPECT_EQ(only_value(run(row_names(1, 6, kAll, storage))), 2.5f) << "top-left alignment gives 0";
    // six rows in a window of six, then four new ones: the query at position 6 sees 1..6
    const Attention a = run(row_names(4, 10, 6, storage));
    EXPECT_EQ(a.out.front(), 3.5f) << "5 means that the new rows took the place of visible ones";
  }
}

TEST_P(AttentionMasks, EveryWindowAndChunkReadsItsRows) {
  for (const Storage storage : kStorages) {
    for (const std::int64_t T : {1, 2, 17, 64, 100}) {
      for (const std::int64_t n : {std::int64_t{1}, std::int64_t{2}, T / 2, T}) {
        if (n < 1 || n > T) continue;
        for (const std::int64_t window : {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, T - 1, T, T + 1, kAll}) {
          if (window < 1) continue;
          for (const std::int64_t kept : {0, 1, 5, 64}) {
            const Case c = row_names(n, T, window, storage, kept);
            expect_means(c, run(c, 3, static_cast<std::uint64_t>(T + n + kept)));
          }
        }
      }
    }
  }
}

TEST_P(AttentionMasks, WindowOfTheWholeContextIsNoWindow) {
  for (const Storage storage : kStorages) {
    CaseSpec spec;
    spec.T = 700;
    spec.query_heads = 4;
    spec.kv_heads = 2;
    spec.k_storage = spec.v_storage = storage;
    const Attention full = run(make_case(spec));
    for (const std::int64_t window : {std::int64_t{700}, std::int64_t{701}, std::int64_t{1} << 62, kAll - 1}) {
      spec.window = window;
      expect_same_bits(run(make_case(spec)), full, describe(spec));
    }
    spec.window = 1;  // a single row has weight 1: its value comes out unchanged
    const Case c = make_case(spec);
    const Attention last = run(c);
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t d = 0; d < spec.value_dim; ++d) {
        const std::size_t row = static_cast<std::size_t>(699 * 2 + h / 2);
        const float code = c.problem.v[row * static_cast<std::size_t>(spec.value_dim) + static_cast<std::size_t>(d)];
        EXPECT_EQ(last.out[static_cast<std::size_t>(h * spec.value_dim + d)],
                  storage == Storage::int8 ? code * c.problem.v_scale[row] : code);
      }
    }
  }
}

TEST_P(AttentionMasks, LateRowsOfABandStayFinite) {  // the first key blocks of late queries are wholly masked
  for (const std::int64_t n : {64, 512, 640}) {
    CaseSpec spec;
    spec.T = 640;
    spec.n = n;
    spec.window = 10;
    spec.key_dim = spec.value_dim = 4;
    const Case c = make_case(spec);
    expect_same_bits(run(c), twin(c), describe(spec));
  }
}

TEST_P(AttentionMasks, QueryHeadReadsTheHeadOfItsGroup) {
  constexpr std::int64_t maps[][2] = {{28, 4}, {32, 8}, {12, 12}, {14, 2}, {15, 5}, {9, 3}, {71, 1}, {1, 1}, {64, 4}};
  for (const auto& map : maps) {
    for (const Storage storage : kStorages) {
      for (const std::int64_t n : {1, 3}) {
        CaseSpec spec;
        spec.query_heads = map[0];
        spec.kv_heads = map[1];
        spec.key_dim = 8;
        spec.value_dim = 3;
        spec.n = n;
        spec.T = 40;
        spec.k_storage = spec.v_storage = storage;
        spec.inputs = Inputs::zero_q;
        Case c = make_case(spec);
        for (std::size_t i = 0; i < c.problem.v.size(); ++i) {
          c.problem.v[i] = static_cast<float>(static_cast<std::int64_t>(i) / spec.value_dim % spec.kv_heads);
        }
        std::fill(c.problem.v_scale.begin(), c.problem.v_scale.end(), 1.0f);
        std::vector<float> expected;
        for (std::int64_t i = 0; i < n * spec.query_heads * spec.value_dim; ++i) {
          const std::int64_t head = i / spec.value_dim % spec.query_heads;
          expected.push_back(static_cast<float>(head / (spec.query_heads / spec.kv_heads)));
        }
        EXPECT_TRUE(exact(run(c).out, expected, describe(spec)));
      }
    }
  }
}

TEST_P(AttentionMasks, LongSumOfHalvesDoesNotOverflow) {  // 65536 * 1.5 is beyond the largest f16
  for (const Storage storage : {Storage::f16, Storage::bf16, Storage::f32}) {
    CaseSpec spec;
    spec.T = 65536;
    spec.key_dim = spec.value_dim = 8;
    spec.k_storage = spec.v_storage = storage;
    spec.inputs = Inputs::zero_q;
    Case c = make_case(spec);
    std::fill(c.problem.v.begin(), c.problem.v.end(), 1.5f);
    const Attention a = run(c, 5);
    EXPECT_EQ(only_value(a), 1.5f);
    EXPECT_NEAR(a.lse.front(), std::log(65536.0), 11.1 * 3 * 0x1p-24);  // 3 u of log, relative
  }
}

// Unique rows that some query sees, at storage width, scales included; queries times the rows that each sees.
TEST(AttentionAccounting, BytesAndFlopsCountVisibleRowsOnce) {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    const Case c = make_case(random_spec(seed, 100000));
    for (const std::uint64_t layout : {seed, seed + 1000}) {
      StoredSequence sequence(c, random_layout(layout));
      StoredCall call(sequence);
      std::int64_t rows = 0, pairs = 0;
      for (const char seen : visible_rows(c.problem)) rows += seen;
      for (std::int64_t i = c.problem.T - c.problem.n; i < c.problem.T; ++i) {
        for (std::int64_t j = 0; j <= i; ++j) pairs += c.problem.visible(i, j);
      }
      const auto side = [](Storage s, std::int64_t d) {
        return d * static_cast<std::int64_t>(storage_bytes(s)) + (s == Storage::int8 ? 4 : 0);
      };
      const std::int64_t bytes =
          rows * c.problem.kv_heads *
          (side(c.spec.k_storage, c.problem.key_dim) + side(c.spec.v_storage, c.problem.value_dim));
      const std::int64_t flops = pairs * c.problem.query_heads * 2 * (c.problem.key_dim + c.problem.value_dim);
      EXPECT_EQ(attention_bytes(call.args), bytes) << describe(c.spec);
      EXPECT_EQ(attention_flops(call.args), flops) << describe(c.spec);
      call.list.push_back(sequence.sequence());
      call.args.sequences = call.list;  // two sequences: twice the work
      EXPECT_EQ(attention_flops(call.args), 2 * flops) << describe(c.spec);
    }
  }
}

TEST(AttentionAccounting, WindowInAChunk) {  // no dead row at the start of a tile is counted
  CaseSpec spec;
  spec.T = 97;
  spec.n = 32;
  spec.window = 33;
  const Case c = make_case(spec);
  StoredSequence sequence(c, {});
  const StoredCall call(sequence);
  EXPECT_EQ(attention_bytes(call.args),
            (97 - 33) * 2 * 64 * 4);  // positions 33..96: the first query, at 65, looks back to 33
  EXPECT_EQ(attention_flops(call.args), 32 * 33 * 4 * 64);
}

KVROOF_INSTANTIATE_EACH_ISA(AttentionMasks);

}  // namespace
}  // namespace kvroof::test
