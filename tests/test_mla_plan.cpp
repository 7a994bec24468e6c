// What multi-head latent attention takes: which form is chosen, peak memory, bytes and flops.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention_split.hpp"
#include "tests/support/attend.hpp"
#include "tests/support/attend_mla.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

constexpr MlaShape kV3{128, 128, 64, 128, 512, 7168};

// n new tokens at the end of T rows that are only described, not there: for everything that reads no row.
struct Described {
  RowRun run;
  AttentionSequence sequence;
  float somewhere = 0;
  Described(const MlaShape& s, std::int64_t n, std::int64_t T, Storage storage = Storage::f32) {
    run.k = run.v = reinterpret_cast<const std::byte*>(&somewhere);
    run.rows = T;
    sequence.n = n;
    sequence.q = &somewhere;
    sequence.out = &somewhere;
    sequence.kv.runs = &run;
    sequence.kv.run_count = 1;
    sequence.kv.end_position = T;
    sequence.kv.k_storage = sequence.kv.v_storage = storage;
    sequence.kv.k_row_stride = sequence.kv.v_row_stride = latent_row_bytes(storage, s.latent_dim, s.rope_dim);
    sequence.kv.latent_dim = s.latent_dim;
  }
};

MlaWeights some_weights(MlaShape s) {
  s.model_dim = 0;
  std::vector<float> uk(static_cast<std::size_t>(s.heads * s.nope_dim * s.latent_dim)),
      uv(static_cast<std::size_t>(s.heads * s.value_dim * s.latent_dim));
  for (std::size_t i = 0; i < uk.size(); ++i) uk[i] = 0.01f * static_cast<float>(i % 7) - 0.03f;
  for (std::size_t i = 0; i < uv.size(); ++i) uv[i] = 0.01f * static_cast<float>(i % 5) - 0.02f;
  return MlaWeights(s, {uk, uv, {}, {}});
}

const MlaWeights& v3_weights() {
  static const MlaWeights weights = some_weights(kV3);
  return weights;
}

TEST(MlaSizes, RowsAndTheirSavings) {
  EXPECT_EQ(bytes_per_token(mla_cache_shape(kV3, Storage::int8)), 656);
  EXPECT_EQ(bytes_per_token(mla_cache_shape(kV3, Storage::f32)), 2304);
  EXPECT_EQ(bytes_per_token(mla_cache_shape(kV3, Storage::bf16)), 1152);
  const CacheShape dense{128, 128, 128, Storage::bf16, Storage::bf16};
  const double saving = static_cast<double>(bytes_per_token(dense)) /
                        static_cast<double>(bytes_per_token(mla_cache_shape(kV3, Storage::bf16)));
  EXPECT_NEAR(saving, 56.9, 0.05);
  const CacheShape toy{8, 8, 8}, toy_latent = mla_cache_shape({8, 8, 8, 8, 16, 64}, Storage::f32);
  EXPECT_EQ(bytes_per_token(toy), 128 * 4);
  EXPECT_EQ(bytes_per_token(toy_latent), 24 * 4);
}

TEST(MlaSizes, BytesAndFlopsOfACall) {
  const Described d(kV3, 2, 1000, Storage::int8);
  MlaArgs args{&v3_weights(), {.scale = 1.0f}, {&d.sequence, 1}};
  EXPECT_EQ(mla_cache_bytes(args), 1000 * 656) << "a row counts once, for keys and values and all heads";
  EXPECT_EQ(mla_weight_bytes(kV3), 128 * (128 + 128) * 512 * 4);
  const std::int64_t pairs = 128 * (1000 + 999), matrices = 2 * 512 * (128 + 128);  // flops of both for one head
  EXPECT_EQ(mla_flops(args, MlaForm::absorbed), pairs * 2 * (512 + 64 + 512) + 2 * 128 * matrices);
  EXPECT_EQ(mla_flops(args, MlaForm::reconstruct), pairs * 2 * (128 + 64 + 128) + 128 * 1000 * matrices);
  args.options.window = 10;
  EXPECT_EQ(mla_cache_bytes(args), 11 * 656);
}

// ---- memory ----
// The promise of mla.hpp, in tiles of 64 rows x all that a row can be.
std::size_t tile_bytes(const MlaShape& s) {
  return static_cast<std::size_t>(64 * (s.latent_dim + s.nope_dim + s.rope_dim + s.value_dim) * 4);
}

TEST(MlaSizes, ReconstructTakesAFewTilesAThreadWhateverTheContext) {
  for (const MlaShape& shape : {kV3, MlaShape{16, 128, 64, 128, 512}, MlaShape{8, 8, 8, 8, 16}}) {
    const MlaWeights weights = some_weights(shape);
    for (const std::int64_t n : {1, 64, 1000}) {
      const std::size_t queries = static_cast<std::size_t>(n < 64 ? 64 : n < 256 ? n : 256);
      const std::size_t partial = queries * static_cast<std::size_t>((shape.value_dim + 15) / 16 * 16 + 2) * 4 + 64;
      for (const int parts : {1, 8, 64}) {
        std::size_t before = 0;
        for (std::int64_t T = 1024; T <= (std::int64_t{1} << 24); T *= 2) {
          const Described d(shape, n, T);
          const MlaArgs args{&weights, {.scale = 1.0f}, {&d.sequence, 1}};
          const std::size_t all = mla_workspace_bytes(args, MlaForm::reconstruct, parts);
          const std::size_t bytes = all / static_cast<std::size_t>(parts);
          if (shape.latent_dim == 512) {
            EXPECT_LT(bytes, (n <= 64 ? 16 : 64) * tile_bytes(shape)) << "n " << n << " T " << T << " parts " << parts;
          }
          // Per doubling: a node more on each side of the tree, for each of the two groups a part may leave open. With
          // few segments for many parts the queries are shared out too: not compared there. Parts are whole pages.
          if (before > 0 && T > 65536) {
            EXPECT_LE(bytes, before + 4 * partial + 4096) << "n " << n << " T " << T << " parts " << parts;
          }
          before = bytes;
        }
      }
    }
  }
  // Against the keys and values themselves, which the form must not hold.
  const Described d(kV3, 1, 131072);
  const MlaArgs args{&v3_weights(), {.scale = 1.0f}, {&d.sequence, 1}};
  EXPECT_LT(mla_workspace_bytes(args, MlaForm::reconstruct, 64), std::size_t{131072} * 128 * (192 + 128) * 4 / 100);
}

TEST(MlaSizes, AbsorbedTakesItsQueriesAndResultsBesideTheParts) {
  for (const std::int64_t n : {1, 5}) {
    const Described d(kV3, n, 4096);
    const std::span<const AttentionSequence> one(&d.sequence, 1);
    const MlaArgs args{&v3_weights(), {.scale = 1.0f}, one};
    const std::size_t parts = attention_workspace_bytes(mla_absorbed_args(kV3, args.options, one), 4);
    EXPECT_LE(mla_workspace_bytes(args, MlaForm::absorbed, 4),
              parts + static_cast<std::size_t>(n * 128 * (2 * 512 + 64) * 4) + 1024);
  }
}

// ---- the plan ----
MlaPlan plan_of(const MlaWeights& weights, const MlaCosts& costs, std::int64_t n, std::int64_t T,
                std::int64_t window = kUnlimitedWindow) {
  const Described d(weights.shape(), n, T);
  return mla_plan({&weights, {.scale = 1.0f, .window = window}, {&d.sequence, 1}}, costs);
}

TEST(MlaPlan, PredictsByTheCountsOfTheCall) {
  // Time that can be told by its digits.
  const MlaWeights weights = some_weights({8, 8, 8, 8, 16});
  const MlaPlan plan = plan_of(
      weights, {.absorbed_pair = 1e-3, .fold_call = 5, .fold_token = 7, .reconstruct_pass = 1, .threads = 1}, 1, 100);
  EXPECT_DOUBLE_EQ(plan.absorbed_seconds, 1e-3 * 8 * 100 + 5 + 7);
  EXPECT_DOUBLE_EQ(plan.reconstruct_seconds, 8 * 100) << "every head expands every row";
  const MlaPlan two = plan_of(weights, {.absorbed_pass = 1, .reconstruct_pair = 1, .threads = 1}, 2, 100);
  EXPECT_DOUBLE_EQ(two.reconstruct_seconds, 8 * (100 + 99));
  EXPECT_DOUBLE_EQ(two.absorbed_seconds, 100) << "both tokens share a tile";
  const MlaPlan window = plan_of(weights, {.absorbed_pass = 1, .reconstruct_pass = 1, .threads = 1}, 2, 100, 10);
  EXPECT_DOUBLE_EQ(window.absorbed_seconds, 11);
  EXPECT_DOUBLE_EQ(window.reconstruct_seconds, 8 * 11);
}

TEST(MlaPlan, DecodeIsAbsorbedALongChunkReconstructedWhereExpandingIsCheap) {
  const MlaWeights weights = some_weights({8, 8, 8, 8, 16});
  // As if both ran at one rate of flops.
  const MlaCosts even{.absorbed_pair = 80e-9,
                      .fold_token = 8 * 512e-9,
                      .reconstruct_pass = 512e-9,
                      .reconstruct_pair = 48e-9,
                      .threads = 1};
  EXPECT_EQ(plan_of(weights, even, 1, 1000).form, MlaForm::absorbed);
  EXPECT_EQ(plan_of(weights, even, 8, 1000).form, MlaForm::absorbed);
  EXPECT_EQ(plan_of(weights, even, 64, 1000).form, MlaForm::reconstruct);
  EXPECT_EQ(plan_of(weights, even, 512, 1000).form, MlaForm::reconstruct);
  // A machine on which expanding is dear stays absorbed: the costs decide, not the chunk.
  MlaCosts dear = even;
  dear.reconstruct_pass *= 100;
  EXPECT_EQ(plan_of(weights, dear, 64, 1000).form, MlaForm::absorbed);
  // Equal times, and nothing to do: absorbed.
  EXPECT_EQ(plan_of(weights, {.absorbed_pair = 1, .reconstruct_pair = 1, .threads = 1}, 1, 10).form, MlaForm::absorbed);
  EXPECT_EQ(mla_plan({&weights, {.scale = 1.0f}, {}}, even).form, MlaForm::absorbed);
}

TEST(MlaPlan, CostsThatWereNotMeasuredAreRefused) {
  const MlaWeights weights = some_weights({8, 8, 8, 8, 16});
  const MlaCosts good{.absorbed_pair = 1, .reconstruct_pair = 1, .threads = 1};
  EXPECT_NO_THROW(plan_of(weights, good, 1, 10));
  const auto refused = [&](MlaCosts costs, const char* what) {
    try {
      plan_of(weights, costs, 1, 10);
      ADD_FAILURE() << what << ": accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code, ErrorCode::bad_option) << what << ": " << error.what();
    }
  };
  refused({}, "nothing measured");
  MlaCosts bad = good;
  bad.threads = 0;
  refused(bad, "threads");
  for (const double x : {-1.0, std::nan(""), HUGE_VAL}) {
    for (double MlaCosts::*cost : {&MlaCosts::absorbed_pass, &MlaCosts::absorbed_pair, &MlaCosts::fold_call,
                                   &MlaCosts::fold_token, &MlaCosts::reconstruct_pass, &MlaCosts::reconstruct_pair}) {
      bad = good;
      bad.*cost = x;
      refused(bad, "not a time");
    }
  }
}

class MlaPlanMeasured : public EachIsa {};

TEST_P(MlaPlanMeasured, CostsAreTimesAndDecodingOneTokenIsAbsorbed) {
  // A row costs reconstruct sixty times the work at these dimensions. A process that other tests push off its core may
  // measure anything, so a few measurements get the chance to say so.
  const MlaWeights weights = some_weights({4, 64, 16, 64, 128});
  for (const int threads : {1, 2}) {
    MlaCosts costs;
    MlaPlan plan;
    for (int attempt = 0; attempt < 5; ++attempt) {
      costs = measure_mla_costs(weights, Storage::bf16, threads, isa());
      plan = plan_of(weights, costs, 1, 65536);
      if (costs.reconstruct_pass > 0.0 && plan.form == MlaForm::absorbed) break;
    }
    EXPECT_EQ(costs.threads, threads);
    EXPECT_GT(costs.absorbed_pass + costs.absorbed_pair, 0.0);
    EXPECT_GT(costs.reconstruct_pass, 0.0);
    EXPECT_EQ(plan.form, MlaForm::absorbed) << plan.absorbed_seconds << " s against " << plan.reconstruct_seconds;
  }
}

TEST_P(MlaPlanMeasured, ThePlansFormIsTheOneThatRuns) {
  const MlaCase c = make_mla_case({kMlaToy, 3, 50});
  const MlaWeights weights = make_weights(c);
  const LatentCache cache(c, LatentCacheKind::contiguous, 1);
  for (const reference::MlaForm form : kMlaForms) {
    MlaCall call(c, cache.view(), 1);
    const AttentionSequence sequence = call.sequence();
    const MlaArgs args{&weights, make_options(c), {&sequence, 1}};
    MlaCosts costs{.absorbed_pair = 1, .reconstruct_pair = 1, .threads = 2};
    (form == reference::MlaForm::absorbed ? costs.absorbed_pair : costs.reconstruct_pair) = 0.001;
    const MlaPlan plan = mla_plan(args, costs);
    GuardedBuffer workspace(mla_workspace_bytes(args, plan.form, 2), Edge::end, 64);
    mla_attention(args, plan, {workspace.data(), workspace.size()}, 2, isa());
    expect_same_bits(call.result(), mla_twin(form, c), mla_form_name(form));
  }
}

KVROOF_INSTANTIATE_EACH_ISA(MlaPlanMeasured);

}  // namespace
}  // namespace kvroof::test
