// Which neighbours of a batch share their first rows.
#include <algorithm>

#include "kernels/attention_split.hpp"

namespace kvroof {
namespace {

constexpr std::int64_t kSharedQueries = 64;  // of a KV head: a tile of a chunk is as large

bool may_share(const AttentionArgs& args, const AttentionSequence& seq) {
  return seq.n == 1 && seq.kv.run_count > 0 && args.options.window >= seq.kv.end_position;
}

bool same_layout(const KvView& a, const KvView& b) {
  return a.k_row_stride == b.k_row_stride && a.k_head_stride == b.k_head_stride && a.v_row_stride == b.v_row_stride &&
         a.v_head_stride == b.v_head_stride && a.k_scale_row_stride == b.k_scale_row_stride &&
         a.k_scale_head_stride == b.k_scale_head_stride && a.v_scale_row_stride == b.v_scale_row_stride &&
         a.v_scale_head_stride == b.v_scale_head_stride;
}

// Rows from position 0 on that are the same memory, without gaps.
std::int64_t common_rows(const KvView& a, const KvView& b) {
  std::int64_t rows = 0;
  for (std::int64_t r = 0; r < std::min(a.run_count, b.run_count); ++r) {
    const RowRun &x = a.runs[r], &y = b.runs[r];
    if (x.k != y.k || x.v != y.v || x.k_scale != y.k_scale || x.v_scale != y.v_scale || x.first_position != rows ||
        y.first_position != rows)
      break;
    rows += std::min(x.rows, y.rows);
    if (x.rows != y.rows) break;
  }
  return rows;
}

}  // namespace

SharedPrefix shared_prefix(const AttentionArgs& args, std::int64_t first) {
  SharedPrefix prefix;
  const AttentionSequence& a = args.sequences[static_cast<std::size_t>(first)];
  if (!args.share_prefix || sliced(args) || args.expansion != nullptr || a.kv.latent_dim > 0 || !may_share(args, a))
    return prefix;
  const std::int64_t group_heads = args.shape.query_heads / args.shape.kv_heads;
  std::int64_t end = a.kv.end_position;
  for (std::int64_t s = first + 1; s < static_cast<std::int64_t>(args.sequences.size()); ++s) {
    const AttentionSequence& b = args.sequences[static_cast<std::size_t>(s)];
    if ((prefix.sequences + 1) * group_heads > kSharedQueries || !may_share(args, b) || !same_layout(a.kv, b.kv)) break;
    end = std::min(end, b.kv.end_position);
    // a segment at least stays each sequence's own, so that its own group has an item
    const std::int64_t segments = std::min(common_rows(a.kv, b.kv), end - 1) / kSegmentRows;
    // a neighbour with little in common must not cut short what the others share
    const std::int64_t joint = prefix.sequences > 1 ? std::min(prefix.segments, segments) : segments;
    if (segments == 0 || joint * prefix.sequences < prefix.segments * (prefix.sequences - 1)) break;
    prefix.segments = joint;
    ++prefix.sequences;
  }
  return prefix;
}

}  // namespace kvroof
