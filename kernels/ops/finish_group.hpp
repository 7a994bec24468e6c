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

inline PartialsEntry* partials_entry(const Part& part, std::byte* partials, std::int64_t group_id) {
  return reinterpret_cast<PartialsEntry*>(partials +
                                          static_cast<std::size_t>(group_id) * partials_entry_bytes(part.split));
}

inline PartialNode entry_node(const Part& part, PartialsEntry* entry, int i) {
  float* f = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(entry) + kPartialsHeaderBytes +
                                      static_cast<std::size_t>(i) * part.split.node_bytes);
  const std::int64_t results = entry->results, pad = part.split.dv_pad;
  return {entry->nodes[i].index, entry->nodes[i].level, f + results * pad, f + results * pad + results, f};
}

// All nodes of a group are there: write its outputs, or leave the nodes where another process will join them to its
// own.
inline void finish_nodes(const Part& part, const AttentionGroup& group, PartialNode* nodes, int count,
                         std::byte* partials) {
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
}  // namespace kvroof::KVROOF_NS
