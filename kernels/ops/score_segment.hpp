// The K phase of one segment: every query's scores of every row, not scaled yet.
#pragma once

#include "kernels/ops/attention_part.hpp"
#include "kernels/ops/score_tile.hpp"
#include "kernels/ops/widen_rows.hpp"

namespace kvroof::KVROOF_NS {
namespace {

template <Storage S, bool Grouped>
inline void score_segment(const Part& part, const AttentionGroup& group, const SegmentRows& rows, Distance distance) {
  const QueryForms forms = group_forms(part, group);
  const std::int64_t per_head = score_rows_per_head(part, group);
  const KvView& kv = group.sequence->kv;
  for (int row = rows.begin; row < rows.end; row += kTileRows) {
    for (std::int64_t head = 0; head < group.heads; ++head) {
      const Ahead ahead = ahead_of(rows.k(row), distance);
      wake_pages(ahead, kTileRows, head * kv.k_head_stride,
                 part.k_shape.dim * static_cast<std::int64_t>(storage_bytes(S)));
      score_tile<S, Grouped>(rows.k(row), head * kv.k_head_stride, kv.latent_dim,
                             part.floats(part.split.q_lanes) + head * forms.lane_blocks * part.k_shape.pad * kLanes,
                             part.floats(part.split.q_rows) + head * forms.row_queries * part.k_shape.pad, forms,
                             part.k_shape, part.floats(part.split.tile),
                             part.scores() + head * per_head * kScoreStride + row, kScoreStride, ahead);
    }
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
