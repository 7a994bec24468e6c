// The K phase of one segment: every query's scores of every row, not scaled yet.
#pragma once

#include "kernels/ops/attention_part.hpp"
#include "kernels/ops/score_tile.hpp"
#include "kernels/ops/widen_rows.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// Heads side by side in a token-major cache: a few rows at a time across all of them, so that memory is read as it
// lies. Queries are numbered through the heads; four of them, of P heads, share a reduction.
template <Storage S, int P, int V>
KVROOF_ALONE inline void score_across_heads(const Part& part, const AttentionGroup& group, const SegmentRows& rows) {
  constexpr int R = kAccumulators / kQuad;
  const KvView& kv = group.sequence->kv;
  const std::int64_t bytes = part.k_shape.dim * static_cast<std::int64_t>(storage_bytes(S));
  const std::int64_t queries = group.heads * group.queries;
  for (int row = rows.begin; row < rows.end; row += R) {
    PrefetchSlices slices = across_heads(group, rows.k(row) + kQuadAhead, R, kv.k_head_stride, bytes, queries / kQuad);
    std::int64_t head_offset = 0, left = group.queries;  // of the head at work; a division each would cost 3 %
    for (std::int64_t query = 0; query < queries; query += kQuad) {
      slices.next();
      std::int64_t offset[P];
      for (int p = 0; p < P; ++p) {
        offset[p] = head_offset;
        left -= kQuad / P;
        if (left > 0) continue;
        head_offset += kv.k_head_stride;
        left = group.queries;
      }
      score_quad<S, P, V>(rows.k(row), offset, part.floats(part.split.q_rows) + query * part.k_shape.pad, part.k_shape,
                          part.scores() + query * kScoreStride + row, kScoreStride);
    }
  }
}

// The same for one query a head: row by row across all heads, sums of heads side by side, turned 16 x 16 at a time.
template <Storage S, int V>
KVROOF_ALONE inline void score_rows_across_heads(const Part& part, const AttentionGroup& group,
                                                 const SegmentRows& rows) {
  const std::int64_t stride = group.sequence->kv.k_head_stride;
  const float* q = part.floats(part.split.q_rows);
  float* tile = part.floats(part.split.tile);  // 16 rows x heads
  const std::int64_t width = round_up_lanes(group.heads);
  HeadsAhead ahead(group.heads, stride, part.k_shape.dim * static_cast<std::int64_t>(storage_bytes(S)));
  for (int row = rows.begin; row < rows.end; row += kTileRows) {
    for (int r = 0; r < kTileRows; ++r) {
      const std::byte* const* line = rows.k(row + r);
      const std::byte* const* due = ahead.at(line, row + r - rows.begin);
      for (std::int64_t head = 0; head < group.heads; head += kAccumulators) {
        if (head > group.heads - kAccumulators) head = group.heads - kAccumulators;  // some twice: the same sums
        score_heads<S, V>(*line + head * stride, stride, q + head * V * kLanes, tile + r * width + head, due + head);
      }
    }
    // up to 15 heads that are not there are turned too: the scores have room for 16 queries a head, nobody looks
    for (std::int64_t head = 0; head < group.heads; head += kLanes) {
      Vec16 sums[kTileRows];
      for (int r = 0; r < kTileRows; ++r) sums[r] = load(tile + r * width + head);
      transpose16(sums, part.scores() + head * kScoreStride + row, kScoreStride);
    }
  }
}

template <Storage S, bool Grouped>
inline void score_segment(const Part& part, const AttentionGroup& group, const SegmentRows& rows) {
  const QueryForms forms = group_forms(part, group);
  const std::int64_t per_head = score_rows_per_head(part, group);
  const KvView& kv = group.sequence->kv;
  if constexpr (!Grouped) {
    if (rows_across_heads(group)) {
      if (part.k_shape.dim == 8 * kLanes) return score_rows_across_heads<S, 8>(part, group, rows);
      if (part.k_shape.dim == 4 * kLanes) return score_rows_across_heads<S, 4>(part, group, rows);
    }
    if (group.heads > 1 && page_block_rows(kv) == 0 && group.queries > 1 && forms.lane_blocks == 0 &&
        group.heads * group.queries % kQuad == 0) {
      const auto across = [&]<int P>() {
        if (kBatches <= 2 && part.k_shape.dim == 8 * kLanes)
          score_across_heads<S, P, 8>(part, group, rows);
        else
          score_across_heads<S, P, 0>(part, group, rows);
      };
      if (group.queries % kQuad == 0) return across.template operator()<1>();
      if (group.queries == 2) return across.template operator()<2>();
      return across.template operator()<4>();
    }
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
    wake_pages(ahead, count, bytes);
    run(row, count, head, ahead);
  };
  if (walk_pages(group, rows, rows.k(rows.begin), kv.k_head_stride, kTileRows, page_tile)) return;
  if (forms.lane_blocks > 0) {  // compute-bound
    for (std::int64_t head = 0; head < group.heads; ++head)
      run(rows.begin, rows.count(), head, rows.ahead(rows.k(rows.begin)));
    return;
  }
  for (int row = rows.begin; row < rows.end; row += kTileRows) {
    PrefetchSlices slices =
        across_heads(group, rows.k(row) + kTileRows, kTileRows, kv.k_head_stride, bytes, group.heads);
    for (std::int64_t head = 0; head < group.heads; ++head) {
      slices.next();
      const Ahead ahead = group.heads > 1 ? Ahead{} : rows.ahead(rows.k(row));
      wake_pages(ahead, kTileRows, bytes);
      run(row, kTileRows, head, ahead);
    }
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
