// Where the rows of one segment lie: a pointer a position, filled once from the view of runs, so that one kernel reads
// a contiguous, a ring and a paged cache alike.
#pragma once

#include "kernels/attention_split.hpp"
#include "kernels/simd/lanes.hpp"

namespace kvroof::KVROOF_NS {
namespace {

constexpr int kSegment = static_cast<int>(kSegmentRows);
constexpr int kTileRows = 16;
constexpr int kMaxAhead = 128;  // rows that can be looked ahead

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

// Rows in the order a thread meets them: K of the segment, V of it, then the first K rows of the segment after it.
// Prefetching looks a fixed number of rows down this line, so the switches K -> V -> next K stall no more than the
// middle of a run.
struct SegmentRows {
  std::int64_t segment;
  int begin, end;  // multiples of 16 around the rows that are there
  Spans present;
  const std::byte* line[2 * kSegment + kMaxAhead];  // at the group's first KV head; an absent row repeats a present one

  std::int64_t base() const { return segment * kSegmentRows; }
  int count() const { return end - begin; }
  const std::byte* const* k(int row) const { return line + (row - begin); }
  const std::byte* const* v(int row) const { return line + count() + (row - begin); }
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

// Continues the line of `rows` with the segment that follows; null: nothing does, the line ends on its own last row.
inline void link_rows(SegmentRows& rows, const SegmentRows* next) {
  const std::byte** tail = rows.line + 2 * rows.count();
  const std::byte* last = tail[-1];
  for (int i = 0; i < kMaxAhead; ++i) tail[i] = next != nullptr && i < next->count() ? next->line[i] : last;
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

// Rows further down the line: those at `near` are brought into L1 while a tile is worked on, the beginnings of pages of
// memory at `far` into L2: that wakes the hardware prefetcher, which works page by page, before the page is needed
// (TUNING.md).
struct Ahead {
  const std::byte* const* near = nullptr;
  const std::byte* const* far = nullptr;  // null where runs are long: the hardware needs no waking
  explicit operator bool() const { return near != nullptr; }
  Ahead operator+(std::int64_t rows) const {
    return {near != nullptr ? near + rows : nullptr, far != nullptr ? far + rows : nullptr};
  }
};

struct Distance {  // rows; 0: none
  int near = 0, far = 0;
};

inline Ahead ahead_of(const std::byte* const* line, Distance distance) {
  return {distance.near > 0 ? line + distance.near : nullptr, distance.far > 0 ? line + distance.far : nullptr};
}

// Pages that hold all heads one after another are read as they lie: page, head, row. Pointers to what follows a tile in
// that order, as seen from the head at work (the head's offset is still to be added).
class PageAhead {
 public:
  static constexpr int kNear = 2 * kTileRows, kFar = 4 * kTileRows;  // rows further on

  // line: of row `begin` of the segment, K or V
  PageAhead(const std::byte* const* line, int begin, int block, std::int64_t heads, std::int64_t head_stride)
      : line_(line),
        begin_(begin),
        mask_(block - 1),
        shift_(__builtin_ctz(static_cast<unsigned>(block))),
        heads_(heads),
        head_stride_(head_stride) {}

  // Of a tile of `count` rows from `row` on, at most kNear and all of one page.
  Ahead at(int row, std::int64_t head, int count) {
    fill(near_, row, head, count, kNear);
    fill(far_, row, head, count, kFar);
    return {near_, far_};
  }

 private:
  void fill(const std::byte** to, int row, std::int64_t head, int count, int distance) const {
    std::int64_t position = (head << shift_) + (row & mask_) + distance, first = row & ~mask_;
    for (const std::int64_t page = heads_ << shift_; position >= page; position -= page) first += mask_ + 1;
    const std::int64_t there = first + (position & mask_), shift = ((position >> shift_) - head) * head_stride_;
    const std::byte* const* from = line_ + (there < begin_ ? 0 : there - begin_);
    for (int r = 0; r < count; ++r) to[r] = from[r] + shift;
  }

  const std::byte* const* line_;
  int begin_, mask_, shift_;
  std::int64_t heads_, head_stride_;
  const std::byte *near_[kNear], *far_[kNear];
};

// A segment of such pages in that order, in tiles of at most `step` rows (at most PageAhead::kNear): visit(row, count,
// head, ahead). line: of the segment's first row, K or V. False, and nothing is visited, where rows lie in another way.
template <class Visit>
inline bool walk_pages(const AttentionGroup& group, const SegmentRows& rows, const std::byte* const* line,
                       std::int64_t head_stride, int step, Visit visit) {
  const int block = group.heads > 1 ? static_cast<int>(page_block_rows(group.sequence->kv)) : 0;
  if (block == 0) return false;
  if (step > block) step = block;
  PageAhead page_ahead(line, rows.begin, block, group.heads, head_stride);
  for (int page = rows.begin & ~(block - 1); page < rows.end; page += block) {
    const int begin = page > rows.begin ? page : rows.begin;
    const int end = page + block < rows.end ? page + block : rows.end;
    for (std::int64_t head = 0; head < group.heads; ++head) {
      for (int row = begin; row < end; row += step) {
        const int count = end - row < step ? end - row : step;
        visit(row, count, head, page_ahead.at(row, head, count));
      }
    }
  }
  return true;
}

constexpr std::int64_t kHeadsAheadBytes = 8192;  // measured best of 4, 8 and 12 KiB

// How far a walk row by row across heads side by side looks ahead: so many heads down the row, then on in the rows
// after it.
class HeadsAhead {
 public:
  HeadsAhead(std::int64_t heads, std::int64_t head_stride, std::int64_t bytes)
      : heads_(heads),
        stride_(head_stride),
        rows_(kHeadsAheadBytes / bytes / heads_),
        more_(kHeadsAheadBytes / bytes % heads_) {}
  const std::byte* at(const std::byte* const* line, std::int64_t head) const {
    const std::int64_t to = head + more_;
    return to < heads_ ? line[rows_] + to * stride_ : line[rows_ + 1] + (to - heads_) * stride_;
  }

 private:
  std::int64_t heads_, stride_, rows_, more_;
};

// Whole rows in the order they lie: a hardware prefetcher follows that, but not the column by column order of the sums.
KVROOF_INLINE inline void prefetch_rows(Ahead ahead, std::int64_t begin, std::int64_t end, std::int64_t offset,
                                        std::int64_t bytes) {
  for (std::int64_t r = begin; r < end; ++r)
    for (std::int64_t b = 0; b < bytes; b += 64) prefetch(ahead.near[r] + offset + b);
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
      prefetch_rows({line_, nullptr}, row_, end, offset_, bytes_);
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
KVROOF_INLINE inline void wake_pages(Ahead ahead, int rows, std::int64_t offset, std::int64_t bytes) {
  if (ahead.far == nullptr || bytes == 0) return;  // 0: the tail of a row that has been fetched
  constexpr std::int64_t kMemoryPage = 4096;
  const int step = bytes < kMemoryPage ? static_cast<int>(kMemoryPage / bytes) : 1;
  for (int r = 0; r < rows; r += step)
    for (std::int64_t b = 0; b < 192; b += 64) prefetch_l2(ahead.far[r] + offset + b);
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
