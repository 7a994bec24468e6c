// Every refusal of decode attention: by its name, in one line that says what was wrong, before anything is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "tests/support/attend.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"
#include "tests/support/refusal.hpp"

namespace kvroof::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

// A call that is right in every respect, for a test to spoil one thing in.
struct Call {
  explicit Call(const CaseSpec& spec = default_spec())
      : source(make_case(spec)), stored(source), sequence(source, {}), list{sequence.sequence()} {
    runs.assign(list[0].kv.runs, list[0].kv.runs + list[0].kv.run_count);
    args.shape = stored.shape;
    args.options = stored.options;
  }
  static CaseSpec default_spec() {
    CaseSpec spec;
    spec.query_heads = 4;
    spec.kv_heads = 2;
    spec.key_dim = 8;
    spec.value_dim = 8;
    spec.T = 40;
    spec.n = 2;
    return spec;
  }
  void run() {
    list[0].kv.runs = runs.empty() ? nullptr : runs.data();
    list[0].kv.run_count = static_cast<std::int64_t>(runs.size());
    args.sequences = list;
    if (workspace.empty()) workspace.resize(1 << 22);
    decode_attention(args, {workspace_start(), workspace_bytes}, threads, isa);
  }
  std::byte* workspace_start() {
    const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
    return workspace.data() + (64 - address % 64) % 64 + misalign;
  }
  bool nothing_written() const { return sequence.untouched(); }

  Case source;
  StoredOptions stored;
  StoredSequence sequence;
  std::vector<AttentionSequence> list;
  std::vector<RowRun> runs;
  AttentionArgs args;
  std::vector<std::byte> workspace;
  std::size_t workspace_bytes = (1 << 22) - 4096, misalign = 0;
  int threads = 2;
  Isa isa = runnable_isas().front();
};

void expect_refused(ErrorCode code, const std::string& what, const std::function<void(Call&)>& spoil,
                    const CaseSpec& spec = Call::default_spec()) {
  Call call(spec);
  spoil(call);
  expect_refusal(code, what, [&] { call.run(); });
  EXPECT_TRUE(call.nothing_written()) << what;
}

TEST(AttentionRefusals, TheUnspoiledCallIsAccepted) {  // else every test below would pass for a wrong reason
  Call call;
  EXPECT_NO_THROW(call.run());
  EXPECT_FALSE(call.nothing_written());
  expect_same_bits(call.sequence.result(), twin(call.source), "unspoiled");
}

TEST(AttentionRefusals, Shapes) {
  constexpr std::int64_t heads[][2] = {{33, 2}, {3, 2},  {4, 0},   {2, 4},    {0, 0},    {0, 2},
                                       {-4, 2}, {4, -2}, {-4, -2}, {kMax, 1}, {kMin, -1}};
  for (const auto& h : heads) {
    expect_refused(ErrorCode::bad_shape, std::to_string(h[0]) + " query heads, " + std::to_string(h[1]) + " KV heads",
                   [&](Call& c) {
                     c.args.shape.query_heads = h[0];
                     c.args.shape.kv_heads = h[1];
                   });
  }
  for (const std::int64_t d : {std::int64_t{0}, std::int64_t{-1}, kMin, kMax}) {
    expect_refused(ErrorCode::bad_shape, "key_dim " + std::to_string(d), [d](Call& c) { c.args.shape.key_dim = d; });
    expect_refused(ErrorCode::bad_shape, "value_dim " + std::to_string(d),
                   [d](Call& c) { c.args.shape.value_dim = d; });
  }
  for (const std::int64_t n : {std::int64_t{-1}, kMin}) {
    expect_refused(ErrorCode::bad_shape, "n " + std::to_string(n), [n](Call& c) { c.list[0].n = n; });
  }
}

TEST(AttentionRefusals, Options) {
  for (const std::int64_t window : {std::int64_t{0}, std::int64_t{-1}, kMin}) {
    expect_refused(ErrorCode::bad_option, "window " + std::to_string(window),
                   [&](Call& c) { c.args.options.window = window; });
  }
  for (const std::int64_t kept : {std::int64_t{-1}, kMin}) {
    expect_refused(ErrorCode::bad_option, "kept " + std::to_string(kept),
                   [&](Call& c) { c.args.options.kept_tokens = kept; });
  }
  for (const float cap : {0.0f, -1.0f, -kInf, kNaN, -0.0f}) {
    expect_refused(ErrorCode::bad_option, "softcap " + std::to_string(cap),
                   [&](Call& c) { c.args.options.softcap = cap; });
  }
  expect_refused(ErrorCode::bad_option, "scale left out",
                 [](Call& c) { c.args.options.scale = AttentionOptions{}.scale; });
}

TEST(AttentionRefusals, Views) {
  const auto refused = [](const char* what, const std::function<void(Call&)>& spoil) {
    expect_refused(ErrorCode::bad_view, what, spoil);
  };
  refused("no runs", [](Call& c) { c.runs.clear(); });
  refused("null k", [](Call& c) { c.runs[0].k = nullptr; });
  refused("null v", [](Call& c) { c.runs[0].v = nullptr; });
  refused("null q", [](Call& c) { c.list[0].q = nullptr; });
  refused("null out", [](Call& c) { c.list[0].out = nullptr; });
  refused("first row missing", [](Call& c) { ++c.runs[0].first_position, --c.runs[0].rows; });
  refused("last row missing", [](Call& c) { --c.runs[0].rows; });
  refused("a row beyond end_position", [](Call& c) { ++c.runs[0].rows; });
  refused("rows that overflow", [](Call& c) { c.runs[0].rows = kMax; });
  refused("no rows", [](Call& c) { c.runs[0].rows = 0; });
  refused("negative rows", [](Call& c) { c.runs[0].rows = -40; });
  refused("negative position", [](Call& c) { c.runs[0].first_position = -1; });
  refused("end_position below n", [](Call& c) { c.list[0].kv.end_position = 1; });
  refused("negative end_position", [](Call& c) { c.list[0].kv.end_position = -1; });
  refused("empty cache, two queries", [](Call& c) { c.list[0].kv.end_position = 0; });
  refused("end_position near 2^63", [](Call& c) { c.list[0].kv.end_position = kMax; });
  const auto cut = [](Call& c, std::int64_t first, std::int64_t second) {  // two runs [0, first) and [second, 40)
    RowRun tail = c.runs[0];
    c.runs[0].rows = first;
    tail.first_position = second;
    tail.rows = 40 - second;
    c.runs.push_back(tail);
  };
  refused("a hole", [&](Call& c) { cut(c, 20, 21); });
  refused("an overlap", [&](Call& c) { cut(c, 20, 19); });
  refused("out of order", [&](Call& c) { cut(c, 20, 20), std::swap(c.runs[0], c.runs[1]); });
  refused("a kept token missing", [](Call& c) {
    c.args.options.window = 4;
    c.args.options.kept_tokens = 3;
    c.runs[0].first_position = 2;
    c.runs[0].rows = 38;
  });
  refused("another storage in the batch", [](Call& c) {
    c.list.push_back(c.list[0]);
    c.list[1].kv.k_storage = Storage::f16;
  });
  CaseSpec quantised = Call::default_spec();
  quantised.k_storage = quantised.v_storage = Storage::int8;
  expect_refused(
      ErrorCode::bad_view, "int8 K without scales", [](Call& c) { c.runs[0].k_scale = nullptr; }, quantised);
  expect_refused(
      ErrorCode::bad_view, "int8 V without scales", [](Call& c) { c.runs[0].v_scale = nullptr; }, quantised);
}

TEST(AttentionRefusals, HoleWhereNoQueryLooksIsNoHole) {
  Call call;
  call.args.options.window = 4;
  call.args.options.kept_tokens = 2;
  RowRun tail = call.runs[0];
  tail.k += 30 * call.list[0].kv.k_row_stride;
  tail.v += 30 * call.list[0].kv.v_row_stride;
  tail.first_position = 30;
  tail.rows = 10;
  call.runs[0].rows = 2;
  call.runs.push_back(tail);
  EXPECT_NO_THROW(call.run());
  Case windowed = call.source;
  windowed.problem.window = 4;
  windowed.problem.kept_tokens = 2;
  expect_same_bits(call.sequence.result(), twin(windowed), "a hole outside window and kept tokens");
}

TEST(AttentionRefusals, ASpoiledSequenceSpoilsTheWholeCall) {  // the ones before it are not written either
  Call call;
  StoredSequence second(call.source, {});
  call.list.push_back(second.sequence());
  call.list[1].kv.end_position = 1;
  EXPECT_THROW(call.run(), Error);
  EXPECT_TRUE(call.nothing_written());
}

TEST(AttentionRefusals, Workspaces) {
  const auto refused = [](const char* what, const std::function<void(Call&)>& spoil) {
    expect_refused(ErrorCode::bad_workspace, what, spoil);
  };
  refused("empty", [](Call& c) { c.workspace_bytes = 0; });
  refused("misaligned", [](Call& c) { c.misalign = 32; });
  refused("one byte short", [](Call& c) {
    c.args.sequences = c.list;
    c.workspace_bytes = attention_workspace_bytes(c.args, c.threads) - 1;
  });
  Call call;
  call.args.sequences = call.list;
  call.workspace_bytes = attention_workspace_bytes(call.args, call.threads);
  EXPECT_NO_THROW(call.run()) << "exactly enough";
}

TEST(AttentionRefusals, ThreadsAndParts) {
  for (const int threads : {0, -1, std::numeric_limits<int>::min()}) {
    expect_refused(ErrorCode::bad_shape, "threads " + std::to_string(threads), [&](Call& c) { c.threads = threads; });
    Call call;
    call.args.sequences = call.list;
    EXPECT_THROW(attention_workspace_bytes(call.args, threads), Error);
  }
}

TEST(AttentionRefusals, InstructionSets) {
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::neon}) {
    if (isa_supported(isa)) continue;
    expect_refused(ErrorCode::bad_isa, isa_name(isa), [isa](Call& c) { c.isa = isa; });
    EXPECT_NE(isa_missing(isa), "");
  }
  for (const char* name : {"sse9", "", "AVX2", "avx2 ", "avx"}) {
    try {
      isa_from_name(name);
      ADD_FAILURE() << "accepted: " << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code, ErrorCode::bad_isa);
      for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::neon}) {
        EXPECT_NE(std::string(error.what()).find(isa_name(isa)), std::string::npos)
            << "the choices are named: " << error.what();
      }
    }
  }
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::neon}) EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
}

}  // namespace
}  // namespace kvroof::test
