// Views of caches in other layouts over the arena's memory, laid out exactly as kernels/cache does it. The bytes are
// already there, so no row is copied, and all layouts of one tuple read the same memory.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/cases.hpp"
#include "bench/kernel_run.hpp"
#include "bench/roofs.hpp"

namespace kvroof::bench {

// What one more token takes in a cache object made for this case (and one layer), as the cache counts it.
std::int64_t measured_token_bytes(const DecodeCase& c);

// A ring of T rows that has wrapped after `wrap` rows: two runs, the newest position being T + wrap - 1.
CallViews ring_views(const DecodeCase& c, const std::byte* base, std::int64_t wrap);

// T rows in pages of c.page_size, one block of K and V rows each, in ascending order or shuffled (the same for every
// call: a fixed permutation).
CallViews paged_views(const DecodeCase& c, const std::byte* base);

// Bytes that paged_views needs: whole pages.
std::size_t paged_bytes(const DecodeCase& c);

// Rows [0, end) of a cache with room for `capacity` rows, of which the window shows only the last ones.
CallViews windowed_views(const DecodeCase& c, const std::byte* base, std::int64_t capacity, std::int64_t end);

// c.batch sequences one behind the other, each a contiguous cache of lengths[i] rows.
CallViews batch_views(const DecodeCase& c, const std::byte* base, const std::vector<std::int64_t>& lengths);

// c.batch paged sequences of c.T rows whose first c.prefix rows (whole pages) are the same pages, as forks of one
// sequence have them; then each one's own pages.
CallViews shared_prefix_views(const DecodeCase& c, const std::byte* base);

// Bytes that shared_prefix_views reads, every page once.
std::size_t shared_prefix_bytes(const DecodeCase& c);

// c.batch lengths that add up to c.batch * c.T: all equal, or falling like 1/(i+1).
std::vector<std::int64_t> batch_lengths(const DecodeCase& c);

// The pieces of memory behind the rows of a call's first sequence, each as it lies, in the order in which that many
// threads of the kernel come to them: KV head by KV head, of every segment its K rows and then its V rows. Where a page
// holds heads side by side, the kernel takes a run of them together, and so does the walk. (Of pages under 32 rows the
// kernel takes two at a time, head by head; the walk stays with whole pages, which memory reads no slower.)
PieceWalk piece_walk(const AttentionArgs& args, int threads);

}  // namespace kvroof::bench
