// Partial results of spans of segments, and the fixed binary tree that joins them.
#pragma once

#include "kernels/attention_split.hpp"
#include "kernels/simd/math.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// a = merge(a, b), a before b.
inline void merge_node(const PartialNode& a, const PartialNode& b, std::int64_t results, std::int64_t pad) {
  for (std::int64_t i = 0; i < results; ++i) {
    const float ma = a.max[i], mb = b.max[i];
    float* to = a.acc + i * pad;
    const float* from = b.acc + i * pad;
    if (mb == -kInfinity && b.sum[i] == 0.0f) continue;
    if (ma == -kInfinity && a.sum[i] == 0.0f) {
      a.max[i] = mb;
      a.sum[i] = b.sum[i];
      for (std::int64_t d = 0; d < pad; d += kLanes) store(to + d, load(from + d));
      continue;
    }
    const float m = ma > mb ? ma : mb, shift = m == -kInfinity ? 0.0f : m;
    const float ea = exp1(ma - shift), eb = exp1(mb - shift);
    const Vec16 wa = broadcast(ea), wb = broadcast(eb);
    for (std::int64_t d = 0; d < pad; d += kLanes) store(to + d, fma(load(to + d), wa, load(from + d) * wb));
    a.max[i] = m;
    a.sum[i] = __builtin_fmaf(a.sum[i], ea, b.sum[i] * eb);
  }
}

// Adds the next node on the right; siblings are merged as soon as both are there, into the left one's memory. Returns
// the new count.
inline int push_node(PartialNode* nodes, int count, const PartialNode& next, std::int64_t results, std::int64_t pad) {
  nodes[count] = next;
  while (count > 0) {
    PartialNode& left = nodes[count - 1];
    const PartialNode& right = nodes[count];
    if (left.level != right.level || (right.index & 1) == 0 || left.index != right.index - 1) break;
    merge_node(left, right, results, pad);
    ++left.level;
    left.index >>= 1;
    --count;
  }
  return count + 1;
}

// The root over all nodes of a group, level by level; a node whose sibling is absent rises as it is.
inline PartialNode merge_root(PartialNode* nodes, int count, std::int64_t results, std::int64_t pad) {
  for (std::int32_t level = 0; count > 1; ++level) {
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      PartialNode n = nodes[i];
      if (n.level == level) {
        ++n.level;
        n.index >>= 1;
      }
      kept = push_node(nodes, kept, n, results, pad);
    }
    count = kept;
  }
  return nodes[0];
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
