// Both forms of multi-head latent attention around the attention kernel: checks, workspace, and the phases of a call.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "kernels/kernel_table.hpp"
#include "kernels/mla_project.hpp"

namespace kvroof {
namespace {

constexpr std::size_t kAlignment = 64;

const MlaShape& shape_of(const MlaArgs& args) {
  if (args.weights == nullptr) throw Error(ErrorCode::bad_view, "mla: weights is null");
  return args.weights->shape();
}

std::string in_sequence(std::size_t i) { return "mla: sequence " + std::to_string(i); }

// What attention_check cannot know: which latents these weights belong to, and how long a row must be.
void check_rows(const MlaShape& s, std::span<const AttentionSequence> sequences) {
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const KvView& kv = sequences[i].kv;
    if (kv.latent_dim != s.latent_dim)
      throw Error(ErrorCode::bad_view, in_sequence(i) + ": the view's latent_dim is " + std::to_string(kv.latent_dim) +
                                           ", the shape's is " + std::to_string(s.latent_dim) +
                                           "; its cache must be made with mla_cache_shape()");
    const std::int64_t row = latent_row_bytes(kv.k_storage, s.latent_dim, s.rope_dim);
    if (sequences[i].n > 0 && kv.k_row_stride < row && kv.k_row_stride > -row && sequences[i].kv.end_position > 1)
      throw Error(ErrorCode::bad_view, in_sequence(i) + ": row stride is " + std::to_string(kv.k_row_stride) +
                                           " bytes, a row of " + std::to_string(s.latent_dim) + " + " +
                                           std::to_string(s.rope_dim) + " in " + storage_name(kv.k_storage) +
                                           " takes " + std::to_string(row));
  }
}

LatentExpansion expansion_of(const MlaWeights& weights) {
  return {weights.shape().rope_dim, weights.w_uk(0), weights.w_uv(0)};
}

AttentionArgs reconstruct_args(const MlaArgs& args, const LatentExpansion* expansion) {
  const MlaShape& s = args.weights->shape();
  AttentionArgs a;
  a.shape = {s.heads, s.heads, s.nope_dim + s.rope_dim, s.value_dim};
  a.options = args.options;
  a.sequences = args.sequences;
  a.expansion = expansion;
  return a;
}

// Where the pieces of a workspace begin.
struct Layout {
  std::int64_t tokens = 0;
  std::size_t sequences = 0, expansion = 0, queries = 0, latents = 0, attention = 0, bytes = 0;
};

Layout make_layout(const MlaArgs& args, MlaForm form, int parts) {
  const MlaShape& s = args.weights->shape();
  Layout layout;
  for (const AttentionSequence& sequence : args.sequences) {
    if (__builtin_add_overflow(layout.tokens, sequence.n, &layout.tokens))
      throw Error(ErrorCode::bad_shape, "mla: the new tokens of all sequences overflow 63 bits");
  }
  std::size_t at = 0;
  const auto take = [&at](std::size_t count, std::size_t size) {
    const std::size_t begin = at;
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(count, size, &bytes) || __builtin_add_overflow(at, bytes, &at) || at > SIZE_MAX / 4)
      throw Error(ErrorCode::bad_shape, "mla: the workspace overflows; use fewer new tokens a call");
    at = (at + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  const LatentExpansion expansion = expansion_of(*args.weights);
  if (form == MlaForm::absorbed) {
    const std::size_t row = static_cast<std::size_t>(s.heads) * sizeof(float);  // below 2^23
    layout.sequences = take(args.sequences.size(), sizeof(AttentionSequence));
    layout.queries =
        take(static_cast<std::size_t>(layout.tokens), row * static_cast<std::size_t>(s.latent_dim + s.rope_dim));
    layout.latents = take(static_cast<std::size_t>(layout.tokens), row * static_cast<std::size_t>(s.latent_dim));
    layout.attention = take(attention_workspace_bytes(mla_absorbed_args(s, args.options, args.sequences), parts), 1);
  } else {
    layout.expansion = take(1, sizeof(LatentExpansion));
    layout.attention = take(attention_workspace_bytes(reconstruct_args(args, &expansion), parts), 1);
  }
  layout.bytes = layout.tokens == 0 ? 0 : at;
  return layout;
}

void check_form(MlaForm form) {
  if (form != MlaForm::absorbed && form != MlaForm::reconstruct)
    throw Error(ErrorCode::bad_option,
                "mla: form is " + std::to_string(static_cast<int>(form)) + ", must be absorbed or reconstruct");
}

void check_mode(const MlaArgs& args, MlaForm form, Isa isa) {
  if (args.mode == Mode::reproducible) return;
  if (args.mode != Mode::native)
    throw Error(ErrorCode::bad_option,
                "mla: mode is " + std::to_string(static_cast<int>(args.mode)) + ", must be reproducible or native");
  if (form == MlaForm::reconstruct)
    throw Error(
        ErrorCode::bad_isa,
        "mla: mode native cannot reconstruct: no native kernel for it; use the absorbed form or mode reproducible");
  if (!args.sequences.empty())
    native_table(isa, args.sequences.front().kv.k_storage, args.sequences.front().kv.v_storage);  // or why not
}

}  // namespace

void mla_check(const MlaArgs& args) {
  const MlaShape& s = shape_of(args);
  check_rows(s, args.sequences);
  const LatentExpansion expansion = expansion_of(*args.weights);
  attention_check(reconstruct_args(args, &expansion));
}

AttentionArgs mla_absorbed_args(const MlaShape& shape, const AttentionOptions& options,
                                std::span<const AttentionSequence> sequences) {
  AttentionArgs a;
  a.shape = {shape.heads, 1, shape.latent_dim + shape.rope_dim, shape.latent_dim};
  a.options = options;
  a.sequences = sequences;
  return a;
}

void mla_absorbed(const MlaShape& shape, const AttentionOptions& options, std::span<const AttentionSequence> sequences,
                  std::span<std::byte> workspace, int threads, Isa isa) {
  mla_check_shape(shape);
  check_rows(shape, sequences);
  decode_attention(mla_absorbed_args(shape, options, sequences), workspace, threads, isa);
}

std::size_t mla_workspace_bytes(const MlaArgs& args, MlaForm form, int parts) {
  shape_of(args);
  check_form(form);
  mla_require_threads(parts);
  return make_layout(args, form, parts).bytes;
}

MlaWork mla_prepare(const MlaArgs& args, MlaForm form, int parts, std::span<std::byte> workspace, Isa isa) {
  kernel_table(isa);
  mla_require_threads(parts);
  check_form(form);
  mla_check(args);
  check_mode(args, form, isa);
  const Layout layout = make_layout(args, form, parts);
  MlaWork work;
  work.form = form;
  work.parts = parts;
  work.isa = isa;
  work.weights = args.weights;
  work.sequences = args.sequences;
  work.tokens = layout.tokens;
  if (layout.tokens == 0) return work;
  if (workspace.size() < layout.bytes || reinterpret_cast<std::uintptr_t>(workspace.data()) % kAlignment != 0)
    throw Error(ErrorCode::bad_workspace, "mla: workspace has " + std::to_string(workspace.size()) + " bytes, needs " +
                                              std::to_string(layout.bytes) + ", aligned to 64");
  std::byte* memory = workspace.data();
  work.attention_memory = memory + layout.attention;
  if (form == MlaForm::reconstruct) {
    work.attention =
        reconstruct_args(args, new (memory + layout.expansion) LatentExpansion(expansion_of(*args.weights)));
    return work;
  }
  const MlaShape& s = args.weights->shape();
  const std::int64_t dk = s.latent_dim + s.rope_dim;
  auto* inner = reinterpret_cast<AttentionSequence*>(memory + layout.sequences);
  float* queries = reinterpret_cast<float*>(memory + layout.queries);
  float* latents = reinterpret_cast<float*>(memory + layout.latents);
  work.queries = queries;
  work.latents = latents;
  for (std::size_t i = 0; i < args.sequences.size(); ++i) {
    AttentionSequence* sequence = new (inner + i) AttentionSequence(args.sequences[i]);
    sequence->q = queries;
    sequence->q_head_stride = dk;
    sequence->q_row_stride = dk * s.heads;
    sequence->out = latents;
    sequence->out_head_stride = s.latent_dim;
    sequence->out_row_stride = s.latent_dim * s.heads;
    queries += sequence->n * sequence->q_row_stride;
    latents += sequence->n * sequence->out_row_stride;
  }
  work.attention = mla_absorbed_args(s, args.options, {inner, args.sequences.size()});
  work.attention.mode = args.mode;
  return work;
}

void mla_run_part(const MlaWork& work, MlaPhase phase, int part) {
  if (work.tokens == 0) return;
  const bool absorbed = work.form == MlaForm::absorbed;
  switch (phase) {
    case MlaPhase::fold:
      if (absorbed) mla_fold_part(*work.weights, work.sequences, work.tokens, work.queries, work.parts, part, work.isa);
      break;
    case MlaPhase::attend: attention_run_part(work.attention, work.parts, part, work.attention_memory, work.isa); break;
    case MlaPhase::merge:
      attention_merge_part(work.attention, work.parts, part, work.attention_memory, work.isa);
      break;
    case MlaPhase::expand:
      if (absorbed)
        mla_expand_part(*work.weights, work.sequences, work.tokens, work.latents, work.parts, part, work.isa);
      break;
  }
}

void mla_attention(const MlaArgs& args, MlaForm form, std::span<std::byte> workspace, int threads) {
  mla_attention(args, form, workspace, threads, default_isa());
}

void mla_attention(const MlaArgs& args, MlaForm form, std::span<std::byte> workspace, int threads, Isa isa) {
  const MlaWork work = mla_prepare(args, form, threads, workspace, isa);
  if (threads == 1) {
    for (const MlaPhase phase : kMlaPhases) mla_run_part(work, phase, 0);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int team = omp_get_num_threads();  // may be fewer than asked for
    for (const MlaPhase phase : kMlaPhases) {
      for (int part = omp_get_thread_num(); part < threads; part += team) mla_run_part(work, phase, part);
#pragma omp barrier
    }
  }
}

std::int64_t mla_cache_bytes(const MlaArgs& args) {
  return attention_bytes(mla_absorbed_args(shape_of(args), args.options, args.sequences));
}

std::int64_t mla_flops(const MlaArgs& args, MlaForm form) {
  const MlaShape& s = shape_of(args);
  if (form == MlaForm::reconstruct) {
    const LatentExpansion expansion = expansion_of(*args.weights);
    return attention_flops(reconstruct_args(args, &expansion));
  }
  std::int64_t tokens = 0;
  for (const AttentionSequence& sequence : args.sequences) tokens += sequence.n;
  return attention_flops(mla_absorbed_args(s, args.options, args.sequences)) +
         tokens * s.heads * 2 * s.latent_dim * (s.nope_dim + s.value_dim);
}

}  // namespace kvroof
