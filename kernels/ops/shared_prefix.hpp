// The end of sequences that share a prefix: nodes of the prefix group, of which each sharer has its own queries' share,
// and nodes of the sharer's own group meet in the one tree over absolute segments that a sequence alone would have.
#pragma once

#include "kernels/ops/attention_part.hpp"
#include "kernels/ops/finish_group.hpp"
#include "kernels/ops/merge_partials.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// Nodes of a stored group, ascending: in the open groups of the parts it is spread over, else where the one part that
// had all of it kept them.
template <class Visit>
inline void each_stored_node(const Part& part, int parts, std::byte* workspace, bool prefix, std::int64_t group_id,
                             std::int64_t store, Visit visit) {
  bool spread = false;
  for (int p = 0; p < parts; ++p) {
    const Part other(part.args, part.split, parts, p, workspace);
    for (int i = 0; i < 2; ++i) {
      if (other.open(i)->group_id != group_id) continue;
      spread = true;
      for (int n = 0; n < other.open(i)->node_count; ++n) visit(other.open(i)->nodes[n]);
    }
  }
  if (spread) return;
  PartialsEntry* entry = stored_entry(part, prefix, store);
  for (int n = 0; n < entry->node_count; ++n) visit(entry_node(part, entry, stored_node_bytes(part, prefix), n));
}

// This part's share of the sharers. Others read the same prefix nodes at the same time: they are copied, not joined in
// place.
inline void join_shared_prefixes(const Part& part, int parts, int part_index, std::byte* workspace) {
  if (part.split.followers == 0) return;
  const std::int64_t pad = part.split.dv_pad;
  AttentionCursor cursor(part.args, part.split, parts, part_index);
  AttentionGroup group;
  while (cursor.next_group(group)) {
    if (group.prefix_id < 0 || group.store % parts != part_index) continue;
    const std::int64_t results = group.heads * group.queries;
    PartialNode forest[kMaxNodes];
    int count = 0;
    // queries: of a KV head in the node; first: the sharer's first one there
    const auto join = [&](const PartialNode& from, std::int64_t queries, std::int64_t first) {
      float* f =
          part.floats(part.split.joined_nodes + static_cast<std::size_t>(count) * part.split.follower_node_bytes);
      const PartialNode own{from.index, from.level, f + results * pad, f + results * pad + results, f};
      for (std::int64_t head = 0; head < group.heads; ++head) {
        const std::int64_t to = head * group.queries, at = head * queries + first;
        const auto bytes = static_cast<std::size_t>(group.queries) * sizeof(float);
        __builtin_memcpy(own.max + to, from.max + at, bytes);
        __builtin_memcpy(own.sum + to, from.sum + at, bytes);
        __builtin_memcpy(own.acc + to * pad, from.acc + at * pad, bytes * static_cast<std::size_t>(pad));
      }
      count = push_node(forest, count, own, results, pad);
    };
    const std::int64_t G = part.split.group_heads;
    each_stored_node(part, parts, workspace, true, group.prefix_id, group.prefix_store, [&](const PartialNode& node) {
      join(node, group.prefix_sharers * G, group.sharer * G + group.query0);
    });
    each_stored_node(part, parts, workspace, false, group.id, group.store,
                     [&](const PartialNode& node) { join(node, group.queries, 0); });
    finish_group(part, group, merge_root(forest, count, results, pad));
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
