// The end of a group: its outputs, or its nodes in a block of partials.
#pragma once

#include "kernels/ops/attention_part.hpp"
#include "kernels/ops/merge_partials.hpp"
#include "kernels/simd/math.hpp"

namespace kvroof::KVROOF_NS {
namespace {

inline void finish_group(const Part& part, const AttentionGroup& group, const PartialNode& node) {
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
          const Vec16 y = canonical((load(acc + d) * scaled) / divisor);
          if (dim - d >= kLanes)
            store(out + d, y);
          else
            store_partial(out + d, y, static_cast<int>(dim - d));
        }
      }
      if (sequence.lse != nullptr) {
        sequence.lse[index.token * part.args.shape.query_heads + index.head] =
            canonical(empty ? top : top + log1(total));
      }
    }
  }
}

// Where the groups around a shared prefix keep their nodes.
inline std::size_t stored_node_bytes(const Part& part, bool prefix) {
  return prefix ? part.split.node_bytes : part.split.follower_node_bytes;
}
inline PartialsEntry* stored_entry(const Part& part, bool prefix, std::int64_t store) {
  const AttentionSplit& split = part.split;
  const std::size_t at = prefix ? static_cast<std::size_t>(store) * split.prefix_entry_bytes
                                : static_cast<std::size_t>(split.prefixes) * split.prefix_entry_bytes +
                                      static_cast<std::size_t>(store) * split.follower_entry_bytes;
  return reinterpret_cast<PartialsEntry*>(part.store + at);
}

inline PartialsEntry* partials_entry(const Part& part, std::byte* partials, std::int64_t group_id) {
  return reinterpret_cast<PartialsEntry*>(partials +
                                          static_cast<std::size_t>(group_id) * partials_entry_bytes(part.split));
}

inline PartialNode entry_node(const Part& part, PartialsEntry* entry, std::size_t node_bytes, int i) {
  float* f = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(entry) + kPartialsHeaderBytes +
                                      static_cast<std::size_t>(i) * node_bytes);
  const std::int64_t results = entry->results, pad = part.split.dv_pad;
  return {entry->nodes[i].index, entry->nodes[i].level, f + results * pad, f + results * pad + results, f};
}

inline void keep_nodes(const Part& part, const AttentionGroup& group, const PartialNode* nodes, int count,
                       PartialsEntry* entry, std::size_t node_bytes) {
  const std::int64_t results = group.heads * group.queries, pad = part.split.dv_pad;
  entry->results = results;
  entry->node_count = count;
  for (int i = 0; i < count; ++i) {
    entry->nodes[i].index = nodes[i].index;
    entry->nodes[i].level = nodes[i].level;
    __builtin_memcpy(entry_node(part, entry, node_bytes, i).acc, nodes[i].acc,
                     static_cast<std::size_t>(results * (pad + 2)) * sizeof(float));  // acc, max and sum lie together
  }
}

// All nodes of a group are there: write its outputs, or leave the nodes where another process, or the groups around a
// shared prefix, will join them to their own.
inline void finish_nodes(const Part& part, const AttentionGroup& group, PartialNode* nodes, int count,
                         std::byte* partials) {
  if (partials != nullptr) {
    keep_nodes(part, group, nodes, count, partials_entry(part, partials, group.id), part.split.node_bytes);
  } else if (group.store >= 0) {
    keep_nodes(part, group, nodes, count, stored_entry(part, group.sharers > 1, group.store),
               stored_node_bytes(part, group.sharers > 1));
  } else {
    finish_group(part, group, merge_root(nodes, count, group.heads * group.queries, part.split.dv_pad));
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
