// Decode attention in native mode for bf16 caches: ops/decode_attention.cpp with the products made by AVX512-BF16.
// Queries and weights are rounded to bf16, sums stay f32. The walk, the softmax, the partials and their merging are the
// reproducible mode's; only the two products differ, and with them the bits.
//
// reference/oracle.hpp states and derives how far its results may be from float64.
#include "kernels/native/score_tile_bf16.hpp"
#include "kernels/native/softmax_bf16.hpp"
#include "kernels/native/value_tile_bf16.hpp"

#include "kernels/kernel_table.hpp"
#include "kernels/ops/run_part.hpp"
#include "kernels/ops/softmax_scores.hpp"

namespace kvroof::KVROOF_NS {
namespace {

constexpr int kPanelPairRows = 128;  // 128 rows x 64 columns of bf16: 16 KiB in L1
constexpr std::int64_t kPanelPairColumns = 64;
static_assert(kPanelPairRows * kPanelPairColumns / 2 <= kMinTileFloats);
constexpr int kDirectRows = 128;
constexpr int kPanelBlock = 4;  // queries that share a load of the panel
constexpr std::int64_t kNativePanelQueries = 12;
constexpr std::int64_t kPackQueries = 64;
static_assert(kPanelPairRows <= kLeastAhead);

bool uses_lanes(const Part& part) { return part.split.group_heads >= kLaneQueriesMin; }

std::int64_t lane_blocks(const AttentionGroup& group) { return (group.queries + kLanes - 1) / kLanes; }

std::int64_t native_score_rows(const Part& part, const AttentionGroup& group) {
  return uses_lanes(part) ? lane_blocks(group) * kLanes : group.queries;
}

std::int64_t row_pad(const Part& part) { return (part.k_shape.dim + kPairLanes - 1) / kPairLanes * kPairLanes; }
std::int64_t block_size(const Part& part) { return (part.k_shape.dim + 1) / 2 * kPairLanes; }

std::uint16_t* bf16(const Part& part, std::size_t offset) {
  return reinterpret_cast<std::uint16_t*>(part.memory + offset);
}

// Queries as bf16: padded rows, or [block of 16][pair of columns][lane][2].
void pack_queries_bf16(const Part& part, const AttentionGroup& group) {
  const std::int64_t dk = part.k_shape.dim, pad = row_pad(part), block = block_size(part);
  std::uint16_t *rows = bf16(part, part.split.q_rows), *lanes = bf16(part, part.split.q_lanes);
  if (uses_lanes(part))
    __builtin_memset(lanes, 0, static_cast<std::size_t>(group.heads * lane_blocks(group) * block) * 2);
  for (std::int64_t head = 0; head < group.heads; ++head) {
    for (std::int64_t query = 0; query < group.queries; ++query) {
      const float* q = query_row(group, query_index(part, group, head, query));
      for (std::int64_t d = 0; d < (uses_lanes(part) ? dk : pad); d += kLanes) {
        alignas(64) std::uint16_t narrow[kLanes];
        const int count = dk - d < kLanes ? static_cast<int>(dk - d < 0 ? 0 : dk - d) : kLanes;
        store_bf16(narrow, load_partial(q + d, count));
        if (!uses_lanes(part)) {
          __builtin_memcpy(rows + (head * group.queries + query) * pad + d, narrow, sizeof narrow);
          continue;
        }
        std::uint16_t* to = lanes + (head * lane_blocks(group) + query / kLanes) * block + query % kLanes * 2;
        for (int i = 0; i < count; ++i) to[(d + i) / 2 * kPairLanes + (d + i) % 2] = narrow[i];
      }
    }
  }
}

void score_segment_bf16(const Part& part, const AttentionGroup& group, const SegmentRows& rows) {
  const std::int64_t stride = group.sequence->kv.k_head_stride, per_head = native_score_rows(part, group);
  const std::int64_t dim = part.k_shape.dim, pad = row_pad(part), block = block_size(part);
  if (!uses_lanes(part)) {
    const auto tile = [&](int row, std::int64_t head, Ahead ahead) {
      wake_pages(ahead, kTileRows, dim * 2);
      score_all_rows_bf16(rows.k(row), head * stride, bf16(part, part.split.q_rows) + head * group.queries * pad,
                          group.queries, dim, pad, part.scores() + head * per_head * kScoreStride + row, kScoreStride,
                          ahead);
    };
    if (walk_pages(group, rows, rows.k(rows.begin), stride, kTileRows,
                   [&](int row, int, std::int64_t head, Ahead ahead) { tile(row, head, ahead); }))
      return;
    for (int row = rows.begin; row < rows.end; row += kTileRows) {
      PrefetchSlices slices = across_heads(group, rows.k(row) + kTileRows, kTileRows, stride, dim * 2, group.heads);
      for (std::int64_t head = 0; head < group.heads; ++head) {
        slices.next();
        tile(row, head, group.heads > 1 ? Ahead{} : rows.ahead(rows.k(row)));
      }
    }
    return;
  }
  for (std::int64_t head = 0; head < group.heads; ++head) {
    const std::uint16_t* q = bf16(part, part.split.q_lanes) + head * lane_blocks(group) * block;
    float* scores = part.scores() + head * per_head * kScoreStride;
    for (std::int64_t first = 0; first < lane_blocks(group); first += 2) {
      for (int row = rows.begin; row < rows.end; row += kTileRows) {
        if (first == 0) prefetch_rows_l2(rows.k(row) + kPanelPairRows, 0, kTileRows, head * stride, dim * 2);
        float* to = scores + first * kLanes * kScoreStride + row;
        if (lane_blocks(group) - first >= 2)
          score_lanes_bf16<2>(rows.k(row), head * stride, q + first * block, dim, block, to, kScoreStride);
        else
          score_lanes_bf16<1>(rows.k(row), head * stride, q + first * block, dim, block, to, kScoreStride);
      }
    }
  }
}

// Rows [0, count) at `offset`, those outside `visible` replaced by zeros.
void show_rows(const std::byte* const* rows, std::int64_t offset, int count, const Spans& visible,
               const std::byte** shown) {
  alignas(64) static const std::byte zeros[4 * kPairLanes * 2] = {};
  int row = 0;
  for (int s = 0; s < visible.count; ++s) {
    for (; row < visible.span[s].begin; ++row) shown[row] = zeros;
    for (; row < visible.span[s].end; ++row) shown[row] = rows[row] + offset;
  }
  for (; row < count; ++row) shown[row] = zeros;
}

// Queries of the group from `query` on that belong to the same new token, and so see the same rows.
std::int64_t same_token(const Part& part, const AttentionGroup& group, std::int64_t query) {
  const std::int64_t G = part.split.group_heads, left = G - (group.query0 + query) % G;
  return left < group.queries - query ? left : group.queries - query;
}

// Rows [row, row + count) of one head against its queries, few of them.
void weigh_tile_bf16(const Part& part, const AttentionGroup& group, const SegmentRows& rows, int row, int count,
                     std::int64_t head, Ahead ahead, float* acc) {
  const std::int64_t pad = part.v_shape.pad, dim = part.v_shape.dim, per_head = native_score_rows(part, group);
  const std::int64_t offset = head * group.sequence->kv.v_head_stride;
  std::int64_t query = 0;
  const auto run = [&]<int H>() {
    const Spans spans = visible_spans(part, group, query, rows.base() + row, 0, count);
    const float* scores = part.scores() + (head * per_head + query) * kScoreStride;
    const std::uint16_t* w = reinterpret_cast<const std::uint16_t*>(scores) + row;
    float* to = acc + (head * group.queries + query) * pad;
    if (spans.size() < count) {
      const std::byte* shown[kDirectRows];
      for (std::int64_t column = 0; spans.size() > 0 && column < dim; column += 4 * kPairLanes) {
        show_rows(rows.v(row), offset + column * 2, count, spans, shown);
        value_rows_bf16<H, false>(shown, 0, count, dim - column < 4 * kPairLanes ? dim - column : 4 * kPairLanes, w,
                                  2 * kScoreStride, to + column, pad, {}, {});
      }
    } else if (ahead) {
      const auto passed = [&](std::int64_t q) { return static_cast<int>(count * q / group.queries); };
      const Share share{passed(query), passed(query + H) - passed(query)};
      value_rows_bf16<H, true>(rows.v(row), offset, count, dim, w, 2 * kScoreStride, to, pad, ahead, share);
    } else {
      value_rows_bf16<H, false>(rows.v(row), offset, count, dim, w, 2 * kScoreStride, to, pad, {}, {});
    }
    query += H;
  };
  while (query < group.queries) {
    if (same_token(part, group, query) >= 2)
      run.template operator()<2>();
    else
      run.template operator()<1>();
  }
}

void weigh_rows_bf16(const Part& part, const AttentionGroup& group, const SegmentRows& rows, float* acc) {
  const auto tile = [&](int row, int count, std::int64_t head, Ahead ahead) {
    weigh_tile_bf16(part, group, rows, row, count, head, ahead, acc);
  };
  if (walk_pages(group, rows, rows.v(rows.begin), group.sequence->kv.v_head_stride, PageAhead::kStep, tile)) return;
  const int step = group.heads > 1 ? kTileRows : group.queries > 1 ? 2 * kTileRows : kDirectRows;
  for (int row = rows.begin; row < rows.end; row += step) {
    const int count = rows.end - row < step ? rows.end - row : step;
    PrefetchSlices slices = across_heads(group, rows.v(row) + count, step, group.sequence->kv.v_head_stride,
                                         part.v_shape.dim * 2, group.heads);
    for (std::int64_t head = 0; head < group.heads; ++head) {
      slices.next();
      tile(row, count, head, group.heads > 1 ? Ahead{} : rows.ahead(rows.v(row)));
    }
  }
}

// One panel against `queries` queries that see the same rows of it.
template <int C, bool Packed>
void weigh_panel(const std::uint16_t* panel, const std::byte* const* rows, int count, int n, const std::uint16_t* w,
                 std::int64_t queries, float* acc, std::int64_t pad, PrefetchSlices& slices) {
  constexpr int H = kPanelBlock;
  constexpr std::int64_t kStride = 2 * kScoreStride;
  std::int64_t query = 0;
  for (; queries - query >= H; query += H) {
    value_panel_bf16<H, C, Packed>(panel, rows, count, n, w + query * kStride, kStride, acc + query * pad, pad);
    slices.next();
  }
  for (; query < queries; ++query)
    value_panel_bf16<1, C, Packed>(panel, rows, count, n, w + query * kStride, kStride, acc + query * pad, pad);
}

void weigh_panels_bf16(const Part& part, const AttentionGroup& group, const SegmentRows& rows, float* acc) {
  constexpr int C = kPanelPairColumns / kPairLanes;
  const std::int64_t pad = part.v_shape.pad, dim = part.v_shape.dim, per_head = native_score_rows(part, group);
  std::uint16_t* panel = bf16(part, part.split.tile);
  for (int row = rows.begin; row < rows.end; row += kPanelPairRows) {
    const int count = rows.end - row < kPanelPairRows ? rows.end - row : kPanelPairRows;
    for (std::int64_t head = 0; head < group.heads; ++head) {
      const std::int64_t offset = head * group.sequence->kv.v_head_stride;
      PrefetchSlices slices(PrefetchSlices::kL2, rows.v(row) + kPanelPairRows, count, offset, dim * 2,
                            group.queries / kPanelBlock * ((dim + kPanelPairColumns - 1) / kPanelPairColumns));
      for (std::int64_t column = 0; column < dim; column += kPanelPairColumns) {
        const int n = static_cast<int>(dim - column < kPanelPairColumns ? dim - column : kPanelPairColumns);
        const std::byte* shown[kPanelPairRows];
        Spans held{{}, 0};  // visible rows of what the panel holds
        for (std::int64_t query = 0, same_rows; query < group.queries; query += same_rows) {
          same_rows = group.sequence->n == 1 ? group.queries : same_token(part, group, query);
          const Spans spans = visible_spans(part, group, query, rows.base() + row, 0, count);
          if (spans.count == 0) continue;
          const bool packed = group.queries >= kPackQueries || n < kPanelPairColumns;
          if (!same(spans, held)) {
            show_rows(rows.v(row), offset + column * 2, count, spans, shown);
            if (packed) pair_panel<C>(shown, 0, count, n, panel);
            held = spans;
          }
          const auto* w =
              reinterpret_cast<const std::uint16_t*>(part.scores() + (head * per_head + query) * kScoreStride);
          const auto weigh = packed ? weigh_panel<C, true> : weigh_panel<C, false>;
          weigh(panel, shown, count, n, w + row, same_rows, acc + (head * group.queries + query) * pad + column, pad,
                slices);
        }
      }
    }
  }
  for (std::int64_t result = 0; result < group.heads * group.queries; ++result) unpair_sums(acc + result * pad, dim);
}

struct NativePhases {
  static void pack(const Part& part, const AttentionGroup& group) { pack_queries_bf16(part, group); }
  static void run(const Part& part, const AttentionGroup& group, const SegmentRows& rows, const PartialNode& node) {
    score_segment_bf16(part, group, rows);
    softmax_scores(part, group, rows, native_score_rows(part, group), node, softmax_segment_bf16);
    for (std::int64_t i = 0; i < group.heads * group.queries * part.v_shape.pad; i += kLanes)
      store(node.acc + i, zero());
    if (group.queries >= kNativePanelQueries)
      weigh_panels_bf16(part, group, rows, node.acc);
    else
      weigh_rows_bf16(part, group, rows, node.acc);
    // A sum that underflowed is -0 or +0 by what followed it: hidden rows must not decide that.
    for (std::int64_t i = 0; i < group.heads * group.queries * part.v_shape.pad; i += kLanes)
      store(node.acc + i, load(node.acc + i) + zero());
  }
};

void run_part_bf16(const AttentionArgs& args, int parts, int part, std::byte* workspace, std::byte* partials) {
  run_part<NativePhases>(args, parts, part, workspace, partials);
}

}  // namespace

extern const NativeTable native_table;
const NativeTable native_table = {run_part_bf16};

}  // namespace kvroof::KVROOF_NS
