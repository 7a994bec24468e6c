#include "tests/support/invariance.hpp"

#include <algorithm>
#include <numeric>

namespace kvroof::test {
namespace {

How with_parts(How how, int parts, std::uint64_t order_seed = 0, bool threads = false) {
  how.parts = parts;
  how.order_seed = order_seed;
  how.threads = threads;
  return how;
}

}  // namespace

void expect_any_parts_alike(const CaseSpec& spec, How how) {
  const Case c = make_case(spec);
  const Attention one = attend(c, {}, with_parts(how, 1));
  for (const int parts : {2, 3, 4, 5, 6, 7, 8, 13, 64}) {
    for (const std::uint64_t order : {0, 1, 2}) {
      const How h = with_parts(how, parts, order);
      expect_same_bits(attend(c, {}, h), one, describe(spec) + " " + describe(h));
    }
  }
}

void expect_any_threads_alike(const CaseSpec& spec, How how) {
  const Case c = make_case(spec);
  const Attention one = attend(c, {}, with_parts(how, 1));
  for (const int threads : {1, 2, 3, 4, 5, 6, 7, 8}) {
    const How h = with_parts(how, threads, 0, true);
    expect_same_bits(attend(c, {}, h), one, describe(spec) + " " + describe(h));
  }
}

void expect_any_workspace_alike(const CaseSpec& spec, How how) {
  const Case c = make_case(spec);
  how = with_parts(how, 3);
  const Attention first = attend(c, {}, how);
  for (const std::uint32_t fill : {0u, 0xffffffffu, 0x7f800000u, 0x3f800000u, 0x3f803f80u}) {
    how.workspace_fill = fill;
    expect_same_bits(attend(c, {}, how), first, describe(spec) + " workspace filled with " + std::to_string(fill));
  }
}

void expect_any_layout_alike(const CaseSpec& spec, How how) {
  const Case c = make_case(spec);
  const Attention contiguous = attend(c, {}, with_parts(how, 2));
  std::uint64_t seed = 1;
  const auto check = [&](LayoutKind kind, std::int64_t page_rows) {
    Layout layout = random_layout(++seed);
    layout.kind = kind;
    layout.page_rows = page_rows;
    const How h = with_parts(how, 1 + static_cast<int>(seed % 2));
    expect_same_bits(attend(c, layout, h), contiguous, describe(spec) + " " + describe(layout) + " " + describe(h));
  };
  for (const LayoutKind kind : kLayoutKinds) {
    for (int variant = 0; variant < (kind == LayoutKind::paged ? 0 : 3); ++variant) check(kind, 16);
  }
  for (const std::int64_t page : {1, 2, 3, 5, 16, 17, 64, 100, 256, 512, 513, 1000, 10000}) {
    check(LayoutKind::paged, page);
  }
}

void expect_chunk_as_single_tokens(const Case& c, std::uint64_t seed, How how) {
  const CaseSpec& spec = c.spec;
  const Attention chunk = attend(c, random_layout(seed), with_parts(how, 3));
  const auto queries = [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t row = spec.query_heads * spec.value_dim;
    Attention a;
    a.out.assign(chunk.out.begin() + begin * row, chunk.out.begin() + end * row);
    a.lse.assign(chunk.lse.begin() + begin * spec.query_heads, chunk.lse.begin() + end * spec.query_heads);
    return a;
  };
  for (std::int64_t r = 0; r < spec.n; ++r) {
    expect_same_bits(queries(r, r + 1), attend(single_query(c, r), random_layout(seed + 90), with_parts(how, 2)),
                     describe(spec) + " query " + std::to_string(r));
  }
  const std::int64_t fewer = 1 + spec.n / 2;  // and another cut of the same tokens
  expect_same_bits(queries(spec.n - fewer, spec.n), attend(last_queries(c, fewer), {}, with_parts(how, 1)),
                   describe(spec) + " last " + std::to_string(fewer));
}

void expect_batch_as_alone(const CaseSpec& common, std::uint64_t seed, std::int64_t size, How how) {
  constexpr std::int64_t lengths[] = {0, 1, 5, 16, 33, 511, 512, 513, 700, 1025, 1500};
  Choices choose(seed);
  std::vector<Case> cases;
  std::vector<Attention> alone;
  for (std::int64_t i = 0; i < size; ++i) {
    CaseSpec spec = common;
    spec.seed = seed * 1000 + static_cast<std::uint64_t>(i);
    spec.T = choose.pick(lengths);
    spec.n = spec.T == 0 ? 0 : seed % 2 == 0 ? choose.between(0, std::min<std::int64_t>(spec.T, 9)) : 1;
    Case c = make_case(spec);
    if (!cases.empty()) {  // a batch shares one set of slopes and sinks
      c.problem.alibi_slopes = cases.front().problem.alibi_slopes;
      c.problem.sink_logits = cases.front().problem.sink_logits;
    }
    alone.push_back(spec.n == 0 ? Attention{} : attend(c, {}, with_parts(how, 1)));
    cases.push_back(std::move(c));
  }
  std::vector<std::size_t> order(cases.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (int rotation = 0; rotation < 3; ++rotation) {
    Sequences stored;
    for (const std::size_t i : order)
      stored.push_back(std::make_unique<StoredSequence>(cases[i], random_layout(seed * 100 + i)));
    const How h = with_parts(how, 1 + rotation * 3, seed, rotation == 1);
    const std::vector<Attention> together = attend(stored, h);
    for (std::size_t i = 0; i < order.size(); ++i) {
      expect_same_bits(together[i], alone[order[i]],
                       "batch of " + std::to_string(size) + ", sequence " + std::to_string(i) + ": " +
                           describe(cases[order[i]].spec) + " " + describe(h));
    }
    choose.shuffle(order);
  }
}

}  // namespace kvroof::test
