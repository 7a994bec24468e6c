#include "kernels/cache/contiguous.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvroof {

ContiguousCache::ContiguousCache(const CacheShape& shape, RowOrder order, std::int64_t capacity)
    : layout_(row_layout(shape, order, capacity)), memory_(CacheMemory::allocate(layout_.bytes)) {}

ContiguousCache::ContiguousCache(const CacheShape& shape, RowOrder order, std::int64_t capacity,
                                 std::span<std::byte> memory)
    : layout_(row_layout(shape, order, capacity)), memory_(CacheMemory::lend(memory, layout_.bytes)) {}

std::int64_t ContiguousCache::bytes_needed(const CacheShape& shape, RowOrder order, std::int64_t capacity) {
  return row_layout(shape, order, capacity).bytes;
}

void ContiguousCache::grow_to(std::int64_t rows) {
  if (memory_.lent()) {
    throw Error(ErrorCode::no_capacity, "contiguous cache: " + std::to_string(rows) +
                                            " rows do not fit the lent memory of " + std::to_string(capacity()) +
                                            " rows; lend more or truncate first");
  }
  const RowLayout larger = row_layout(layout_.shape, layout_.order, rows);
  CacheMemory memory = CacheMemory::allocate(larger.bytes);
  copy_rows(layout_, memory_.data(), 0, larger, memory.data(), 0, length_);
  layout_ = larger;
  memory_ = std::move(memory);
  set_length(length_);
}

void ContiguousCache::set_length(std::int64_t length) {
  length_ = length;
  run_ = length == 0 ? RowRun{} : row_run(layout_, memory_.data(), 0, 0, length);
}

void ContiguousCache::reserve(std::int64_t rows) {
  if (rows < 0) {
    throw Error(ErrorCode::bad_shape,
                "contiguous cache: reserve of " + std::to_string(rows) + " rows, must be at least 0");
  }
  if (rows > capacity()) grow_to(rows);
}

bool ContiguousCache::can_append(std::int64_t n) const {
  std::int64_t length = 0;
  if (n < 0 || __builtin_add_overflow(length_, n, &length)) return false;
  return !memory_.lent() || length <= capacity();
}

void ContiguousCache::append(const NewRows& rows) {
  check_new_rows(layout_.shape, rows, length_, "contiguous cache");
  const RowConverter convert = default_row_converter();  // may refuse KVROOF_ISA: before anything changes
  const std::int64_t at = length_;
  extend(rows.n);
  store_rows(layout_, memory_.data(), at, rows, 0, rows.n, convert);
}

void ContiguousCache::extend(std::int64_t n) {
  std::int64_t length = 0;
  if (n < 0 || __builtin_add_overflow(length_, n, &length)) {
    throw Error(ErrorCode::bad_shape,
                "contiguous cache: " + std::to_string(n) + " rows to add, must be at least 0 and stay within 63 bits");
  }
  if (length > capacity()) {
    const std::int64_t generous = capacity() + std::max<std::int64_t>(capacity() / 2, 16);
    try {
      grow_to(std::max(length, generous));
    } catch (const Error&) {
      // Half as much again is a wish; what was asked for may still fit.
      if (memory_.lent() || generous <= length) throw;
      grow_to(length);
    }
  }
  set_length(length);
}

void ContiguousCache::truncate_to(std::int64_t length) {
  if (!can_truncate_to(length)) {
    throw Error(ErrorCode::bad_position, "contiguous cache: truncate_to(" + std::to_string(length) +
                                             ") must be from 0 to the length, " + std::to_string(length_));
  }
  set_length(length);
}

void ContiguousCache::drop_last(std::int64_t n) {
  if (n < 0 || n > length_) {
    throw Error(ErrorCode::bad_position, "contiguous cache: drop_last(" + std::to_string(n) +
                                             ") must be from 0 to the length, " + std::to_string(length_));
  }
  set_length(length_ - n);
}

ContiguousCache ContiguousCache::fork() const {
  ContiguousCache copy(layout_.shape, layout_.order, capacity());
  copy_rows(layout_, memory_.data(), 0, copy.layout_, copy.memory_.data(), 0, length_);
  copy.set_length(length_);
  return copy;
}

CacheBytes ContiguousCache::bytes() const { return {length_ * bytes_per_token(layout_.shape), memory_.bytes()}; }

KvView ContiguousCache::view() const {
  KvView view = layout_.strides;
  view.runs = &run_;
  view.run_count = length_ == 0 ? 0 : 1;
  view.end_position = length_;
  return view;
}

}  // namespace kvroof
