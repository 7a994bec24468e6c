// Sequences that begin with the same memory read it once, and nobody can tell from the bits: each has those it has
// alone, whatever the threads, the order of its neighbours and how much they share.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention_split.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

// A batch over two pieces of memory a sequence: rows [0, prefix) of the parent, then its own. Rows are [head][row][dim]
// in pages of `page` rows, K then V, as a paged cache has them.
struct Forest {
  struct Member {
    std::int64_t parent = 0;  // sequences of one parent share its pages
    std::int64_t prefix = 0;  // rows, a multiple of the page
    std::int64_t own = 1;
    std::int64_t n = 1;  // new tokens
  };

  Forest(AttentionShape of, Storage s, std::int64_t page, const std::vector<Member>& members, std::uint64_t seed)
      : shape(of) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    const std::int64_t dim = shape.key_dim, row_bytes = dim * static_cast<std::int64_t>(storage_bytes(s));
    std::vector<std::vector<RowRun>> parents;
    const auto add_page = [&](std::vector<RowRun>& to, std::int64_t rows) {
      const std::int64_t half = shape.kv_heads * page * row_bytes;
      memory.emplace_back(static_cast<std::size_t>(2 * half));
      scales.emplace_back(static_cast<std::size_t>(2 * shape.kv_heads * page));
      std::vector<float> x(static_cast<std::size_t>(dim));
      for (std::int64_t i = 0; i < 2 * shape.kv_heads * page; ++i) {
        for (float& value : x) value = normal(random);
        store_row(s, x.data(), x.size(), memory.back().data() + i * row_bytes, scales.back().data() + i,
                  runnable_isas().front());
      }
      RowRun run;
      run.k = memory.back().data();
      run.v = run.k + half;
      if (s == Storage::int8) {
        run.k_scale = scales.back().data();
        run.v_scale = run.k_scale + shape.kv_heads * page;
      }
      run.first_position = to.empty() ? 0 : to.back().first_position + to.back().rows;
      run.rows = rows;
      to.push_back(run);
    };
    for (const Member& m : members) {
      while (static_cast<std::int64_t>(parents.size()) <= m.parent) parents.emplace_back();
      std::vector<RowRun>& parent = parents[static_cast<std::size_t>(m.parent)];
      while (static_cast<std::int64_t>(parent.size()) * page < m.prefix) add_page(parent, page);
      runs.emplace_back(parent.begin(), parent.begin() + m.prefix / page);
      for (std::int64_t left = m.own; left > 0; left -= page) add_page(runs.back(), std::min(left, page));
      const auto floats = static_cast<std::size_t>(m.n * shape.query_heads);
      q.emplace_back(floats * static_cast<std::size_t>(shape.key_dim));
      for (float& value : q.back()) value = normal(random);
      out.emplace_back(floats * static_cast<std::size_t>(shape.value_dim));
      lse.emplace_back(floats);
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      AttentionSequence seq;
      seq.n = members[i].n;
      seq.q = q[i].data();
      seq.q_head_stride = shape.key_dim;
      seq.q_row_stride = shape.query_heads * shape.key_dim;
      seq.out = out[i].data();
      seq.out_head_stride = shape.value_dim;
      seq.out_row_stride = shape.query_heads * shape.value_dim;
      seq.lse = lse[i].data();
      seq.kv.runs = runs[i].data();
      seq.kv.run_count = static_cast<std::int64_t>(runs[i].size());
      seq.kv.end_position = members[i].prefix + members[i].own;
      seq.kv.k_storage = seq.kv.v_storage = s;
      seq.kv.k_row_stride = seq.kv.v_row_stride = row_bytes;
      seq.kv.k_head_stride = seq.kv.v_head_stride = page * row_bytes;
      seq.kv.k_scale_row_stride = seq.kv.v_scale_row_stride = 1;
      seq.kv.k_scale_head_stride = seq.kv.v_scale_head_stride = page;
      sequences.push_back(seq);
    }
    slopes.assign(static_cast<std::size_t>(shape.query_heads), -0.01f);
    sinks.assign(static_cast<std::size_t>(shape.query_heads), 0.5f);
  }

  AttentionArgs args() const {
    AttentionArgs a;
    a.shape = shape;
    a.options.scale = 0.2f;
    a.sequences = sequences;
    return a;
  }

  // out and lse of every sequence, one after another
  std::vector<float> results() const {
    std::vector<float> all;
    for (std::size_t i = 0; i < out.size(); ++i) {
      all.insert(all.end(), out[i].begin(), out[i].end());
      all.insert(all.end(), lse[i].begin(), lse[i].end());
    }
    return all;
  }

  AttentionShape shape;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::vector<float>> scales, q, out, lse;
  std::vector<std::vector<RowRun>> runs;
  std::vector<AttentionSequence> sequences;
  std::vector<float> slopes, sinks;
};

struct Workspace {
  explicit Workspace(std::size_t least)
      : bytes((least + 63) / 64 * 64), data(static_cast<std::byte*>(std::aligned_alloc(64, bytes + 64))) {
    std::memset(data, 0x5a, bytes);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { std::free(data); }
  std::span<std::byte> span() const { return {data, bytes}; }
  std::size_t bytes;
  std::byte* data;
};

std::vector<float> alone(Forest& forest, AttentionArgs args, Isa isa) {
  for (const AttentionSequence& seq : forest.sequences) {
    args.sequences = {&seq, 1};
    const Workspace workspace(attention_workspace_bytes(args, 1));
    decode_attention(args, workspace.span(), 1, isa);
  }
  return forest.results();
}

std::vector<float> together(Forest& forest, const AttentionArgs& args, int threads, Isa isa) {
  for (auto& x : forest.out) std::fill(x.begin(), x.end(), -1.0f);
  for (auto& x : forest.lse) std::fill(x.begin(), x.end(), -1.0f);
  const Workspace workspace(attention_workspace_bytes(args, threads));
  decode_attention(args, workspace.span(), threads, isa);
  return forest.results();
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_shared(Forest& forest, const AttentionArgs& args, Isa isa, const std::string& what) {
  const std::vector<float> expected = alone(forest, args, isa);
  for (const int threads : {1, 2, 3, 5, 8})
    EXPECT_TRUE(same_bits(together(forest, args, threads, isa), expected)) << what << ", " << threads << " threads";
}

using Members = std::vector<Forest::Member>;

class AttentionSharedPrefix : public EachIsa {};

TEST_P(AttentionSharedPrefix, EverySequenceHasTheBitsItHasAlone) {
  const Members members = {{0, 1536, 1, 1}, {0, 1536, 700, 1}, {0, 1536, 40, 1}, {0, 1536, 513, 1}, {1, 0, 300, 1}};
  for (const Storage storage : {Storage::f32, Storage::f16, Storage::bf16, Storage::int8}) {
    for (const auto& [hq, hkv] : {std::pair<std::int64_t, std::int64_t>{3, 3}, {8, 2}, {16, 1}, {10, 2}}) {
      for (const std::int64_t page : {16, 64, 512}) {
        Forest forest({hq, hkv, 24, 24}, storage, page, members, 7);
        const AttentionArgs args = forest.args();
        EXPECT_EQ(shared_prefix(args, 0).sequences, 4);
        EXPECT_EQ(shared_prefix(args, 0).segments, 3);
        expect_shared(forest, args, isa(),
                      "storage " + std::to_string(static_cast<int>(storage)) + ", " + std::to_string(hq) + "/" +
                          std::to_string(hkv) + " heads, page " + std::to_string(page));
      }
    }
  }
}

TEST_P(AttentionSharedPrefix, Options) {
  Forest forest({8, 2, 40, 40}, Storage::f16, 64, {{0, 1088, 9, 1}, {0, 1088, 1, 1}, {0, 1088, 1500, 1}}, 11);
  AttentionArgs args = forest.args();
  args.options.softcap = 3.0f;
  args.options.sink_logits = forest.sinks.data();
  args.options.alibi_slopes = forest.slopes.data();
  args.options.window = 4000;  // reaches over everything
  ASSERT_EQ(shared_prefix(args, 0).segments, 2);
  expect_shared(forest, args, isa(), "softcap, sinks, ALiBi");
  args.options.window = 1100;  // the longest sequence no longer sees its first row
  args.options.kept_tokens = 3;
  EXPECT_EQ(shared_prefix(args, 0).sequences, 2);
  expect_shared(forest, args, isa(), "window");
}

TEST_P(AttentionSharedPrefix, SeveralPrefixesChunksAndStrangersInOneBatch) {
  Forest forest({12, 4, 16, 16}, Storage::f32, 16,
                {{0, 512, 30, 1},
                 {0, 512, 600, 1},
                 {1, 0, 900, 1},
                 {2, 1024, 20, 1},
                 {2, 1024, 7, 1},
                 {2, 1024, 33, 5},
                 {2, 1024, 2, 1},
                 {2, 1024, 1, 1},
                 {3, 0, 1, 1},
                 {0, 512, 3, 1}},
                13);
  AttentionArgs args = forest.args();
  EXPECT_EQ(shared_prefix(args, 0).sequences, 2);
  EXPECT_EQ(shared_prefix(args, 2).segments, 0);
  EXPECT_EQ(shared_prefix(args, 3).sequences, 2);  // a chunk ends it
  EXPECT_EQ(shared_prefix(args, 6).sequences, 2);
  EXPECT_EQ(shared_prefix(args, 9).sequences, 1);  // not beside its siblings
  expect_shared(forest, args, isa(), "mixed");
}

TEST_P(AttentionSharedPrefix, MoreSharersThanOneGroupHolds) {
  const Members members(23, {0, 512, 5, 1});
  Forest forest({16, 2, 16, 16}, Storage::bf16, 128, members, 17);
  EXPECT_EQ(shared_prefix(forest.args(), 0).sequences, 8);
  EXPECT_EQ(shared_prefix(forest.args(), 16).sequences, 7);
  expect_shared(forest, forest.args(), isa(), "23 sharers");
}

TEST_P(AttentionSharedPrefix, OneLateSplitDoesNotCutShortWhatOthersShare) {
  Forest forest({2, 1, 16, 16}, Storage::f32, 512,
                {{0, 4096, 1, 1}, {0, 4096, 1, 1}, {0, 4096, 1, 1}, {0, 512, 1, 1}, {0, 4096, 9, 1}}, 19);
  EXPECT_EQ(shared_prefix(forest.args(), 0).sequences, 3);
  EXPECT_EQ(shared_prefix(forest.args(), 0).segments, 8);
  expect_shared(forest, forest.args(), isa(), "one splits early");
}

TEST_P(AttentionSharedPrefix, EqualCachesKeepALastSegmentOfTheirOwn) {
  Forest forest({4, 2, 16, 16}, Storage::f16, 512, {{0, 1024, 0, 1}, {0, 1024, 0, 1}}, 23);
  EXPECT_EQ(shared_prefix(forest.args(), 0).segments, 1);
  expect_shared(forest, forest.args(), isa(), "the same rows twice");
}

TEST_P(AttentionSharedPrefix, WorkspaceForUnsharedReadsStillServes) {
  Forest forest({4, 2, 16, 16}, Storage::f16, 64, {{0, 512, 1, 1}, {0, 512, 40, 1}}, 29);
  AttentionArgs args = forest.args();
  const std::vector<float> expected = alone(forest, args, isa());
  args.share_prefix = false;
  EXPECT_EQ(shared_prefix(args, 0).segments, 0);
  const std::size_t least = attention_workspace_bytes(args, 2);
  args.share_prefix = true;
  ASSERT_GT(attention_workspace_bytes(args, 2), least);
  const Workspace workspace(least);
  decode_attention(args, workspace.span().first(least), 2, isa());
  EXPECT_TRUE(same_bits(forest.results(), expected));
  EXPECT_THROW(decode_attention(args, workspace.span().first(least - 64), 2, isa()), Error);
}

TEST_P(AttentionSharedPrefix, NativeMode) {
  if (!native_missing(isa(), Storage::bf16, Storage::bf16).empty())
    GTEST_SKIP() << native_missing(isa(), Storage::bf16, Storage::bf16);
  for (const auto& [hq, hkv] : {std::pair<std::int64_t, std::int64_t>{4, 4}, {8, 2}, {16, 1}}) {
    Forest forest({hq, hkv, 64, 64}, Storage::bf16, 64, {{0, 1024, 9, 1}, {0, 1024, 1, 1}, {0, 1024, 600, 1}}, 31);
    AttentionArgs args = forest.args();
    args.mode = Mode::native;
    expect_shared(forest, args, isa(), "native, " + std::to_string(hq) + "/" + std::to_string(hkv));
  }
}

// Segment 0 is an item once a KV head, not once a sequence.
TEST_P(AttentionSharedPrefix, SharedSegmentsAreOneItem) {
  Forest forest({4, 2, 16, 16}, Storage::f32, 64, {{0, 512, 5, 1}, {0, 512, 6, 1}}, 37);
  AttentionArgs args = forest.args();
  const AttentionSplit split = make_attention_split(args, 1);
  EXPECT_EQ(split.prefixes, 2 / split.head_run);
  AttentionCursor cursor(args, split, 1, 0);
  AttentionCursor::Item item;
  std::int64_t rows = 0;
  while (cursor.next(item)) rows += item.group.heads * (item.segment == 0 ? 1 : 0);
  EXPECT_EQ(rows, 2);
}

KVROOF_INSTANTIATE_EACH_ISA(AttentionSharedPrefix);

}  // namespace
}  // namespace kvroof::test
