// The walk of one part over its items: rows of the next segment are looked up while this one's are read, finished
// segments are joined as soon as the tree allows it.
#pragma once

#include "kernels/ops/attention_part.hpp"
#include "kernels/ops/finish_group.hpp"
#include "kernels/ops/merge_partials.hpp"
#include "kernels/simd/float_environment.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// Phases::pack(part, group) lays out a group's queries; Phases::run(part, group, rows, node) leaves a segment's max,
// sum and accumulators in the node.
template <class Phases>
inline void run_part(const AttentionArgs& args, int parts, int part_index, std::byte* workspace, std::byte* partials) {
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
      Phases::pack(part, group);
      OpenGroup* open = part.open(slot);
      open->group_id = group.id;
      open->is_first = item.ordinal == 0;
      open->is_last = 0;
      open->node_count = 0;
    }
    OpenGroup* open = part.open(slot);
    PartialNode leaf = part.node(slot, open->node_count, results);
    leaf.index = item.segment;
    link_rows(*part.rows(side), more ? part.rows(side ^ 1) : nullptr, fetch_along(part, group));
    Phases::run(part, group, *part.rows(side), leaf);
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

}  // namespace
}  // namespace kvroof::KVROOF_NS
