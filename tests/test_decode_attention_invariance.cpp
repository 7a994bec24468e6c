// The bits of an output row depend on the query, the visible rows with their positions, the storages and the options
// alone: not on the number of parts or threads, their order, the neighbours in the batch, the chunk, or where the rows
// lie.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/attend.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

class AttentionInvariance : public EachIsa {
 protected:
  How how(int parts, std::uint64_t order_seed = 0, bool threads = false) const {
    How h;
    h.isa = isa();
    h.parts = parts;
    h.order_seed = order_seed;
    h.threads = threads;
    return h;
  }
};

// Shapes that are cut in different ways: many heads and few segments, one head and many segments, chunks, windows.
std::vector<CaseSpec> shapes() {
  std::vector<CaseSpec> list;
  const auto add = [&list](std::int64_t hq, std::int64_t hkv, std::int64_t n, std::int64_t T, std::int64_t window,
                           std::int64_t kept, Storage storage) {
    CaseSpec spec;
    spec.query_heads = hq;
    spec.kv_heads = hkv;
    spec.key_dim = 24;
    spec.value_dim = 16;
    spec.n = n;
    spec.T = T;
    spec.window = window;
    spec.kept_tokens = kept;
    spec.k_storage = spec.v_storage = storage;
    spec.sink = true;
    spec.seed = 77 + static_cast<std::uint64_t>(list.size());
    list.push_back(spec);
  };
  add(8, 8, 1, 100, kAll, 0, Storage::f32);
  add(8, 2, 1, 1600, kAll, 0, Storage::f16);
  add(1, 1, 1, 9000, kAll, 0, Storage::bf16);
  add(16, 1, 1, 4000, kAll, 0, Storage::int8);
  add(6, 3, 9, 1300, kAll, 0, Storage::f16);
  add(4, 1, 40, 700, 33, 4, Storage::f32);
  add(2, 2, 1, 5000, 1500, 600, Storage::int8);
  add(1, 1, 1, 1, kAll, 0, Storage::f32);
  return list;
}

TEST_P(AttentionInvariance, PartsInAnyOrder) {
  for (const CaseSpec& spec : shapes()) {
    const Case c = make_case(spec);
    const Attention one = attend(c, {}, how(1));
    for (const int parts : {2, 3, 4, 5, 6, 7, 8, 13, 64}) {
      for (const std::uint64_t order : {0, 1, 2}) {
        expect_same_bits(attend(c, {}, how(parts, order)), one, describe(spec) + " " + describe(how(parts, order)));
      }
    }
  }
}

TEST_P(AttentionInvariance, Threads) {
  for (const CaseSpec& spec : shapes()) {
    const Case c = make_case(spec);
    const Attention one = attend(c, {}, how(1));
    for (const int threads : {1, 2, 3, 4, 5, 6, 7, 8}) {
      expect_same_bits(attend(c, {}, how(threads, 0, true)), one,
                       describe(spec) + " " + describe(how(threads, 0, true)));
    }
  }
}

TEST_P(AttentionInvariance, RepeatsAndWorkspaceContent) {  // apart from the batch test: another kind of fault
  for (const CaseSpec& spec : shapes()) {
    const Case c = make_case(spec);
    How h = how(3);
    const Attention first = attend(c, {}, h);
    for (const std::uint32_t fill : {0u, 0xffffffffu, 0x7f800000u, 0x3f800000u}) {
      h.workspace_fill = fill;
      expect_same_bits(attend(c, {}, h), first, describe(spec) + " workspace filled with " + std::to_string(fill));
    }
  }
}

TEST_P(AttentionInvariance, LayoutsAndPageSizes) {
  for (const CaseSpec& spec : shapes()) {
    const Case c = make_case(spec);
    const Attention contiguous = attend(c, {}, how(2));
    std::vector<Layout> layouts;
    std::uint64_t seed = 1;
    for (const LayoutKind kind : kLayoutKinds) {
      for (int variant = 0; variant < (kind == LayoutKind::paged ? 0 : 3); ++variant) {
        Layout layout = random_layout(++seed);
        layout.kind = kind;
        layouts.push_back(layout);
      }
    }
    for (const std::int64_t page : {1, 2, 3, 5, 16, 17, 64, 256, 512, 513, 1000, 10000}) {
      Layout layout = random_layout(++seed);
      layout.kind = LayoutKind::paged;
      layout.page_rows = page;
      layouts.push_back(layout);
    }
    for (const Layout& layout : layouts) {
      expect_same_bits(attend(c, layout, how(2)), contiguous, describe(spec) + " " + describe(layout));
    }
  }
}

TEST_P(AttentionInvariance, ChunkEqualsOneTokenAtATime) {
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    CaseSpec spec = random_spec(seed + 500, 300000);
    spec.n = std::min<std::int64_t>(spec.T, 2 + static_cast<std::int64_t>(seed) % 21);
    const Case c = make_case(spec);
    const Attention chunk = attend(c, random_layout(seed), how(3));
    const std::int64_t row = spec.query_heads * spec.value_dim;
    for (std::int64_t r = 0; r < spec.n; ++r) {
      Attention part;
      part.out.assign(chunk.out.begin() + r * row, chunk.out.begin() + (r + 1) * row);
      part.lse.assign(chunk.lse.begin() + r * spec.query_heads, chunk.lse.begin() + (r + 1) * spec.query_heads);
      expect_same_bits(part, attend(single_query(c, r), random_layout(seed + 90), how(2)),
                       describe(spec) + " query " + std::to_string(r));
    }
    // and any other cut of the same tokens
    const std::int64_t fewer = 1 + spec.n / 2;
    Attention tail;
    tail.out.assign(chunk.out.end() - fewer * row, chunk.out.end());
    tail.lse.assign(chunk.lse.end() - fewer * spec.query_heads, chunk.lse.end());
    expect_same_bits(tail, attend(last_queries(c, fewer), {}, how(1)),
                     describe(spec) + " last " + std::to_string(fewer));
  }
}

// Sequence i of a batch: its own length, chunk, layout and data; shape, storages and options are the batch's.
std::vector<Case> batch_cases(std::uint64_t seed, std::int64_t size, bool chunks) {
  CaseSpec common = random_spec(seed, 200000);
  constexpr std::int64_t lengths[] = {0, 1, 5, 16, 33, 511, 512, 513, 700, 1025, 1500};
  Choices choose(seed);
  std::vector<Case> cases;
  for (std::int64_t i = 0; i < size; ++i) {
    CaseSpec spec = common;
    spec.seed = seed * 1000 + static_cast<std::uint64_t>(i);
    spec.T = choose.pick(lengths);
    spec.n = spec.T == 0 ? 0 : chunks ? choose.between(0, std::min<std::int64_t>(spec.T, 9)) : 1;
    // A batch shares one set of slopes and sinks: they come from the first sequence.
    Case c = make_case(spec);
    if (!cases.empty()) {
      c.problem.alibi_slopes = cases.front().problem.alibi_slopes;
      c.problem.sink_logits = cases.front().problem.sink_logits;
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

TEST_P(AttentionInvariance, BatchEqualsAlone) {
  for (const std::int64_t size : {2, 3, 7, 32}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      const std::vector<Case> cases = batch_cases(seed * 31 + static_cast<std::uint64_t>(size), size, seed % 2 == 0);
      std::vector<Attention> alone;
      for (const Case& c : cases) alone.push_back(c.spec.n == 0 ? Attention{} : attend(c, {}, how(1)));
      std::vector<std::size_t> order(cases.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      Choices choose(seed);
      for (int rotation = 0; rotation < 3; ++rotation) {  // and at other places of the batch
        Sequences stored;
        for (const std::size_t i : order) {
          stored.push_back(std::make_unique<StoredSequence>(cases[i], random_layout(seed * 100 + i)));
        }
        const How h = how(1 + rotation * 3, seed, rotation == 1);
        const std::vector<Attention> together = attend(stored, h);
        for (std::size_t i = 0; i < order.size(); ++i) {
          expect_same_bits(together[i], alone[order[i]],
                           "batch of " + std::to_string(size) + ", sequence " + std::to_string(i) + ": " +
                               describe(cases[order[i]].spec) + " " + describe(h));
        }
        choose.shuffle(order);
      }
    }
  }
}

TEST_P(AttentionInvariance, EmptyBatches) {
  CaseSpec spec;
  spec.T = 0;
  spec.n = 0;
  const Case empty = make_case(spec);
  for (const int parts : {1, 2, 5}) {
    Sequences stored;
    for (int i = 0; i < 3; ++i) stored.push_back(std::make_unique<StoredSequence>(empty, Layout{}));
    for (const bool threads : {false, true}) {
      for (const Attention& a : attend(stored, how(parts, 0, threads))) {
        EXPECT_TRUE(a.out.empty());
        EXPECT_TRUE(a.lse.empty());
      }
    }
  }
  // no new token on a cache that holds rows: nothing is written either
  spec.T = 40;
  const Case idle = make_case(spec);
  EXPECT_TRUE(attend(idle, {}, how(2)).out.empty());
}

TEST_P(AttentionInvariance, LseIsOptional) {
  for (const CaseSpec& spec : shapes()) {
    const Case c = make_case(spec);
    Sequences stored;
    stored.push_back(std::make_unique<StoredSequence>(c, Layout{}, false));
    Attention without = attend(stored, how(2)).front();
    Attention with = attend(c, {}, how(2));
    with.lse.clear();
    expect_same_bits(without, with, describe(spec) + " without lse");
  }
}

KVROOF_INSTANTIATE_EACH_ISA(AttentionInvariance);

}  // namespace
}  // namespace kvroof::test
