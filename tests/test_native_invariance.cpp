// Native mode's bits on one ISA: a matter of the query, the visible rows with their positions and the options alone.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/compare.hpp"
#include "tests/support/native.hpp"

namespace kvroof::test {
namespace {

class NativeInvariance : public NativeMode {};

// Both score forms (groups below 12 and from 12 on) and both value forms (fewer than 12 queries of a group and more),
// with the ones in between that take a form by the chunk or by how work is cut.
std::vector<CaseSpec> shapes() {
  std::vector<CaseSpec> list;
  const auto add = [&list](std::int64_t hq, std::int64_t hkv, std::int64_t n, std::int64_t T, std::int64_t window,
                           std::int64_t kept) {
    CaseSpec spec = native_spec(hq, hkv, 40, 36, n, T, 77 + list.size());
    spec.window = window;
    spec.kept_tokens = kept;
    spec.sink = list.size() % 2 == 0;
    spec.alibi = list.size() % 3 == 0;
    list.push_back(spec);
  };
  add(8, 8, 1, 100, kAll, 0);
  add(8, 2, 1, 1600, kAll, 0);
  add(1, 1, 1, 9000, kAll, 0);
  add(16, 1, 1, 4000, kAll, 0);
  add(6, 3, 9, 1300, kAll, 0);
  add(4, 1, 40, 700, 33, 4);
  add(10, 2, 5, 1100, 200, 3);
  add(26, 2, 5, 1500, kAll, 0);  // 65 queries a head: a tile of 64 and one of 1
  add(33, 1, 1, 300, kAll, 0);   // too few segments for many parts: 33 = 32 + 1
  add(128, 1, 1, 700, kAll, 0);
  add(40, 2, 3, 900, 700, 16);
  add(2, 2, 1, 5000, 1500, 600);
  add(1, 1, 1, 1, kAll, 0);
  return list;
}

TEST_F(NativeInvariance, PartsInAnyOrder) {
  for (const CaseSpec& spec : shapes()) {
    const Case c = make_case(spec);
    const Attention one = attend(c, {}, how(1));
    for (const int parts : {2, 3, 4, 5, 6, 7, 8, 64}) {
      for (const std::uint64_t order : {0, 1})
        expect_same_bits(attend(c, {}, how(parts, order)), one, describe(spec) + " " + describe(how(parts, order)));
    }
  }
}

TEST_F(NativeInvariance, Threads) {
  for (const CaseSpec& spec : shapes()) {
    const Case c = make_case(spec);
    const Attention one = attend(c, {}, how(1));
    for (const int threads : {1, 2, 3, 4, 5, 6, 7, 8})
      expect_same_bits(attend(c, {}, how(threads, 0, true)), one,
                       describe(spec) + " " + describe(how(threads, 0, true)));
  }
}

TEST_F(NativeInvariance, WorkspaceContent) {
  for (const CaseSpec& spec : shapes()) {
    const Case c = make_case(spec);
    How h = how(3);
    const Attention first = attend(c, {}, h);
    for (const std::uint32_t fill : {0u, 0xffffffffu, 0x7f800000u, 0x3f803f80u}) {
      h.workspace_fill = fill;
      expect_same_bits(attend(c, {}, h), first, describe(spec) + " workspace filled with " + std::to_string(fill));
    }
  }
}

TEST_F(NativeInvariance, LayoutsAndPageSizes) {
  for (const CaseSpec& spec : shapes()) {
    const Case c = make_case(spec);
    const Attention contiguous = attend(c, {}, how(2));
    std::vector<Layout> layouts;
    std::uint64_t seed = 1;
    for (const LayoutKind kind : kLayoutKinds) {
      for (int variant = 0; variant < (kind == LayoutKind::paged ? 0 : 3); ++variant) {
        layouts.push_back(random_layout(++seed));
        layouts.back().kind = kind;
      }
    }
    for (const std::int64_t page : {1, 3, 16, 17, 100, 512, 513, 10000}) {
      layouts.push_back(random_layout(++seed));
      layouts.back().kind = LayoutKind::paged;
      layouts.back().page_rows = page;
    }
    for (const Layout& layout : layouts) {
      for (const int parts : {1, 2})
        expect_same_bits(attend(c, layout, how(parts)), contiguous, describe(spec) + " " + describe(layout));
    }
  }
}

void expect_chunk_as_single_tokens(const Case& c, std::uint64_t seed, const How& chunked, const How& single) {
  const CaseSpec& spec = c.spec;
  const Attention chunk = attend(c, random_layout(seed), chunked);
  const std::int64_t row = spec.query_heads * spec.value_dim;
  for (std::int64_t r = 0; r < spec.n; ++r) {
    Attention part;
    part.out.assign(chunk.out.begin() + r * row, chunk.out.begin() + (r + 1) * row);
    part.lse.assign(chunk.lse.begin() + r * spec.query_heads, chunk.lse.begin() + (r + 1) * spec.query_heads);
    expect_same_bits(part, attend(single_query(c, r), random_layout(seed + 90), single),
                     describe(spec) + " query " + std::to_string(r));
  }
  const std::int64_t fewer = 1 + spec.n / 2;  // and another cut of the same tokens
  Attention tail;
  tail.out.assign(chunk.out.end() - fewer * row, chunk.out.end());
  tail.lse.assign(chunk.lse.end() - fewer * spec.query_heads, chunk.lse.end());
  expect_same_bits(tail, attend(last_queries(c, fewer), {}, single), describe(spec) + " last " + std::to_string(fewer));
}

TEST_F(NativeInvariance, ChunkEqualsOneTokenAtATime) {
  for (const CaseSpec& spec : shapes()) {
    if (spec.n > 1) expect_chunk_as_single_tokens(make_case(spec), spec.seed, how(1), how(2));
  }
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CaseSpec spec = random_native_spec(seed + 500, 300000);
    spec.n = std::min<std::int64_t>(spec.T, 2 + static_cast<std::int64_t>(seed) % 21);
    expect_chunk_as_single_tokens(make_case(spec), seed, how(3), how(2));
  }
}

// Products that underflow become zeros of their sign, and a zero row after them would turn -0 into +0: how many hidden
// rows come by must not show. The last rows of a tile of 16 are the small ones here, seen alone and in a chunk that
// goes on behind them.
TEST_F(NativeInvariance, ZerosDoNotDependOnHiddenRows) {
  for (const std::int64_t group : {1, 2, 13}) {
    CaseSpec spec = native_spec(group, 1, 1, 40, 9, 56, 3);
    spec.scale = 1.0f;
    Case c = make_case(spec);
    std::fill(c.problem.q.begin(), c.problem.q.end(), 1.0f);
    std::fill(c.problem.k.begin(), c.problem.k.end(), -1.0f);
    c.problem.k[0] = 0.0f;  // the largest weight, 1, meets a value of 0
    std::fill(c.problem.v.begin(), c.problem.v.end(), 0.0f);
    std::fill_n(c.problem.v.begin() + 46 * 40, 80, -0x1p-126f);
    expect_chunk_as_single_tokens(c, 5, how(1), how(1));
  }
}

TEST_F(NativeInvariance, BatchEqualsAlone) {
  constexpr std::int64_t lengths[] = {0, 1, 5, 16, 33, 511, 512, 513, 700, 1025, 1500};
  for (const std::int64_t size : {2, 7, 32}) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      const CaseSpec common = random_native_spec(seed * 31 + static_cast<std::uint64_t>(size), 200000);
      Choices choose(seed);
      std::vector<Case> cases;
      for (std::int64_t i = 0; i < size; ++i) {
        CaseSpec spec = common;
        spec.seed = seed * 1000 + static_cast<std::uint64_t>(i);
        spec.T = choose.pick(lengths);
        spec.n = spec.T == 0 ? 0 : seed % 2 == 0 ? choose.between(0, std::min<std::int64_t>(spec.T, 9)) : 1;
        cases.push_back(make_case(spec));
        cases.back().problem.alibi_slopes = cases.front().problem.alibi_slopes;  // a batch shares them
        cases.back().problem.sink_logits = cases.front().problem.sink_logits;
      }
      Sequences stored;
      for (std::size_t i = 0; i < cases.size(); ++i)
        stored.push_back(std::make_unique<StoredSequence>(cases[i], random_layout(seed * 100 + i)));
      for (const int parts : {1, 4}) {
        const std::vector<Attention> together = attend(stored, how(parts, seed, parts == 4 && seed == 3));
        for (std::size_t i = 0; i < cases.size(); ++i) {
          if (cases[i].spec.n == 0) continue;
          expect_same_bits(
              together[i], attend(cases[i], {}, how(1)),
              "sequence " + std::to_string(i) + " of " + std::to_string(size) + ": " + describe(cases[i].spec));
        }
      }
    }
  }
}

// Partials of slices of segments, joined.
TEST_F(NativeInvariance, SlicesHaveTheBitsOfTheWhole) {
  for (const CaseSpec& spec : shapes()) {
    const Case c = make_case(spec);
    const Attention whole = attend(c, {}, how(1));
    const std::vector<std::vector<std::int64_t>> all_cuts = {{}, {1}, {2}, {1, 2}, {1, 2, 3, 4}, {0, 3, 3}, {7}};
    for (const std::vector<std::int64_t>& cuts : all_cuts) {
      for (const int threads : {1, 3}) {
        StoredSequence sequence(c, {});
        const StoredOptions stored(c);
        const AttentionSequence list[] = {sequence.sequence()};
        AttentionArgs args;
        args.shape = stored.shape;
        args.options = stored.options;
        args.sequences = list;
        args.mode = Mode::native;
        std::vector<GuardedBuffer> blocks;
        std::int64_t begin = 0;
        for (std::size_t i = 0; i <= cuts.size(); ++i) {
          AttentionArgs slice = args;
          slice.segment_begin = begin;
          slice.segment_end = i < cuts.size() ? cuts[i] : 1000;
          begin = slice.segment_end;
          blocks.emplace_back(attention_partials_bytes(slice), Edge::end, std::size_t{64});
          blocks.back().fill(0x7fc00000u);
          GuardedBuffer workspace(attention_workspace_bytes(slice, threads), Edge::end, 64);
          workspace.fill(0x7fc00000u);
          attention_partials(slice, {workspace.data(), workspace.size()}, threads,
                             {blocks.back().data(), blocks.back().size()}, kIsa);
          EXPECT_TRUE(blocks.back().intact() && workspace.intact());
        }
        std::vector<std::byte*> data;
        for (GuardedBuffer& block : blocks) data.push_back(block.data());
        attention_finish_partials(args, data, kIsa);
        EXPECT_EQ(sequence.damage(), "");
        expect_same_bits(
            sequence.result(), whole,
            describe(spec) + " in " + std::to_string(cuts.size() + 1) + " slices, threads " + std::to_string(threads));
      }
    }
  }
}

TEST_F(NativeInvariance, LatentRowsAsPlainRows) {
  const LatentCase latent(native_spec(16, 1, 576, 512, 2, 700, 4), 512);
  const Attention plain = attend(latent.source, {}, how(1));
  for (const int parts : {1, 2, 5})
    expect_same_bits(attend_view(latent.source, latent.view, how(parts)), plain, "latent rows");
}

}  // namespace
}  // namespace kvroof::test
