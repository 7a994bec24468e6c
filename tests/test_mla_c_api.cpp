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
  const AttentionSequence source = call.sequence();
  kvroof_attention_sequence sequence;
  static_assert(sizeof sequence == sizeof source);
  std::memcpy(&sequence, &source, sizeof sequence);
  kvroof_mla_args args = {weights.handle, kvroof_attention_defaults(spec.scale), &sequence, 1};
  for (const int form : {KVROOF_MLA_ABSORBED, KVROOF_MLA_RECONSTRUCT}) {
    std::size_t bytes = 0;
    ASSERT_EQ(kvroof_mla_workspace_bytes(&args, form, 2, &bytes), KVROOF_OK) << kvroof_last_error();
    GuardedBuffer workspace(bytes, Edge::end, 64);
    ASSERT_EQ(kvroof_mla_attention(&args, form, workspace.data(), bytes, 2, nullptr), KVROOF_OK) << kvroof_last_error();
    const auto twin_form = form == KVROOF_MLA_ABSORBED ? reference::MlaForm::absorbed : reference::MlaForm::reconstruct;
    expect_same_bits(call.result(), mla_twin(twin_form, c), mla_form_name(twin_form));
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
  args = {weights.handle, kvroof_attention_defaults(1.0f), nullptr, 1};
  EXPECT_EQ(kvroof_mla_workspace_bytes(&args, 0, 1, &bytes), KVROOF_BAD_VIEW);
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
