// The contiguous cache of one sequence: position t lies in slot t of one block, which grows as rows are appended.
//
//   kvroof::CacheShape shape{.kv_heads = 8, .key_dim = 128, .value_dim = 128,
//                            .k_storage = kvroof::Storage::f16, .v_storage = kvroof::Storage::f16};
//   kvroof::ContiguousCache cache(shape, kvroof::RowOrder::head_major, /*capacity=*/4096);
//   cache.append(kvroof::packed_rows(shape, n, k, v));  // n new tokens, f32, [n][Hkv][D]
//   sequence.kv = cache.view();                         // one run; see AttentionSequence in kernels.hpp
//
// Every call either does all it says or throws Error and leaves the cache as it was. Const calls may run on many
// threads at once; a call that changes the cache needs it alone.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cache/memory.hpp"
#include "kernels/cache/rows.hpp"

namespace kvroof {

class ContiguousCache {
 public:
  // An empty cache with room for `capacity` rows (0: the first append allocates).
  explicit ContiguousCache(const CacheShape& shape, RowOrder order = RowOrder::head_major, std::int64_t capacity = 0);
  // The same in memory of the caller, 64-byte aligned and at least bytes_needed(); it must outlive the cache. Such a
  // cache never grows: what does not fit is refused with Error(no_capacity).
  ContiguousCache(const CacheShape& shape, RowOrder order, std::int64_t capacity, std::span<std::byte> memory);
  static std::int64_t bytes_needed(const CacheShape& shape, RowOrder order, std::int64_t capacity);

  // Moving copies no row, but KvView::runs points into the cache object: take the view again. A cache moved from may
  // only be assigned to or destroyed. Copying is fork(), by name, because it copies every row.
  ContiguousCache(ContiguousCache&&) noexcept = default;
  ContiguousCache& operator=(ContiguousCache&&) noexcept = default;

  // Room for at least `rows` rows in all. Rows move when it grows, so pointers and views taken before are void.
  void reserve(std::int64_t rows);

  // False where append or extend of n rows would be refused for want of room: lent memory never grows.
  bool can_append(std::int64_t n) const;
  // Adds n tokens at positions length() ... length()+n-1, converted to storage by the library's default ISA. Grows by
  // half or more when full, so that a long generation copies each row O(1) times.
  void append(const NewRows& rows);
  // Adds n tokens whose rows the caller then writes itself through slot(); until then they hold anything.
  void extend(std::int64_t n);

  bool can_truncate_to(std::int64_t length) const { return length >= 0 && length <= length_; }
  // Keeps the first `length` rows. Error(bad_position) unless 0 <= length <= length().
  void truncate_to(std::int64_t length);
  // Removes the newest n rows. Error(bad_position) unless 0 <= n <= length(): more than there is is refused, not
  // clamped.
  void drop_last(std::int64_t n);

  // An independent copy with its own memory and the same capacity, whether or not this one's memory is lent.
  ContiguousCache fork() const;

  std::int64_t length() const { return length_; }
  std::int64_t next_position() const { return length_; }  // of the next append; the same as length() in this cache
  std::int64_t capacity() const { return layout_.slots; }
  CacheBytes bytes() const;
  const CacheShape& shape() const { return layout_.shape; }
  RowOrder order() const { return layout_.order; }

  // The row of `position` and `head`, to read or write in place. Unchecked: 0 <= position < length(), 0 <= head < Hkv.
  RowSlot slot(std::int64_t position, std::int64_t head) const {
    return row_slot(layout_, memory_.data(), position, head);
  }

  // One run, or none while empty. Valid until the next call that changes or moves the cache.
  KvView view() const;

 private:
  void grow_to(std::int64_t rows);
  void set_length(std::int64_t length);

  RowLayout layout_;
  CacheMemory memory_;
  std::int64_t length_ = 0;
  RowRun run_;
};

}  // namespace kvroof
