// The bits of an output row depend on the query, the visible rows with their positions, the storages and the options
// alone: not on the number of parts or threads, their order, the neighbours in the batch, the chunk, or where the rows
// lie.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/each_isa.hpp"
#include "tests/support/invariance.hpp"

namespace kvroof::test {
namespace {

class AttentionInvariance : public EachIsa {
 protected:
  How how(int parts, bool threads = false) const { return {.isa = isa(), .parts = parts, .threads = threads}; }
};

// Shapes that are cut in different ways: many heads and few segments, one head and many segments, chunks, windows.
std::vector<CaseSpec> shapes() {
  std::vector<CaseSpec> list;
  const auto add = [&list](std::int64_t hq, std::int64_t hkv, std::int64_t n, std::int64_t T, std::int64_t window,
                           std::int64_t kept, Storage storage) {
    CaseSpec spec = case_of(hq, hkv, 24, 16, n, T, storage, 77 + list.size());
    spec.window = window;
    spec.kept_tokens = kept;
    spec.sink = true;
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
  for (const CaseSpec& spec : shapes()) expect_any_parts_alike(spec, how(1));
}

TEST_P(AttentionInvariance, Threads) {
  for (const CaseSpec& spec : shapes()) expect_any_threads_alike(spec, how(1));
}

TEST_P(AttentionInvariance, RepeatsAndWorkspaceContent) {  // apart from the batch test: another kind of fault
  for (const CaseSpec& spec : shapes()) expect_any_workspace_alike(spec, how(1));
}

TEST_P(AttentionInvariance, LayoutsAndPageSizes) {
  for (const CaseSpec& spec : shapes()) expect_any_layout_alike(spec, how(1));
}

TEST_P(AttentionInvariance, ChunkEqualsOneTokenAtATime) {
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    CaseSpec spec = random_spec(seed + 500, 300000);
    spec.n = std::min<std::int64_t>(spec.T, 2 + static_cast<std::int64_t>(seed) % 21);
    expect_chunk_as_single_tokens(make_case(spec), seed, how(1));
  }
}

TEST_P(AttentionInvariance, BatchEqualsAlone) {
  for (const std::int64_t size : {2, 3, 7, 32}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      const std::uint64_t own = seed * 31 + static_cast<std::uint64_t>(size);
      expect_batch_as_alone(random_spec(own, 200000), own, size, how(1));
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
      for (const Attention& a : attend(stored, how(parts, threads))) {
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
