// Native mode's bits on one ISA: a matter of the query, the visible rows with their positions and the options alone.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/invariance.hpp"
#include "tests/support/native.hpp"
#include "tests/support/sliced_call.hpp"

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
  for (const CaseSpec& spec : shapes()) expect_any_parts_alike(spec, how());
}

TEST_F(NativeInvariance, Threads) {
  for (const CaseSpec& spec : shapes()) expect_any_threads_alike(spec, how());
}

TEST_F(NativeInvariance, WorkspaceContent) {
  for (const CaseSpec& spec : shapes()) expect_any_workspace_alike(spec, how());
}

TEST_F(NativeInvariance, LayoutsAndPageSizes) {
  for (const CaseSpec& spec : shapes()) expect_any_layout_alike(spec, how());
}

TEST_F(NativeInvariance, ChunkEqualsOneTokenAtATime) {
  for (const CaseSpec& spec : shapes()) {
    if (spec.n > 1) expect_chunk_as_single_tokens(make_case(spec), spec.seed, how());
  }
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CaseSpec spec = random_native_spec(seed + 500, 300000);
    spec.n = std::min<std::int64_t>(spec.T, 2 + static_cast<std::int64_t>(seed) % 21);
    expect_chunk_as_single_tokens(make_case(spec), seed, how());
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
    expect_chunk_as_single_tokens(c, 5, how());
  }
}

TEST_F(NativeInvariance, BatchEqualsAlone) {
  for (const std::int64_t size : {2, 7, 32}) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      const std::uint64_t own = seed * 31 + static_cast<std::uint64_t>(size);
      expect_batch_as_alone(random_native_spec(own, 200000), own, size, how());
    }
  }
}

TEST_F(NativeInvariance, SlicesHaveTheBitsOfTheWhole) {
  for (const CaseSpec& spec : shapes()) {
    const std::vector<Case> one = {make_case(spec)};
    for (const Cuts& cuts : std::vector<Cuts>{{}, {1}, {2}, {1, 2}, {1, 2, 3, 4}, {0, 3, 3}, {7}}) {
      for (const int threads : {1, 3}) expect_slices_as_whole(one, cuts, how(threads), describe(spec));
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
