#include "kernels/attention_split.hpp"

#include <algorithm>
#include <limits>

namespace kvroof {
namespace {

constexpr std::int64_t kQueryTile = 64;            // chunked queries that share one pass over the rows
constexpr std::int64_t kExpansionQueryTile = 256;  // ... where every tile expands its rows from the latent again
// contiguous bytes a token-major group reads of each row, and of sums (one query a head) that stay in L1 meanwhile
constexpr std::int64_t kRunBytes = 16 * 1024;
constexpr std::int64_t kBlockBytes = 256 * 1024;  // contiguous bytes a group reads of each page

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// Cost of one row for one group: bytes dominate while few queries share it, arithmetic after that.
std::int64_t row_cost(std::int64_t heads, std::int64_t queries) { return heads * (4 + queries); }

std::int64_t overlap(std::int64_t a0, std::int64_t a1, std::int64_t b0, std::int64_t b1) {
  return std::max<std::int64_t>(0, std::min(a1, b1) - std::max(a0, b0));
}

// first_segment: where a shared prefix before it ends.
void set_queries(AttentionGroup& group, const AttentionArgs& args, std::int64_t group_heads, std::int64_t query0,
                 std::int64_t queries, std::int64_t first_segment) {
  group.first_segment = first_segment;
  const AttentionSequence& seq = *group.sequence;
  const std::int64_t oldest = seq.kv.end_position - seq.n;
  group.query0 = query0;
  group.queries = queries;
  group.first_position = oldest + query0 / group_heads;
  group.last_position = oldest + (query0 + queries - 1) / group_heads;
  const std::int64_t window = args.options.window;
  group.window_begin = group.first_position < window ? 0 : group.first_position - window + 1;
  group.kept_end = std::min(std::min(args.options.kept_tokens, group.window_begin), group.last_position + 1);
  const std::int64_t window_segment = group.window_begin / kSegmentRows;
  const std::int64_t kept_segments = std::min((group.kept_end + kSegmentRows - 1) / kSegmentRows, window_segment);
  const std::int64_t end_segment = group.last_position / kSegmentRows + 1;
  // cut to the slice of segments this call reads
  group.kept_segment = std::min(args.segment_begin, kept_segments);
  group.kept_segments = std::min(args.segment_end, kept_segments) - group.kept_segment;
  group.window_segment = std::clamp(std::max(args.segment_begin, first_segment), window_segment, end_segment);
  group.segments =
      group.kept_segments + std::clamp(args.segment_end, group.window_segment, end_segment) - group.window_segment;
}

std::int64_t segment_rows(const AttentionGroup& group, std::int64_t segment) {
  const std::int64_t begin = segment * kSegmentRows, end = begin + kSegmentRows;
  return overlap(begin, end, 0, group.kept_end) + overlap(begin, end, group.window_begin, group.last_position + 1);
}

std::int64_t group_rows(const AttentionGroup& group, const AttentionArgs& args) {
  const std::int64_t begin = std::max(args.segment_begin, group.first_segment) * kSegmentRows;
  const std::int64_t end =
      args.segment_end > group.last_position / kSegmentRows ? group.last_position + 1 : args.segment_end * kSegmentRows;
  return overlap(begin, end, 0, group.kept_end) + overlap(begin, end, group.window_begin, group.last_position + 1);
}

// Rows of K heads lie side by side in a token-major cache, or all heads of a page one after another; then several heads
// are read together, as they lie.
std::int64_t choose_head_run(const AttentionArgs& args, int parts) {
  if (args.expansion != nullptr) return 1;  // every head expands the same rows for itself
  const std::int64_t dense =
      args.shape.key_dim * static_cast<std::int64_t>(storage_bytes(args.sequences[0].kv.k_storage));
  std::int64_t segments = 0, piece = dense, bytes = kRunBytes;
  for (const AttentionSequence& seq : args.sequences) {
    if (seq.n == 0) continue;
    if (const std::int64_t rows = page_block_rows(seq.kv); rows > 0) {
      piece = std::max(piece, rows * dense);
      bytes = kBlockBytes;
    } else if (seq.kv.k_head_stride > dense + 64) {
      return 1;
    } else {
      piece = std::max(piece, args.shape.value_dim * static_cast<std::int64_t>(sizeof(float)));
    }
    segments += (seq.kv.end_position + kSegmentRows - 1) / kSegmentRows;
  }
  std::int64_t run = std::clamp<std::int64_t>(bytes / piece, 1, args.shape.kv_heads);
  // runs that go evenly over the parts, or enough items that one more or less does not matter
  const auto uneven = [&] {
    const std::int64_t runs = (args.shape.kv_heads + run - 1) / run;
    return segments * runs < std::int64_t{2} * parts && (runs % parts != 0 || args.shape.kv_heads % run != 0);
  };
  while (run > 1 && uneven()) run = (run + 1) / 2;
  return run;
}

}  // namespace

bool sliced(const AttentionArgs& args) {
  return args.segment_begin > 0 || args.segment_end != std::numeric_limits<std::int64_t>::max();
}

bool nothing_to_merge(const AttentionArgs& args) {
  return std::all_of(args.sequences.begin(), args.sequences.end(),
                     [](const AttentionSequence& seq) { return seq.kv.end_position <= kSegmentRows; });
}

std::int64_t page_block_rows(const KvView& kv) {
  if (kv.latent_dim > 0 || kv.k_row_stride <= 0 || kv.v_row_stride <= 0) return 0;
  const std::int64_t rows = kv.k_head_stride / kv.k_row_stride;
  const bool power = rows >= kLanes && rows <= kSegmentRows / 2 && (rows & (rows - 1)) == 0;
  return power && kv.k_head_stride == rows * kv.k_row_stride && kv.v_head_stride == rows * kv.v_row_stride ? rows : 0;
}

std::int64_t group_segment(const AttentionGroup& group, std::int64_t ordinal) {
  return ordinal < group.kept_segments ? group.kept_segment + ordinal
                                       : group.window_segment + ordinal - group.kept_segments;
}

std::int64_t first_run_at(const KvView& kv, std::int64_t position) {
  std::int64_t lo = 0, hi = kv.run_count;
  while (lo < hi) {
    const std::int64_t mid = lo + (hi - lo) / 2;
    if (kv.runs[mid].first_position + kv.runs[mid].rows > position)
      hi = mid;
    else
      lo = mid + 1;
  }
  return lo;
}

AttentionSplit make_attention_split(const AttentionArgs& args, int parts) {
  AttentionSplit split;
  if (sliced(args)) parts = 1;  // groups must be the same in every process, whatever its threads
  const AttentionShape& shape = args.shape;
  split.group_heads = shape.query_heads / shape.kv_heads;
  split.dk_pad = round_up(shape.key_dim, kLanes);
  split.dv_pad = round_up(shape.value_dim, kLanes);
  std::int64_t max_n = 0, max_segments = 1, items = 0;
  for (const AttentionSequence& seq : args.sequences) {
    if (seq.n == 0) continue;
    max_n = std::max(max_n, seq.n);
    const std::int64_t segments = (seq.kv.end_position + kSegmentRows - 1) / kSegmentRows;
    max_segments = std::max(max_segments, segments);
    const std::int64_t visible = std::min(args.options.window, seq.kv.end_position);
    items += (visible + kSegmentRows - 1) / kSegmentRows * shape.kv_heads;
  }
  if (max_n == 0) return split;
  split.head_run = sliced(args) ? 1 : choose_head_run(args, parts);
  split.query_tile =
      max_n == 1 ? split.group_heads
                 : std::min(max_n * split.group_heads,
                            std::max(args.expansion != nullptr ? kExpansionQueryTile : kQueryTile, split.group_heads));
  // too few segments to go round: share the queries of a KV head out instead
  while (items < parts && split.query_tile >= 2 * kLanes && split.head_run == 1) {
    split.query_tile = round_up((split.query_tile + 1) / 2, kLanes);
    items *= 2;
  }
  const std::int64_t head_runs = (shape.kv_heads + split.head_run - 1) / split.head_run;
  std::int64_t group_queries = split.query_tile;  // at most, of any group
  SharedPrefix shared;
  std::int64_t shared_end = 0;
  for (std::int64_t s = 0; s < static_cast<std::int64_t>(args.sequences.size()); ++s) {
    const AttentionSequence& seq = args.sequences[static_cast<std::size_t>(s)];
    if (s >= shared_end) {
      shared = shared_prefix(args, s);
      shared_end = s + shared.sequences;
      if (shared.segments > 0) {
        const std::int64_t queries = shared.sequences * split.group_heads;
        group_queries = std::max(group_queries, queries);
        split.total_cost += shared.segments * kSegmentRows * row_cost(shape.kv_heads, queries);
        split.prefixes += head_runs;
      }
    }
    AttentionGroup group;
    group.sequence = &seq;
    const std::int64_t all = seq.n * split.group_heads;
    for (std::int64_t q = 0; q < all; q += split.query_tile) {
      set_queries(group, args, split.group_heads, q, std::min(split.query_tile, all - q), shared.segments);
      split.total_cost += group_rows(group, args) * row_cost(shape.kv_heads, group.queries);
      if (shared.segments > 0) split.followers += head_runs;
    }
  }
  split.max_queries = split.head_run * round_up(group_queries, kLanes);
  std::int64_t levels = 1;
  while ((std::int64_t{1} << levels) < max_segments) ++levels;
  split.node_slots = 2 * levels + 4;

  std::size_t at = 0;
  const auto take = [&at](std::int64_t bytes) {
    const std::size_t begin = at;
    at += static_cast<std::size_t>(round_up(bytes, 64));
    return begin;
  };
  const std::int64_t f = sizeof(float);
  const auto node_bytes = [&](std::int64_t queries) {
    return static_cast<std::size_t>(round_up(split.head_run * queries * (split.dv_pad + 2) * f, 64));
  };
  split.q_rows = take(split.max_queries * split.dk_pad * f);
  split.q_lanes = take(split.max_queries * split.dk_pad * f);
  split.scores = take(split.max_queries * kScoreStride * f);
  split.row_floats = take(3 * kScoreStride * f);  // K scales, V scales, ALiBi distances
  split.row_tables = take(2 * static_cast<std::int64_t>(kSegmentRowsBytes));
  split.tile = take(std::max(2 * kMinTileFloats, 6 * kLanes * split.dk_pad) * f);
  if (args.expansion != nullptr) {
    split.latent_pad = round_up(args.sequences[0].kv.latent_dim, kLanes);
    split.latents = take(64 * split.latent_pad * f);
    split.expanded = take(64 * std::max(split.dk_pad, split.dv_pad) * f);
  }
  split.open_groups = take(2 * static_cast<std::int64_t>(sizeof(OpenGroup)));
  split.node_bytes = node_bytes(group_queries);
  split.nodes = take(2 * split.node_slots * static_cast<std::int64_t>(split.node_bytes));
  if (split.prefixes > 0) {
    const auto slots = static_cast<std::size_t>(split.node_slots);
    split.follower_node_bytes = node_bytes(split.query_tile);
    split.joined_nodes = take(split.node_slots * static_cast<std::int64_t>(split.follower_node_bytes));
    split.prefix_entry_bytes = kPartialsHeaderBytes + slots * split.node_bytes;
    split.follower_entry_bytes = kPartialsHeaderBytes + slots * split.follower_node_bytes;
    split.store_bytes = static_cast<std::size_t>(split.prefixes) * split.prefix_entry_bytes +
                        static_cast<std::size_t>(split.followers) * split.follower_entry_bytes;
  }
  split.part_bytes =
      static_cast<std::size_t>(round_up(static_cast<std::int64_t>(at), 4096)) + 64;  // odd lines: no 4K alias
  return split;
}

std::size_t partials_entry_bytes(const AttentionSplit& split) {
  return kPartialsHeaderBytes + static_cast<std::size_t>(split.node_slots) * split.node_bytes;
}

AttentionCursor::AttentionCursor(const AttentionArgs& args, const AttentionSplit& split, int parts, int part)
    : args_(args), split_(split) {
  // 128-bit product: cost * parts may pass 2^63 on very large batches
  const auto cut = [&](int p) {
    return static_cast<std::int64_t>(static_cast<__int128>(split.total_cost) * p / parts);
  };
  begin_ = cut(part);
  end_ = cut(part + 1);
}

void AttentionCursor::load_prefix() {
  group_ = AttentionGroup{};
  group_.id = next_id_++;
  group_.sequence = &args_.sequences[static_cast<std::size_t>(sequence_)];
  group_.head0 = prefix_run_ * split_.head_run;
  group_.heads = std::min(split_.head_run, args_.shape.kv_heads - group_.head0);
  group_.queries = shared_.sequences * split_.group_heads;
  group_.first_position = group_.last_position = shared_.segments * kSegmentRows - 1;  // every query sees that far
  group_.segments = shared_.segments;
  group_.sharers = shared_.sequences;
  group_.store = prefixes_++;
  ++prefix_run_;
  ordinal_ = 0;
}

bool AttentionCursor::load_group() {
  const std::int64_t sequences = static_cast<std::int64_t>(args_.sequences.size());
  while (sequence_ < sequences) {
    if (sequence_ >= shared_end_) {
      shared_ = shared_prefix(args_, sequence_);
      shared_begin_ = sequence_;
      shared_end_ = sequence_ + shared_.sequences;
      prefix_run_ = 0;
      first_prefix_id_ = next_id_;
    }
    if (shared_.segments > 0 && prefix_run_ * split_.head_run < args_.shape.kv_heads) {
      load_prefix();
      return true;
    }
    const AttentionSequence& seq = args_.sequences[static_cast<std::size_t>(sequence_)];
    const std::int64_t all = seq.n * split_.group_heads;
    if (run_ * split_.head_run < args_.shape.kv_heads && tile_ * split_.query_tile < all) {
      group_ = AttentionGroup{};
      group_.id = next_id_++;
      group_.sequence = &seq;
      if (shared_.segments > 0) {  // the prefix groups, one a run of heads, come before the first of their sequences
        const std::int64_t back = prefix_run_ - run_;
        group_.prefix_id = first_prefix_id_ + run_;
        group_.prefix_store = prefixes_ - back;
        group_.sharer = sequence_ - shared_begin_;
        group_.prefix_sharers = shared_.sequences;
        group_.store = followers_++;
      }
      group_.head0 = run_ * split_.head_run;
      group_.heads = std::min(split_.head_run, args_.shape.kv_heads - group_.head0);
      const std::int64_t query0 = tile_ * split_.query_tile;
      set_queries(group_, args_, split_.group_heads, query0, std::min(split_.query_tile, all - query0),
                  shared_.segments);
      if (++tile_ * split_.query_tile >= all) {
        tile_ = 0;
        ++run_;
      }
      ordinal_ = 0;
      return true;
    }
    ++sequence_;
    run_ = tile_ = 0;
  }
  return false;
}

bool AttentionCursor::next_group(AttentionGroup& group) {
  if (!load_group()) return false;
  group = group_;
  return true;
}

bool AttentionCursor::next(Item& item) {
  for (;;) {
    if (!loaded_) {
      if (!load_group()) return false;
      loaded_ = true;
      const std::int64_t whole = group_rows(group_, args_) * row_cost(group_.heads, group_.queries);
      if (cost_ + whole <= begin_) {
        cost_ += whole;
        loaded_ = false;
        continue;
      }
    }
    while (ordinal_ < group_.segments) {
      if (cost_ >= end_) return false;
      const std::int64_t ordinal = ordinal_++;
      const std::int64_t segment = group_segment(group_, ordinal);
      const std::int64_t start = cost_;
      cost_ += segment_rows(group_, segment) * row_cost(group_.heads, group_.queries);
      if (start >= begin_) {
        item = Item{group_, ordinal, segment};
        return true;
      }
    }
    loaded_ = false;
  }
}

}  // namespace kvroof
