// The V phase of one segment: acc += weights x rows.
#pragma once

#include "kernels/ops/attention_part.hpp"
#include "kernels/ops/value_tile.hpp"
#include "kernels/ops/widen_rows.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// acc[query][..] += weights of rows [row, row + count) times `dim` columns of V, found at from[r] + offset.
template <Storage S, bool Prefetch>
inline void value_tile(const Part& part, const AttentionGroup& group, const SegmentRows& rows, int row, int count,
                       std::int64_t head, const std::byte* const* from, std::int64_t offset, std::int64_t dim,
                       float* acc, Ahead ahead, PrefetchSlices* slices) {
  const float* w = part.scores() + head * score_rows_per_head(part, group) * kScoreStride + row;
  const std::int64_t pad = part.v_shape.pad;
  std::int64_t query = 0;
  const auto run = [&]<int H>() {
    // queries of one token see the same rows; a tile on the diagonal or the window's edge goes query by query
    const Spans spans = visible_spans(part, group, query, rows.base() + row, 0, count);
    if (H > 1 && group.sequence->n > 1) {
      for (int h = 1; h < H; ++h)
        if (!same(spans, visible_spans(part, group, query + h, rows.base() + row, 0, count))) return false;
    }
    for (int s = 0; s < spans.count; ++s) {
      const Span span = spans.span[s];
      if (Prefetch && ahead)
        value_rows<S, H, Prefetch>(from, offset, span.begin, span.end, dim, w + query * kScoreStride, kScoreStride,
                                   acc + query * pad, pad, ahead + span.begin);
      else
        value_rows<S, H, false>(from, offset, span.begin, span.end, dim, w + query * kScoreStride, kScoreStride,
                                acc + query * pad, pad, {});
    }
    ahead = {};
    if (slices != nullptr) slices->next();
    query += H;
    return true;
  };
  while (query < group.queries) {
    const std::int64_t left = group.queries - query;
    // straight from memory two queries read whole rows in one pass; four would come back for the second half
    if ((!Prefetch || kBatches > 1) && left >= 4 && run.template operator()<4>()) continue;
    if constexpr (kBatches == 1) {
      if (Prefetch && left >= 8 && run.template operator()<8>()) continue;
    }
    if (left >= 2 && run.template operator()<2>()) continue;
    run.template operator()<1>();
  }
}

// Few queries: a row goes from memory straight into the sums.
template <Storage S>
inline void weigh_rows(const Part& part, const AttentionGroup& group, const SegmentRows& rows, Distance distance,
                       float* acc) {
  const std::int64_t head_stride = group.sequence->kv.v_head_stride;
  const std::int64_t bytes = part.v_shape.dim * static_cast<std::int64_t>(storage_bytes(S));
  const auto tile = [&](int row, int count, std::int64_t head, Ahead ahead) {
    value_tile<S, true>(part, group, rows, row, count, head, rows.v(row), head * head_stride, part.v_shape.dim,
                        acc + head * group.queries * part.v_shape.pad, ahead, nullptr);
  };
  if (walk_pages(group, rows, rows.v(rows.begin), head_stride, PageAhead::kNear, tile)) return;
  // several heads take turns on few rows; one head alone starts a tile less often
  const int heads_step = group.queries > 1 || S == Storage::int8 ? kTileRows / 2 : kTileRows;
  const int step = group.heads > 1 ? heads_step : group.queries > 1 ? 2 * kTileRows : 4 * kTileRows;
  for (int row = rows.begin; row < rows.end; row += step) {
    const int count = rows.end - row < step ? rows.end - row : step;
    PrefetchSlices slices = across_heads(group, rows.v(row) + count, step, head_stride, bytes, group.heads);
    for (std::int64_t head = 0; head < group.heads; ++head) {
      slices.next();
      const Ahead ahead = group.heads > 1 ? Ahead{} : ahead_of(rows.v(row), distance);
      tile(row, count, head, ahead);
    }
  }
}

// Many queries: a panel of rows x 64 columns is widened once into L1 and met by every query, so that neither the
// conversion nor loading and storing the sums weighs against the FMAs. f32 rows are copied too once that pays: as they
// lie, far apart, they crowd few sets of L1.
template <Storage S, bool Grouped>
inline void weigh_panels(const Part& part, const AttentionGroup& group, const SegmentRows& rows, float* acc) {
  const std::int64_t dim = part.v_shape.dim, pad = part.v_shape.pad,
                     bytes = static_cast<std::int64_t>(storage_bytes(S));
  float* scratch = part.floats(part.split.tile);
  const std::int64_t blocks = (group.queries + 3) / 4 * ((dim + kPanelColumns - 1) / kPanelColumns);
  const bool many = group.queries >= kPanelCopyQueries;
  const int step = many ? kPanelRows : kPanelRows / 2;
  for (int row = rows.begin; row < rows.end; row += step) {
    const int count = rows.end - row < step ? rows.end - row : step;
    for (std::int64_t head = 0; head < group.heads; ++head) {
      const std::int64_t offset = head * group.sequence->kv.v_head_stride;
      PrefetchSlices slices(many ? PrefetchSlices::kL2 : PrefetchSlices::kL1, rows.v(row) + step, count, offset,
                            dim * bytes, blocks);
      for (std::int64_t column = 0; column < dim; column += kPanelColumns) {
        const std::int64_t columns = dim - column < kPanelColumns ? dim - column : kPanelColumns;
        const float* wide[kPanelRows];
        widen_rows<S, Grouped>(rows.v(row), count, offset, {column, columns, group.sequence->kv.latent_dim}, scratch,
                               kPanelColumns, wide, many);
        value_tile<Storage::f32, false>(part, group, rows, row, count, head,
                                        reinterpret_cast<const std::byte* const*>(wide), 0, columns,
                                        acc + head * group.queries * pad + column, {}, &slices);
      }
    }
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
