// Decode attention over any cache that can list its rows: out = softmax(mask(cap(q K^T * scale) + ALiBi)) V, split over
// segments of absolute position (split-KV flash decoding).
//
// Loop order: part > group > segment > { K: 16-row tile > KV head > queries } { softmax: KV head > query }
// { V: 16-row tile > KV head > queries }. Every K and V row is read from memory once for all queries of its KV head; a
// segment's scores (512 floats a query) stay in L1/L2 between the phases.
// Bytes: rows * (Dk*sK + Dv*sV + scales) a KV head; flops: 2*(Dk + Dv) a (query, row).
// Reproducible mode: every order of operations is fixed by position alone (reference/lane_twin.hpp), so parts, layouts,
// batch and chunk change who computes a segment, never its bits.
#include "kernels/simd/lanes.hpp"

#include "kernels/attention_split.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/ops/expand_latent.hpp"
#include "kernels/ops/merge_partials.hpp"
#include "kernels/ops/ops.hpp"
#include "kernels/ops/score_tile.hpp"
#include "kernels/ops/segment_rows.hpp"
#include "kernels/ops/softmax_segment.hpp"
#include "kernels/ops/value_tile.hpp"
#include "kernels/simd/float_environment.hpp"

namespace kvroof::KVROOF_NS {
namespace {

static_assert(sizeof(SegmentRows) <= kSegmentRowsBytes);
constexpr std::int64_t kPrefetchBytes = 8192;     // ahead of the row in use, into L1 ...
constexpr std::int64_t kPrefetchBytesF32 = 4096;  // ... measured best by storage (TUNING.md)

constexpr int kPanelRows = 64;              // 64 rows ...
constexpr std::int64_t kPanelColumns = 64;  // ... x 64 columns of V: 16 KiB of f32
constexpr std::int64_t kPanelQueries = 8;  // from here converting a row once beats converting it for every four queries
static_assert(kPanelRows * kPanelColumns <= kMinTileFloats);

// One part's view of the call: its workspace by name.
struct Part {
  const AttentionArgs& args;
  AttentionSplit split;
  std::byte* memory;
  TileShape k_shape, v_shape;

  Part(const AttentionArgs& a, int parts, int part, std::byte* workspace)
      : args(a),
        split(make_attention_split(a, parts)),
        memory(workspace + static_cast<std::size_t>(part) * split.part_bytes),
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

bool grouped_int8(const AttentionGroup& group) {
  return group.sequence->kv.k_storage == Storage::int8 && group.sequence->kv.latent_dim > 0;
}

QueryForms group_forms(const Part& part, const AttentionGroup& group) {
  return query_forms(group.queries, grouped_int8(group) && part.args.expansion == nullptr);
}

std::int64_t round_up_lanes(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

struct QueryIndex {
  std::int64_t token, head;  // new token r, query head h
};

QueryIndex query_index(const Part& part, const AttentionGroup& group, std::int64_t kv_head, std::int64_t query) {
  const std::int64_t number = group.query0 + query, G = part.split.group_heads;
  return {number / G, (group.head0 + kv_head) * G + number % G};
}

std::int64_t query_position(const AttentionGroup& group, std::int64_t token) {
  return group.sequence->kv.end_position - group.sequence->n + token;
}

// Queries of the group as the two score forms want them: padded rows, and [16-lane block][d][lane].
void pack_queries(const Part& part, const AttentionGroup& group) {
  const QueryForms forms = group_forms(part, group);
  const std::int64_t dk = part.k_shape.dim, pad = part.k_shape.pad;
  float* lanes = part.floats(part.split.q_lanes);
  float* rows = part.floats(part.split.q_rows);
  for (std::int64_t head = 0; head < group.heads; ++head) {
    for (std::int64_t query = 0; query < group.queries; ++query) {
      const QueryIndex index = query_index(part, group, head, query);
      const float* q =
          group.sequence->q + index.token * group.sequence->q_row_stride + index.head * group.sequence->q_head_stride;
      if (query < forms.lane_blocks * kLanes) {
        float* to = lanes + (head * forms.lane_blocks + query / kLanes) * pad * kLanes + query % kLanes;
        for (std::int64_t d = 0; d < dk; ++d) to[d * kLanes] = q[d];
      } else {
        float* to = rows + (head * forms.row_queries + query - forms.lane_blocks * kLanes) * pad;
        for (std::int64_t d = 0; d < dk; ++d) to[d] = q[d];
        for (std::int64_t d = dk; d < pad; ++d) to[d] = 0.0f;
      }
    }
    for (std::int64_t lane = group.queries; lane < forms.lane_blocks * kLanes;
         ++lane) {  // empty lanes of the last block
      float* to = lanes + (head * forms.lane_blocks + lane / kLanes) * pad * kLanes + lane % kLanes;
      for (std::int64_t d = 0; d < dk; ++d) to[d * kLanes] = 0.0f;
    }
  }
}

std::int64_t score_rows_per_head(const Part& part, const AttentionGroup& group) {
  const QueryForms forms = group_forms(part, group);
  return forms.lane_blocks * kLanes + forms.row_queries;
}

template <Storage S, bool Grouped>
void score_segment(const Part& part, const AttentionGroup& group, const SegmentRows& rows, int distance) {
  const QueryForms forms = group_forms(part, group);
  const std::int64_t per_head = score_rows_per_head(part, group);
  const KvView& kv = group.sequence->kv;
  for (int row = rows.begin; row < rows.end; row += kTileRows) {
    for (std::int64_t head = 0; head < group.heads; ++head) {
      score_tile<S, Grouped>(rows.k(row), head * kv.k_head_stride, kv.latent_dim,
                             part.floats(part.split.q_lanes) + head * forms.lane_blocks * part.k_shape.pad * kLanes,
                             part.floats(part.split.q_rows) + head * forms.row_queries * part.k_shape.pad, forms,
                             part.k_shape, part.floats(part.split.tile),
                             part.scores() + head * per_head * kScoreStride + row, kScoreStride,
                             distance > 0 ? rows.k(row) + distance : nullptr);
    }
  }
}

// The latents of rows [row, row + count) as f32.
template <Storage S, bool Grouped>
void widen_latents(const Part& part, const AttentionGroup& group, const SegmentRows& rows, int row, int count,
                   const float** latent) {
  const std::int64_t dim = group.sequence->kv.latent_dim;
  widen_rows<S, Grouped>(rows.k(row), count, 0, {0, dim, dim}, part.floats(part.split.latents), part.split.latent_pad,
                         latent);
}

// Scores against keys that are expanded from the latent, 64 rows at a time, and forgotten again.
template <Storage S, bool Grouped>
void score_expanded(const Part& part, const AttentionGroup& group, const SegmentRows& rows) {
  const LatentExpansion& expansion = *part.args.expansion;
  const std::int64_t latent_dim = group.sequence->kv.latent_dim, pad = part.k_shape.pad;
  const std::int64_t nope = part.k_shape.dim - expansion.rope_dim;
  const float* w = expansion.w_uk + group.head0 * round_up_lanes(nope) * latent_dim;
  const QueryForms forms = group_forms(part, group);
  float* keys = part.floats(part.split.expanded);
  for (int row = rows.begin; row < rows.end; row += kPanelRows) {
    const int count = rows.end - row < kPanelRows ? rows.end - row : kPanelRows;
    const float* wide[kPanelRows];
    widen_latents<S, Grouped>(part, group, rows, row, count, wide);
    expand_latent(wide, count, latent_dim, w, nope, keys, pad);
    const std::byte* key_rows[kPanelRows];
    const float* unused[kTileRows];
    for (int r = 0; r < count; ++r) {
      float* key = keys + r * pad;
      key_rows[r] = reinterpret_cast<const std::byte*>(key);
      widen_rows<S, Grouped>(rows.k(row + r), 1, 0, {latent_dim, expansion.rope_dim, latent_dim}, key + nope, pad,
                             unused);
      if (S == Storage::f32)
        __builtin_memcpy(key + nope, unused[0], static_cast<std::size_t>(expansion.rope_dim) * sizeof(float));
    }
    for (int r = 0; r < count; r += kTileRows)
      score_tile<Storage::f32, false>(key_rows + r, 0, 0, part.floats(part.split.q_lanes),
                                      part.floats(part.split.q_rows), forms, part.k_shape, nullptr,
                                      part.scores() + row + r, kScoreStride, nullptr);
  }
}

Spans visible_spans(const Part& part, const AttentionGroup& group, std::int64_t query, std::int64_t base, int from,
                    int to) {
  const std::int64_t i = query_position(group, (group.query0 + query) / part.split.group_heads);
  const std::int64_t window = part.args.options.window, kept = part.args.options.kept_tokens;
  return cut_spans(kept < i + 1 ? kept : i + 1, i < window ? 0 : i - window + 1, i + 1, base, from, to);
}

void softmax_scores(const Part& part, const AttentionGroup& group, const SegmentRows& rows, const PartialNode& node) {
  const AttentionOptions& options = part.args.options;
  const KvView& kv = group.sequence->kv;
  const std::int64_t per_head = score_rows_per_head(part, group);
  float* k_scale = kv.k_storage == Storage::int8 && kv.latent_dim == 0 ? part.floats(part.split.row_floats) : nullptr;
  float* v_scale =
      kv.v_storage == Storage::int8 && kv.latent_dim == 0 ? part.floats(part.split.row_floats) + kScoreStride : nullptr;
  float* distance = options.alibi_slopes != nullptr ? part.floats(part.split.row_floats) + 2 * kScoreStride : nullptr;
  std::int64_t distance_token = -1;
  for (std::int64_t head = 0; head < group.heads; ++head) {
    if (k_scale != nullptr) fill_scales(group, rows, group.head0 + head, true, k_scale);
    if (v_scale != nullptr) fill_scales(group, rows, group.head0 + head, false, v_scale);
    for (std::int64_t query = 0; query < group.queries; ++query) {
      const QueryIndex index = query_index(part, group, head, query);
      if (distance != nullptr && index.token != distance_token) {
        distance_token = index.token;
        const std::int64_t i = query_position(group, index.token);
        for (int row = rows.begin; row < rows.end; ++row) distance[row] = static_cast<float>(rows.base() + row - i);
      }
      const Spans visible = visible_spans(part, group, query, rows.base(), rows.begin, rows.end);
      const std::int64_t result = head * group.queries + query;
      if (visible.count == 0) {
        node.max[result] = -kInfinity;
        node.sum[result] = 0.0f;
        continue;
      }
      const ScoreOptions score{options.scale,
                               options.softcap,
                               k_scale,
                               v_scale,
                               distance != nullptr ? options.alibi_slopes[index.head] : 0.0f,
                               distance};
      const Softmax s = softmax_segment(part.scores() + (head * per_head + query) * kScoreStride, rows.begin, rows.end,
                                        visible, score);
      node.max[result] = s.max;
      node.sum[result] = s.sum;
    }
  }
}

// Prefetches the rows that follow a tile's in slices, one per block of arithmetic, instead of all at once.
class PrefetchSlices {
 public:
  PrefetchSlices(const std::byte* const* ahead, int rows, std::int64_t offset, std::int64_t bytes, std::int64_t slices)
      : ahead_(ahead), rows_(ahead == nullptr ? 0 : rows), offset_(offset), bytes_(bytes), slices_(slices) {}
  void next() {
    if (slice_ == slices_) return;
    const std::int64_t end = rows_ * ++slice_ / slices_;
    prefetch_rows(ahead_, row_, end, offset_, bytes_);
    row_ = end;
  }

 private:
  const std::byte* const* ahead_;
  std::int64_t row_ = 0, rows_, offset_, bytes_, slice_ = 0, slices_;
};

// acc[query][..] += weights of rows [row, row + count) times `dim` columns of V, found at from[r] + offset.
template <Storage S, bool Prefetch>
void value_tile(const Part& part, const AttentionGroup& group, const SegmentRows& rows, int row, int count,
                std::int64_t head, const std::byte* const* from, std::int64_t offset, std::int64_t dim, float* acc,
                const std::byte* const* ahead, PrefetchSlices* slices) {
  const float* w = part.scores() + head * score_rows_per_head(part, group) * kScoreStride + row;
  const std::int64_t pad = part.v_shape.pad;
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
      if (Prefetch && ahead != nullptr)
        value_rows<S, H, Prefetch>(from, offset, span.begin, span.end, dim, w + query * kScoreStride, kScoreStride,
                                   acc + query * pad, pad, ahead + span.begin);
      else
        value_rows<S, H, false>(from, offset, span.begin, span.end, dim, w + query * kScoreStride, kScoreStride,
                                acc + query * pad, pad, nullptr);
    }
    ahead = nullptr;
    if (slices != nullptr) slices->next();
    query += H;
    return true;
  };
  while (query < group.queries) {
    const std::int64_t left = group.queries - query;
    // straight from memory two queries read whole rows in one pass; four would come back for the second half
    if ((!Prefetch || kBatches > 1) && left >= 4 && run.template operator()<4>()) continue;
    if (left >= 2 && run.template operator()<2>()) continue;
    run.template operator()<1>();
  }
}

// Few queries: a row goes from memory straight into the sums.
template <Storage S>
void weigh_rows(const Part& part, const AttentionGroup& group, const SegmentRows& rows, int distance, float* acc) {
  const std::int64_t head_stride = group.sequence->kv.v_head_stride;
  // several heads take turns on few rows, so that memory is still read in order; one head alone starts a tile less
  // often
  const int step = group.heads > 1 ? kTileRows : group.queries > 1 ? 2 * kTileRows : kPanelRows;
  for (int row = rows.begin; row < rows.end; row += step) {
    const int count = rows.end - row < step ? rows.end - row : step;
    for (std::int64_t head = 0; head < group.heads; ++head)
      value_tile<S, true>(part, group, rows, row, count, head, rows.v(row), head * head_stride, part.v_shape.dim,
                          acc + head * group.queries * part.v_shape.pad,
                          distance > 0 ? rows.v(row) + distance : nullptr, nullptr);
  }
}

// Many queries: a panel of 64 rows x 64 columns is widened once into L1 and met by every query, so that neither the
// conversion nor loading and storing the sums weighs against the FMAs.
template <Storage S, bool Grouped>
void weigh_panels(const Part& part, const AttentionGroup& group, const SegmentRows& rows, int distance, float* acc) {
  const std::int64_t dim = part.v_shape.dim, pad = part.v_shape.pad,
                     bytes = static_cast<std::int64_t>(storage_bytes(S));
  float* scratch = part.floats(part.split.tile);
  const std::int64_t blocks = (group.queries + 3) / 4 * ((dim + kPanelColumns - 1) / kPanelColumns);
  for (int row = rows.begin; row < rows.end; row += kPanelRows) {
    const int count = rows.end - row < kPanelRows ? rows.end - row : kPanelRows;
    for (std::int64_t head = 0; head < group.heads; ++head) {
      const std::int64_t offset = head * group.sequence->kv.v_head_stride;
      PrefetchSlices slices(distance > 0 ? rows.v(row) + kPanelRows : nullptr, count, offset, dim * bytes, blocks);
      for (std::int64_t column = 0; column < dim; column += kPanelColumns) {
        const std::int64_t columns = dim - column < kPanelColumns ? dim - column : kPanelColumns;
        const float* wide[kPanelRows];
        widen_rows<S, Grouped>(rows.v(row), count, offset, {column, columns, group.sequence->kv.latent_dim}, scratch,
                               kPanelColumns, wide);
        value_tile<Storage::f32, false>(part, group, rows, row, count, head,
                                        reinterpret_cast<const std::byte* const*>(wide), 0, columns,
                                        acc + head * group.queries * pad + column, nullptr, &slices);
      }
    }
  }
}

// Values expanded from the latent, 64 rows at a time.
template <Storage S, bool Grouped>
void weigh_expanded(const Part& part, const AttentionGroup& group, const SegmentRows& rows, float* acc) {
  const std::int64_t latent_dim = group.sequence->kv.latent_dim, pad = part.v_shape.pad, dim = part.v_shape.dim;
  const float* w = part.args.expansion->w_uv + group.head0 * pad * latent_dim;
  float* values = part.floats(part.split.expanded);
  for (int row = rows.begin; row < rows.end; row += kPanelRows) {
    const int count = rows.end - row < kPanelRows ? rows.end - row : kPanelRows;
    const float* wide[kPanelRows];
    widen_latents<S, Grouped>(part, group, rows, row, count, wide);
    expand_latent(wide, count, latent_dim, w, dim, values, pad);
    for (int r = 0; r < count; ++r) wide[r] = values + r * pad;
    value_tile<Storage::f32, false>(part, group, rows, row, count, 0, reinterpret_cast<const std::byte* const*>(wide),
                                    0, dim, acc, nullptr, nullptr);
  }
}

void finish_group(const Part& part, const AttentionGroup& group, const PartialNode& node) {
  const AttentionSequence& sequence = *group.sequence;
  const std::int64_t dim = part.v_shape.dim, pad = part.v_shape.pad;
  for (std::int64_t head = 0; head < group.heads; ++head) {
    for (std::int64_t query = 0; query < group.queries; ++query) {
      const QueryIndex index = query_index(part, group, head, query);
      const std::int64_t result = head * group.queries + query;
      const float m = node.max[result], l = node.sum[result];
      const float* acc = node.acc + result * pad;
      float* out = sequence.out + index.token * sequence.out_row_stride + index.head * sequence.out_head_stride;
      const float* sinks = part.args.options.sink_logits;
      const bool empty = m == -kInfinity && l == 0.0f;
      float top = m, total = l, factor = 1.0f;
      if (sinks != nullptr) {
        const float sink = sinks[index.head];
        top = m > sink ? m : sink;
        if (!empty && sink != -kInfinity) {
          factor = exp1(m - top);
          total = __builtin_fmaf(l, factor, exp1(sink - top));
        }
        if (empty) total = sink != sink ? sink : 0.0f;
      }
      if (empty) {
        const float value = total != total ? quiet_nan() : 0.0f;
        for (std::int64_t d = 0; d < dim; ++d) out[d] = value;
      } else {
        const Vec16 scaled = broadcast(factor), divisor = broadcast(total);
        for (std::int64_t d = 0; d < dim; d += kLanes) {
          alignas(64) float y[kLanes];
          store(y, (load(acc + d) * scaled) / divisor);
          const int count = dim - d < kLanes ? static_cast<int>(dim - d) : kLanes;
          for (int i = 0; i < count; ++i) out[d + i] = canonical(y[i]);
        }
      }
      if (sequence.lse != nullptr) {
        sequence.lse[index.token * part.args.shape.query_heads + index.head] =
            canonical(empty ? top : top + log1(total));
      }
    }
  }
}

int prefetch_distance(const Part& part, const AttentionGroup& group) {  // rows; 0: off
  if (part.args.expansion != nullptr) return 0;                         // compute-bound by far
  const Storage storage = group.sequence->kv.k_storage;
  const std::int64_t bytes = group.heads * part.k_shape.dim * static_cast<std::int64_t>(storage_bytes(storage));
  const std::int64_t rows = (storage == Storage::f32 ? kPrefetchBytesF32 : kPrefetchBytes) / bytes;
  return static_cast<int>(rows < 1 ? 1 : rows < kMaxAhead - kTileRows ? rows : kMaxAhead - kTileRows);
}

template <Storage S, bool Grouped>
void score(const Part& part, const AttentionGroup& group, const SegmentRows& rows, int distance) {
  if (part.args.expansion != nullptr)
    score_expanded<S, Grouped>(part, group, rows);
  else
    score_segment<S, Grouped>(part, group, rows, distance);
}

template <Storage S, bool Grouped>
void weigh(const Part& part, const AttentionGroup& group, const SegmentRows& rows, int distance, float* acc) {
  if (part.args.expansion != nullptr)
    weigh_expanded<S, Grouped>(part, group, rows, acc);
  else if (Grouped || group.queries >= kPanelQueries)
    weigh_panels<S, Grouped>(part, group, rows, distance, acc);
  else if constexpr (!Grouped)
    weigh_rows<S>(part, group, rows, distance, acc);
}

void run_segment(const Part& part, const AttentionGroup& group, const SegmentRows& rows, const PartialNode& node) {
  const int distance = prefetch_distance(part, group);
  const bool grouped = grouped_int8(group);
  switch (group.sequence->kv.k_storage) {
    case Storage::f32: score<Storage::f32, false>(part, group, rows, distance); break;
    case Storage::f16: score<Storage::f16, false>(part, group, rows, distance); break;
    case Storage::bf16: score<Storage::bf16, false>(part, group, rows, distance); break;
    case Storage::int8:
      if (grouped)
        score<Storage::int8, true>(part, group, rows, distance);
      else
        score<Storage::int8, false>(part, group, rows, distance);
      break;
  }
  softmax_scores(part, group, rows, node);
  for (std::int64_t i = 0; i < group.heads * group.queries * part.v_shape.pad; i += kLanes) store(node.acc + i, zero());
  switch (group.sequence->kv.v_storage) {
    case Storage::f32: weigh<Storage::f32, false>(part, group, rows, distance, node.acc); break;
    case Storage::f16: weigh<Storage::f16, false>(part, group, rows, distance, node.acc); break;
    case Storage::bf16: weigh<Storage::bf16, false>(part, group, rows, distance, node.acc); break;
    case Storage::int8:
      if (grouped)
        weigh<Storage::int8, true>(part, group, rows, distance, node.acc);
      else
        weigh<Storage::int8, false>(part, group, rows, distance, node.acc);
      break;
  }
}

PartialsEntry* partials_entry(const Part& part, std::byte* partials, std::int64_t group_id) {
  return reinterpret_cast<PartialsEntry*>(partials +
                                          static_cast<std::size_t>(group_id) * partials_entry_bytes(part.split));
}

PartialNode entry_node(const Part& part, PartialsEntry* entry, int i) {
  float* f = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(entry) + kPartialsHeaderBytes +
                                      static_cast<std::size_t>(i) * part.split.node_bytes);
  const std::int64_t results = entry->results, pad = part.split.dv_pad;
  return {entry->nodes[i].index, entry->nodes[i].level, f + results * pad, f + results * pad + results, f};
}

// All nodes of a group are there: write its outputs, or leave the nodes where another process will join them to its
// own.
void finish_nodes(const Part& part, const AttentionGroup& group, PartialNode* nodes, int count, std::byte* partials) {
  const std::int64_t results = group.heads * group.queries, pad = part.split.dv_pad;
  if (partials == nullptr) {
    finish_group(part, group, merge_root(nodes, count, results, pad));
    return;
  }
  PartialsEntry* entry = partials_entry(part, partials, group.id);
  entry->node_count = count;
  for (int i = 0; i < count; ++i) {
    entry->nodes[i].index = nodes[i].index;
    entry->nodes[i].level = nodes[i].level;
    __builtin_memcpy(entry_node(part, entry, i).acc, nodes[i].acc,
                     static_cast<std::size_t>(results * (pad + 2)) * sizeof(float));  // acc, max and sum lie together
  }
}

}  // namespace

void attention_finish_partials(const AttentionArgs& args, std::byte* const* blocks, std::size_t count) {
  const FloatEnvironment environment;
  const Part part(args, 1, 0, nullptr);
  AttentionCursor cursor(args, part.split, 1, 0);
  AttentionGroup group;
  while (cursor.next_group(group)) {
    const std::int64_t results = group.heads * group.queries;
    PartialNode nodes[kMaxNodes];
    int joined = 0;
    for (std::size_t b = 0; b < count; ++b) {
      PartialsEntry* entry = partials_entry(part, blocks[b], group.id);
      for (int i = 0; i < entry->node_count; ++i)
        joined = push_node(nodes, joined, entry_node(part, entry, i), results, part.split.dv_pad);
    }
    finish_group(part, group, merge_root(nodes, joined, results, part.split.dv_pad));
  }
}

void attention_run_part(const AttentionArgs& args, int parts, int part_index, std::byte* workspace,
                        std::byte* partials) {
  const FloatEnvironment environment;
  const Part part(args, parts, part_index, workspace);
  if (part.split.part_bytes == 0) return;  // no queries: nothing to do, and no workspace to note it in
  part.open(0)->group_id = part.open(1)->group_id = -1;
  AttentionCursor cursor(args, part.split, parts, part_index);
  AttentionCursor::Item item, next;
  bool more = cursor.next(item);
  if (more) fill_segment_rows(item.group, item.segment, *part.rows(0));
  int slot = 0;  // 0: the part's first group, which may have begun in an earlier part; 1: every later one
  std::int64_t packed = -1;
  for (int side = 0; more; side ^= 1) {
    more = cursor.next(next);
    if (more) fill_segment_rows(next.group, next.segment, *part.rows(side ^ 1));
    const AttentionGroup& group = item.group;
    const std::int64_t results = group.heads * group.queries;
    if (packed != group.id) {
      if (packed != -1) slot = 1;
      packed = group.id;
      pack_queries(part, group);
      OpenGroup* open = part.open(slot);
      open->group_id = group.id;
      open->is_first = item.ordinal == 0;
      open->is_last = 0;
      open->node_count = 0;
    }
    OpenGroup* open = part.open(slot);
    PartialNode leaf = part.node(slot, open->node_count, results);
    leaf.index = item.segment;
    link_rows(*part.rows(side), more ? part.rows(side ^ 1) : nullptr);
    run_segment(part, group, *part.rows(side), leaf);
    open->node_count = push_node(open->nodes, open->node_count, leaf, results, part.split.dv_pad);
    if (item.ordinal + 1 == group.segments) {
      open->is_last = 1;
      if (open->is_first) {  // nobody else has a share of it
        finish_nodes(part, group, open->nodes, open->node_count, partials);
        open->group_id = -1;
      }
    }
    item = next;
  }
}

void attention_merge_part(const AttentionArgs& args, int parts, int part_index, std::byte* workspace,
                          std::byte* partials) {
  const FloatEnvironment environment;
  const Part part(args, parts, part_index, workspace);
  if (part.split.part_bytes == 0) return;
  // the group that begins here and ends in a later part, if any
  OpenGroup* begun = nullptr;
  for (int i = 0; i < 2; ++i)
    if (part.open(i)->group_id != -1 && part.open(i)->is_first) begun = part.open(i);
  if (begun == nullptr) return;
  AttentionCursor cursor(args, part.split, parts, part_index);
  AttentionCursor::Item item;
  do {
    if (!cursor.next(item)) return;
  } while (item.group.id != begun->group_id);
  const std::int64_t results = item.group.heads * item.group.queries;
  PartialNode forest[kMaxNodes];
  int count = 0;
  for (int p = part_index; p < parts; ++p) {
    const Part other(args, parts, p, workspace);
    OpenGroup* open = p == part_index ? begun : other.open(0);
    if (open->group_id != begun->group_id) continue;  // a part without work
    for (int i = 0; i < open->node_count; ++i)
      count = push_node(forest, count, open->nodes[i], results, part.split.dv_pad);
    if (open->is_last) break;
  }
  finish_nodes(part, item.group, forest, count, partials);
}

}  // namespace kvroof::KVROOF_NS
