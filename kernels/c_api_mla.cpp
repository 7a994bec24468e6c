// kvroof.h over mla.hpp. That a kvroof_attention_sequence is an AttentionSequence is asserted in c_api.cpp.
#include <iterator>

#include "kernels/c_api.hpp"
#include "kernels/mla.hpp"

using namespace kvroof;
using namespace kvroof::c_api;

struct kvroof_mla_weights {
  MlaWeights weights;
};

struct kvroof_mla_work {
  MlaWork work;
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
  args.mode = mode_of(a.mode);
  return args;
}

MlaForm form_of(int form) {
  if (form != KVROOF_MLA_ABSORBED && form != KVROOF_MLA_RECONSTRUCT)
    throw Error(ErrorCode::bad_option, "kvroof: form " + std::to_string(form) + " is unknown, must be 0 or 1");
  return static_cast<MlaForm>(form);
}

// One of the two projections of absorbed MLA.
kvroof_status project(decltype(mla_fold_queries) run, const kvroof_mla_weights* weights, const float* from,
                      std::int64_t tokens, float* to, int threads, const char* isa) {
  return guarded([&] {
    const MlaWeights& w = handle(weights).weights;
    if (tokens < 0) {
      throw Error(ErrorCode::bad_shape, "kvroof: tokens is " + std::to_string(tokens) + ", must be at least 0");
    }
    if (tokens > 0 && (from == nullptr || to == nullptr)) {
      const char* const missing = from == nullptr ? "input" : "output";
      throw Error(ErrorCode::bad_view, std::string("kvroof: the ") + missing + " is null");
    }
    run(w, from, tokens, to, threads, isa_of(isa));
  });
}

MlaShape shape_of(const kvroof_mla_shape& s) {
  return {s.heads, s.nope_dim, s.rope_dim, s.value_dim, s.latent_dim, s.model_dim};
}

static_assert(std::size(kMlaPhases) == KVROOF_MLA_PHASES);
static_assert(static_cast<int>(MlaForm::absorbed) == KVROOF_MLA_ABSORBED &&
              static_cast<int>(MlaForm::reconstruct) == KVROOF_MLA_RECONSTRUCT);

}  // namespace

extern "C" {

kvroof_status kvroof_mla_cache_shape(kvroof_mla_shape shape, kvroof_storage of_storage, kvroof_cache_shape* cache) {
  return guarded([&] {
    const CacheShape s = mla_cache_shape(shape_of(shape), storage(of_storage));
    need(cache, "cache") = {s.kv_heads, s.key_dim, s.value_dim, of_storage, of_storage, s.latent_dim};
  });
}

kvroof_status kvroof_mla_weights_create(kvroof_mla_shape s, kvroof_mla_matrix w_uk, kvroof_mla_matrix w_uv,
                                        kvroof_mla_matrix w_dkv, kvroof_mla_matrix w_kr, kvroof_mla_weights** weights) {
  return guarded([&] {
    need(weights, "weights");
    *weights =
        new kvroof_mla_weights{MlaWeights(shape_of(s), {matrix(w_uk), matrix(w_uv), matrix(w_dkv), matrix(w_kr)})};
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

kvroof_status kvroof_mla_work_create(const kvroof_mla_args* args, int form, int parts, void* workspace,
                                     size_t workspace_bytes, const char* isa, kvroof_mla_work** work) {
  return guarded([&] {
    kvroof_mla_work*& result = need(work, "work");
    const MlaArgs checked = args_of(args);
    result =
        new kvroof_mla_work{mla_prepare(checked, form_of(form), parts, lent(workspace, workspace_bytes), isa_of(isa))};
  });
}

kvroof_status kvroof_mla_run_part(const kvroof_mla_work* work, int phase, int part) {
  return guarded([&] {
    const MlaWork& w = handle(work).work;
    if (phase < 0 || phase >= KVROOF_MLA_PHASES || part < 0 || part >= w.parts) {
      throw Error(ErrorCode::bad_shape, "kvroof: phase " + std::to_string(phase) + ", part " + std::to_string(part) +
                                            ", must be from 0 to " + std::to_string(KVROOF_MLA_PHASES - 1) + " and " +
                                            std::to_string(w.parts - 1));
    }
    mla_run_part(w, kMlaPhases[phase], part);
  });
}

void kvroof_mla_work_destroy(kvroof_mla_work* work) { delete work; }

kvroof_status kvroof_mla_fold_queries(const kvroof_mla_weights* weights, const float* q, int64_t tokens,
                                      float* absorbed, int threads, const char* isa) {
  return project(mla_fold_queries, weights, q, tokens, absorbed, threads, isa);
}

kvroof_status kvroof_mla_expand_latents(const kvroof_mla_weights* weights, const float* latent, int64_t tokens,
                                        float* out, int threads, const char* isa) {
  return project(mla_expand_latents, weights, latent, tokens, out, threads, isa);
}

kvroof_status kvroof_mla_cache_bytes(const kvroof_mla_args* args, int64_t* bytes) {
  return guarded([&] {
    const MlaArgs checked = args_of(args);
    mla_check(checked);
    need(bytes, "bytes") = mla_cache_bytes(checked);
  });
}

kvroof_status kvroof_mla_weight_bytes(kvroof_mla_shape shape, int64_t* bytes) {
  return guarded([&] {
    const MlaShape s = shape_of(shape);
    mla_check_shape(s);
    need(bytes, "bytes") = mla_weight_bytes(s);
  });
}

kvroof_status kvroof_mla_flops(const kvroof_mla_args* args, int form, int64_t* flops) {
  return guarded([&] {
    const MlaArgs checked = args_of(args);
    mla_check(checked);
    need(flops, "flops") = mla_flops(checked, form_of(form));
  });
}

kvroof_status kvroof_mla_measure_costs(const kvroof_mla_weights* weights, kvroof_storage of_storage, int threads,
                                       const char* isa, kvroof_mla_costs* costs) {
  return guarded([&] {
    kvroof_mla_costs& result = need(costs, "costs");
    const MlaCosts c = measure_mla_costs(handle(weights).weights, storage(of_storage), threads, isa_of(isa));
    result = {c.absorbed_pass,    c.absorbed_pair,    c.fold_call, c.fold_token,
              c.reconstruct_pass, c.reconstruct_pair, c.threads};
  });
}

kvroof_status kvroof_mla_choose(const kvroof_mla_args* args, const kvroof_mla_costs* costs, kvroof_mla_plan* plan) {
  return guarded([&] {
    const kvroof_mla_costs& c = need(costs, "costs");
    kvroof_mla_plan& result = need(plan, "plan");
    const MlaArgs checked = args_of(args);
    mla_check(checked);
    const MlaPlan p = mla_plan(checked, {c.absorbed_pass, c.absorbed_pair, c.fold_call, c.fold_token,
                                         c.reconstruct_pass, c.reconstruct_pair, c.threads});
    result = {static_cast<int>(p.form), p.absorbed_seconds, p.reconstruct_seconds};
  });
}

}  // extern "C"
