// Multi-head latent attention through the C interface: the bits of the C++ interface, every refusal as a status.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/kvroof.h"
#include "tests/support/attend.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/mla_call.hpp"

namespace kvroof::test {
namespace {

kvroof_mla_matrix matrix(const std::vector<float>& w) { return {w.data(), w.size()}; }

kvroof_attention_sequence c_sequence(MlaCall& call) {
  const AttentionSequence source = call.sequence();
  kvroof_attention_sequence sequence;
  static_assert(sizeof sequence == sizeof source);
  std::memcpy(&sequence, &source, sizeof sequence);
  return sequence;
}

struct CWeights {
  kvroof_mla_weights* handle = nullptr;
  ~CWeights() { kvroof_mla_weights_destroy(handle); }
};

TEST(MlaCApi, FromHiddenStatesToTheOutputTheSameBits) {
  const CompressCase down = make_compress_case({48, 20, 6, 9, 0, true, 3});
  MlaCaseSpec spec;
  spec.shape = {4, 8, 6, 12, 20};
  spec.n = 2;
  spec.T = 9;
  spec.storage = Storage::int8;
  MlaCase c = make_mla_case(spec);
  c.rows = compress_twin(down);
  restore_rows(c);

  CWeights weights;
  ASSERT_EQ(kvroof_mla_weights_create({4, 8, 6, 12, 20, 48}, matrix(c.problem.w_uk), matrix(c.problem.w_uv),
                                      matrix(down.weights.w_dkv), matrix(down.weights.w_kr), &weights.handle),
            KVROOF_OK)
      << kvroof_last_error();
  std::vector<float> rows(c.rows.size());
  ASSERT_EQ(kvroof_mla_compress(weights.handle, down.x.data(), 9, 0, down.weights.inv_freq.data(), 1, rows.data(), 2,
                                nullptr),
            KVROOF_OK)
      << kvroof_last_error();
  EXPECT_TRUE(same_bits(rows, c.rows, "rows"));

  const LatentCache cache(c, LatentCacheKind::paged, 1);
  const KvView view = cache.view();
  MlaCall call(c, view, 1);
  kvroof_attention_sequence sequence = c_sequence(call);
  kvroof_mla_args args = {weights.handle, kvroof_attention_defaults(spec.scale), &sequence, 1, KVROOF_REPRODUCIBLE};
  for (const int form : {KVROOF_MLA_ABSORBED, KVROOF_MLA_RECONSTRUCT}) {
    std::size_t bytes = 0;
    ASSERT_EQ(kvroof_mla_workspace_bytes(&args, form, 2, &bytes), KVROOF_OK) << kvroof_last_error();
    GuardedBuffer workspace(bytes, Edge::end, 64);
    ASSERT_EQ(kvroof_mla_attention(&args, form, workspace.data(), bytes, 2, nullptr), KVROOF_OK) << kvroof_last_error();
    const auto twin_form = form == KVROOF_MLA_ABSORBED ? reference::MlaForm::absorbed : reference::MlaForm::reconstruct;
    expect_same_bits(call.result(), mla_twin(twin_form, c), mla_form_name(twin_form));

    // The same on the caller's own threads (here one after the other, the last part first).
    MlaCall again(c, view, 2);
    const kvroof_attention_sequence other = c_sequence(again);
    const kvroof_mla_args parts = {weights.handle, args.options, &other, 1, KVROOF_REPRODUCIBLE};
    bytes = 0;
    ASSERT_EQ(kvroof_mla_workspace_bytes(&parts, form, 2, &bytes), KVROOF_OK);
    kvroof_mla_work* work = nullptr;
    EXPECT_EQ(kvroof_mla_work_create(&parts, form, 2, workspace.data(), bytes - 1, nullptr, &work),
              KVROOF_BAD_WORKSPACE);
    EXPECT_EQ(work, nullptr);
    ASSERT_EQ(kvroof_mla_work_create(&parts, form, 2, workspace.data(), bytes, nullptr, &work), KVROOF_OK);
    EXPECT_EQ(kvroof_mla_run_part(work, KVROOF_MLA_PHASES, 0), KVROOF_BAD_SHAPE);
    EXPECT_EQ(kvroof_mla_run_part(work, 0, 2), KVROOF_BAD_SHAPE);
    for (int phase = 0; phase < KVROOF_MLA_PHASES; ++phase) {
      for (int part = 1; part >= 0; --part) ASSERT_EQ(kvroof_mla_run_part(work, phase, part), KVROOF_OK);
    }
    kvroof_mla_work_destroy(work);
    expect_same_bits(again.result(), mla_twin(twin_form, c), "parts");
  }

  std::size_t bytes = 0;
  EXPECT_EQ(kvroof_mla_workspace_bytes(&args, 2, 2, &bytes), KVROOF_BAD_OPTION);
  EXPECT_EQ(kvroof_mla_workspace_bytes(&args, 0, 0, &bytes), KVROOF_BAD_SHAPE);
  EXPECT_EQ(kvroof_mla_workspace_bytes(&args, 0, 1, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_mla_workspace_bytes(nullptr, 0, 1, &bytes), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_mla_attention(&args, 0, nullptr, 0, 1, nullptr), KVROOF_BAD_WORKSPACE);
  EXPECT_EQ(kvroof_mla_attention(&args, 0, nullptr, 0, 1, "sse9"), KVROOF_BAD_ISA);
  sequence.kv.k_storage = 9;
  EXPECT_EQ(kvroof_mla_workspace_bytes(&args, 0, 1, &bytes), KVROOF_BAD_OPTION);
  args.weights = nullptr;
  EXPECT_EQ(kvroof_mla_workspace_bytes(&args, 0, 1, &bytes), KVROOF_BAD_HANDLE);
  args = {weights.handle, kvroof_attention_defaults(1.0f), nullptr, 1, KVROOF_REPRODUCIBLE};
  EXPECT_EQ(kvroof_mla_workspace_bytes(&args, 0, 1, &bytes), KVROOF_BAD_VIEW);
}

TEST(MlaCApi, NativeModeRunsOrIsRefusedWithTheReason) {
  MlaCaseSpec spec;
  spec.shape = {4, 8, 6, 12, 20};
  spec.n = 2;
  spec.T = 600;
  spec.storage = Storage::bf16;
  const MlaCase c = make_mla_case(spec);
  const kvroof_mla_matrix none = {nullptr, 0};
  CWeights weights;
  ASSERT_EQ(kvroof_mla_weights_create({4, 8, 6, 12, 20, 0}, matrix(c.problem.w_uk), matrix(c.problem.w_uv), none, none,
                                      &weights.handle),
            KVROOF_OK)
      << kvroof_last_error();
  const LatentCache cache(c, LatentCacheKind::contiguous, 1);
  MlaCall call(c, cache.view(), 1);
  const kvroof_attention_sequence sequence = c_sequence(call);
  kvroof_mla_args args = {weights.handle, kvroof_attention_defaults(spec.scale), &sequence, 1, KVROOF_NATIVE};
  std::size_t bytes = 0;
  ASSERT_EQ(kvroof_mla_workspace_bytes(&args, KVROOF_MLA_ABSORBED, 2, &bytes), KVROOF_OK) << kvroof_last_error();
  GuardedBuffer workspace(std::max<std::size_t>(bytes, 1 << 20), Edge::end, 64);
  EXPECT_EQ(kvroof_mla_attention(&args, KVROOF_MLA_RECONSTRUCT, workspace.data(), workspace.size(), 2, nullptr),
            KVROOF_BAD_ISA);
  EXPECT_NE(std::string(kvroof_last_error()).find("native"), std::string::npos);
  args.mode = 2;
  EXPECT_EQ(kvroof_mla_attention(&args, KVROOF_MLA_ABSORBED, workspace.data(), workspace.size(), 2, nullptr),
            KVROOF_BAD_OPTION);
  EXPECT_TRUE(call.nothing_written());
  args.mode = KVROOF_NATIVE;
  const kvroof_status status =
      kvroof_mla_attention(&args, KVROOF_MLA_ABSORBED, workspace.data(), workspace.size(), 2, nullptr);
  if (!native_missing(default_isa(), Storage::bf16, Storage::bf16).empty()) {
    EXPECT_EQ(status, KVROOF_BAD_ISA);
    EXPECT_TRUE(call.nothing_written());
    return;
  }
  ASSERT_EQ(status, KVROOF_OK) << kvroof_last_error();
  How how;
  how.isa = default_isa();
  how.mode = Mode::native;
  MlaCalls direct;
  direct.push_back(std::make_unique<MlaCall>(c, cache.view(), 1));
  std::string damage;
  const Attention expected =
      run_mla(make_weights(c), make_options(c), direct, reference::MlaForm::absorbed, how, damage).front();
  EXPECT_EQ(damage, "");
  expect_same_bits(call.result(), expected, "native mode through the C interface");
}

// Folding, attention over the latent rows as plain decode attention, and expanding, each called apart.
TEST(MlaCApi, TheStepsOfTheAbsorbedFormApart) {
  MlaCaseSpec spec;
  spec.shape = {4, 8, 6, 12, 20};
  spec.n = 3;
  spec.T = 700;
  spec.storage = Storage::bf16;
  const MlaCase c = make_mla_case(spec);
  const kvroof_mla_shape shape = {4, 8, 6, 12, 20, 0};
  const kvroof_mla_matrix none = {nullptr, 0};
  CWeights weights;
  ASSERT_EQ(
      kvroof_mla_weights_create(shape, matrix(c.problem.w_uk), matrix(c.problem.w_uv), none, none, &weights.handle),
      KVROOF_OK);

  kvroof_cache_shape rows = {};
  ASSERT_EQ(kvroof_mla_cache_shape(shape, KVROOF_BF16, &rows), KVROOF_OK);
  kvroof_cache* cache = nullptr;
  ASSERT_EQ(kvroof_contiguous_create(rows, KVROOF_HEAD_MAJOR, 0, nullptr, 0, &cache), KVROOF_OK) << kvroof_last_error();
  ASSERT_EQ(kvroof_cache_append(cache, kvroof_packed_rows(rows, spec.T, c.rows.data(), nullptr)), KVROOF_OK);
  kvroof_view view;
  ASSERT_EQ(kvroof_cache_view(cache, &view), KVROOF_OK);

  std::vector<float> folded(3 * 4 * 26), latents(3 * 4 * 20), out(3 * 4 * 12);
  ASSERT_EQ(kvroof_mla_fold_queries(weights.handle, c.problem.q.data(), 3, folded.data(), 2, nullptr), KVROOF_OK);
  const kvroof_attention_sequence one = {folded.data(), 4 * 26, 26, 3, view, latents.data(), 4 * 20, 20, nullptr};
  const kvroof_attention_args args = {
      {4, 1, 26, 20}, kvroof_attention_defaults(spec.scale), &one, 1, KVROOF_REPRODUCIBLE};
  std::size_t bytes = 0;
  ASSERT_EQ(kvroof_attention_workspace_bytes(&args, 2, &bytes), KVROOF_OK) << kvroof_last_error();
  GuardedBuffer workspace(bytes, Edge::end, 64);
  ASSERT_EQ(kvroof_decode_attention(&args, workspace.data(), bytes, 2, nullptr), KVROOF_OK) << kvroof_last_error();
  ASSERT_EQ(kvroof_mla_expand_latents(weights.handle, latents.data(), 3, out.data(), 2, nullptr), KVROOF_OK);
  EXPECT_TRUE(same_bits(out, mla_twin(reference::MlaForm::absorbed, c).out, "three steps"));

  MlaCall call(
      c,
      [&] {
        KvView cpp;
        static_assert(sizeof cpp == sizeof view);
        std::memcpy(static_cast<void*>(&cpp), &view, sizeof cpp);
        return cpp;
      }(),
      1);
  const kvroof_attention_sequence sequence = c_sequence(call);
  const kvroof_mla_args mla = {weights.handle, kvroof_attention_defaults(spec.scale), &sequence, 1,
                               KVROOF_REPRODUCIBLE};
  std::int64_t figure = 0;
  ASSERT_EQ(kvroof_mla_cache_bytes(&mla, &figure), KVROOF_OK);
  EXPECT_EQ(figure, 700 * 26 * 2);
  ASSERT_EQ(kvroof_mla_weight_bytes(shape, &figure), KVROOF_OK);
  EXPECT_EQ(figure, 4 * (8 + 12) * 20 * 4);
  ASSERT_EQ(kvroof_mla_flops(&mla, KVROOF_MLA_ABSORBED, &figure), KVROOF_OK);
  const std::int64_t visible = 698 + 699 + 700;
  EXPECT_EQ(figure, visible * 4 * 2 * (26 + 20) + 3 * 4 * 2 * 20 * (8 + 12));

  kvroof_mla_costs costs = {};
  kvroof_mla_plan plan = {-1, 0, 0};
  EXPECT_EQ(kvroof_mla_choose(&mla, &costs, &plan), KVROOF_BAD_OPTION) << "costs that were not measured";
  EXPECT_EQ(plan.form, -1);
  ASSERT_EQ(kvroof_mla_measure_costs(weights.handle, KVROOF_BF16, 1, nullptr, &costs), KVROOF_OK);
  ASSERT_EQ(kvroof_mla_choose(&mla, &costs, &plan), KVROOF_OK) << kvroof_last_error();
  EXPECT_EQ(plan.form,
            plan.absorbed_seconds <= plan.reconstruct_seconds ? KVROOF_MLA_ABSORBED : KVROOF_MLA_RECONSTRUCT);

  EXPECT_EQ(kvroof_mla_fold_queries(weights.handle, nullptr, 1, folded.data(), 1, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_mla_fold_queries(weights.handle, folded.data(), -1, folded.data(), 1, nullptr), KVROOF_BAD_SHAPE);
  EXPECT_EQ(kvroof_mla_fold_queries(weights.handle, nullptr, 0, nullptr, 1, nullptr), KVROOF_OK);
  EXPECT_EQ(kvroof_mla_expand_latents(weights.handle, latents.data(), 1, nullptr, 1, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_mla_expand_latents(nullptr, latents.data(), 1, out.data(), 1, nullptr), KVROOF_BAD_HANDLE);
  EXPECT_EQ(kvroof_mla_cache_shape({4, 8, 5, 12, 20, 0}, KVROOF_BF16, &rows), KVROOF_BAD_SHAPE);
  EXPECT_EQ(kvroof_mla_cache_shape(shape, 9, &rows), KVROOF_BAD_OPTION);
  EXPECT_EQ(kvroof_mla_flops(&mla, 2, &figure), KVROOF_BAD_OPTION);
  EXPECT_EQ(kvroof_mla_run_part(nullptr, 0, 0), KVROOF_BAD_HANDLE);
  kvroof_cache_destroy(cache);
}

TEST(MlaCApi, RefusedWeightsAndTokens) {
  const std::vector<float> zeros(1000);
  CWeights weights;
  const auto make = [&](std::int64_t rope, std::size_t uk) {
    return kvroof_mla_weights_create({2, 3, rope, 4, 5, 0}, {zeros.data(), uk}, {zeros.data(), 2 * 4 * 5}, {nullptr, 0},
                                     {nullptr, 0}, &weights.handle);
  };
  EXPECT_EQ(make(3, 2 * 3 * 5), KVROOF_BAD_SHAPE);
  EXPECT_NE(std::string(kvroof_last_error()).find("rope_dim"), std::string::npos);
  EXPECT_EQ(make(2, 29), KVROOF_BAD_SHAPE);
  EXPECT_EQ(weights.handle, nullptr) << "nothing is made by a refused call";
  ASSERT_EQ(make(2, 2 * 3 * 5), KVROOF_OK) << kvroof_last_error();
  std::vector<float> rows(7, -1.0f);
  const double frequency = 1.0;
  EXPECT_EQ(kvroof_mla_compress(weights.handle, zeros.data(), 1, 0, &frequency, 1, rows.data(), 1, nullptr),
            KVROOF_BAD_SHAPE)
      << "these weights do not compress";
  EXPECT_EQ(kvroof_mla_compress(weights.handle, zeros.data(), 1, 0, nullptr, 1, rows.data(), 1, nullptr),
            KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_mla_compress(nullptr, zeros.data(), 1, 0, &frequency, 1, rows.data(), 1, nullptr),
            KVROOF_BAD_HANDLE);
  EXPECT_TRUE(std::all_of(rows.begin(), rows.end(), [](float x) { return x == -1.0f; }));
}

}  // namespace
}  // namespace kvroof::test
