// q K^T for many queries of one KV head: every lane is a row. The 16 stripes of a dot product are added vertically in
// the tree's order: no shuffles, the same bits as the row form. A row vector is met by 8 queries as broadcasts, which
// is what makes MQA and large groups compute-bound instead of shuffle-bound.
//
// Rows are packed a tile at a time, and the next tile block by block between the products of this one, so that neither
// the transposition nor the wait for its rows stands alone.
#pragma once

#include "kernels/ops/segment_rows.hpp"
#include "kernels/ops/widen_rows.hpp"

namespace kvroof::KVROOF_NS {
namespace {

constexpr int kLaneVectors = kBatches == 1 ? 3 : 1;  // row vectors that share the broadcast of a query, at most
constexpr int kLaneRows = kLaneVectors * kLanes;     // of a tile
constexpr int kLaneQueries = kBatches == 1 ? 8 : 4;  // queries whose sums are in registers together
constexpr int kShortDim = 128;
constexpr int kShortRows = (kLaneVectors < 2 ? 1 : 2) * kLanes;  // of a tile that is so short: two stay in L1 together

inline int lane_rows(std::int64_t dim) { return dim <= kShortDim ? kShortRows : kLaneRows; }

// Rows that are to be packed: where they begin, counted from the pointers, and their columns.
struct RowShape {
  std::int64_t offset, dim, pad;  // pad: dim rounded up to 16
  std::int64_t latent_dim;        // of an MLA int8 row; unused otherwise
};

// A tile of `count` rows (a multiple of 16) on its way into to[stripe][d / 16][row], a block of 16 rows x 16 columns at
// a time. The stripes (d mod 16) lie in the order of the tree.
template <Storage S, bool Grouped>
class PackedRows {
 public:
  // follow: the line of pointers goes on for another tile
  PackedRows(const std::byte* const* rows, int count, const RowShape& shape, bool follow, float* to)
      : rows_(rows), count_(count), shape_(shape), follow_(follow), data_(to) {}
  int count() const { return count_; }
  std::int64_t blocks() const { return count_ / kLanes * (shape_.pad / kLanes); }
  const float* data() const { return data_; }

  KVROOF_INLINE void pack_block() {
    const std::int64_t left = shape_.dim - column_;
    const int n = left < kLanes ? static_cast<int>(left) : kLanes;
    const std::byte* const* from = rows_ + row_;
    Vec16 x[kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r)
      x[r] = load_columns<S, Grouped>(from[r] + shape_.offset, column_, n, shape_.latent_dim);
    fetch(from);
    float* to = data_ + column_ / kLanes * count_ + row_;
    const std::int64_t stripe = shape_.pad / kLanes * count_;
    transpose16_to(x, [=](int i) { return to + kTreeOrder[i] * stripe; });
    row_ += kLanes;
    if (row_ == count_) {
      row_ = 0;
      column_ += kLanes;
    }
  }

  void pack_all() {
    for (std::int64_t i = blocks(); i > 0; --i) pack_block();
  }

 private:
  // A shuffle that waits for its row would keep the products behind it from starting: two blocks of columns ahead, into
  // L1, and the first ones of the next tile in time.
  KVROOF_INLINE void fetch(const std::byte* const* from) const {
    std::int64_t column = column_ + 2 * kLanes;
    if (column >= shape_.pad) {
      if (!follow_) return;
      column -= shape_.pad;
      from += count_;
    }
    const std::int64_t at = shape_.offset + column * static_cast<std::int64_t>(storage_bytes(S));
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) prefetch(from[r] + at);
  }

  const std::byte* const* rows_;
  int count_, row_ = 0;
  RowShape shape_;
  bool follow_;
  std::int64_t column_ = 0;
  float* data_;
};

// NV vectors of packed rows against NB blocks of 16 queries, packed alike; to[query*to_stride + row]. A stripe's
// columns of rows and queries stay in L1 while all of them meet. between() is called once a stripe.
// V: 0, or dim is 16 * V exactly and short; then a sum is one straight line, and a block of queries passes all stripes
// before the next one, so that its sums in the tree stay in L1.
template <int NV, int NB, int V, class Between>
KVROOF_ALONE inline void score_lanes(const float* rows, const float* q, std::int64_t dim, std::int64_t pad, float* to,
                                     std::int64_t to_stride, Between& between) {
  constexpr int Q = kLaneQueries, kSums = NV * Q, kParts = NB * kLanes / Q;
  Vec16 pending[4][(V > 0 ? 1 : kParts) * kSums];  // the tree's left operands, by level
  if constexpr (V > 0) dim = pad = V * kLanes;
  for (int turn = 0; turn < 16 * kParts; ++turn) {
    if (turn % kParts == 0) between();
    const int step = V > 0 ? turn % 16 : turn / kParts, part = V > 0 ? turn / 16 : turn % kParts;
    const int slot = V > 0 ? 0 : part * kSums;
    const float* keys = rows + step * (pad / kLanes) * (NV * kLanes);
    const float* queries = q + part * Q / kLanes * pad * kLanes + step * pad + part * Q % kLanes;
    Vec16 acc[kSums];
    const auto column = [&](std::int64_t d, auto take) __attribute__((always_inline)) {
      Vec16 key[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) key[v] = load(keys + (d * NV + v) * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < Q; ++i) {
        const Vec16 query = broadcast(queries[d * kLanes + i]);
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) take(query, key[v], acc[i * NV + v]);
      }
    };
    // Not fma(x, y, 0): GCC makes the zeros by copying one, which takes an FMA port. A product of -0 stays -0 then, and
    // a score of zero may have the other sign: no weight can tell.
    const auto begin = [](Vec16 x, Vec16 y, Vec16 & sum) __attribute__((always_inline)) { sum = x * y; };
    const auto add = [](Vec16 x, Vec16 y, Vec16 & sum) __attribute__((always_inline)) { sum = fma(x, y, sum); };
    if constexpr (V > 0) {
      column(0, begin);
#pragma GCC unroll 8
      for (int d = 1; d < V; ++d) column(d, add);
    } else {
      std::int64_t left = (dim - kTreeOrder[step] + kLanes - 1) / kLanes;
      if (left > 0) {
        column(0, begin);
        --left;
        queries += kLanes;
        keys += NV * kLanes;
      } else {
#pragma GCC unroll 24
        for (int i = 0; i < kSums; ++i) acc[i] = zero();
      }
      // four columns a turn, written out: what the compiler makes of an unrolled loop is 3 % slower
#pragma GCC unroll 1
      for (; left % 4 != 0; --left, queries += kLanes, keys += NV * kLanes) column(0, add);
#pragma GCC unroll 1
      for (; left > 0; left -= 4, queries += 4 * kLanes, keys += 4 * NV * kLanes) {
        column(0, add);
        column(1, add);
        column(2, add);
        column(3, add);
      }
    }
    int level = 0;
    for (int t = step; t & 1; t >>= 1, ++level) {
#pragma GCC unroll 24
      for (int i = 0; i < kSums; ++i) acc[i] = pending[level][slot + i] + acc[i];
    }
    if (step < 15) {
#pragma GCC unroll 24
      for (int i = 0; i < kSums; ++i) pending[level][slot + i] = acc[i];
    } else {
#pragma GCC unroll 24
      for (int i = 0; i < kSums; ++i) store(to + (part * Q + i / NV) * to_stride + i % NV * kLanes, acc[i]);
    }
  }
}

// `count` rows (a multiple of 16) against `blocks` blocks of 16 queries. scratch: two tiles of kLaneRows x pad. follow:
// the line of pointers goes on for kLaneRows rows behind them.
template <Storage S, bool Grouped>
inline void score_all_lanes(const std::byte* const* rows, int count, const RowShape& shape, bool follow, const float* q,
                            std::int64_t blocks, float* scratch, float* to, std::int64_t to_stride) {
  const std::int64_t dim = shape.dim, pad = shape.pad, turns = (blocks + 1) / 2 * 16;
  const int step = lane_rows(pad);
  const auto tile = [&](int row) {
    const int left = count - row;
    return PackedRows<S, Grouped>(rows + row, left < step ? left : step, shape, follow || left >= 2 * step,
                                  scratch + row / step % 2 * step * pad);
  };
  PackedRows<S, Grouped> now = tile(0);
  now.pack_all();
  for (int row = 0; row < count; row += step) {
    PackedRows<S, Grouped> next = tile(row + now.count());
    const std::int64_t work = next.blocks();
    std::int64_t owed = 0;
    const auto between = [&]() __attribute__((always_inline)) {
      for (owed += work; owed >= turns; owed -= turns) next.pack_block();
    };
    for (std::int64_t block = 0; block < blocks; block += 2) {
      const float* queries = q + block * pad * kLanes;
      float* out = to + block * kLanes * to_stride + row;
      const bool pair = blocks - block > 1;
      const auto run = [&]<int NV, int V = 0>() {
        if (pair)
          score_lanes<NV, 2, V>(now.data(), queries, dim, pad, out, to_stride, between);
        else
          score_lanes<NV, 1, V>(now.data(), queries, dim, pad, out, to_stride, between);
      };
      if constexpr (kLaneVectors > 1) {
        if (dim == kShortDim && now.count() == kShortRows) {
          run.template operator()<kShortRows / kLanes, kShortDim / kLanes>();
          continue;
        }
        if (now.count() == 2 * kLanes) {
          run.template operator()<2>();
          continue;
        }
      }
      if (now.count() == kLaneRows)
        run.template operator()<kLaneVectors>();
      else
        run.template operator()<1>();
    }
    now = next;
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
