// The caller's thread may flush subnormals, round another way or trap: the kernels give the same bits and leave that
// state as they found it, in OpenMP's workers too.
#include <gtest/gtest.h>

#include "tests/support/attend.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"
#include "tests/support/float_state.hpp"

namespace kvroof::test {
namespace {

class FloatState : public EachIsa {};

TEST_P(FloatState, CallersFloatStateHasNoEffectAndIsKept) {
  for (const Storage storage : kStorages) {
    CaseSpec spec;
    spec.query_heads = 4;
    spec.kv_heads = 2;
    spec.key_dim = 24;
    spec.value_dim = 20;
    spec.T = 700;
    spec.inputs = Inputs::subnormal;
    spec.softcap = 20.0f;
    spec.sink = true;
    spec.k_storage = spec.v_storage = storage;
    const Case c = make_case(spec);
    const Attention expected = twin(c);
    for (const std::uint64_t state : {kFlushToZero, kTowardZero, kTrapping}) {
      if (state == kTrapping && !kTrapsExist) continue;
      for (const bool threads : {false, true}) {
        for (const int parts : {1, 4}) {
          StoredSequence sequence(c, {});
          const StoredCall call(sequence);
          GuardedBuffer workspace(attention_workspace_bytes(call.args, parts), Edge::end, 64);
          std::uint64_t after = 0;
          int changed = 0;
          {
            ScopedFloatState scoped(state);
            if (threads) {
              // OpenMP's workers too: libomp gives them the caller's state, libgomp the one that a caller's own
              // parallel code left there.
#pragma omp parallel num_threads(4)
              set_float_state(state);
              decode_attention(call.args, {workspace.data(), workspace.size()}, parts, isa());
              after = float_state();
#pragma omp parallel num_threads(4) reduction(+ : changed)
              {
                changed += float_state() != state;
                set_float_state(kDefaultFloatState);
              }
            } else {
              const AttentionArgs& args = call.args;
              for (int part = 0; part < parts; ++part) attention_run_part(args, parts, part, workspace.data(), isa());
              for (int part = 0; part < parts; ++part) attention_merge_part(args, parts, part, workspace.data(), isa());
              after = float_state();
            }
          }
          EXPECT_EQ(changed, 0) << "threads whose state did not come back";
          EXPECT_EQ(after, state) << std::hex << "state after the call";
          expect_same_bits(sequence.result(), expected, describe(spec) + " state " + std::to_string(state));
        }
      }
    }
  }
}

TEST_P(FloatState, ConversionsIgnoreTheCallersFloatState) {
  const std::vector<float> row = {0x1p-127f,     0x1p-20f, 0x1p-24f, 1.9997f, 1.01171875f,
                                  -0x1.fffp-15f, 3e-39f,   1e-41f,   0.1f,    0.3f};
  const std::size_t d = row.size();
  for (const Storage storage : kStorages) {
    std::vector<std::byte> expected(d * 4), actual(d * 4);
    std::vector<float> wide_expected(d), wide(d);
    float scale_expected = 0, scale = 0;
    store_row(storage, row.data(), d, expected.data(), &scale_expected, isa());
    load_row(storage, expected.data(), &scale_expected, d, wide_expected.data(), isa());
    for (const std::uint64_t state : {kFlushToZero, kTowardZero}) {
      std::uint64_t after = 0;
      {
        ScopedFloatState scoped(state);
        store_row(storage, row.data(), d, actual.data(), &scale, isa());
        load_row(storage, actual.data(), &scale, d, wide.data(), isa());
        after = float_state();
      }
      EXPECT_EQ(after, state);
      EXPECT_EQ(actual, expected) << storage_name(storage);
      EXPECT_EQ(float_bits(scale), float_bits(scale_expected)) << storage_name(storage);
      EXPECT_TRUE(same_bits(wide, wide_expected, storage_name(storage)));
    }
  }
}

KVROOF_INSTANTIATE_EACH_ISA(FloatState);

}  // namespace
}  // namespace kvroof::test
