// Multi-head latent attention: both forms bit for bit equal to their lane twins, on every instruction set, whatever the
// cache, its pages, the parts, the chunk and the batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "reference/lane_twin.hpp"
#include "tests/support/attend.hpp"
#include "tests/support/attend_mla.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"
#include "tests/support/float_state.hpp"

namespace kvroof::test {
namespace {

using Form = reference::MlaForm;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

MlaCaseSpec spec_of(const reference::MlaShape& shape, std::int64_t n, std::int64_t T, Storage storage = Storage::f32,
                    std::uint64_t seed = 1) {
  MlaCaseSpec spec;
  spec.shape = shape;
  spec.n = n;
  spec.T = T;
  spec.storage = storage;
  spec.seed = seed;
  return spec;
}

How how_of(Isa isa, int parts) {
  How how;
  how.isa = isa;
  how.parts = parts;
  return how;
}

// The twin is slow and knows no instruction set: its answers are kept for the next one.
const Attention& remembered_twin(Form form, const MlaCase& c) {
  static std::map<std::string, Attention> answers;
  const auto [at, added] = answers.try_emplace(golden_name(form, c.spec));
  if (added) at->second = mla_twin(form, c);
  return at->second;
}

class Mla : public EachIsa {};
class MlaInvariance : public EachIsa {};

TEST_P(Mla, EqualsTheTwinOnRandomCases) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    if (!case_selected(static_cast<std::int64_t>(seed))) continue;
    const MlaCase c = make_mla_case(random_mla_spec(seed, 1'000'000));
    Choices choose(seed + 1000);
    const LatentCache cache(c, choose.pick(kLatentCacheKinds), seed);
    const MlaWeights weights = make_weights(c);
    for (const Form form : kMlaForms) {
      How how = how_of(isa(), static_cast<int>(choose.between(1, 8)));
      how.order_seed = choose.next();
      how.threads = choose.one_in(4);
      const Attention a = attend_mla(weights, c, cache.view(), form, how, seed);
      expect_same_bits(a, remembered_twin(form, c),
                       golden_name(form, c.spec) + " " + cache.name() + " " + describe(how));
      EXPECT_TRUE(cache.intact());
      if (HasFailure()) return;
    }
  }
}

TEST_P(Mla, EqualsTheTwinAtTheDimensionsOfRealModels) {
  std::vector<MlaCaseSpec> specs = {spec_of(kMlaV2Lite, 5, 33, Storage::int8), spec_of(kMlaV3, 1, 7, Storage::bf16)};
  if (isa() != Isa::portable) {  // which takes seconds for each
    specs.push_back(spec_of(kMlaV2Lite, 1, 70, Storage::f32));
    specs.push_back(spec_of(kMlaV3, 2, 3, Storage::int8));
    specs.push_back(spec_of(kMlaV3, 1, 2, Storage::f16));
  }
  for (const MlaCaseSpec& spec : specs) {
    const MlaCase c = make_mla_case(spec);
    const LatentCache cache(c, LatentCacheKind::paged, 5);
    const MlaWeights weights = make_weights(c);
    for (const Form form : kMlaForms) {
      const Attention a = attend_mla(weights, c, cache.view(), form, how_of(isa(), 3));
      expect_same_bits(a, remembered_twin(form, c), golden_name(form, spec));
    }
  }
}

TEST_P(Mla, IsWithinEachFormsOwnBoundOfTheOracle) {
  for (const std::int64_t T : {1, 7, 64, 600}) {
    for (const Storage storage : kStorages) {
      const MlaCase c = make_mla_case(spec_of({8, 32, 16, 32, 128}, T >= 7 ? 3 : 1, T, storage, 9));
      const LatentCache cache(c, LatentCacheKind::contiguous, 1);
      const MlaWeights weights = make_weights(c);
      for (const Form form : kMlaForms) {
        const Attention a = attend_mla(weights, c, cache.view(), form, how_of(isa(), 2));
        EXPECT_LE(worst_error_over_bound(reference::mla_oracle(form, c.problem), a.out, a.lse), 1.0)
            << golden_name(form, c.spec);
      }
    }
  }
}

// The dimensions at which others compared the forms by cosine or by token: here each against the oracle.
TEST_P(Mla, IsWithinItsBoundAtTheDimensionsOfRealModels) {
  for (const std::int64_t T : {1, 7, 64}) {
    const MlaCase c = make_mla_case(spec_of(kMlaV2Lite, 1, T, Storage::f32, 3));
    const LatentCache cache(c, LatentCacheKind::contiguous, 1);
    const MlaWeights weights = make_weights(c);
    for (const Form form : kMlaForms) {
      static std::map<std::string, reference::OracleAnswer> oracles;
      const auto [at, added] = oracles.try_emplace(golden_name(form, c.spec));
      if (added) at->second = reference::mla_oracle(form, c.problem);
      const Attention a = attend_mla(weights, c, cache.view(), form, how_of(isa(), 2));
      EXPECT_LE(worst_error_over_bound(at->second, a.out, a.lse), 1.0) << golden_name(form, c.spec);
    }
  }
}

TEST_P(Mla, TheFormsAgreeWithinTheirBoundsButNotInBits) {
  const MlaCase c = make_mla_case(spec_of(kMlaToy, 1, 100));
  const LatentCache cache(c, LatentCacheKind::contiguous, 1);
  const MlaWeights weights = make_weights(c);
  const Attention a = attend_mla(weights, c, cache.view(), Form::absorbed, how_of(isa(), 1));
  const Attention b = attend_mla(weights, c, cache.view(), Form::reconstruct, how_of(isa(), 1));
  EXPECT_NE(a.out, b.out) << "one form ran twice";
  const auto oracle = reference::mla_oracle(Form::absorbed, c.problem),
             other = reference::mla_oracle(Form::reconstruct, c.problem);
  for (std::size_t i = 0; i < a.out.size(); ++i)
    EXPECT_LE(std::abs(a.out[i] - b.out[i]), oracle.out_bound[i] + other.out_bound[i]) << i;
}

TEST_P(Mla, MiddleOfTheAbsorbedFormTakesQueriesThatAreFolded) {
  const MlaCase c = make_mla_case(spec_of({8, 24, 8, 40, 144}, 3, 530, Storage::f16));
  const reference::MlaShape& s = c.spec.shape;
  const LatentCache cache(c, LatentCacheKind::contiguous, 1);
  const MlaWeights weights = make_weights(c);
  const reference::AttentionProblem folded = reference::mla_absorbed_problem(c.problem);
  std::vector<float> q(folded.q.size()), latent(static_cast<std::size_t>(3 * s.heads * s.latent_dim), kNaN);
  mla_fold_queries(weights, c.problem.q.data(), 3, q.data(), 3, isa());
  EXPECT_TRUE(same_bits(q, folded.q, "folded queries"));

  AttentionSequence sequence;
  sequence.q = q.data();
  sequence.q_head_stride = s.latent_dim + s.rope_dim;
  sequence.q_row_stride = sequence.q_head_stride * s.heads;
  sequence.n = 3;
  sequence.kv = cache.view();
  sequence.out = latent.data();
  sequence.out_head_stride = s.latent_dim;
  sequence.out_row_stride = s.latent_dim * s.heads;
  const std::span<const AttentionSequence> one(&sequence, 1);
  const AttentionArgs args = mla_absorbed_args(kernel_shape(s), make_options(c), one);
  const std::size_t bytes = attention_workspace_bytes(args, 2);
  GuardedBuffer workspace(bytes, Edge::end, 64);
  mla_absorbed(kernel_shape(s), make_options(c), one, {workspace.data(), bytes}, 2, isa());
  std::vector<float> expected, lse;
  reference::lane_twin_attention(folded, expected, lse);
  EXPECT_TRUE(same_bits(latent, expected, "latent results"));

  std::vector<float> out(static_cast<std::size_t>(3 * s.heads * s.value_dim));
  mla_expand_latents(weights, latent.data(), 3, out.data(), 3, isa());
  EXPECT_TRUE(same_bits(out, mla_twin(Form::absorbed, c).out, "expanded"));
}

TEST_P(Mla, OneVisibleRowDoesNotFeelTheScaleTwoDo) {
  for (const Form form : kMlaForms) {
    for (const std::int64_t T : {1, 2}) {
      std::vector<Attention> results;
      for (const float scale : {0.114721f, 0.0721688f}) {  // with a long-context factor, and 1/sqrt(192) alone
        MlaCaseSpec spec = spec_of(kMlaToy, 1, T);
        spec.scale = scale;
        const MlaCase c = make_mla_case(spec);
        const LatentCache cache(c, LatentCacheKind::contiguous, 1);
        results.push_back(attend_mla(make_weights(c), c, cache.view(), form, how_of(isa(), 1)));
      }
      EXPECT_EQ(results[0].out == results[1].out, T == 1);
    }
  }
}

TEST_P(Mla, NanAndInfinityGoWhereTheDefinitionSendsThem) {
  const auto spoil = [](std::size_t column, float value) {
    MlaCaseSpec spec = spec_of({3, 16, 8, 16, 64}, 3, 40, Storage::f32, 4);
    MlaCase c = make_mla_case(spec);
    c.rows[38 * 72 + column] = value;  // seen by queries 1 and 2, not by 0
    restore_rows(c);
    return c;
  };
  const MlaCase clean = make_mla_case(spec_of({3, 16, 8, 16, 64}, 3, 40, Storage::f32, 4));
  for (const Form form : kMlaForms) {
    for (const std::size_t column : {std::size_t{5}, std::size_t{70}}) {  // latent, rotated key
      for (const float value : {kNaN, kInf, -kInf}) {
        const MlaCase c = spoil(column, value);
        const LatentCache cache(c, LatentCacheKind::paged, 3);
        const Attention a = attend_mla(make_weights(c), c, cache.view(), form, how_of(isa(), 2));
        expect_same_bits(a, mla_twin(form, c), golden_name(form, c.spec), true);
        for (std::size_t i = 0; i < 48; ++i) {
          EXPECT_EQ(float_bits(a.out[i]), float_bits(mla_twin(form, clean).out[i])) << "query 0 does not see that row";
          if (value != value) {
            EXPECT_EQ(float_bits(a.out[48 + i]), 0x7fc00000u);
          }
        }
      }
    }
  }
}

TEST_P(Mla, TheCallersFloatingPointStateNeitherMattersNorChanges) {
  MlaCase c = make_mla_case(spec_of(kMlaToy, 2, 40));
  for (float& x : c.rows) x *= 0x1p-120f;  // products with the weights are subnormal
  restore_rows(c);
  for (float& x : c.problem.w_uv) x *= 0x1p-12f;
  const LatentCache cache(c, LatentCacheKind::contiguous, 1);
  const MlaWeights weights = make_weights(c);
  for (const Form form : kMlaForms) {
    const Attention expected = mla_twin(form, c);
    ASSERT_TRUE(std::any_of(expected.out.begin(), expected.out.end(),
                            [](float x) { return x != 0 && std::abs(x) < 0x1p-126f; }));
    for (const std::uint64_t state : {kFlushToZero, kTowardZero}) {
      const ScopedFloatState scoped(state);
      const Attention a = attend_mla(weights, c, cache.view(), form, how_of(isa(), 2));
      EXPECT_EQ(float_state() & state, state);
      expect_same_bits(a, expected, golden_name(form, c.spec));
    }
  }
}

TEST_P(Mla, NothingToDoIsDoneWithoutAWorkspace) {
  const MlaCase c = make_mla_case(spec_of(kMlaToy, 1, 5));
  const MlaWeights weights = make_weights(c);
  const ContiguousCache empty(mla_cache_shape(weights.shape(), Storage::f32));
  AttentionSequence none;
  none.kv = empty.view();
  for (const MlaForm form : {MlaForm::absorbed, MlaForm::reconstruct}) {
    for (const std::span<const AttentionSequence> sequences : {std::span<const AttentionSequence>{}, {&none, 1}}) {
      const MlaArgs args{&weights, make_options(c), sequences};
      EXPECT_EQ(mla_workspace_bytes(args, form, 3), 0u);
      EXPECT_NO_THROW(mla_attention(args, form, {}, 3, isa()));
    }
  }
}

// ---- invariance ----
TEST_P(MlaInvariance, PartsOrderThreadsAndWhatTheWorkspaceHeld) {
  for (const Storage storage : kStorages) {
    const MlaCase c = make_mla_case(spec_of({2, 6, 4, 8, 150}, 2, 1100, storage, 7));
    const LatentCache cache(c, LatentCacheKind::contiguous, 1);
    const MlaWeights weights = make_weights(c);
    for (const Form form : kMlaForms) {
      const Attention& expected = remembered_twin(form, c);
      for (int parts = 1; parts <= 8; ++parts) {
        How how = how_of(isa(), parts);
        how.order_seed = static_cast<std::uint64_t>(parts);
        how.workspace_fill = parts % 2 == 0 ? 0x7fc00000u : 0x7f800000u;
        expect_same_bits(attend_mla(weights, c, cache.view(), form, how), expected,
                         golden_name(form, c.spec) + describe(how));
        how.threads = true;
        expect_same_bits(attend_mla(weights, c, cache.view(), form, how), expected,
                         golden_name(form, c.spec) + describe(how));
      }
    }
  }
}

TEST_P(MlaInvariance, ChunkEqualsOneTokenAtATime) {
  for (const Storage storage : {Storage::f32, Storage::int8}) {
    MlaCaseSpec spec = spec_of({5, 16, 8, 16, 40}, 37, 540, storage, 8);
    spec.window = 200;
    spec.kept_tokens = 3;
    const MlaCase chunk = make_mla_case(spec);
    const MlaWeights weights = make_weights(chunk);
    const LatentCache cache(chunk, LatentCacheKind::contiguous, 2);
    for (const Form form : kMlaForms) {
      const Attention all = attend_mla(weights, chunk, cache.view(), form, how_of(isa(), 4));
      for (const std::int64_t r : {0, 1, 17, 36}) {
        const MlaCase one = single_query(chunk, r);
        const LatentCache own(one, LatentCacheKind::ring, 3);
        const Attention alone = attend_mla(weights, one, own.view(), form, how_of(isa(), 1));
        EXPECT_TRUE(same_bits(Strided(all.out.data() + r * 80, 80), alone.out, "query " + std::to_string(r)));
        EXPECT_TRUE(same_bits(Strided(all.lse.data() + r * 5, 5), alone.lse, "lse " + std::to_string(r)));
      }
    }
  }
}

TEST_P(MlaInvariance, BatchEqualsEachSequenceAlone) {
  // One set of weights; lengths and chunks differ, one sequence has nothing new.
  const MlaCase base = make_mla_case(spec_of({6, 16, 8, 24, 48}, 1, 1, Storage::bf16, 20));
  const MlaWeights weights = make_weights(base);
  std::vector<MlaCase> cases;
  for (const auto& [n, T] : {std::pair{1, 700}, {4, 30}, {1, 1}, {19, 600}, {1, 513}, {2, 2}, {1, 64}}) {
    MlaCase c = make_mla_case(spec_of({6, 16, 8, 24, 48}, n, T, Storage::bf16, 20 + static_cast<std::uint64_t>(T)));
    c.problem.w_uk = base.problem.w_uk;
    c.problem.w_uv = base.problem.w_uv;
    cases.push_back(std::move(c));
  }
  std::vector<std::unique_ptr<LatentCache>> caches;
  for (std::size_t i = 0; i < cases.size(); ++i)
    caches.push_back(std::make_unique<LatentCache>(cases[i], kLatentCacheKinds[i % 3], i));
  for (const Form form : kMlaForms) {
    for (const std::size_t count : {std::size_t{2}, cases.size()}) {
      for (std::size_t first = 0; first < count; ++first) {  // every place in the batch
        MlaCalls calls;
        for (std::size_t i = 0; i < count; ++i)
          calls.push_back(
              std::make_unique<MlaCall>(cases[(first + i) % count], caches[(first + i) % count]->view(), i));
        const std::vector<Attention> together =
            attend_mla(weights, make_options(base), calls, form, how_of(isa(), 1 + static_cast<int>(first) % 5));
        for (std::size_t i = 0; i < count; ++i) {
          const MlaCase& c = cases[(first + i) % count];
          expect_same_bits(together[i], remembered_twin(form, c),
                           "place " + std::to_string(i) + " " + golden_name(form, c.spec));
        }
      }
    }
  }
}

TEST_P(MlaInvariance, CacheKindPageSizeAndPlaceOfTheWrap) {
  for (const Storage storage : kStorages) {
    MlaCaseSpec spec = spec_of({3, 8, 6, 8, 130}, 3, 90, storage, 30);
    spec.window = 21;
    spec.kept_tokens = 2;
    for (std::int64_t T = 40; T <= 66; T += 2) {  // the ring's capacity is 23 and a few: every place of the wrap
      spec.T = T;
      const MlaCase c = make_mla_case(spec);
      const MlaWeights weights = make_weights(c);
      for (const LatentCacheKind kind : kLatentCacheKinds) {
        const LatentCache cache(c, kind, static_cast<std::uint64_t>(T));
        for (const Form form : kMlaForms)
          expect_same_bits(attend_mla(weights, c, cache.view(), form, how_of(isa(), 2)), remembered_twin(form, c),
                           golden_name(form, c.spec) + " " + cache.name());
      }
    }
  }
}

KVROOF_INSTANTIATE_EACH_ISA(Mla);
KVROOF_INSTANTIATE_EACH_ISA(MlaInvariance);

}  // namespace
}  // namespace kvroof::test
