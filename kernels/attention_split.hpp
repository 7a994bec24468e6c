// How decode attention is cut into work. Baseline code, shared by every ISA: pure bookkeeping, no arithmetic on values.
//
// A group is (sequence, run of KV heads, tile of queries): everything that reads the same rows together. Sequences that
// share a prefix have a group more, in front of theirs, with all their queries: it reads the prefix, theirs what
// follows (ops/shared_prefix.hpp joins them). A group's work is the list of segments that hold a row one of its queries
// sees. Groups in order, segments in order, form one line of items; a part is a contiguous stretch of that line with
// its share of the cost, so a thread walks rows in memory order. Inside a KV head the queries of a sequence are
// numbered r*G + g (new token r, head g of the group).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.hpp"

namespace kvroof {

struct AttentionGroup {
  std::int64_t id = -1;
  const AttentionSequence* sequence = nullptr;
  std::int64_t head0 = 0, heads = 0;     // KV heads
  std::int64_t query0 = 0, queries = 0;  // queries per KV head: numbers r*G + g
  std::int64_t first_position = 0;       // position of the tile's earliest query
  std::int64_t last_position = 0;        // and of its latest
  std::int64_t kept_end = 0;             // rows [0, kept_end) are kept tokens outside the window
  std::int64_t window_begin = 0;         // rows [window_begin, last_position] are seen by some query
  std::int64_t kept_segment = 0;         // first segment that holds kept rows only
  std::int64_t kept_segments = 0;        // and how many there are
  std::int64_t window_segment = 0;       // first segment of the window
  std::int64_t segments = 0;
  std::int64_t sharers = 1;        // sequences, from `sequence` on, whose single new tokens the queries are: a prefix
  std::int64_t first_segment = 0;  // > 0: what is before it belongs to the prefix group `prefix_id` ...
  std::int64_t prefix_id = -1;
  std::int64_t prefix_store = -1;  // ... which keeps its nodes there; this is sharer number `sharer` of prefix_sharers
  std::int64_t sharer = 0, prefix_sharers = 0;
  std::int64_t store = -1;  // where a prefix group, or one that follows a prefix, keeps its nodes; counted apart
};

// The prefix of a run of sequences: 1 sequence, 0 segments if it shares nothing with its neighbour.
struct SharedPrefix {
  std::int64_t sequences = 1, segments = 0;
};
SharedPrefix shared_prefix(const AttentionArgs& args, std::int64_t first);

// A partial result: for each of a group's results (KV head x query) a max, a sum and an accumulator of dv_pad floats,
// over the segments [index << level, (index + 1) << level) as far as they hold visible rows.
struct PartialNode {
  std::int64_t index;
  std::int32_t level;
  float* max;
  float* sum;
  float* acc;
};

// Ascending disjoint nodes without siblings among them: at most two a level (the ragged left and right edge).
inline constexpr int kMaxNodes = 2 * 48;

struct OpenGroup {        // one of the two groups a part may leave unfinished
  std::int64_t group_id;  // -1: none
  std::int32_t is_first;  // this part holds the group's first segment
  std::int32_t is_last;   // and its last
  std::int32_t node_count;
  PartialNode nodes[kMaxNodes];
};

inline constexpr std::int64_t kScoreStride =
    kSegmentRows + kLanes;                                // no power of two: queries spread over the cache sets
inline constexpr std::int64_t kMinTileFloats = 128 * 64;  // a panel of V
inline constexpr std::size_t kSegmentRowsBytes = (4 * kSegmentRows + 512) * sizeof(void*) + 128;

struct AttentionSplit {
  std::int64_t group_heads = 1;  // G
  std::int64_t head_run = 1;     // KV heads of a group (the last one of a sequence may have fewer)
  std::int64_t query_tile = 1;   // queries of a group
  std::int64_t total_cost = 0;
  std::int64_t dk_pad = 0, dv_pad = 0;  // multiples of 16
  std::int64_t latent_pad = 0;
  std::int64_t max_queries = 0;  // head_run * query_tile: results of one node
  std::int64_t node_slots = 0;   // per open group
  // workspace of one part: byte offsets from its start
  std::size_t q_rows = 0, q_lanes = 0, scores = 0, row_floats = 0, row_tables = 0, tile = 0;
  std::size_t latents = 0, expanded = 0;  // 64 rows each, with LatentExpansion only
  std::size_t open_groups = 0, nodes = 0;
  std::size_t node_bytes = 0;
  std::size_t joined_nodes = 0;  // to join a prefix and what follows it, with shared prefixes only
  std::size_t part_bytes = 0;
  // behind all parts: nodes of prefix groups, then of those that follow them
  std::int64_t prefixes = 0, followers = 0;
  std::size_t follower_node_bytes = 0, prefix_entry_bytes = 0, follower_entry_bytes = 0;
  std::size_t store_bytes = 0;
};

// Only a range of segments is read (attention_partials).
bool sliced(const AttentionArgs& args);

// Every sequence lies in one segment: no group is spread over parts, no prefix is long enough to be shared, and the
// merge parts have nothing to do.
bool nothing_to_merge(const AttentionArgs& args);

AttentionSplit make_attention_split(const AttentionArgs& args, int parts);

// Walks the items of one part.
class AttentionCursor {
 public:
  AttentionCursor(const AttentionArgs& args, const AttentionSplit& split, int parts, int part);
  // The next item of the part; false at the end.
  struct Item {
    AttentionGroup group;
    std::int64_t ordinal;  // k-th segment of the group
    std::int64_t segment;  // absolute segment index
  };
  bool next(Item& item);
  // Every group in order, whatever the part; not to be mixed with next().
  bool next_group(AttentionGroup& group);

 private:
  bool load_group();   // group_ from (sequence_, run_, tile_); false past the last one
  void load_prefix();  // group_ from (shared_, prefix_run_)
  const AttentionArgs& args_;
  const AttentionSplit& split_;
  std::int64_t begin_, end_;  // cost range of this part
  std::int64_t cost_ = 0;     // cost of everything before the current item
  std::int64_t sequence_ = 0, run_ = 0, tile_ = 0, ordinal_ = 0, next_id_ = 0;
  SharedPrefix shared_;  // of the sequences [shared_begin_, shared_end_), which sequence_ is one of
  std::int64_t shared_begin_ = 0, shared_end_ = 0, prefix_run_ = 0, first_prefix_id_ = 0;
  std::int64_t prefixes_ = 0, followers_ = 0;
  bool loaded_ = false;
  AttentionGroup group_;
};

// A group's place in a block of partials: a header, then nodes as in an open group.
struct PartialsEntry {
  std::int64_t group_id;  // of the group it belongs to, to refuse a foreign block
  std::int64_t results;
  std::int32_t node_count;
  struct {
    std::int64_t index;
    std::int32_t level;
  } nodes[kMaxNodes];
};
inline constexpr std::size_t kPartialsHeaderBytes = (sizeof(PartialsEntry) + 63) / 64 * 64;
std::size_t partials_entry_bytes(const AttentionSplit& split);

std::int64_t group_segment(const AttentionGroup& group, std::int64_t ordinal);

// Rows of a page whose heads lie one after another, K and V alike: 16, 32, 64, 128 or 256; 0: other layouts.
std::int64_t page_block_rows(const KvView& kv);

// Index of the first run whose last row is at or after `position`.
std::int64_t first_run_at(const KvView& kv, std::int64_t position);

}  // namespace kvroof
