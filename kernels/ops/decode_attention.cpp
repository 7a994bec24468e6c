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

#include "kernels/kernel_table.hpp"
#include "kernels/ops/expanded_segment.hpp"
#include "kernels/ops/finish_group.hpp"
#include "kernels/ops/merge_partials.hpp"
#include "kernels/ops/ops.hpp"
#include "kernels/ops/run_part.hpp"
#include "kernels/ops/score_segment.hpp"
#include "kernels/ops/shared_prefix.hpp"
#include "kernels/ops/softmax_scores.hpp"
#include "kernels/ops/weigh_segment.hpp"
#include "kernels/simd/float_environment.hpp"

namespace kvroof::KVROOF_NS {
namespace {

template <Storage S, bool Grouped>
void score(const Part& part, const AttentionGroup& group, const SegmentRows& rows) {
  if (part.args.expansion != nullptr)
    score_expanded<S, Grouped>(part, group, rows);
  else
    score_segment<S, Grouped>(part, group, rows);
}

// From here a panel that is widened once beats rows straight from memory. On AVX-512 eight queries share a row that is
// converted on the way.
template <Storage S>
constexpr std::int64_t kPanelQueries = kBatches == 1 ? 9 : 8;

template <Storage S, bool Grouped>
void weigh(const Part& part, const AttentionGroup& group, const SegmentRows& rows, float* acc) {
  if (part.args.expansion != nullptr)
    weigh_expanded<S, Grouped>(part, group, rows, acc);
  else if (Grouped || (group.queries >= kPanelQueries<S> && !rows_as_panels(part, group)))
    weigh_panels<S, Grouped>(part, group, rows, acc);
  else if constexpr (!Grouped)
    weigh_rows<S>(part, group, rows, acc);
}

void run_segment(const Part& part, const AttentionGroup& group, const SegmentRows& rows, const PartialNode& node) {
  const bool grouped = grouped_int8(group);
  if (group.sequence->kv.latent_dim == 0) {
    // heads side by side share lines of scales: the first one brings them
    const std::int64_t heads = group.sequence->kv.k_scale_head_stride == 1 ? 1 : group.heads;
    for (std::int64_t head = group.head0; head < group.head0 + heads; ++head) {
      if (group.sequence->kv.k_storage == Storage::int8) prefetch_scales(group, rows, head, true);
      if (group.sequence->kv.v_storage == Storage::int8) prefetch_scales(group, rows, head, false);
    }
  }
  switch (group.sequence->kv.k_storage) {
    case Storage::f32: score<Storage::f32, false>(part, group, rows); break;
    case Storage::f16: score<Storage::f16, false>(part, group, rows); break;
    case Storage::bf16: score<Storage::bf16, false>(part, group, rows); break;
    case Storage::int8:
      if (grouped)
        score<Storage::int8, true>(part, group, rows);
      else
        score<Storage::int8, false>(part, group, rows);
      break;
  }
  softmax_scores(part, group, rows, score_rows_per_head(part, group), node, softmax_segment);
  for (std::int64_t i = 0; i < group.heads * group.queries * part.v_shape.pad; i += kLanes) store(node.acc + i, zero());
  switch (group.sequence->kv.v_storage) {
    case Storage::f32: weigh<Storage::f32, false>(part, group, rows, node.acc); break;
    case Storage::f16: weigh<Storage::f16, false>(part, group, rows, node.acc); break;
    case Storage::bf16: weigh<Storage::bf16, false>(part, group, rows, node.acc); break;
    case Storage::int8:
      if (grouped)
        weigh<Storage::int8, true>(part, group, rows, node.acc);
      else
        weigh<Storage::int8, false>(part, group, rows, node.acc);
      break;
  }
}

struct ReproduciblePhases {
  static void pack(const Part& part, const AttentionGroup& group) { pack_queries(part, group); }
  static void run(const Part& part, const AttentionGroup& group, const SegmentRows& rows, const PartialNode& node) {
    run_segment(part, group, rows, node);
  }
};

// The group that begins in this part and ends in a later one, if any.
void join_begun_group(const Part& part, int parts, int part_index, std::byte* workspace, std::byte* partials) {
  OpenGroup* begun = nullptr;
  for (int i = 0; i < 2; ++i)
    if (part.open(i)->group_id != -1 && part.open(i)->is_first) begun = part.open(i);
  if (begun == nullptr) return;
  AttentionCursor cursor(part.args, part.split, parts, part_index);
  AttentionCursor::Item item;
  do {
    if (!cursor.next(item)) return;
  } while (item.group.id != begun->group_id);
  if (item.group.store >= 0) return;  // join_shared_prefixes finds its nodes where they are
  const std::int64_t results = item.group.heads * item.group.queries;
  PartialNode forest[kMaxNodes];
  int count = 0;
  for (int p = part_index; p < parts; ++p) {
    const Part other(part.args, part.split, parts, p, workspace);
    OpenGroup* open = p == part_index ? begun : other.open(0);
    if (open->group_id != begun->group_id) continue;  // a part without work
    for (int i = 0; i < open->node_count; ++i)
      count = push_node(forest, count, open->nodes[i], results, part.split.dv_pad);
    if (open->is_last) break;
  }
  finish_nodes(part, item.group, forest, count, partials);
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
        joined =
            push_node(nodes, joined, entry_node(part, entry, part.split.node_bytes, i), results, part.split.dv_pad);
    }
    finish_group(part, group, merge_root(nodes, joined, results, part.split.dv_pad));
  }
}

void attention_run_part(const AttentionArgs& args, int parts, int part, std::byte* workspace, std::byte* partials) {
  run_part<ReproduciblePhases>(args, parts, part, workspace, partials);
}

void attention_merge_part(const AttentionArgs& args, int parts, int part_index, std::byte* workspace,
                          std::byte* partials) {
  const FloatEnvironment environment;
  const Part part(args, parts, part_index, workspace);
  if (part.split.part_bytes == 0) return;
  join_begun_group(part, parts, part_index, workspace, partials);
  join_shared_prefixes(part, parts, part_index, workspace);
}

}  // namespace kvroof::KVROOF_NS
