// Both phases of one segment where keys and values are expanded from the latent (MLA by reconstruction), 64 rows at a
// time, and forgotten again.
#pragma once

#include "kernels/ops/attention_part.hpp"
#include "kernels/ops/expand_latent.hpp"
#include "kernels/ops/score_tile.hpp"
#include "kernels/ops/weigh_segment.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// The latents of rows [row, row + count) as f32.
template <Storage S, bool Grouped>
inline void widen_latents(const Part& part, const AttentionGroup& group, const SegmentRows& rows, int row, int count,
                          const float** latent) {
  const std::int64_t dim = group.sequence->kv.latent_dim;
  widen_rows<S, Grouped>(rows.k(row), count, 0, {0, dim, dim}, part.floats(part.split.latents), part.split.latent_pad,
                         latent);
}

// Scores against keys that are expanded from the latent, 64 rows at a time, and forgotten again.
template <Storage S, bool Grouped>
inline void score_expanded(const Part& part, const AttentionGroup& group, const SegmentRows& rows) {
  const LatentExpansion& expansion = *part.args.expansion;
  const std::int64_t latent_dim = group.sequence->kv.latent_dim, pad = part.k_shape.pad;
  const std::int64_t nope = part.k_shape.dim - expansion.rope_dim;
  const float* w = expansion.w_uk + group.head0 * round_up_lanes(nope) * latent_dim;
  const QueryForms forms = group_forms(part, group);
  float* keys = part.floats(part.split.expanded);
  for (int row = rows.begin; row < rows.end; row += kExpandedRows) {
    const int count = rows.end - row < kExpandedRows ? rows.end - row : kExpandedRows;
    const float* wide[kExpandedRows];
    widen_latents<S, Grouped>(part, group, rows, row, count, wide);
    expand_latent(wide, count, latent_dim, w, nope, keys, pad);
    const std::byte* key_rows[kExpandedRows];
    const float* unused[kTileRows];
    for (int r = 0; r < count; ++r) {
      float* key = keys + r * pad;
      key_rows[r] = reinterpret_cast<const std::byte*>(key);
      widen_rows<S, Grouped>(rows.k(row + r), 1, 0, {latent_dim, expansion.rope_dim, latent_dim}, key + nope, pad,
                             unused);
      if (S == Storage::f32)
        __builtin_memcpy(key + nope, unused[0], static_cast<std::size_t>(expansion.rope_dim) * sizeof(float));
    }
    score_run<Storage::f32, false>(key_rows, count, 0, 0, part.floats(part.split.q_lanes),
                                   part.floats(part.split.q_rows), forms, part.k_shape, part.floats(part.split.tile),
                                   part.scores() + row, kScoreStride, {});
  }
}

// Values expanded from the latent, 64 rows at a time.
template <Storage S, bool Grouped>
inline void weigh_expanded(const Part& part, const AttentionGroup& group, const SegmentRows& rows, float* acc) {
  const std::int64_t latent_dim = group.sequence->kv.latent_dim, pad = part.v_shape.pad, dim = part.v_shape.dim;
  const float* w = part.args.expansion->w_uv + group.head0 * pad * latent_dim;
  float* values = part.floats(part.split.expanded);
  for (int row = rows.begin; row < rows.end; row += kExpandedRows) {
    const int count = rows.end - row < kExpandedRows ? rows.end - row : kExpandedRows;
    const float* wide[kExpandedRows];
    widen_latents<S, Grouped>(part, group, rows, row, count, wide);
    expand_latent(wide, count, latent_dim, w, dim, values, pad);
    const std::byte* expanded[kExpandedRows];
    for (int r = 0; r < count; ++r) expanded[r] = reinterpret_cast<const std::byte*>(values + r * pad);
    value_tile<Storage::f32, false>(part, group, rows, row, count, 0, expanded, 0, dim, acc, {}, [](std::int64_t) {});
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
