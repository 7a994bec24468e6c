// The V phase of one segment: acc += weights x rows.
#pragma once

#include "kernels/ops/attention_part.hpp"
#include "kernels/ops/value_tile.hpp"
#include "kernels/ops/widen_rows.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// A latent row of 512 + 64 floats, 36 lines: such rows spread over all sets of L1 and are a panel where they lie.
constexpr int kLatentFloats = 576;

// acc[query][..] += weights of rows [row, row + count) times `dim` columns of V, found at from[r] + offset.
// between(query) is called whenever the queries up to `query` are done. row_floats: given where `from` is a panel: rows
// of f32 so far apart, and `fetch` what to bring meanwhile.
template <Storage S, bool Prefetch, class Between>
inline void value_tile(const Part& part, const AttentionGroup& group, const SegmentRows& rows, int row, int count,
                       std::int64_t head, const std::byte* const* from, std::int64_t offset, std::int64_t dim,
                       float* acc, Ahead ahead, Between between, std::int64_t row_floats = 0,
                       LineFetch* fetch = nullptr) {
  const float* w = part.scores() + head * score_rows_per_head(part, group) * kScoreStride + row;
  const std::int64_t pad = part.v_shape.pad;
  // Rows of several streams can be told apart whenever they are fetched, so every pass brings its own columns: all in
  // the first of many passes would be waited for. One stream is best followed by whole rows in one pass: two queries on
  // AVX-512, as four would come back for the second half.
  const bool by_columns = kBatches == 1 && rows.fetch.streams > 1;
  const bool four = !Prefetch || kBatches > 1 || by_columns;
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
      if constexpr (!Prefetch && H >= 4) {
        if (row_floats > 0) {
          constexpr int C = (H == kManyQueries ? kManySums : kAccumulators) / H;
          const auto panel = [&]<int Stride>() {
            for (std::int64_t column = 0; column < dim; column += C * kLanes)
              value_panel<H, C, Stride>(reinterpret_cast<const float*>(from[0] + offset) + column, span.begin, span.end,
                                        w + query * kScoreStride, kScoreStride, acc + query * pad + column, pad,
                                        *fetch);
          };
          if (row_floats == kPanelColumns)
            panel.template operator()<kPanelColumns>();
          else if (row_floats == kShortDim)
            panel.template operator()<kShortDim>();
          else
            panel.template operator()<kLatentFloats>();
          continue;
        }
      }
      const auto rows_of = [&]<Fetched F>(Ahead fetched) {
        value_rows<S, H, F>(from, offset, span.begin, span.end, dim, w + query * kScoreStride, kScoreStride,
                            acc + query * pad, pad, fetched);
      };
      constexpr Fetched kRow = Prefetch ? Fetched::row : Fetched::nothing;
      constexpr Fetched kColumns = H >= 4 && kBatches == 1 && Prefetch ? Fetched::columns : kRow;
      if (!Prefetch || !ahead)
        rows_of.template operator()<Fetched::nothing>({});
      else if (by_columns)
        rows_of.template operator()<kColumns>(ahead + span.begin);
      else
        rows_of.template operator()<kRow>(ahead + span.begin);
    }
    ahead = {};
    query += H;
    between(query);
    return true;
  };
  while (query < group.queries) {
    const std::int64_t left = group.queries - query;
    if constexpr (!Prefetch && kManyQueries > 4) {  // eight are twice four
      if (left >= kManyQueries && left != 8 && run.template operator()<kManyQueries>()) continue;
    }
    if constexpr (kBatches == 1) {
      if (Prefetch && left >= 8 && run.template operator()<8>()) continue;
    }
    if (four && left >= 4 && run.template operator()<4>()) continue;
    if (left >= 2 && run.template operator()<2>()) continue;
    run.template operator()<1>();
  }
}

// One query a head, heads side by side: row by row across all heads, whose sums stay in L1.
template <Storage S, int V>
KVROOF_ALONE inline void weigh_rows_across_heads(const Part& part, const AttentionGroup& group, const SegmentRows& rows,
                                                 float* acc) {
  const std::int64_t stride = group.sequence->kv.v_head_stride, pad = part.v_shape.pad;
  HeadsAhead ahead(group.heads, stride, part.v_shape.dim * static_cast<std::int64_t>(storage_bytes(S)));
  const Spans spans = visible_spans(part, group, 0, rows.base(), rows.begin, rows.end);
  for (int s = 0; s < spans.count; ++s) {
    for (int row = spans.span[s].begin; row < spans.span[s].end; ++row) {
      const std::byte* const* line = rows.v(row);
      const std::byte* const* due = ahead.at(line, row - rows.begin);
      for (std::int64_t head = 0; head < group.heads; ++head)
        value_row<S, V>(*line + head * stride, part.scores()[head * kScoreStride + row], acc + head * pad, due[head]);
    }
  }
}

// f32 rows of one head, short and side by side, are as good as a panel for queries that would not pay for the copy.
inline bool rows_as_panels(const Part& part, const AttentionGroup& group) {
  const KvView& kv = group.sequence->kv;
  const std::int64_t dim = part.v_shape.dim;
  return kBatches == 1 && kv.v_storage == Storage::f32 && group.heads == 1 && group.queries < kPanelCopyQueries &&
         (dim == kPanelColumns || dim == kShortDim) && kv.v_row_stride == dim * 4;
}

inline bool adjacent_rows(const std::byte* const* rows, int count, std::int64_t bytes) {
  for (int r = 1; r < count; ++r)
    if (rows[r] != rows[0] + r * bytes) return false;
  return true;
}

// Few queries: a row goes from memory straight into the sums.
template <Storage S>
inline void weigh_rows(const Part& part, const AttentionGroup& group, const SegmentRows& rows, float* acc) {
  const std::int64_t head_stride = group.sequence->kv.v_head_stride;
  if (rows_across_heads(group)) {
    if (part.v_shape.dim == 8 * kLanes) return weigh_rows_across_heads<S, 8>(part, group, rows, acc);
    if (part.v_shape.dim == 4 * kLanes) return weigh_rows_across_heads<S, 4>(part, group, rows, acc);
  }
  const std::int64_t bytes = part.v_shape.dim * static_cast<std::int64_t>(storage_bytes(S));
  // eight f32 queries: arithmetic takes longer than memory, so some at a time go over half rows twice, out of L1
  const bool by_four = S == Storage::f32 && group.queries >= 8 && group.heads == 1;
  const auto tile = [&](int row, int count, std::int64_t head, Ahead ahead) {
    if (by_four && rows_as_panels(part, group) && adjacent_rows(rows.v(row), count, bytes)) {
      LineFetch fetch(rows.v(row) + 2 * count, count, head * head_stride, bytes,
                      (group.queries + kManyQueries - 1) / kManyQueries * (part.v_shape.dim / kPanelColumns) *
                          ((count + kPanelTurn - 1) / kPanelTurn));
      value_tile<S, false>(
          part, group, rows, row, count, head, rows.v(row), head * head_stride, part.v_shape.dim,
          acc + head * group.queries * part.v_shape.pad, {}, [](std::int64_t) {}, part.v_shape.dim, &fetch);
      return;
    }
    if (by_four) {
      PrefetchSlices slices(PrefetchSlices::kL1, rows.v(row) + count, count, head * head_stride, bytes,
                            (group.queries + kManyQueries - 1) / kManyQueries);
      value_tile<S, false>(part, group, rows, row, count, head, rows.v(row), head * head_stride, part.v_shape.dim,
                           acc + head * group.queries * part.v_shape.pad, {}, [&](std::int64_t) { slices.next(); });
      return;
    }
    value_tile<S, true>(part, group, rows, row, count, head, rows.v(row), head * head_stride, part.v_shape.dim,
                        acc + head * group.queries * part.v_shape.pad, ahead, [](std::int64_t) {});
  };
  if (walk_pages(group, rows, rows.v(rows.begin), head_stride, PageAhead::kStep, tile)) return;
  // several heads take turns on few rows; one head alone starts a tile less often
  const int heads_step = group.queries > 1 || S == Storage::int8 ? kTileRows / 2 : kTileRows;
  const int step = group.heads > 1 ? heads_step : group.queries > 1 ? 2 * kTileRows : 4 * kTileRows;
  for (int row = rows.begin; row < rows.end; row += step) {
    const int count = rows.end - row < step ? rows.end - row : step;
    PrefetchSlices slices = across_heads(group, rows.v(row) + count, step, head_stride, bytes, group.heads);
    for (std::int64_t head = 0; head < group.heads; ++head) {
      slices.next();
      const Ahead ahead = group.heads > 1 ? Ahead{} : rows.ahead(rows.v(row));
      tile(row, count, head, ahead);
    }
  }
}

// Columns of some rows on their way into a panel, or rows that are as good as one where they lie.
template <Storage S, bool Grouped>
class PackedPanel {
 public:
  // to: a pointer a row, kPanelColumns floats apart, to be packed into
  PackedPanel(const std::byte* const* rows, int count, std::int64_t offset, Columns columns, const std::byte* const* to,
              float* data)
      : rows_(rows), to_rows_(to), count_(count), offset_(offset), columns_(columns), to_(data) {
    in_place_ = S == Storage::f32 && kBatches == 1 && columns.count == kPanelColumns && count > 0 &&
                adjacent_rows(rows, count, kLatentFloats * 4);
  }
  int count() const { return count_; }
  std::int64_t columns() const { return columns_.count; }
  // The panel's rows, where its columns begin in them, and how far apart they are (0: too few columns for a panel).
  const std::byte* const* rows() const { return in_place_ ? rows_ : to_rows_; }
  std::int64_t offset() const { return in_place_ ? offset_ + columns_.begin * 4 : 0; }
  std::int64_t row_floats() const {
    return in_place_ ? kLatentFloats : columns_.count == kPanelColumns ? kPanelColumns : 0;
  }
  // Rows up to `end`.
  void pack(int end) {
    if (in_place_) return;
    for (; row_ < end; ++row_) {
      const float* unused;
      widen_rows<S, Grouped>(rows_ + row_, 1, offset_, columns_, to_ + row_ * kPanelColumns, kPanelColumns, &unused,
                             true);
    }
  }
  LineFetch lines(std::int64_t turns) const {
    constexpr std::int64_t kBytes = static_cast<std::int64_t>(storage_bytes(S));
    return {rows_, count_, offset_ + columns_.begin * kBytes, columns_.count * kBytes, turns};
  }

 private:
  const std::byte *const *rows_, *const *to_rows_;
  int count_, row_ = 0;
  std::int64_t offset_;
  Columns columns_;
  float* to_;
  bool in_place_;
};

// Many queries: a panel of rows x 64 columns is widened once into L1 and met by every query, so that neither the
// conversion nor loading and storing the sums weighs against the FMAs. f32 rows are copied too: as they lie, most are a
// power of two apart and crowd few sets of L1. The next panel is packed in slices meanwhile.
template <Storage S, bool Grouped>
inline void weigh_panels(const Part& part, const AttentionGroup& group, const SegmentRows& rows, float* acc) {
  const std::int64_t dim = part.v_shape.dim, pad = part.v_shape.pad;
  const std::int64_t row_panels = (rows.count() + kPanelRows - 1) / kPanelRows;
  const std::int64_t column_panels = (dim + kPanelColumns - 1) / kPanelColumns;
  const std::int64_t panels = row_panels * group.heads * column_panels;  // rows, then heads, then columns
  float* scratch = part.floats(part.split.tile);
  struct Place {
    int row;
    std::int64_t head, column;
  };
  const auto place = [&](std::int64_t i) {
    return Place{rows.begin + static_cast<int>(i / column_panels / group.heads) * kPanelRows,
                 i / column_panels % group.heads, i % column_panels * kPanelColumns};
  };
  const std::byte* wide[2 * kPanelRows];  // rows of two panels in turn
  for (int i = 0; i < 2 * kPanelRows; ++i) wide[i] = reinterpret_cast<const std::byte*>(scratch + i * kPanelColumns);
  const auto panel = [&](std::int64_t i) {
    const Place at = place(i < panels ? i : 0);
    const int left = rows.end - at.row, count = i >= panels ? 0 : left < kPanelRows ? left : kPanelRows;
    const std::int64_t columns = dim - at.column < kPanelColumns ? dim - at.column : kPanelColumns;
    return PackedPanel<S, Grouped>(rows.v(at.row), count, at.head * group.sequence->kv.v_head_stride,
                                   {at.column, columns, group.sequence->kv.latent_dim}, wide + i % 2 * kPanelRows,
                                   scratch + i % 2 * (kPanelRows * kPanelColumns));
  };
  PackedPanel<S, Grouped> now = panel(0), next = panel(1);
  now.pack(now.count());
  for (std::int64_t i = 0; i < panels; ++i) {
    const PackedPanel<S, Grouped> later = panel(i + 2);
    const Place at = place(i);
    float* to = acc + at.head * group.queries * pad + at.column;
    const std::int64_t passes = kPanelColumns / kLanes / (kManySums / kManyQueries);  // of some queries over the panel
    LineFetch fetch = later.lines((group.queries + kManyQueries - 1) / kManyQueries * passes *
                                  ((now.count() + kPanelTurn - 1) / kPanelTurn));
    const auto between = [&](std::int64_t query) { next.pack(static_cast<int>(next.count() * query / group.queries)); };
    value_tile<Storage::f32, false>(part, group, rows, at.row, now.count(), at.head, now.rows(), now.offset(),
                                    now.columns(), to, {}, between, now.row_floats(), &fetch);
    now = next;
    next = later;
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
