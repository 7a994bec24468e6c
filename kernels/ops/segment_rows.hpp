// Where the rows of one segment lie: a pointer a position, filled once from the view of runs, so that one kernel reads
// a contiguous, a ring and a paged cache alike.
#pragma once

#include "kernels/attention_split.hpp"
#include "kernels/cpu.hpp"
#include "kernels/simd/lanes.hpp"

namespace kvroof::KVROOF_NS {
namespace {

constexpr int kSegment = static_cast<int>(kSegmentRows);
constexpr int kTileRows = 16;
constexpr int kLeastAhead = 128;              // rows that can be looked ahead in any case
constexpr int kMaxFetchRows = 256;            // a block of rows that is fetched while the one before it is in use
constexpr int kMaxAhead = 2 * kMaxFetchRows;  // rows that can be looked ahead

struct Span {  // rows [begin, end) of a segment, counted from its first position
  int begin, end;
};

struct Spans {  // ascending, not touching; count 0..2
  Span span[2];
  int count;
  int size() const {
    return (count > 0 ? span[0].end - span[0].begin : 0) + (count > 1 ? span[1].end - span[1].begin : 0);
  }
};

inline bool same(const Spans& a, const Spans& b) {
  if (a.count != b.count) return false;
  for (int i = 0; i < a.count; ++i)
    if (a.span[i].begin != b.span[i].begin || a.span[i].end != b.span[i].end) return false;
  return true;
}

// [0, first_end) and [second_begin, second_end), absolute, cut to rows [from, to) of the segment that starts at `base`.
inline Spans cut_spans(std::int64_t first_end, std::int64_t second_begin, std::int64_t second_end, std::int64_t base,
                       int from, int to) {
  const auto clamp = [=](std::int64_t position) {
    const std::int64_t row = position - base;
    return static_cast<int>(row < from ? from : row > to ? to : row);
  };
  Spans spans{{{from, clamp(first_end)}, {clamp(second_begin), clamp(second_end)}}, 2};
  if (spans.span[1].begin <= spans.span[0].end) {
    if (spans.span[1].end > spans.span[0].end) spans.span[0].end = spans.span[1].end;
    spans.count = 1;
  } else if (spans.span[1].begin >= spans.span[1].end) {
    spans.count = 1;
  }
  if (spans.span[0].begin >= spans.span[0].end) {
    spans.span[0] = spans.span[1];
    --spans.count;
  }
  return spans;
}

// What is fetched while rows are worked on, in blocks of `rows` of them: those of the block after, as `streams` streams
// that take turns (cpu.hpp). far > 0: besides, the beginnings of pages of memory so many rows ahead, into L2: that
// wakes a hardware prefetcher that works page by page before the page is needed. rows = 0: nothing.
struct Fetch {
  int streams = 1, rows = 0, far = 0;  // rows: a power of two, at least as many as streams
};

// Rows of one stream into the order in which a block is fetched; to: the turn of the first one.
template <int Streams>
KVROOF_INLINE inline void put_stream(const std::byte* const* from, int count, std::int64_t offset,
                                     const std::byte** to) {
  for (int i = 0; i < count; ++i) to[i * Streams] = from[i] + offset;
}

// The same for all streams of a block, the rows of one behind those of the other at `from`; 8 x 8 of them are turned in
// registers, since a store each would take as long as reading a short row.
inline void put_streams(const std::byte* const* from, int stream_rows, const std::byte** to) {
  static_assert(kFetchStreams == 8 && sizeof(from) == 8);
  using Eight [[gnu::vector_size(64)]] = std::int64_t;
  if (stream_rows < 8) {
    for (int stream = 0; stream < 8; ++stream) put_stream<8>(from + stream * stream_rows, stream_rows, 0, to + stream);
    return;
  }
  for (int row = 0; row < stream_rows; row += 8) {
    Eight x[8], y[8];
#pragma GCC unroll 8
    for (int s = 0; s < 8; ++s) __builtin_memcpy(&x[s], from + s * stream_rows + row, sizeof(Eight));
#pragma GCC unroll 8
    for (int s = 0; s < 8; s += 2) {
      y[s] = __builtin_shufflevector(x[s], x[s + 1], 0, 8, 2, 10, 4, 12, 6, 14);
      y[s + 1] = __builtin_shufflevector(x[s], x[s + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 4; ++i) {
      const int s = i / 2 * 4 + i % 2;
      x[s] = __builtin_shufflevector(y[s], y[s + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      x[s + 2] = __builtin_shufflevector(y[s], y[s + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 8
    for (int s = 0; s < 4; ++s) {
      y[s] = __builtin_shufflevector(x[s], x[s + 4], 0, 1, 2, 3, 8, 9, 10, 11);
      y[s + 4] = __builtin_shufflevector(x[s], x[s + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) __builtin_memcpy(to + (row + i) * 8, &y[i], sizeof(Eight));
  }
}

// Rows further down the line, to be fetched while a tile is worked on: those at `near` into L1, see Fetch for `far`.
struct Ahead {
  const std::byte* const* near = nullptr;
  const std::byte* const* far = nullptr;  // null: none
  explicit operator bool() const { return near != nullptr; }
  Ahead operator+(std::int64_t rows) const {
    return {near != nullptr ? near + rows : nullptr, far != nullptr ? far + rows : nullptr};
  }
};

// Rows in the order a thread meets them: K of the segment, V of it, then the first K rows of the segment after it.
// Fetching looks down this line, so the switches K -> V -> next K stall no more than the middle of a run.
struct SegmentRows {
  std::int64_t segment;
  int begin, end;  // multiples of 16 around the rows that are there
  Spans present;
  Fetch fetch;
  // at the group's first KV head; an absent row repeats a present one
  alignas(64) const std::byte* line[2 * kSegment + kMaxAhead];
  // what to fetch while the row at this place of the line is in use
  alignas(64) const std::byte* fetched[2 * kSegment];

  std::int64_t base() const { return segment * kSegmentRows; }
  int count() const { return end - begin; }
  const std::byte* const* k(int row) const { return line + (row - begin); }
  const std::byte* const* v(int row) const { return line + count() + (row - begin); }
  Ahead ahead(const std::byte* const* place) const {
    if (fetch.rows == 0) return {};
    return {fetched + (place - line), fetch.far > 0 ? place + fetch.far : nullptr};
  }
};

inline void fill_segment_rows(const AttentionGroup& group, std::int64_t segment, SegmentRows& rows) {
  const KvView& kv = group.sequence->kv;
  rows.segment = segment;
  const std::int64_t base = rows.base();
  rows.present = cut_spans(group.kept_end, group.window_begin, group.last_position + 1, base, 0, kSegment);
  rows.begin = rows.present.span[0].begin & ~(kTileRows - 1);
  rows.end = (rows.present.span[rows.present.count - 1].end + kTileRows - 1) & ~(kTileRows - 1);
  const std::int64_t k_head = group.head0 * kv.k_head_stride, v_head = group.head0 * kv.v_head_stride;
  const std::byte** k_line = rows.line;
  const std::byte** v_line = rows.line + rows.count();
  int at = 0;  // rows filled so far, counted from rows.begin
  for (int s = 0; s < rows.present.count; ++s) {
    int row = rows.present.span[s].begin - rows.begin;
    const int end = rows.present.span[s].end - rows.begin, first = row, hole = at;
    std::int64_t run_index = first_run_at(kv, base + rows.begin + row);
    while (row < end) {
      const RowRun& run = kv.runs[run_index++];
      const std::int64_t offset = base + rows.begin + row - run.first_position;
      const std::int64_t left = run.rows - offset;
      const int stop = left < end - row ? row + static_cast<int>(left) : end;
      const std::byte* k = run.k + k_head + offset * kv.k_row_stride;
      const std::byte* v = run.v + v_head + offset * kv.v_row_stride;
      for (; row < stop; ++row, k += kv.k_row_stride, v += kv.v_row_stride) {
        k_line[row] = k;
        v_line[row] = v;
      }
    }
    for (int i = hole; i < first; ++i) {
      k_line[i] = k_line[first];
      v_line[i] = v_line[first];
    }
    at = end;
  }
  for (int i = at; i < rows.count(); ++i) {
    k_line[i] = k_line[at - 1];
    v_line[i] = v_line[at - 1];
  }
}

// Continues the line of `rows` with the segment that follows (null: nothing does, the line ends on its own last row),
// and decides what is fetched along it.
inline void link_rows(SegmentRows& rows, const SegmentRows* next, Fetch fetch) {
  const int count = 2 * rows.count();
  while (fetch.rows > kTileRows && fetch.rows > rows.count()) fetch.rows /= 2;
  rows.fetch = fetch;
  const std::byte** tail = rows.line + count;
  const std::byte* last = tail[-1];
  const int blocks_end = fetch.rows == 0 ? count : (count + fetch.rows - 1) & -fetch.rows;
  const int wanted = blocks_end + fetch.rows - count > kLeastAhead ? blocks_end + fetch.rows - count : kLeastAhead;
  const int there = next == nullptr ? 0 : 2 * next->count() < wanted ? 2 * next->count() : wanted;
  for (int i = 0; i < there; ++i) tail[i] = next->line[i];
  for (int i = there; i < wanted; ++i) tail[i] = last;
  if (fetch.rows == 0) return;
  if (fetch.streams == 1) {
    for (int i = 0; i < count; ++i) rows.fetched[i] = rows.line[i + fetch.rows];
    return;
  }
  const int stream_rows = fetch.rows / kFetchStreams;
  for (int block = 0; block < count; block += fetch.rows)
    put_streams(rows.line + block + fetch.rows, stream_rows, rows.fetched + block);
}

// Row scales of one KV head, stretch by stretch: visit(row, count, from, stride in floats).
template <class Visit>
inline void each_scale_run(const AttentionGroup& group, const SegmentRows& rows, std::int64_t head, bool key,
                           Visit visit) {
  const KvView& kv = group.sequence->kv;
  const std::int64_t row_stride = key ? kv.k_scale_row_stride : kv.v_scale_row_stride;
  const std::int64_t head_offset = head * (key ? kv.k_scale_head_stride : kv.v_scale_head_stride);
  for (int s = 0; s < rows.present.count; ++s) {
    int row = rows.present.span[s].begin;
    const int end = rows.present.span[s].end;
    std::int64_t run_index = first_run_at(kv, rows.base() + row);
    while (row < end) {
      const RowRun& run = kv.runs[run_index++];
      const std::int64_t offset = rows.base() + row - run.first_position;
      const std::int64_t left = run.rows - offset;
      const int stop = left < end - row ? row + static_cast<int>(left) : end;
      visit(row, stop - row, (key ? run.k_scale : run.v_scale) + head_offset + offset * row_stride, row_stride);
      row = stop;
    }
  }
}

// int8 row scales of one KV head, a float a position. Absent rows keep whatever was there: nothing reads it.
inline void fill_scales(const AttentionGroup& group, const SegmentRows& rows, std::int64_t head, bool key, float* to) {
  each_scale_run(group, rows, head, key, [to](int row, int count, const float* from, std::int64_t stride) {
    if (stride == 1)
      __builtin_memcpy(to + row, from, static_cast<std::size_t>(count) * sizeof(float));
    else
      for (int i = 0; i < count; ++i) to[row + i] = from[i * stride];
  });
}

// The scales lie apart from the rows; the softmax would wait for them.
inline void prefetch_scales(const AttentionGroup& group, const SegmentRows& rows, std::int64_t head, bool key) {
  each_scale_run(group, rows, head, key, [](int, int count, const float* from, std::int64_t stride) {
    const std::int64_t step = stride < 16 ? 16 / stride : 1;
    for (std::int64_t i = 0; i < count; i += step) prefetch_l2(reinterpret_cast<const std::byte*>(from + i * stride));
  });
}

// Pages that hold all heads one after another are read block by block, in a block head by head, row by row; a block is
// a page, or two where pages are small. What is fetched meanwhile follows that order.
class PageAhead {
 public:
  static constexpr int kStep = 2 * kTileRows;  // rows of a tile at most

  // line: of row `begin` of the segment, K or V; block: rows
  PageAhead(const std::byte* const* line, int begin, int block, std::int64_t heads, std::int64_t head_stride,
            Fetch fetch)
      : line_(line),
        begin_(begin),
        mask_(block - 1),
        shift_(__builtin_ctz(static_cast<unsigned>(block))),
        heads_(heads),
        head_stride_(head_stride),
        fetch_(fetch.streams > 1 ? fetch : Fetch{1, kStep, 2 * kStep}) {}

  // Of a tile that begins at `row`: it must not reach beyond the next multiple of kStep rows.
  Ahead at(int row, std::int64_t head) {
    const std::int64_t place = ((row >> shift_) * heads_ + head) << shift_ | (row & mask_);
    const int in = static_cast<int>(place & (fetch_.rows - 1));
    if (place - in != block_) {
      block_ = place - in;
      fill(near_, block_ + fetch_.rows);
      if (fetch_.far > 0) fill(far_, block_ + fetch_.far);
    }
    return {near_ + in, fetch_.far > 0 ? far_ + in : nullptr};
  }

 private:
  void fill(const std::byte** to, std::int64_t place) {
    const std::int64_t piece = place >> shift_;
    const int block = mask_ + 1;
    const std::byte** in_order = fetch_.streams == 1 ? to : in_order_;
    std::int64_t head = piece % heads_;
    int row = static_cast<int>(piece / heads_ << shift_) + static_cast<int>(place & mask_);
    for (int i = 0; i < fetch_.rows;) {
      const int left = fetch_.rows - i, of_block = block - (row & mask_), n = left < of_block ? left : of_block;
      const std::byte* const* from = line_ + (row < begin_ ? 0 : row - begin_);
      put_stream<1>(from, n, head * head_stride_, in_order + i);
      i += n;
      row += n;
      if ((row & mask_) != 0) continue;
      if (++head < heads_)
        row -= block;
      else
        head = 0;
    }
    if (fetch_.streams > 1) put_streams(in_order_, fetch_.rows / kFetchStreams, to);
  }

  const std::byte* const* line_;
  int begin_, mask_, shift_;
  std::int64_t heads_, head_stride_;
  Fetch fetch_;
  std::int64_t block_ = -1;
  const std::byte *near_[kMaxFetchRows], *far_[kMaxFetchRows], *in_order_[kMaxFetchRows];
};

// A segment of such pages in that order, in tiles of at most `step` rows (at most PageAhead::kStep): visit(row, count,
// head, ahead). line: of the segment's first row, K or V. False, and nothing is visited, where rows lie in another way.
template <class Visit>
inline bool walk_pages(const AttentionGroup& group, const SegmentRows& rows, const std::byte* const* line,
                       std::int64_t head_stride, int step, Visit visit) {
  int block = group.heads > 1 ? static_cast<int>(page_block_rows(group.sequence->kv)) : 0;
  if (block == 0) return false;
  if (block < PageAhead::kStep)
    block = PageAhead::kStep;  // two small pages together: sums of V are loaded half as often
  if (step > block) step = block;
  PageAhead page_ahead(line, rows.begin, block, group.heads, head_stride, rows.fetch);
  for (int page = rows.begin & ~(block - 1); page < rows.end; page += block) {
    const int begin = page > rows.begin ? page : rows.begin;
    const int end = page + block < rows.end ? page + block : rows.end;
    for (std::int64_t head = 0; head < group.heads; ++head) {
      for (int row = begin; row < end;) {
        const int stop = (row & -step) + step < end ? (row & -step) + step : end;
        visit(row, stop - row, head, page_ahead.at(row, head));
        row = stop;
      }
    }
  }
  return true;
}

// What a walk row by row across heads side by side fetches meanwhile: the heads of the next few rows, in the order of
// fetch_order().
class HeadsAhead {
 public:
  static constexpr std::int64_t kMaxHeads = 64;

  // bytes: of one head's row
  HeadsAhead(std::int64_t heads, std::int64_t head_stride, std::int64_t bytes) : heads_(static_cast<int>(heads)) {
    const FetchOrder order = fetch_order();
    if (order.streams > 1)
      while (2 * rows_ * heads * bytes <= order.bytes && 2 * rows_ * heads <= kMaxPieces) rows_ *= 2;
    const int pieces = rows_ * heads_, streams = pieces % order.streams == 0 ? order.streams : 1;
    const int distance = order.streams > 1 ? pieces : static_cast<int>(order.bytes / bytes);
    for (int turn = 0; turn < pieces; ++turn) {
      const int piece = turn % streams * (pieces / streams) + turn / streams + distance;
      pieces_[turn] = {piece / heads_, piece % heads_ * head_stride};
    }
  }
  // An address a head, to be fetched while `line[0]`, the phase's row number `row`, is in use.
  const std::byte* const* at(const std::byte* const* line, int row) {
    const int in = row & (rows_ - 1);
    const Piece* piece = pieces_ + in * heads_;
    for (int h = 0; h < heads_; ++h) due_[h] = line[piece[h].row - in] + piece[h].offset;
    return due_;
  }

 private:
  static constexpr int kMaxPieces = 1024;
  struct Piece {  // row: counted from the first one of the block in use
    std::int64_t row, offset;
  };
  int heads_, rows_ = 1;
  Piece pieces_[kMaxPieces];
  const std::byte* due_[kMaxHeads];
};

// Whole rows in the order they lie: a hardware prefetcher follows that, but not the column by column order of the sums.
KVROOF_INLINE inline void prefetch_rows(const std::byte* const* rows, std::int64_t begin, std::int64_t end,
                                        std::int64_t offset, std::int64_t bytes) {
  for (std::int64_t r = begin; r < end; ++r)
    for (std::int64_t b = 0; b < bytes; b += 64) prefetch(rows[r] + offset + b);
}

KVROOF_INLINE inline void prefetch_rows_l2(const std::byte* const* rows, std::int64_t begin, std::int64_t end,
                                           std::int64_t offset, std::int64_t bytes) {
  for (std::int64_t r = begin; r < end; ++r)
    for (std::int64_t b = 0; b < bytes; b += 64) prefetch_l2(rows[r] + offset + b);
}

// Rows to prefetch while a tile is worked on, in slices, one per block of arithmetic, instead of all at once.
class PrefetchSlices {
 public:
  enum Level { kL1, kL2 };
  PrefetchSlices(Level level, const std::byte* const* line, int rows, std::int64_t offset, std::int64_t bytes,
                 std::int64_t slices)
      : level_(level), line_(line), rows_(rows), offset_(offset), bytes_(bytes), slices_(slices) {}
  void next() {
    if (slice_ >= slices_) return;
    const std::int64_t end = rows_ * ++slice_ / slices_;
    if (level_ == kL1)
      prefetch_rows(line_, row_, end, offset_, bytes_);
    else
      prefetch_rows_l2(line_, row_, end, offset_, bytes_);
    row_ = end;
  }

 private:
  Level level_;
  const std::byte* const* line_;
  std::int64_t row_ = 0, rows_, offset_, bytes_, slice_ = 0, slices_;
};

// Several heads side by side in every row: while they take turns on a tile, the rows that follow are fetched one after
// another across all heads, as they lie in memory.
inline PrefetchSlices across_heads(const AttentionGroup& group, const std::byte* const* line, int rows,
                                   std::int64_t head_stride, std::int64_t bytes, std::int64_t slices) {
  const bool adjacent =
      group.heads > 1 && head_stride >= bytes && head_stride <= bytes + 64;  // K and V may lie differently
  const std::int64_t span = adjacent ? (group.heads - 1) * head_stride + bytes : 0;
  return {PrefetchSlices::kL1, line, rows, 0, span, adjacent ? slices : 0};
}

// The first lines of every page of memory that `rows` rows of a tile cover.
KVROOF_INLINE inline void wake_pages(Ahead ahead, int rows, std::int64_t bytes) {
  if (ahead.far == nullptr || bytes == 0) return;  // 0: the tail of a row that has been fetched
  constexpr std::int64_t kMemoryPage = 4096;
  const int step = bytes < kMemoryPage ? static_cast<int>(kMemoryPage / bytes) : 1;
  for (int r = 0; r < rows; r += step)
    for (std::int64_t b = 0; b < 192; b += 64) prefetch_l2(ahead.far[r] + b);
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
