// What native mode cannot do is refused by name before anything is written, on every machine.
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/attend.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"
#include "tests/support/refusal.hpp"

namespace kvroof::test {
namespace {

struct NativeCall {
  NativeCall(Storage k_storage, Storage v_storage)
      : sequence(make_case(spec_of(k_storage, v_storage)), Layout{}), stored(sequence, Mode::native) {
    workspace.fill(0x5a5a5a5au);
    before = workspace.hash();
  }
  static CaseSpec spec_of(Storage k_storage, Storage v_storage) {
    CaseSpec spec;
    spec.T = 40;
    spec.k_storage = k_storage;
    spec.v_storage = v_storage;
    return spec;
  }
  bool nothing_written() const { return sequence.untouched() && workspace.hash() == before; }
  std::span<std::byte> memory() { return {workspace.data(), workspace.size()}; }

  StoredSequence sequence;
  StoredCall stored;
  AttentionArgs& args = stored.args;
  std::vector<AttentionSequence>& list = stored.list;
  GuardedBuffer workspace{1 << 22, Edge::end, 64};
  std::uint64_t before = 0;
};

// All four ways into a call.
void expect_refused(NativeCall& call, Isa isa, const std::string& what, const std::string& said) {
  const auto refused = [&](const char* entry, const std::function<void()>& run) {
    expect_refusal(ErrorCode::bad_isa, what + ", " + entry, run, said);
    EXPECT_TRUE(call.nothing_written()) << what << ", " << entry;
  };
  refused("decode_attention", [&] { decode_attention(call.args, call.memory(), 1, isa); });
  refused("decode_attention with two threads", [&] { decode_attention(call.args, call.memory(), 2, isa); });
  refused("attention_run_part", [&] { attention_run_part(call.args, 1, 0, call.workspace.data(), isa); });
  AttentionArgs slice = call.args;
  slice.segment_end = 1;
  GuardedBuffer partials(1 << 20, Edge::end, 64);
  refused("attention_partials", [&] {
    attention_partials(slice, call.memory(), 1, {partials.data(), partials.size()}, isa);
  });
}

TEST(NativeRefusals, StoragesWithoutNativeKernel) {
  for (const Isa isa : runnable_isas()) {
    for (const Storage k : kStorages) {
      for (const Storage v : kStorages) {
        if (native_missing(isa, k, v).empty()) continue;
        NativeCall call(k, v);
        expect_refused(call, isa, std::string(isa_name(isa)) + " " + storage_name(k) + "/" + storage_name(v), "native");
      }
    }
  }
  // Not for the lack of instructions alone.
  for (const Storage storage : {Storage::f32, Storage::f16, Storage::int8}) {
    for (const Isa isa : runnable_isas()) {
      EXPECT_NE(native_missing(isa, storage, storage), "") << isa_name(isa);
      EXPECT_NE(native_missing(isa, Storage::bf16, storage), "") << isa_name(isa);
      EXPECT_NE(native_missing(isa, storage, Storage::bf16), "") << isa_name(isa);
    }
  }
}

TEST(NativeRefusals, InstructionSetsWithoutNativeKernel) {
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::neon}) {
    EXPECT_NE(native_missing(isa, Storage::bf16, Storage::bf16), "") << isa_name(isa);
    EXPECT_STREQ(native_isa_name(isa), "") << isa_name(isa);
    if (!isa_supported(isa)) continue;
    NativeCall call(Storage::bf16, Storage::bf16);
    expect_refused(call, isa, isa_name(isa), isa_name(isa));
  }
}

TEST(NativeRefusals, Reconstruction) {
  for (const Isa isa : runnable_isas()) {
    const std::vector<float> weights(1 << 16, 0.5f);
    NativeCall call(Storage::bf16, Storage::bf16);
    // latent rows of 32 columns with a rotated key of 8
    KvView& kv = call.list[0].kv;
    RowRun run = kv.runs[0];
    run.v = run.k;
    kv.runs = &run;
    kv.v_row_stride = kv.k_row_stride;
    kv.latent_dim = 32;
    LatentExpansion expansion;
    expansion.rope_dim = 8;
    expansion.w_uk = expansion.w_uv = weights.data();
    call.args.expansion = &expansion;
    const auto refused = [&](const char* entry, const std::function<void()>& run_call) {
      expect_refusal(ErrorCode::bad_isa, std::string(entry) + " " + isa_name(isa), run_call, "native");
      EXPECT_TRUE(call.nothing_written()) << entry;
    };
    refused("attention_check", [&] { attention_check(call.args); });
    refused("decode_attention", [&] { decode_attention(call.args, call.memory(), 1, isa); });
    refused("attention_run_part", [&] { attention_run_part(call.args, 1, 0, call.workspace.data(), isa); });
    call.args.mode = Mode::reproducible;  // and it is the mode that is refused
    decode_attention(call.args, call.memory(), 1, isa);
  }
}

TEST(NativeRefusals, UnknownMode) {
  NativeCall call(Storage::bf16, Storage::bf16);
  call.args.mode = static_cast<Mode>(2);
  expect_refusal(
      ErrorCode::bad_option, "mode 2", [&] { attention_check(call.args); }, "mode");
  expect_refusal(
      ErrorCode::bad_option, "mode 2", [&] { decode_attention(call.args, call.memory(), 1, runnable_isas().front()); },
      "mode");
  EXPECT_TRUE(call.nothing_written());
}

// Nothing to do is nothing to refuse, except for what can be known without sequences.
TEST(NativeRefusals, NoSequences) {
  AttentionArgs args;
  args.shape = {1, 1, 8, 8};
  args.options.scale = 1.0f;
  args.mode = Mode::native;
  for (const Isa isa : runnable_isas()) EXPECT_NO_THROW(decode_attention(args, {}, 1, isa));
}

TEST(NativeRefusals, Names) {
  EXPECT_STREQ(mode_name(Mode::reproducible), "reproducible");
  EXPECT_STREQ(mode_name(Mode::native), "native");
  if (isa_supported(Isa::avx512)) {
    EXPECT_STREQ(native_isa_name(Isa::avx512), "avx512_bf16");
    const std::string f32 = native_missing(Isa::avx512, Storage::f32, Storage::bf16);
    EXPECT_NE(f32.find("f32"), std::string::npos) << f32;
  }
}

}  // namespace
}  // namespace kvroof::test
