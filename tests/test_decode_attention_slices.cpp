// One context over several processes: every process sees only its own range of segments, and the joined partials have
// the bits of one process with all rows, wherever the context was cut.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/each_isa.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/sliced_call.hpp"

namespace kvroof::test {
namespace {

class AttentionSlices : public EachIsa {};

CaseSpec spec_of(std::int64_t hq, std::int64_t hkv, std::int64_t n, std::int64_t T, Storage storage) {
  CaseSpec spec = case_of(hq, hkv, 24, 20, n, T, storage, static_cast<std::uint64_t>(hq * 1000 + T));
  spec.sink = true;
  return spec;
}

std::vector<Cuts> all_cuts() {
  return {{}, {1}, {2}, {3}, {1, 2}, {1, 2, 3, 4}, {3, 5}, {2, 2}, {0, 4}, {7}, {1, 2, 3, 4, 5, 6, 7, 8}};
}

TEST_P(AttentionSlices, AnyCutHasTheBitsOfTheWhole) {
  std::vector<CaseSpec> specs = {
      spec_of(1, 1, 1, 4100, Storage::f32),   spec_of(8, 2, 1, 3000, Storage::f16),
      spec_of(16, 1, 1, 2600, Storage::int8), spec_of(4, 4, 3, 2000, Storage::bf16),
      spec_of(2, 1, 40, 1100, Storage::f16),  // queries on both sides of a cut
      spec_of(2, 2, 1, 100, Storage::f32),    // most slices hold nothing
  };
  specs.push_back(spec_of(2, 2, 5, 4000, Storage::int8));
  specs.back().window = 1500;
  specs.back().kept_tokens = 600;  // a hole of whole segments between
  specs.push_back(spec_of(4, 2, 1, 4000, Storage::f16));
  specs.back().window = 20;
  for (const CaseSpec& spec : specs) {
    const std::vector<Case> one = {make_case(spec)};
    for (const Cuts& cuts : all_cuts()) {
      for (const int threads : {1, 3})
        expect_slices_as_whole(one, cuts, {.isa = isa(), .parts = threads}, describe(spec));
    }
  }
}

TEST_P(AttentionSlices, BatchOfDifferentLengths) {
  std::vector<Case> cases;
  for (const std::int64_t T : {700, 1, 3100, 512, 513}) {
    CaseSpec spec = spec_of(4, 2, 1, T, Storage::f16);
    spec.sink = false;  // sinks and slopes are the call's, not the sequence's
    cases.push_back(make_case(spec));
  }
  for (const Cuts& cuts : all_cuts()) {
    for (const int threads : {1, 2, 7}) expect_slices_as_whole(cases, cuts, {.isa = isa(), .parts = threads}, "batch");
  }
}

TEST_P(AttentionSlices, Refusals) {
  const std::vector<Case> cases = {make_case(spec_of(4, 2, 1, 2000, Storage::f16))};
  SlicedCall call(cases, 7);
  expect_refusal(ErrorCode::bad_option, "no end", [&] { call.partials(0, kAll, 1, isa()); });
  expect_refusal(ErrorCode::bad_option, "end before begin", [&] { call.partials(2, 1, 1, isa()); });
  expect_refusal(ErrorCode::bad_option, "negative begin", [&] { call.partials(-1, 1, 1, isa()); });
  std::vector<GuardedBuffer> blocks;
  blocks.push_back(call.partials(0, 2, 1, isa()));
  blocks.push_back(call.partials(2, kEndOfSegments, 1, isa()));
  blocks[1].fill(0);
  expect_refusal(ErrorCode::bad_view, "a block of zeros", [&] { call.finish(blocks, isa()); });
  EXPECT_TRUE(call.nothing_written());
}

KVROOF_INSTANTIATE_EACH_ISA(AttentionSlices);

}  // namespace
}  // namespace kvroof::test
