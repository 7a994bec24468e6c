// One part's view of a call: its share of the workspace by name, and the numbering of its queries.
#pragma once

#include "kernels/attention_split.hpp"
#include "kernels/ops/score_tile.hpp"
#include "kernels/ops/segment_rows.hpp"
#include "kernels/simd/lanes.hpp"

namespace kvroof::KVROOF_NS {
namespace {

constexpr int kPanelRows = 128;    // 128 rows ...
constexpr int kPanelColumns = 64;  // ... x 64 columns of V: 32 KiB of f32
constexpr std::int64_t kPanelCopyQueries = 64;
constexpr int kExpandedRows = 64;  // latents that are expanded at a time
static_assert(kPanelRows * kPanelColumns <= kMinTileFloats);

static_assert(sizeof(SegmentRows) <= kSegmentRowsBytes);

// One part's view of the call: its workspace by name.
struct Part {
  const AttentionArgs& args;
  AttentionSplit split;
  std::byte* memory;
  std::byte* store;  // behind all parts
  TileShape k_shape, v_shape;

  Part(const AttentionArgs& a, int parts, int part, std::byte* workspace)
      : Part(a, make_attention_split(a, parts), parts, part, workspace) {}
  Part(const AttentionArgs& a, const AttentionSplit& s, int parts, int part, std::byte* workspace)
      : args(a),
        split(s),
        memory(workspace + static_cast<std::size_t>(part) * split.part_bytes),
        store(workspace + static_cast<std::size_t>(parts) * split.part_bytes),
        k_shape{a.shape.key_dim, split.dk_pad},
        v_shape{a.shape.value_dim, split.dv_pad} {}

  float* floats(std::size_t offset) const { return reinterpret_cast<float*>(memory + offset); }
  float* scores() const { return floats(split.scores); }
  SegmentRows* rows(int i) const { return reinterpret_cast<SegmentRows*>(memory + split.row_tables) + i; }
  OpenGroup* open(int i) const { return reinterpret_cast<OpenGroup*>(memory + split.open_groups) + i; }
  // Memory of node i of open group `slot`. Accumulators come first: they keep the 64-byte alignment.
  PartialNode node(int slot, int i, std::int64_t results) const {
    float* f = reinterpret_cast<float*>(memory + split.nodes +
                                        static_cast<std::size_t>(slot * split.node_slots + i) * split.node_bytes);
    return {0, 0, f + results * split.dv_pad, f + results * split.dv_pad + results, f};
  }
};

inline bool grouped_int8(const AttentionGroup& group) {
  return group.sequence->kv.k_storage == Storage::int8 && group.sequence->kv.latent_dim > 0;
}

inline QueryForms group_forms(const Part& part, const AttentionGroup& group) {
  return query_forms(group.queries, grouped_int8(group) && part.args.expansion == nullptr);
}

inline std::int64_t round_up_lanes(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

struct QueryIndex {
  std::int64_t token, head;  // new token r, or sharer of a prefix; query head h
};

inline QueryIndex query_index(const Part& part, const AttentionGroup& group, std::int64_t kv_head, std::int64_t query) {
  const std::int64_t number = group.query0 + query, G = part.split.group_heads;
  return {number / G, (group.head0 + kv_head) * G + number % G};
}

inline std::int64_t query_position(const AttentionGroup& group, std::int64_t token) {
  if (group.sharers > 1) return group.sequence[token].kv.end_position - 1;
  return group.sequence->kv.end_position - group.sequence->n + token;
}

inline const float* query_row(const AttentionGroup& group, QueryIndex index) {
  const AttentionSequence& sequence = group.sequence[group.sharers > 1 ? index.token : 0];
  const std::int64_t token = group.sharers > 1 ? 0 : index.token;
  return sequence.q + token * sequence.q_row_stride + index.head * sequence.q_head_stride;
}

// Queries of the group as the two score forms want them: padded rows, and blocks of 16 packed like rows.
inline void pack_queries(const Part& part, const AttentionGroup& group) {
  const QueryForms forms = group_forms(part, group);
  const std::int64_t dk = part.k_shape.dim, pad = part.k_shape.pad;
  float* lanes = part.floats(part.split.q_lanes);
  float* rows = part.floats(part.split.q_rows);
  for (std::int64_t head = 0; head < group.heads; ++head) {
    for (std::int64_t block = 0; block < forms.lane_blocks; ++block) {
      const std::byte* from[kLanes];
      for (std::int64_t i = 0; i < kLanes; ++i) {  // a block that is not full repeats the last query: nobody looks
        const std::int64_t query = block * kLanes + i, last = group.queries - 1;
        from[i] = reinterpret_cast<const std::byte*>(
            query_row(group, query_index(part, group, head, query < last ? query : last)));
      }
      float* to = lanes + (head * forms.lane_blocks + block) * pad * kLanes;
      PackedRows<Storage::f32, false>(from, kLanes, {0, dk, pad, 0}, false, to).pack_all();
    }
    for (std::int64_t query = forms.lane_blocks * kLanes; query < group.queries; ++query) {
      const float* q = query_row(group, query_index(part, group, head, query));
      float* to = rows + (head * forms.row_queries + query - forms.lane_blocks * kLanes) * pad;
      for (std::int64_t d = 0; d < dk; ++d) to[d] = q[d];
      for (std::int64_t d = dk; d < pad; ++d) to[d] = 0.0f;
    }
  }
}

inline std::int64_t score_rows_per_head(const Part& part, const AttentionGroup& group) {
  const QueryForms forms = group_forms(part, group);
  return forms.lane_blocks * kLanes + forms.row_queries;
}

inline Spans visible_spans(const Part& part, const AttentionGroup& group, std::int64_t query, std::int64_t base,
                           int from, int to) {
  const std::int64_t i = query_position(group, (group.query0 + query) / part.split.group_heads);
  const std::int64_t window = part.args.options.window, kept = part.args.options.kept_tokens;
  return cut_spans(kept < i + 1 ? kept : i + 1, i < window ? 0 : i - window + 1, i + 1, base, from, to);
}

// One query a head and heads side by side in every row (token-major).
inline bool rows_across_heads(const AttentionGroup& group) {
  return group.queries == 1 && group.heads >= kAccumulators && group.heads <= HeadsAhead::kMaxHeads &&
         page_block_rows(group.sequence->kv) == 0;
}

constexpr std::int64_t kWakeBytes = 16384;  // ahead, where runs are short

inline Fetch fetch_along(const Part& part, const AttentionGroup& group) {
  const KvView& kv = group.sequence->kv;
  if (part.args.expansion != nullptr) return {};  // compute-bound by far
  FetchOrder order = fetch_order();
  if (order.streams == 1 && kv.k_storage == Storage::f32) order.bytes /= 2;  // measured best (TUNING.md)
  std::int64_t bytes = part.k_shape.dim * static_cast<std::int64_t>(storage_bytes(kv.k_storage));
  const bool pages = page_block_rows(kv) > 0;
  if (!pages) bytes *= group.heads;  // side by side
  const auto rows = [bytes](std::int64_t distance, int least, int most) {
    int n = least;
    while (n < most && 2 * n * bytes <= distance) n *= 2;
    return n;
  };
  if (order.streams > 1)
    return {order.streams,
            rows(pages ? order.page_bytes : order.bytes, pages ? PageAhead::kStep : kFetchStreams, kMaxFetchRows), 0};
  const bool short_runs = kv.run_count > kv.end_position / kSegmentRows + 4;  // pages, not a ring's two or three runs
  return {1, rows(order.bytes, 1, kMaxFetchRows / 2), short_runs ? rows(kWakeBytes, 1, kMaxFetchRows / 2) : 0};
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
