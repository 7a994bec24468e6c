// Scores of one segment to weights, for every query of a group.
#pragma once

#include "kernels/ops/attention_part.hpp"
#include "kernels/ops/softmax_segment.hpp"

namespace kvroof::KVROOF_NS {
namespace {

// per_head: rows of the score buffer that a KV head has. segment: softmax_segment or its like.
template <class Segment>
inline void softmax_scores(const Part& part, const AttentionGroup& group, const SegmentRows& rows,
                           std::int64_t per_head, const PartialNode& node, Segment segment) {
  const AttentionOptions& options = part.args.options;
  const KvView& kv = group.sequence->kv;
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
      const Softmax s =
          segment(part.scores() + (head * per_head + query) * kScoreStride, rows.begin, rows.end, visible, score);
      node.max[result] = s.max;
      node.sum[result] = s.sum;
    }
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
