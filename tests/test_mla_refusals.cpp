// Every refusal of multi-head latent attention: by its name, in one line that says what was wrong, before anything is
// written.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "tests/support/attend.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"
#include "tests/support/mla_call.hpp"
#include "tests/support/refusal.hpp"

namespace kvroof::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

// ---- shapes and weights ----
struct Matrices {
  MlaShape shape{4, 8, 6, 10, 20, 24};
  std::vector<float> w_uk = std::vector<float>(4 * 8 * 20), w_uv = std::vector<float>(4 * 10 * 20),
                     w_dkv = std::vector<float>(20 * 24), w_kr = std::vector<float>(6 * 24);
  MlaWeights make() const { return MlaWeights(shape, {w_uk, w_uv, w_dkv, w_kr}); }
};

TEST(MlaRefusals, TheUnspoiledWeightsAreAccepted) {
  Matrices m;
  EXPECT_TRUE(m.make().compresses());
  m.shape.model_dim = 0;
  m.w_dkv.clear();
  m.w_kr.clear();
  EXPECT_FALSE(m.make().compresses());
  m.shape.rope_dim = 0;
  EXPECT_NO_THROW(m.make());
}

TEST(MlaRefusals, DimensionsOutOfRangeByName) {
  const std::pair<const char*, std::int64_t MlaShape::*> dims[] = {
      {"heads", &MlaShape::heads},         {"nope_dim", &MlaShape::nope_dim},     {"rope_dim", &MlaShape::rope_dim},
      {"value_dim", &MlaShape::value_dim}, {"latent_dim", &MlaShape::latent_dim}, {"model_dim", &MlaShape::model_dim}};
  for (const auto& [name, dim] : dims) {
    for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-1}, kMin, kMax, (std::int64_t{1} << 20) + 2}) {
      const bool may_be_zero = dim == &MlaShape::rope_dim || dim == &MlaShape::model_dim;
      if (value == 0 && may_be_zero) continue;
      Matrices m;
      m.shape.*dim = value;
      const std::string what = std::string(name) + " " + std::to_string(value);
      expect_refusal(
          ErrorCode::bad_shape, what, [&] { m.make(); }, name);
      expect_refusal(
          ErrorCode::bad_shape, what, [&] { mla_check_shape(m.shape); }, name);
      expect_refusal(
          ErrorCode::bad_shape, what, [&] { mla_cache_shape(m.shape, Storage::f16); }, name);
      expect_refusal(
          ErrorCode::bad_shape, what, [&] { mla_weight_bytes(m.shape); }, name);
    }
  }
  for (const std::int64_t rope : {1, 5, 63}) {
    Matrices m;
    m.shape.rope_dim = rope;
    expect_refusal(
        ErrorCode::bad_shape, "rope_dim " + std::to_string(rope), [&] { m.make(); }, "even");
  }
  Matrices m;  // each in range, together not
  m.shape.nope_dim = m.shape.rope_dim = std::int64_t{1} << 20;
  expect_refusal(
      ErrorCode::bad_shape, "sum", [&] { m.make(); }, "nope_dim + rope_dim");
}

TEST(MlaRefusals, WeightsOfTheWrongSizeByName) {
  const std::pair<const char*, std::vector<float> Matrices::*> all[] = {
      {"w_uk", &Matrices::w_uk}, {"w_uv", &Matrices::w_uv}, {"w_dkv", &Matrices::w_dkv}, {"w_kr", &Matrices::w_kr}};
  for (const auto& [name, matrix] : all) {
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, (Matrices().*matrix).size() - 1, (Matrices().*matrix).size() + 1}) {
      Matrices m;
      (m.*matrix).resize(size);
      expect_refusal(
          ErrorCode::bad_shape, name, [&] { m.make(); }, std::string(name) + " has " + std::to_string(size));
    }
  }
  Matrices m;  // fits no dimension of a model that does not compress
  m.shape.model_dim = 0;
  expect_refusal(
      ErrorCode::bad_shape, "w_dkv without model_dim", [&] { m.make(); }, "w_dkv");
  // The largest dimensions are refused for their size, without a product that overflows.
  m.shape = {1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 1 << 20};
  expect_refusal(
      ErrorCode::bad_shape, "2^59 floats", [&] { m.make(); }, "w_uk");
}

// ---- attention ----
// A call that is right in every respect, for a test to spoil one thing in.
struct Call {
  explicit Call(MlaForm which)
      : form(which),
        source(make_mla_case(spec())),
        weights(make_weights(source)),
        cache(source, LatentCacheKind::contiguous, 1),
        call(source, cache.view(), 1),
        list{call.sequence()} {
    runs.assign(list[0].kv.runs, list[0].kv.runs + list[0].kv.run_count);
    args.weights = &weights;
    args.options = make_options(source);
  }
  static MlaCaseSpec spec() {
    MlaCaseSpec s;
    s.shape = {4, 8, 6, 10, 20};
    s.T = 40;
    s.n = 2;
    return s;
  }
  void run() {
    list[0].kv.runs = runs.empty() ? nullptr : runs.data();
    list[0].kv.run_count = static_cast<std::int64_t>(runs.size());
    args.sequences = list;
    workspace.resize((1 << 22) + 128);
    const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
    mla_attention(args, form, {workspace.data() + (64 - address % 64) % 64 + misalign, workspace_bytes}, threads, isa);
  }

  MlaForm form;
  MlaCase source;
  MlaWeights weights;
  LatentCache cache;
  MlaCall call;
  std::vector<AttentionSequence> list;
  std::vector<RowRun> runs;
  MlaArgs args;
  std::vector<std::byte> workspace;
  std::size_t workspace_bytes = 1 << 22, misalign = 0;
  int threads = 2;
  Isa isa = runnable_isas().front();
};

void expect_call_refused(ErrorCode code, const std::string& said, const std::string& what,
                         const std::function<void(Call&)>& spoil) {
  for (const MlaForm form : {MlaForm::absorbed, MlaForm::reconstruct}) {
    Call call(form);
    spoil(call);
    expect_refusal(
        code, what + ", " + mla_form_name(form), [&] { call.run(); }, said);
    EXPECT_TRUE(call.call.nothing_written()) << what;
    EXPECT_TRUE(std::all_of(call.workspace.begin(), call.workspace.end(), [](std::byte b) {
      return b == std::byte{0};
    })) << what;
  }
}

TEST(MlaRefusals, TheUnspoiledCallIsAccepted) {  // else every test below would pass for a wrong reason
  for (const reference::MlaForm form : kMlaForms) {
    Call call(kernel_form(form));
    EXPECT_NO_THROW(call.run());
    expect_same_bits(call.call.result(), mla_twin(form, call.source), "unspoiled");
  }
}

TEST(MlaRefusals, Options) {
  expect_call_refused(ErrorCode::bad_option, "scale", "scale not given",
                      [](Call& c) { c.args.options.scale = AttentionOptions{}.scale; });
  for (const std::int64_t window : {std::int64_t{0}, std::int64_t{-1}, kMin})
    expect_call_refused(ErrorCode::bad_option, "window", "window", [&](Call& c) { c.args.options.window = window; });
  for (const float cap : {0.0f, -1.0f, -kInf, kNaN})
    expect_call_refused(ErrorCode::bad_option, "softcap", "softcap", [&](Call& c) { c.args.options.softcap = cap; });
  expect_call_refused(ErrorCode::bad_option, "kept_tokens", "kept_tokens",
                      [](Call& c) { c.args.options.kept_tokens = -1; });
  expect_call_refused(ErrorCode::bad_option, "form", "form", [](Call& c) { c.form = static_cast<MlaForm>(7); });
}

TEST(MlaRefusals, WeightsAndViewsThatDoNotFit) {
  expect_call_refused(ErrorCode::bad_view, "weights", "no weights", [](Call& c) { c.args.weights = nullptr; });
  for (const std::int64_t latent : {0, 16, 21, -1})
    expect_call_refused(ErrorCode::bad_view, "latent_dim", "latent_dim of the view",
                        [&](Call& c) { c.list[0].kv.latent_dim = latent; });
  expect_call_refused(ErrorCode::bad_view, "row stride", "rows without a rotated key",
                      [](Call& c) { c.list[0].kv.k_row_stride = c.list[0].kv.v_row_stride = 20 * 4; });
  expect_call_refused(ErrorCode::bad_view, "row stride", "all rows in one place",
                      [](Call& c) { c.list[0].kv.k_row_stride = c.list[0].kv.v_row_stride = 0; });
  expect_call_refused(ErrorCode::bad_view, "", "V apart from K", [](Call& c) { c.runs[0].v += 4; });
  expect_call_refused(ErrorCode::bad_view, "", "V with another stride",
                      [](Call& c) { c.list[0].kv.v_row_stride += 4; });
  expect_call_refused(ErrorCode::bad_view, "", "V in another storage",
                      [](Call& c) { c.list[0].kv.v_storage = Storage::f16; });
  expect_call_refused(ErrorCode::bad_view, "", "no rows", [](Call& c) { c.runs.clear(); });
  expect_call_refused(ErrorCode::bad_view, "", "a visible row missing", [](Call& c) { c.runs[0].rows -= 1; });
  expect_call_refused(ErrorCode::bad_view, "", "no q", [](Call& c) { c.list[0].q = nullptr; });
  expect_call_refused(ErrorCode::bad_view, "", "no out", [](Call& c) { c.list[0].out = nullptr; });
  expect_call_refused(ErrorCode::bad_view, "", "more queries than rows", [](Call& c) { c.list[0].n = 41; });
  for (const std::int64_t n : {std::int64_t{-1}, kMin})
    expect_call_refused(ErrorCode::bad_shape, "", "n", [&](Call& c) { c.list[0].n = n; });
  expect_call_refused(ErrorCode::bad_view, "sequence 1", "a second sequence of another kind", [](Call& c) {
    c.list.push_back(c.list[0]);
    c.list[1].kv.latent_dim = 3;
  });
}

TEST(MlaRefusals, WorkspaceThreadsAndInstructionSet) {
  for (const MlaForm form : {MlaForm::absorbed, MlaForm::reconstruct}) {
    Call right(form);
    right.args.sequences = right.list;
    const std::size_t bytes = mla_workspace_bytes(right.args, form, 2);
    Call exact(form);
    exact.workspace_bytes = bytes;
    EXPECT_NO_THROW(exact.run()) << "the size it asks for is enough";
    for (const std::size_t less : {std::size_t{0}, std::size_t{63}, bytes - 1}) {
      Call call(form);
      call.workspace_bytes = less;
      expect_refusal(
          ErrorCode::bad_workspace, "too small", [&] { call.run(); }, std::to_string(bytes));
      EXPECT_TRUE(call.call.nothing_written());
    }
  }
  expect_call_refused(ErrorCode::bad_workspace, "64", "misaligned", [](Call& c) { c.misalign = 8; });
  for (const int threads : {0, -1})
    expect_call_refused(ErrorCode::bad_shape, "threads", "threads", [&](Call& c) { c.threads = threads; });
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::neon}) {
    if (!isa_supported(isa)) expect_call_refused(ErrorCode::bad_isa, "", "isa", [&](Call& c) { c.isa = isa; });
  }
}

// ---- compress ----
TEST(MlaRefusals, Compress) {
  struct Compress {
    Matrices m;
    std::vector<float> x = std::vector<float>(3 * 24), rows = std::vector<float>(3 * 26, -1.0f);
    std::vector<double> inv_freq = {1.0, 0.1, 0.01};
    MlaTokens tokens{x.data(), 24, 3, 0, inv_freq, RopePairing::interleaved};
    float* to = rows.data();
    int threads = 2;
    void run() { mla_compress(m.make(), tokens, to, threads, runnable_isas().front()); }
  };
  const auto refused = [](ErrorCode code, const std::string& said, const std::string& what,
                          const std::function<void(Compress&)>& spoil) {
    Compress c;
    spoil(c);
    expect_refusal(
        code, what, [&] { c.run(); }, said);
    EXPECT_TRUE(std::all_of(c.rows.begin(), c.rows.end(), [](float x) { return x == -1.0f; })) << what;
  };
  Compress right;
  EXPECT_NO_THROW(right.run());
  EXPECT_EQ(std::count(right.rows.begin(), right.rows.end(), -1.0f), 0);
  refused(ErrorCode::bad_shape, "n is", "n", [](Compress& c) { c.tokens.n = -1; });
  refused(ErrorCode::bad_shape, "inv_freq", "no frequencies", [](Compress& c) { c.tokens.inv_freq = {}; });
  refused(ErrorCode::bad_shape, "inv_freq", "a frequency too few",
          [](Compress& c) { c.tokens.inv_freq = std::span(c.inv_freq).first(2); });
  refused(ErrorCode::bad_option, "inv_freq", "NaN frequency",
          [](Compress& c) { c.inv_freq[1] = std::numeric_limits<double>::quiet_NaN(); });
  refused(ErrorCode::bad_view, "x is null", "no x", [](Compress& c) { c.tokens.x = nullptr; });
  refused(ErrorCode::bad_view, "rows is null", "no rows", [](Compress& c) { c.to = nullptr; });
  for (const std::int64_t position : {std::int64_t{-1}, kMin, kMax - 2, kMax, std::int64_t{1} << 31})
    refused(ErrorCode::bad_position, "position", "position", [&](Compress& c) { c.tokens.first_position = position; });
  refused(ErrorCode::bad_shape, "threads", "threads", [](Compress& c) { c.threads = 0; });
  refused(ErrorCode::bad_shape, "model_dim", "weights that do not compress", [](Compress& c) {
    c.m.shape.model_dim = 0;
    c.m.w_dkv.clear();
    c.m.w_kr.clear();
  });
}

TEST(MlaRefusals, MiddleOfTheAbsorbedForm) {
  Call call(MlaForm::absorbed);
  std::vector<float> q(2 * 4 * 26), out(2 * 4 * 20, -1.0f);
  AttentionSequence sequence = call.list[0];
  sequence.q = q.data();
  sequence.q_head_stride = 26;
  sequence.q_row_stride = 26 * 4;
  sequence.out = out.data();
  sequence.out_head_stride = 20;
  sequence.out_row_stride = 20 * 4;
  sequence.lse = nullptr;
  MlaShape shape = kernel_shape(call.source.spec.shape);
  const auto run = [&] {
    GuardedBuffer workspace(1 << 21, Edge::end, 64);
    mla_absorbed(shape, call.args.options, {&sequence, 1}, {workspace.data(), workspace.size()}, 1, call.isa);
  };
  EXPECT_NO_THROW(run());
  std::fill(out.begin(), out.end(), -1.0f);
  sequence.kv.latent_dim = 0;  // plain rows are not latents
  expect_refusal(ErrorCode::bad_view, "plain rows", run, "latent_dim");
  sequence.kv.latent_dim = 20;
  shape.rope_dim = 7;
  expect_refusal(ErrorCode::bad_shape, "odd rope_dim", run, "rope_dim");
  shape.rope_dim = 8;
  expect_refusal(ErrorCode::bad_view, "another rope_dim than the rows'", run, "row stride");
  shape.rope_dim = 6;
  call.args.options.scale = kNaN;
  expect_refusal(ErrorCode::bad_option, "scale", run, "scale");
  EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](float x) { return x == -1.0f; }));
}

}  // namespace
}  // namespace kvroof::test
