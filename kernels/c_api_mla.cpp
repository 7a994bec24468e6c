// kvroof.h over mla.hpp. That a kvroof_attention_sequence is an AttentionSequence is asserted in c_api.cpp.
#include "kernels/c_api.hpp"
#include "kernels/mla.hpp"

using namespace kvroof;
using namespace kvroof::c_api;

struct kvroof_mla_weights {
  MlaWeights weights;
};

namespace {

std::span<const float> matrix(kvroof_mla_matrix m) { return {m.data, m.floats}; }

MlaArgs args_of(const kvroof_mla_args* source) {
  const kvroof_mla_args& a = need(source, "args");
  MlaArgs args;
  args.weights = &handle(a.weights).weights;
  args.options = {a.options.scale,   a.options.window,       a.options.kept_tokens,
                  a.options.softcap, a.options.alibi_slopes, a.options.sink_logits};
  if (a.sequence_count > 0) need(a.sequences, "sequences");
  for (size_t i = 0; i < a.sequence_count; ++i) {  // enums on the other side, where no unknown value must arrive
    storage(a.sequences[i].kv.k_storage);
    storage(a.sequences[i].kv.v_storage);
  }
  args.sequences = {reinterpret_cast<const AttentionSequence*>(a.sequences), a.sequence_count};
  return args;
}

MlaForm form_of(int form) {
  if (form != KVROOF_MLA_ABSORBED && form != KVROOF_MLA_RECONSTRUCT)
    throw Error(ErrorCode::bad_option, "kvroof: form " + std::to_string(form) + " is unknown, must be 0 or 1");
  return static_cast<MlaForm>(form);
}
static_assert(static_cast<int>(MlaForm::absorbed) == KVROOF_MLA_ABSORBED &&
              static_cast<int>(MlaForm::reconstruct) == KVROOF_MLA_RECONSTRUCT);

}  // namespace

extern "C" {

kvroof_status kvroof_mla_weights_create(kvroof_mla_shape s, kvroof_mla_matrix w_uk, kvroof_mla_matrix w_uv,
                                        kvroof_mla_matrix w_dkv, kvroof_mla_matrix w_kr, kvroof_mla_weights** weights) {
  return guarded([&] {
    need(weights, "weights");
    const MlaShape shape{s.heads, s.nope_dim, s.rope_dim, s.value_dim, s.latent_dim, s.model_dim};
    *weights = new kvroof_mla_weights{MlaWeights(shape, {matrix(w_uk), matrix(w_uv), matrix(w_dkv), matrix(w_kr)})};
  });
}

void kvroof_mla_weights_destroy(kvroof_mla_weights* weights) { delete weights; }

kvroof_status kvroof_mla_compress(const kvroof_mla_weights* weights, const float* x, int64_t n, int64_t first_position,
                                  const double* inv_freq, int interleaved, float* rows, int threads, const char* isa) {
  return guarded([&] {
    const MlaWeights& w = handle(weights).weights;
    if (w.shape().rope_dim > 0) need(inv_freq, "inv_freq");
    MlaTokens tokens;
    tokens.x = x;
    tokens.row_stride = w.shape().model_dim;
    tokens.n = n;
    tokens.first_position = first_position;
    tokens.inv_freq = {inv_freq, static_cast<size_t>(w.shape().rope_dim / 2)};
    tokens.pairing = interleaved != 0 ? RopePairing::interleaved : RopePairing::half_split;
    mla_compress(w, tokens, rows, threads, isa_of(isa));
  });
}

kvroof_status kvroof_mla_workspace_bytes(const kvroof_mla_args* args, int form, int threads, size_t* bytes) {
  return guarded([&] {
    const MlaArgs checked = args_of(args);
    mla_check(checked);
    need(bytes, "bytes") = mla_workspace_bytes(checked, form_of(form), threads);
  });
}

kvroof_status kvroof_mla_attention(const kvroof_mla_args* args, int form, void* workspace, size_t workspace_bytes,
                                   int threads, const char* isa) {
  return guarded(
      [&] { mla_attention(args_of(args), form_of(form), lent(workspace, workspace_bytes), threads, isa_of(isa)); });
}

}  // extern "C"
