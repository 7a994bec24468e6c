// The absorbed form of multi-head latent attention with its attention in native mode: within its bound of float64, the
// same bits whatever the cache, the parts, the chunk and the batch; and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/attend_mla.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"
#include "tests/support/native.hpp"
#include "tests/support/refusal.hpp"

namespace kvroof::test {
namespace {

constexpr reference::MlaForm kAbsorbed = reference::MlaForm::absorbed;

class NativeMla : public NativeMode {
 protected:
  static MlaCaseSpec spec_of(const reference::MlaShape& shape, std::int64_t n, std::int64_t T, std::uint64_t seed) {
    MlaCaseSpec spec;
    spec.shape = shape;
    spec.n = n;
    spec.T = T;
    spec.storage = Storage::bf16;
    spec.seed = seed;
    return spec;
  }
  static MlaCaseSpec random_spec_of(std::uint64_t seed) {
    MlaCaseSpec spec = random_mla_spec(seed, 1'000'000);
    spec.storage = Storage::bf16;
    return spec;
  }
  Attention run(const MlaCase& c, LatentCacheKind kind, const How& how, std::uint64_t seed = 1) {
    const LatentCache cache(c, kind, seed);
    const Attention a = attend_mla(make_weights(c), c, cache.view(), kAbsorbed, how, seed);
    EXPECT_TRUE(cache.intact());
    return a;
  }
  void check(const MlaCase& c, LatentCacheKind kind, const How& how) {
    const Attention a = run(c, kind, how, c.spec.seed);
    const reference::OracleAnswer answer =
        reference::mla_oracle(kAbsorbed, c.problem, reference::kNativeBf16Arithmetic);
    const std::string what = describe(c.spec) + " " + describe(how);
    ++checked_;
    if (std::any_of(answer.lse_bound.begin(), answer.lse_bound.end(), [](double b) { return std::isinf(b); })) {
      ++unbounded_;
      return;
    }
    EXPECT_TRUE(within(a.out, answer.out, answer.out_bound, "native mode's bound of mla.hpp for out", what));
    EXPECT_TRUE(within(a.lse, answer.lse, answer.lse_bound, "native mode's bound of mla.hpp for lse", what));
    worst_ = std::max(worst_, reference::worst_error_over_bound(answer, a.out, a.lse));
  }
  void TearDown() override {
    if (!IsSkipped()) RecordProperty("worst_error_over_bound", std::to_string(worst_));
  }

  double worst_ = 0;
  int checked_ = 0, unbounded_ = 0;
};

TEST_F(NativeMla, IsWithinItsBoundOfFloat64) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Choices choose(seed + 1000);
    const LatentCacheKind kind = choose.pick(kLatentCacheKinds);
    const int parts = static_cast<int>(choose.between(1, 8));
    check(make_mla_case(random_spec_of(seed)), kind, how(parts, choose.next(), choose.one_in(4)));
  }
  EXPECT_LE(unbounded_, checked_ / 3);
  EXPECT_GE(worst_, 0.01) << "the bound says nothing any more";
}

TEST_F(NativeMla, IsWithinItsBoundAtTheDimensionsOfRealModels) {
  MlaCaseSpec spec = spec_of(kMlaV2Lite, 2, 33, 5);
  spec.scale = 0.02f;  // random weights make large keys
  check(make_mla_case(spec), LatentCacheKind::paged, how(3));
  spec = spec_of(kMlaV3, 1, 7, 6);
  spec.scale = 0.02f;
  check(make_mla_case(spec), LatentCacheKind::contiguous, how(2, 0, true));
  EXPECT_EQ(unbounded_, 0);
}

TEST_F(NativeMla, BitsDoNotDependOnCachePartsOrChunk) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    MlaCaseSpec spec = random_spec_of(seed + 300);
    spec.n = std::min<std::int64_t>(spec.T, 1 + static_cast<std::int64_t>(seed) % 7);
    const MlaCase c = make_mla_case(spec);
    const Attention one = run(c, LatentCacheKind::contiguous, how(1));
    for (const LatentCacheKind kind : kLatentCacheKinds) {
      for (const int parts : {1, 2, 5, 8})
        expect_same_bits(run(c, kind, how(parts, 0, parts == 5), seed), one, describe(spec));
    }
    const std::int64_t row = spec.shape.heads * spec.shape.value_dim;
    for (std::int64_t r = 0; r < spec.n; ++r) {
      Attention part;
      part.out.assign(one.out.begin() + r * row, one.out.begin() + (r + 1) * row);
      part.lse.assign(one.lse.begin() + r * spec.shape.heads, one.lse.begin() + (r + 1) * spec.shape.heads);
      expect_same_bits(run(single_query(c, r), LatentCacheKind::paged, how(2), seed + 9), part,
                       describe(spec) + " query " + std::to_string(r));
    }
  }
}

// The step is the two folds around decode attention in native mode.
TEST_F(NativeMla, TheStepIsFoldAttentionExpand) {
  const MlaCase c = make_mla_case(spec_of({12, 16, 8, 20, 40}, 3, 600, 3));
  const MlaShape shape = kernel_shape(c.spec.shape);
  const MlaWeights weights = make_weights(c);
  const LatentCache cache(c, LatentCacheKind::contiguous, 1);
  const std::int64_t results = 3 * shape.heads;
  std::vector<float> q(static_cast<std::size_t>(results * 48)), latents(static_cast<std::size_t>(results * 40));
  Attention by_hand;
  by_hand.out.resize(static_cast<std::size_t>(results * 20));
  by_hand.lse.resize(static_cast<std::size_t>(results));
  mla_fold_queries(weights, c.problem.q.data(), 3, q.data(), 1, kIsa);
  AttentionSequence sequence;
  sequence.q = q.data();
  sequence.q_head_stride = 48;
  sequence.q_row_stride = 48 * shape.heads;
  sequence.n = 3;
  sequence.kv = cache.view();
  sequence.out = latents.data();
  sequence.out_head_stride = 40;
  sequence.out_row_stride = 40 * shape.heads;
  sequence.lse = by_hand.lse.data();
  AttentionArgs args = mla_absorbed_args(shape, make_options(c), {&sequence, 1});
  args.mode = Mode::native;
  GuardedBuffer workspace(attention_workspace_bytes(args, 2), Edge::end, 64);
  decode_attention(args, {workspace.data(), workspace.size()}, 2, kIsa);
  mla_expand_latents(weights, latents.data(), 3, by_hand.out.data(), 1, kIsa);
  expect_same_bits(attend_mla(weights, c, cache.view(), kAbsorbed, how(2)), by_hand, "the step by hand");
  How reproducible = how(2);
  reproducible.mode = Mode::reproducible;
  EXPECT_NE(attend_mla(weights, c, cache.view(), kAbsorbed, reproducible).out, by_hand.out);
}

TEST(NativeMlaRefusals, ReconstructionStoragesAndInstructionSets) {
  for (const Isa isa : runnable_isas()) {
    for (const Storage storage : kStorages) {
      MlaCaseSpec spec;
      spec.T = 20;
      spec.storage = storage;
      const MlaCase c = make_mla_case(spec);
      const MlaWeights weights = make_weights(c);
      const LatentCache cache(c, LatentCacheKind::contiguous, 1);
      MlaCall call(c, cache.view(), 1);
      const AttentionSequence sequence = call.sequence();
      MlaArgs args{&weights, make_options(c), {&sequence, 1}, Mode::native};
      GuardedBuffer memory(1 << 22, Edge::end, 64);
      const auto expect_refused = [&](MlaForm form, const std::string& said) {
        for (const int threads : {1, 2}) {
          expect_refusal(
              ErrorCode::bad_isa, std::string(isa_name(isa)) + " " + mla_form_name(form),
              [&] {
                mla_attention(args, form, {memory.data(), memory.size()}, threads, isa);
              },
              said);
          EXPECT_TRUE(call.nothing_written());
        }
      };
      expect_refused(MlaForm::reconstruct, "reconstruct");
      if (!native_missing(isa, storage, storage).empty()) expect_refused(MlaForm::absorbed, "native");
      args.mode = static_cast<Mode>(7);
      expect_refusal(
          ErrorCode::bad_option, "mode 7",
          [&] {
            mla_attention(args, MlaForm::absorbed, {memory.data(), memory.size()}, 1, isa);
          },
          "mode");
    }
  }
}

// Costs that would choose reconstruction for any call.
TEST(NativeMlaRefusals, ThePlanKnowsTheOnlyForm) {
  MlaCaseSpec spec;
  spec.T = spec.n = 40;
  spec.storage = Storage::bf16;
  const MlaCase c = make_mla_case(spec);
  const MlaWeights weights = make_weights(c);
  const LatentCache cache(c, LatentCacheKind::contiguous, 1);
  MlaCall call(c, cache.view(), 1);
  const AttentionSequence sequence = call.sequence();
  MlaArgs args{&weights, make_options(c), {&sequence, 1}};
  MlaCosts costs;
  costs.absorbed_pass = costs.absorbed_pair = costs.fold_call = costs.fold_token = 1.0;
  costs.reconstruct_pass = costs.reconstruct_pair = 1e-9;
  costs.threads = 1;
  EXPECT_EQ(mla_plan(args, costs).form, MlaForm::reconstruct);
  args.mode = Mode::native;
  EXPECT_EQ(mla_plan(args, costs).form, MlaForm::absorbed);
}

}  // namespace
}  // namespace kvroof::test
