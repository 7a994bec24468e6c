// q K^T for one tile of 16 rows and one KV head: to[q*to_stride + row], no scale yet.
//
// Two forms, same bits. `score_rows` keeps the 16 stripes of a dot product in a vector and folds kAccumulators of them
// at once in registers: best while few queries share a row. score_lanes.hpp: from 12 queries on.
#pragma once

#include "kernels/ops/score_lanes.hpp"
#include "kernels/ops/segment_rows.hpp"
#include "kernels/ops/widen_rows.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// Rows in flight: 512 bytes of 128-wide rows, and for several queries of 2-byte rows enough chains to fill the FMA
// pipes (TUNING.md).
template <Storage S, int H>
constexpr int kRowsInFlight = S == Storage::f32 ? 1
                              : H >= 4          ? 4
                                                : static_cast<int>(4 / storage_bytes(S));

constexpr int kLaneQueriesMin = 12;  // from here a half-empty lane vector beats the row form

struct TileShape {
  std::int64_t dim, pad;  // Dk and Dk rounded up to 16
};

// One R x H block: R rows against H queries. Rows are walked kRowsInFlight at a time, not all R column by column: a
// hardware prefetcher follows few streams, and a row's chain of FMAs overlaps with its neighbours' out of order.
// V > 0: Dk = 16*V exactly. Then no loop is left whose end a branch predictor could miss, which on some CPUs costs as
// much as the work (TUNING.md).
template <Storage S, int R, int H, int V, bool Prefetch>
KVROOF_INLINE inline void score_block(const std::byte* const* rows, std::int64_t offset, const float* q,
                                      TileShape shape, float* to, std::int64_t to_stride, Ahead ahead) {
  constexpr std::int64_t kStep = kLanes * static_cast<std::int64_t>(storage_bytes(S));
  constexpr int F = R < kRowsInFlight<S, H> ? R : kRowsInFlight<S, H>;
  Vec16 acc[R * H];
#pragma GCC unroll 32
  for (int i = 0; i < R * H; ++i) acc[i] = zero();
  const std::int64_t dim = V > 0 ? V * kLanes : shape.dim, whole = dim / kLanes, pad = V > 0 ? dim : shape.pad;
  const int tail = static_cast<int>(dim % kLanes);
#pragma GCC unroll 32
  for (int r0 = 0; r0 < R; r0 += F) {
    if constexpr (Prefetch) prefetch_rows(ahead.near, r0, r0 + F, 0, dim * kStep / kLanes);
#pragma GCC unroll 8
    for (std::int64_t d = 0; d < whole; ++d) {
      Vec16 query[H];
#pragma GCC unroll 8
      for (int h = 0; h < H; ++h) query[h] = load(q + h * pad + d * kLanes);
#pragma GCC unroll 32
      for (int r = r0; r < r0 + F; ++r) {
        const Vec16 key = load_as<S>(rows[r] + offset + d * kStep);
#pragma GCC unroll 8
        for (int h = 0; h < H; ++h) acc[h * R + r] = fma(query[h], key, acc[h * R + r]);
      }
    }
    if (tail != 0) {
      Vec16 query[H];
#pragma GCC unroll 8
      for (int h = 0; h < H; ++h) query[h] = load(q + h * pad + whole * kLanes);
#pragma GCC unroll 32
      for (int r = r0; r < r0 + F; ++r) {
        const Vec16 key = load_partial_as<S>(rows[r] + offset + whole * kStep, tail);
#pragma GCC unroll 8
        for (int h = 0; h < H; ++h) acc[h * R + r] = fma(query[h], key, acc[h * R + r]);
      }
    }
  }
  store_sums<R, H>(acc, to, to_stride);
}

// One query, f32 rows, Dk = 16*V exactly: the query stays in registers and a row's sum is one straight line of V FMAs.
// Fewer instructions a cache line leave the out-of-order window room for more lines on their way. (Halves gain
// nothing.)
template <int V, bool Prefetch>
KVROOF_INLINE inline void score_one_query(const std::byte* const* rows, std::int64_t offset, const float* q, float* to,
                                          Ahead ahead) {
  constexpr std::int64_t kStep = kLanes * sizeof(float);
  Vec16 query[V];
#pragma GCC unroll 8
  for (int d = 0; d < V; ++d) query[d] = load(q + d * kLanes);
  for (int r0 = 0; r0 < kTileRows; r0 += kAccumulators) {
    Vec16 acc[kAccumulators];
#pragma GCC unroll 32
    for (int r = 0; r < kAccumulators; ++r) {
      const std::byte* row = rows[r0 + r] + offset;
      if constexpr (Prefetch) prefetch_rows(ahead.near, r0 + r, r0 + r + 1, 0, V * kStep);

      acc[r] = zero();
#pragma GCC unroll 8
      for (int d = 0; d < V; ++d) acc[r] = fma(query[d], load_as<Storage::f32>(row + d * kStep), acc[r]);
    }
    store_sums<kAccumulators, 1>(acc, to + r0, 0);
  }
}

template <Storage S, int H, bool Prefetch>
KVROOF_ALONE inline void score_rows(const std::byte* const* rows, std::int64_t offset, const float* q, TileShape shape,
                                    float* to, std::int64_t to_stride, Ahead ahead) {
  constexpr int R = kAccumulators / H;
  if constexpr (S == Storage::f32 && H == 1 &&
                kBatches == 1) {  // AVX-512: 16 sums and 8 query vectors fit the registers
    if (shape.dim == 8 * kLanes) return score_one_query<8, Prefetch>(rows, offset, q, to, ahead);
    if (shape.dim == 4 * kLanes) return score_one_query<4, Prefetch>(rows, offset, q, to, ahead);
  }
  if constexpr (kBatches <= 2) {  // wider code than that is bound by its own length
    if (shape.dim == 8 * kLanes) {
      for (int r = 0; r < kTileRows; r += R)
        score_block<S, R, H, 8, Prefetch>(rows + r, offset, q, shape, to + r, to_stride, ahead + r);
      return;
    }
  }
  for (int r = 0; r < kTileRows; r += R)
    score_block<S, R, H, 0, Prefetch>(rows + r, offset, q, shape, to + r, to_stride, ahead + r);
}

constexpr int kQuad = 4;       // queries of neighbouring heads that share a reduction
constexpr int kQuadAhead = 8;  // rows that are fetched ahead of it

// kAccumulators / 4 rows against four queries of P heads side by side: q[i*pad + d] against the row of its head
// at offset[i * P / 4].
template <Storage S, int P, int V>
KVROOF_ALONE inline void score_quad(const std::byte* const* rows, const std::int64_t* offset, const float* q,
                                    TileShape shape, float* to, std::int64_t to_stride) {
  constexpr std::int64_t kStep = kLanes * static_cast<std::int64_t>(storage_bytes(S));
  constexpr int R = kAccumulators / kQuad, H = kQuad / P;
  Vec16 acc[R * kQuad];
#pragma GCC unroll 16
  for (int i = 0; i < R * kQuad; ++i) acc[i] = zero();
  const std::int64_t dim = V > 0 ? V * kLanes : shape.dim, whole = dim / kLanes, pad = V > 0 ? dim : shape.pad;
  const int tail = static_cast<int>(dim % kLanes);
  const auto columns = [&](std::int64_t d, auto load_keys) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const Vec16 key = load_keys(rows[r] + offset[p] + d * kStep);
#pragma GCC unroll 4
        for (int h = 0; h < H; ++h)
          acc[(p * H + h) * R + r] = fma(load(q + (p * H + h) * pad + d * kLanes), key, acc[(p * H + h) * R + r]);
      }
    }
  };
#pragma GCC unroll 8
  for (std::int64_t d = 0; d < whole; ++d) columns(d, [](const std::byte* from) { return load_as<S>(from); });
  if (tail != 0) columns(whole, [tail](const std::byte* from) { return load_partial_as<S>(from, tail); });
  store_sums<R, kQuad>(acc, to, to_stride);
}

// One row of kAccumulators heads side by side, V vectors wide each, against one query of each head: to[h]. The row is
// read as it lies; lines of the rows at ahead[h] are fetched meanwhile.
template <Storage S, int V>
KVROOF_ALONE inline void score_heads(const std::byte* row, std::int64_t head_stride, const float* q, float* to,
                                     const std::byte* const* ahead) {
  constexpr std::int64_t kStep = kLanes * static_cast<std::int64_t>(storage_bytes(S));
  Vec16 acc[kAccumulators];
#pragma GCC unroll 16
  for (int h = 0; h < kAccumulators; ++h) {
    acc[h] = zero();
#pragma GCC unroll 8
    for (int d = 0; d < V; ++d) {
      if (d * kStep % 64 == 0) prefetch(ahead[h] + d * kStep);
      acc[h] = fma(load(q + (h * V + d) * kLanes), load_as<S>(row + h * head_stride + d * kStep), acc[h]);
    }
  }
  store_sums<kAccumulators, 1>(acc, to, 0);
}

// How a KV head's queries are split between the two forms.
struct QueryForms {
  std::int64_t lane_blocks;  // of 16, the last one possibly padded
  std::int64_t row_queries;  // the rest
};

inline QueryForms query_forms(std::int64_t queries, bool lanes_only) {
  const std::int64_t rest = queries % kLanes;
  if (rest >= kLaneQueriesMin || (lanes_only && rest > 0)) return {queries / kLanes + 1, 0};
  return {queries / kLanes, rest};
}

// The queries of one KV head that take the row form against a tile of 16 rows.
template <Storage S>
inline void score_few(const std::byte* const* rows, std::int64_t offset, const float* q_rows, std::int64_t queries,
                      TileShape shape, float* to, std::int64_t to_stride, Ahead ahead) {
  std::int64_t h = 0;
  const auto rest = [&]<int H>() {
    const float* q = q_rows + h * shape.pad;
    if (ahead)
      score_rows<S, H, true>(rows, offset, q, shape, to + h * to_stride, to_stride, ahead);
    else
      score_rows<S, H, false>(rows, offset, q, shape, to + h * to_stride, to_stride, {});
    ahead = {};
    h += H;
  };
  if constexpr (kBatches == 1 && S == Storage::f32) {  // the same for converted rows: no gain
    while (queries - h >= 8) rest.template operator()<8>();
  }
  while (queries - h >= 4) rest.template operator()<4>();
  if (queries - h >= 2) rest.template operator()<2>();
  if (queries - h >= 1) rest.template operator()<1>();
}

// All queries of one KV head against `count` rows, a multiple of 16: q_lanes holds the lane blocks, q_rows the rest
// (both packed by pack_queries).
template <Storage S, bool Grouped>
inline void score_run(const std::byte* const* rows, int count, std::int64_t offset, std::int64_t latent_dim,
                      const float* q_lanes, const float* q_rows, QueryForms forms, TileShape shape, float* scratch,
                      float* to, std::int64_t to_stride, Ahead ahead) {
  const std::int64_t blocks = forms.lane_blocks;
  if (blocks > 0) {
    score_all_lanes<S, Grouped>(rows, count, {offset, shape.dim, shape.pad, latent_dim}, static_cast<bool>(ahead),
                                q_lanes, blocks, scratch, to, to_stride);
    to += blocks * kLanes * to_stride;
    ahead = {};
  }
  if constexpr (!Grouped) {  // such rows are only ever read widened
    if (forms.row_queries == 0) return;
    for (int row = 0; row < count; row += kTileRows)
      score_few<S>(rows + row, offset, q_rows, forms.row_queries, shape, to + row, to_stride, ahead + row);
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
