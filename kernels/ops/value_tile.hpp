// acc += w V for one tile of rows and one KV head: every output is one FMA chain in ascending position.
#pragma once

#include "kernels/ops/segment_rows.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// What a block of columns fetches of every row that is due (segment_rows.hpp): the whole row if it is the first block,
// as one stream is best followed, or its own columns, so that memory does not wait during the later blocks.
enum class Fetched { nothing, row, columns };

// H queries x C column vectors held in registers over rows [begin, end). w[h*w_stride + row], acc[h*acc_stride +
// column]. `tail` (0: none) is the number of elements of the last vector, then C = 1.
template <Storage S, int H, int C, Fetched F, bool Tail>
KVROOF_INLINE inline void value_block(const std::byte* const* rows, std::int64_t offset, int begin, int end,
                                      const float* w, std::int64_t w_stride, float* acc, std::int64_t acc_stride,
                                      std::int64_t column, int tail, Ahead ahead, std::int64_t row_bytes) {
  constexpr std::int64_t kStep = kLanes * static_cast<std::int64_t>(storage_bytes(S));
  const std::int64_t first = column / kLanes;
  Vec16 sum[H * C];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sum[h * C + c] = load(acc + h * acc_stride + column + c * kLanes);
  }
  for (int row = begin; row < end; ++row) {
    if constexpr (F == Fetched::row) {
      if ((row - begin) % kTileRows == 0) wake_pages(ahead + (row - begin), kTileRows, row_bytes);
    }
    const std::byte* from = rows[row] + offset + first * kStep;
    Vec16 weight[H];
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) weight[h] = broadcast(w[h * w_stride + row]);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      Vec16 value;
      if constexpr (Tail)
        value = load_partial_as<S>(from, tail);
      else
        value = load_as<S>(from + c * kStep);
      if constexpr (F != Fetched::nothing) {
        if ((first + c) % (4 / static_cast<int>(storage_bytes(S))) == 0)
          prefetch(ahead.near[row - begin] + (first + c) * kStep);
      }
#pragma GCC unroll 8
      for (int h = 0; h < H; ++h) sum[h * C + c] = fma(weight[h], value, sum[h * C + c]);
    }
    if constexpr (F == Fetched::row) {  // what later column blocks will read
      for (std::int64_t b = (first + C) * kStep; b < row_bytes; b += 64) prefetch(ahead.near[row - begin] + b);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(acc + h * acc_stride + column + c * kLanes, sum[h * C + c]);
  }
}

// Columns from `column` on, C vectors at a time, then C/2, ... then the tail.
template <Storage S, int H, int C, Fetched F>
KVROOF_INLINE inline void value_columns(const std::byte* const* rows, std::int64_t offset, int begin, int end,
                                        std::int64_t dim, const float* w, std::int64_t w_stride, float* acc,
                                        std::int64_t acc_stride, std::int64_t column, Ahead ahead) {
  const std::int64_t row_bytes = dim * static_cast<std::int64_t>(storage_bytes(S));
  for (; column + C * kLanes <= dim; column += C * kLanes) {
    if (F == Fetched::columns || (F == Fetched::row && column == 0))
      value_block<S, H, C, F, false>(rows, offset, begin, end, w, w_stride, acc, acc_stride, column, 0, ahead,
                                     row_bytes);
    else
      value_block<S, H, C, Fetched::nothing, false>(rows, offset, begin, end, w, w_stride, acc, acc_stride, column, 0,
                                                    {}, 0);
  }
  if (column == dim) return;
  if constexpr (C > 1) {
    value_columns<S, H, C / 2, F>(rows, offset, begin, end, dim, w, w_stride, acc, acc_stride, column, ahead);
  } else {
    value_block<S, H, 1, F, true>(rows, offset, begin, end, w, w_stride, acc, acc_stride, column,
                                  static_cast<int>(dim - column), ahead, column == 0 ? row_bytes : 0);
  }
}

// Queries that meet rows in L1 together, and their sums in registers: every operand is loaded for as many FMAs as the
// registers allow, since a 64-byte load takes as long as two FMAs on some CPUs.
constexpr int kManyQueries = kBatches == 1 ? 6 : 4;
constexpr int kManySums = kBatches == 1 ? 24 : kAccumulators;

template <Storage S, int H, Fetched F>
KVROOF_ALONE inline void value_rows(const std::byte* const* rows, std::int64_t offset, int begin, int end,
                                    std::int64_t dim, const float* w, std::int64_t w_stride, float* acc,
                                    std::int64_t acc_stride, Ahead ahead) {
  // H*C sums in registers. One query alone takes 8 columns on AVX-512: FMA latency 4 x 2 ports.
  constexpr int C = H == kManyQueries ? kManySums / H : kAccumulators / H > 8 ? 8 : kAccumulators / H;
  value_columns<S, H, C, F>(rows, offset, begin, end, dim, w, w_stride, acc, acc_stride, 0, ahead);
}

// One row of one head, V vectors wide, into its sums; lines of the row at `ahead` are fetched meanwhile.
template <Storage S, int V>
KVROOF_INLINE inline void value_row(const std::byte* row, float w, float* acc, const std::byte* ahead) {
  constexpr std::int64_t kStep = kLanes * static_cast<std::int64_t>(storage_bytes(S));
  const Vec16 weight = broadcast(w);
#pragma GCC unroll 8
  for (int c = 0; c < V; ++c) {
    if (c * kStep % 64 == 0) prefetch(ahead + c * kStep);
    store(acc + c * kLanes, fma(weight, load_as<S>(row + c * kStep), load(acc + c * kLanes)));
  }
}

// Lines of some rows, fetched into L2 evenly over `turns` turns: a burst would hold up the loads of sums and weights.
class LineFetch {
 public:
  LineFetch(const std::byte* const* rows, int count, std::int64_t offset, std::int64_t bytes, std::int64_t turns)
      : rows_(rows),
        end_(rows + count),
        first_(offset),
        last_(offset + bytes),
        at_(offset),
        lines_(count * ((bytes + 63) / 64)),
        turns_(turns) {}
  KVROOF_INLINE void next() {
    for (owed_ += lines_; owed_ >= turns_ && rows_ != end_; owed_ -= turns_) {
      prefetch_l2(*rows_ + at_);
      at_ += 64;
      if (at_ < last_) continue;
      at_ = first_;
      ++rows_;
    }
  }

 private:
  const std::byte* const* rows_;
  const std::byte* const* end_;
  std::int64_t first_, last_, at_, lines_, turns_, owed_ = 0;
};

constexpr int kPanelTurn = 4;  // rows of a panel between two turns of its LineFetch

// H queries x C column vectors over rows [begin, end) of a panel, Stride floats a row (an argument would cost 2 %).
template <int H, int C, int Stride>
KVROOF_ALONE inline void value_panel(const float* panel, int begin, int end, const float* w, std::int64_t w_stride,
                                     float* acc, std::int64_t acc_stride, LineFetch& fetch) {
  Vec16 sum[H * C];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sum[h * C + c] = load(acc + h * acc_stride + c * kLanes);
  }
  panel += begin * Stride;
  w += begin;
  const auto row = [&](int at) __attribute__((always_inline)) {
    Vec16 weight[H];
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) weight[h] = broadcast(w[h * w_stride + at]);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const Vec16 value = load(panel + at * Stride + c * kLanes);
#pragma GCC unroll 8
      for (int h = 0; h < H; ++h) sum[h * C + c] = fma(weight[h], value, sum[h * C + c]);
    }
  };
  int left = end - begin;
#pragma GCC unroll 1
  for (; left >= kPanelTurn; left -= kPanelTurn, panel += kPanelTurn * Stride, w += kPanelTurn) {
    fetch.next();
    row(0);
    row(1);
    row(2);
    row(3);
  }
#pragma GCC unroll 1
  for (; left > 0; --left, panel += Stride, ++w) row(0);
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(acc + h * acc_stride + c * kLanes, sum[h * C + c]);
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
