// acc += w V for bf16 rows in native mode: every output is one chain of dot products over pairs of rows, (0,1), (2,3),
// ... of the segment, so a pair never depends on where a tile, a run or a window begins. A row that is hidden is read
// as zeros.
#pragma once

#include "kernels/native/bf16_dot.hpp"
#include "kernels/ops/segment_rows.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// The rows ahead that this pass over a tile fetches: [first, first + rows). Passes share them out, so that memory never
// waits while a tile is met once more.
struct Share {
  int first = 0, rows = 0;
};

// H queries x 32*C columns straight from the rows [0, count), count even. w[h*w_stride + row], bf16.
// n: columns there are in memory, 32*C but for the last call of a row, which has C = 1.
template <int H, int C, bool Prefetch>
KVROOF_INLINE inline void value_block_bf16(const std::byte* const* rows, std::int64_t offset, int count, int n,
                                           const std::uint16_t* w, std::int64_t w_stride, float* acc,
                                           std::int64_t acc_stride, Ahead ahead, Share share, std::int64_t row_bytes) {
  PairedSums sum[H * C];
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sum[h * C + c] = load_sums(acc + h * acc_stride + c * kPairLanes, n - c * kPairLanes);
  }
  int next = share.first, owed = 0;
  for (int row = 0; row < count; row += 2) {
    const std::byte *even = rows[row] + offset, *odd = rows[row + 1] + offset;
    if constexpr (Prefetch) {
      if (share.first == 0 && row % kTileRows == 0) wake_pages(ahead + row, kTileRows, row_bytes);
      for (owed += 2 * share.rows; owed >= count; owed -= count, ++next)
        prefetch_rows(ahead.near, next, next + 1, 0, row_bytes);
    }
    Pairs weight[H];
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) weight[h] = broadcast_pair(w + h * w_stride + row);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      PairedRows value;
      if (C > 1 || n == kPairLanes)
        value = pair_rows(load_pairs(even + c * 64), load_pairs(odd + c * 64));
      else
        value = pair_rows(load_pairs_partial(even, n), load_pairs_partial(odd, n));
#pragma GCC unroll 4
      for (int h = 0; h < H; ++h) {
        sum[h * C + c].low = dot_pairs(value.low, weight[h], sum[h * C + c].low);
        sum[h * C + c].high = dot_pairs(value.high, weight[h], sum[h * C + c].high);
      }
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store_sums(acc + h * acc_stride + c * kPairLanes, n - c * kPairLanes, sum[h * C + c]);
  }
}

// All `dim` columns; the first block prefetches whole rows at `ahead`.
template <int H, bool Prefetch>
KVROOF_ALONE inline void value_rows_bf16(const std::byte* const* rows, std::int64_t offset, int count, std::int64_t dim,
                                         const std::uint16_t* w, std::int64_t w_stride, float* acc,
                                         std::int64_t acc_stride, Ahead ahead, Share share) {
  constexpr int C = H == 1 ? 4 : 8 / H;
  std::int64_t column = 0;
  const auto block = [&]<int N>(int n) {
    const std::int64_t at = offset + column * 2;
    if (Prefetch && column == 0)
      value_block_bf16<H, N, Prefetch>(rows, at, count, n, w, w_stride, acc, acc_stride, ahead, share, dim * 2);
    else
      value_block_bf16<H, N, false>(rows, at, count, n, w, w_stride, acc + column, acc_stride, {}, {}, 0);
    column += n;
  };
  while (dim - column >= C * kPairLanes) block.template operator()<C>(C * kPairLanes);
  while (column < dim) {
    const std::int64_t left = dim - column;
    block.template operator()<1>(left < kPairLanes ? static_cast<int>(left) : kPairLanes);
  }
}

// Rows [0, count) x 32*C columns as pairs: to[row/2][C][low 32, high 32], for many queries.
template <int C>
KVROOF_ALONE inline void pair_panel(const std::byte* const* rows, std::int64_t offset, int count, int n,
                                    std::uint16_t* to) {
  for (int row = 0; row < count; row += 2, to += 2 * C * kPairLanes) {
    const std::byte *even = rows[row] + offset, *odd = rows[row + 1] + offset;
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      const int left = n - c * kPairLanes;
      PairedRows value;
      if (left >= kPairLanes)
        value = pair_rows(load_pairs(even + c * 64), load_pairs(odd + c * 64));
      else if (left > 0)
        value = pair_rows(load_pairs_partial(even + c * 64, left), load_pairs_partial(odd + c * 64, left));
      else
        value = PairedRows{{_mm512_setzero_si512()}, {_mm512_setzero_si512()}};
      _mm512_storeu_si512(to + 2 * c * kPairLanes, value.low.b);
      _mm512_storeu_si512(to + (2 * c + 1) * kPairLanes, value.high.b);
    }
  }
}

// H queries x the panel's 32*C columns. The sums of whole blocks of 32 columns stay in the order of pair_rows from
// panel to panel (unpair_sums ends that); n < 32*C: the last block of a row, in the order of memory.
//
// panel null: the rows are paired on the way, which pays while few blocks of queries come by.
template <int H, int C, bool Packed>
KVROOF_ALONE inline void value_panel_bf16(const std::uint16_t* panel, const std::byte* const* rows, int count, int n,
                                          const std::uint16_t* w, std::int64_t w_stride, float* acc,
                                          std::int64_t acc_stride) {
  PairedSums sum[H * C];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      const float* from = acc + h * acc_stride + c * kPairLanes;
      sum[h * C + c] =
          n >= (c + 1) * kPairLanes ? PairedSums{load(from), load(from + kLanes)} : load_sums(from, n - c * kPairLanes);
    }
  }
  for (int row = 0; row < count; row += 2, panel += 2 * C * kPairLanes) {
    Pairs low[C], high[C];
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      if constexpr (Packed) {
        low[c] = load_pairs(panel + 2 * c * kPairLanes);
        high[c] = load_pairs(panel + (2 * c + 1) * kPairLanes);
      } else {
        const PairedRows value = pair_rows(load_pairs(rows[row] + c * 64), load_pairs(rows[row + 1] + c * 64));
        low[c] = value.low;
        high[c] = value.high;
      }
    }
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) {
      const Pairs weight = broadcast_pair(w + h * w_stride + row);
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) {
        sum[h * C + c].low = dot_pairs(low[c], weight, sum[h * C + c].low);
        sum[h * C + c].high = dot_pairs(high[c], weight, sum[h * C + c].high);
      }
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      float* to = acc + h * acc_stride + c * kPairLanes;
      if (n >= (c + 1) * kPairLanes) {
        store(to, sum[h * C + c].low);
        store(to + kLanes, sum[h * C + c].high);
      } else {
        store_sums(to, n - c * kPairLanes, sum[h * C + c]);
      }
    }
  }
}

// The whole blocks of 32 columns of one result, from the order of pair_rows to that of memory.
inline void unpair_sums(float* acc, std::int64_t dim) {
  for (; dim >= kPairLanes; dim -= kPairLanes, acc += kPairLanes)
    store_sums(acc, kPairLanes, {load(acc), load(acc + kLanes)});
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
