// q K^T for one tile of 16 bf16 rows and one KV head in native mode: to[q*to_stride + row], no scale yet.
//
// Which of the two forms a head takes is a matter of its group size alone, never of the chunk: their bits differ, and a
// query must get the same ones alone and inside a chunk. `score_rows_bf16`: a sum is 16 stripes of column pairs and one
// tree. `score_lanes_bf16`: every lane is a query, a sum is one chain over the column pairs.
#pragma once

#include "kernels/native/bf16_dot.hpp"
#include "kernels/ops/score_tile.hpp"
#include "kernels/ops/segment_rows.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// R rows x H queries, R*H = 16. q: rows of bf16, `pad` apart, zero from dim on. V > 0: dim is 32*V, known to the
// compiler.
template <int R, int H, int V, bool Prefetch>
KVROOF_INLINE inline void score_block_bf16(const std::byte* const* rows, std::int64_t offset, const std::uint16_t* q,
                                           std::int64_t dim, std::int64_t pad, float* to, std::int64_t to_stride,
                                           Ahead ahead) {
  static_assert(R * H == kAccumulators);
  const std::int64_t whole = V > 0 ? V : dim / kPairLanes;
  const int tail = V > 0 ? 0 : static_cast<int>(dim % kPairLanes);
  Vec16 acc[R * H];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const std::byte* row = rows[r] + offset;
    if constexpr (Prefetch) prefetch_rows(ahead.near, r, r + 1, 0, dim * 2);
#pragma GCC unroll 16
    for (int h = 0; h < H; ++h) acc[h * R + r] = zero();
    for (std::int64_t d = 0; d < whole; ++d) {
      const Pairs key = load_pairs(row + d * 64);
#pragma GCC unroll 16
      for (int h = 0; h < H; ++h)
        acc[h * R + r] = dot_pairs(key, load_pairs(q + h * pad + d * kPairLanes), acc[h * R + r]);
    }
    if (tail != 0) {
      const Pairs key = load_pairs_partial(row + whole * 64, tail);
#pragma GCC unroll 16
      for (int h = 0; h < H; ++h)
        acc[h * R + r] = dot_pairs(key, load_pairs(q + h * pad + whole * kPairLanes), acc[h * R + r]);
    }
  }
  store_sums<R, H>(acc, to, to_stride);
}

template <int H, bool Prefetch>
KVROOF_ALONE inline void score_rows_bf16(const std::byte* const* rows, std::int64_t offset, const std::uint16_t* q,
                                         std::int64_t dim, std::int64_t pad, float* to, std::int64_t to_stride,
                                         Ahead ahead) {
  constexpr int R = kAccumulators / H;
  for (int r = 0; r < kTileRows; r += R) {
    if (dim == 4 * kPairLanes)
      score_block_bf16<R, H, 4, Prefetch>(rows + r, offset, q, dim, pad, to + r, to_stride, ahead + r);
    else
      score_block_bf16<R, H, 0, Prefetch>(rows + r, offset, q, dim, pad, to + r, to_stride, ahead + r);
  }
}

// `queries` queries (the last block may be short of 4), any dim.
inline void score_all_rows_bf16(const std::byte* const* rows, std::int64_t offset, const std::uint16_t* q,
                                std::int64_t queries, std::int64_t dim, std::int64_t pad, float* to,
                                std::int64_t to_stride, Ahead ahead) {
  std::int64_t h = 0;
  const auto some = [&]<int H>() {
    if (ahead)
      score_rows_bf16<H, true>(rows, offset, q + h * pad, dim, pad, to + h * to_stride, to_stride, ahead);
    else
      score_rows_bf16<H, false>(rows, offset, q + h * pad, dim, pad, to + h * to_stride, to_stride, {});
    ahead = {};
    h += H;
  };
  while (queries - h >= 4) some.template operator()<4>();
  if (queries - h >= 2) some.template operator()<2>();
  if (queries - h >= 1) some.template operator()<1>();
}

// NQ blocks of 16 queries, q[n][pair][16][2] with `block` elements a block, against 16 rows, R at a time. Two blocks of
// 576 columns (36 KiB) stay in L1 while the rows pass, so callers walk all rows of a segment per call of NQ blocks.
template <int NQ>
KVROOF_ALONE inline void score_lanes_bf16(const std::byte* const* rows, std::int64_t offset, const std::uint16_t* q,
                                          std::int64_t dim, std::int64_t block, float* to, std::int64_t to_stride) {
  constexpr int R = kAccumulators / NQ;
  const std::int64_t pairs = dim / 2;
  Vec16 sums[NQ * kTileRows];
  for (int r0 = 0; r0 < kTileRows; r0 += R) {
    const std::byte* row[R];
    Vec16 acc[NQ * R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) row[r] = rows[r0 + r] + offset;
#pragma GCC unroll 16
    for (int i = 0; i < NQ * R; ++i) acc[i] = zero();
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      Pairs query[NQ];
#pragma GCC unroll 4
      for (int n = 0; n < NQ; ++n) query[n] = load_pairs(q + n * block + pair * kPairLanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Pairs key = broadcast_pair(row[r] + pair * 4);
#pragma GCC unroll 4
        for (int n = 0; n < NQ; ++n) acc[n * R + r] = dot_pairs(query[n], key, acc[n * R + r]);
      }
    }
    if (dim % 2 != 0) {  // the last column alone, its partner zero
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        std::uint16_t last[2] = {0, 0};
        __builtin_memcpy(last, row[r] + pairs * 4, 2);
        const Pairs key = broadcast_pair(last);
#pragma GCC unroll 4
        for (int n = 0; n < NQ; ++n)
          acc[n * R + r] = dot_pairs(load_pairs(q + n * block + pairs * kPairLanes), key, acc[n * R + r]);
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < NQ; ++n) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sums[n * kTileRows + r0 + r] = acc[n * R + r];
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < NQ; ++n) transpose16(sums + n * kTileRows, to + n * kLanes * to_stride, to_stride);
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
