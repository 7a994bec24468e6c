// The ring cache of one sequence with a sliding window: C slots, the newest row overwrites the oldest.
//
// Positions are absolute: after 20 appends into C = 8 the next position is 20. With N the length (= next position), W
// the window and C the capacity:
//   append(n)      only iff N + n - C <= max(0, N - W + 1): the rows it overwrites are ones that no query of the chunk
//                  can see. C = W takes one token at a time, C = W + n - 1 takes chunks of n. Else Error(no_capacity).
//   append_tail(n) always: keeps the newest C rows of old and new together. For a prompt whose early rows nobody will
//                  ask for.
//   oldest_live    the oldest position not yet overwritten. Rises on append, never falls on rollback, 0 again at
//                  length 0.
//   truncate_to(L) only iff L = 0 or max(0, L - W + 1) >= oldest_live: the next query must find its whole window. Else
//                  Error(bad_position). C = W + r leaves room to take back r tokens (r rejected drafts).
//   kept tokens    the first k rows of the sequence live in k slots of their own, which C does not count, and are never
//                  overwritten. The rules above do not change with k.
//
// Every call either does all it says or throws Error and leaves the cache as it was. Const calls may run on many
// threads at once; a call that changes the cache needs it alone.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/cache/memory.hpp"
#include "kernels/cache/rows.hpp"

namespace kvroof {

struct RingOptions {
  RowOrder order = RowOrder::head_major;
  std::int64_t capacity = 0;     // C >= window
  std::int64_t window = 0;       // W >= 1, counts the query itself, the same as AttentionOptions::window
  std::int64_t kept_tokens = 0;  // k >= 0, the same as AttentionOptions::kept_tokens
};

class RingCache {
 public:
  // Throws Error(bad_option) for W < 1 (an unlimited window is a contiguous cache's), C < W or k < 0.
  RingCache(const CacheShape& shape, const RingOptions& options);
  // The same in memory of the caller, 64-byte aligned and at least bytes_needed(); it must outlive the cache.
  RingCache(const CacheShape& shape, const RingOptions& options, std::span<std::byte> memory);
  static std::int64_t bytes_needed(const CacheShape& shape, const RingOptions& options);

  // Moving copies no row, but KvView::runs points into the cache object: take the view again. A cache moved from may
  // only be assigned to or destroyed.
  RingCache(RingCache&&) noexcept = default;
  RingCache& operator=(RingCache&&) noexcept = default;

  bool can_append(std::int64_t n) const;
  void append(const NewRows& rows);
  // Writes what is left of the new rows after the newest C and the kept ones; positions count all of them.
  void append_tail(const NewRows& rows);
  // Adds n tokens by the rule of append, whose rows the caller then writes itself through slot(); until then they hold
  // anything.
  void extend(std::int64_t n);

  bool can_truncate_to(std::int64_t length) const;
  void truncate_to(std::int64_t length);
  void drop_last(std::int64_t n);  // the newest n, 0 <= n <= length(); the rule of truncate_to(length() - n)

  RingCache fork() const;  // an independent copy with its own memory

  std::int64_t length() const { return length_; }  // tokens appended and not taken back, overwritten ones included
  std::int64_t next_position() const { return length_; }  // absolute; what RoPE of the next token needs
  std::int64_t oldest_live() const { return oldest_live_; }
  std::int64_t live_rows() const;  // rows in the view
  const RingOptions& options() const { return options_; }
  const CacheShape& shape() const { return layout_.shape; }
  CacheBytes bytes() const;

  // The row of `position` and `head`, to read or write in place. Unchecked: 0 <= head < Hkv, and `position` must be in
  // the view: below both kept_tokens and length(), or from oldest_live() to length() - 1.
  RowSlot slot(std::int64_t position, std::int64_t head) const {
    return row_slot(layout_, memory_.data(), slot_of(position), head);
  }

  // Kept rows, then the ring's older and newer part: up to three runs of ascending positions, every row that is live.
  // Valid until the next call that changes or moves the cache.
  KvView view() const;

 private:
  std::int64_t slot_of(std::int64_t position) const;
  void require_room(std::int64_t n) const;
  void store(const NewRows& rows, RowConverter convert);
  void set_state(std::int64_t length, std::int64_t oldest_live);

  RingOptions options_;
  RowLayout layout_;  // slots 0..k-1 are the kept rows, k..k+C-1 the ring: one block, so that all runs share strides
  CacheMemory memory_;
  std::int64_t length_ = 0;
  std::int64_t oldest_live_ = 0;
  std::array<RowRun, 3> runs_;
  std::int64_t run_count_ = 0;
};

}  // namespace kvroof
