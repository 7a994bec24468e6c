// The K phase of one segment: every query's scores of every row, not scaled yet.
#pragma once

#include "kernels/ops/attention_part.hpp"
#include "kernels/ops/score_tile.hpp"
#include "kernels/ops/widen_rows.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// Heads side by side in a token-major cache: a few rows at a time across all of them, so that memory is read as it
// lies. Queries are numbered through the heads; four of them share a reduction.
template <Storage S>
inline void score_across_heads(const Part& part, const AttentionGroup& group, const SegmentRows& rows) {
  constexpr int R = kAccumulators / kQuad;
  const KvView& kv = group.sequence->kv;
  const std::int64_t bytes = part.k_shape.dim * static_cast<std::int64_t>(storage_bytes(S));
  const std::int64_t queries = group.heads * group.queries;
  for (int row = rows.begin; row < rows.end; row += R) {
    PrefetchSlices slices = across_heads(group, rows.k(row) + kQuadAhead, R, kv.k_head_stride, bytes, queries / kQuad);
    for (std::int64_t query = 0; query < queries; query += kQuad) {
      slices.next();
      std::int64_t offset[kQuad];
      for (int i = 0; i < kQuad; ++i) offset[i] = (query + i) / group.queries * kv.k_head_stride;
      const float* q = part.floats(part.split.q_rows) + query * part.k_shape.pad;
      float* to = part.scores() + query * kScoreStride + row;
      if (offset[0] == offset[3])
        score_quad<S, 1>(rows.k(row), offset, q, part.k_shape, to, kScoreStride);
      else if (group.queries == 2)
        score_quad<S, 2>(rows.k(row), offset, q, part.k_shape, to, kScoreStride);
      else
        score_quad<S, 4>(rows.k(row), offset, q, part.k_shape, to, kScoreStride);
    }
  }
}

template <Storage S, bool Grouped>
inline void score_segment(const Part& part, const AttentionGroup& group, const SegmentRows& rows, Distance distance) {
  const QueryForms forms = group_forms(part, group);
  const std::int64_t per_head = score_rows_per_head(part, group);
  const KvView& kv = group.sequence->kv;
  if constexpr (!Grouped) {
    if (group.heads > 1 && page_block_rows(kv) == 0 && group.queries > 1 && forms.lane_blocks == 0 &&
        group.heads * group.queries % kQuad == 0)
      return score_across_heads<S>(part, group, rows);
  }
  const std::int64_t bytes = part.k_shape.dim * static_cast<std::int64_t>(storage_bytes(S));
  const auto run = [&](int row, int count, std::int64_t head, Ahead ahead) {
    score_run<S, Grouped>(rows.k(row), count, head * kv.k_head_stride, kv.latent_dim,
                          part.floats(part.split.q_lanes) + head * forms.lane_blocks * part.k_shape.pad * kLanes,
                          part.floats(part.split.q_rows) + head * forms.row_queries * part.k_shape.pad, forms,
                          part.k_shape, part.floats(part.split.tile),
                          part.scores() + head * per_head * kScoreStride + row, kScoreStride, ahead);
  };
  const auto page_tile = [&](int row, int count, std::int64_t head, Ahead ahead) {
    wake_pages(ahead, count, head * kv.k_head_stride, bytes);
    run(row, count, head, ahead);
  };
  if (walk_pages(group, rows, rows.k(rows.begin), kv.k_head_stride, kTileRows, page_tile)) return;
  if (forms.lane_blocks > 0) {  // compute-bound
    for (std::int64_t head = 0; head < group.heads; ++head)
      run(rows.begin, rows.count(), head, ahead_of(rows.k(rows.begin), distance));
    return;
  }
  for (int row = rows.begin; row < rows.end; row += kTileRows) {
    PrefetchSlices slices =
        across_heads(group, rows.k(row) + kTileRows, kTileRows, kv.k_head_stride, bytes, group.heads);
    for (std::int64_t head = 0; head < group.heads; ++head) {
      slices.next();
      const Ahead ahead = group.heads > 1 ? Ahead{} : ahead_of(rows.k(row), distance);
      wake_pages(ahead, kTileRows, 0, bytes);
      run(row, kTileRows, head, ahead);
    }
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
