#include "kernels/cache/ring.hpp"

#include <algorithm>
#include <string>

namespace kvroof {
namespace {

RowLayout ring_layout(const CacheShape& shape, const RingOptions& options) {
  if (options.window < 1) {
    throw Error(ErrorCode::bad_option, "ring cache: window is " + std::to_string(options.window) +
                                           ", must be at least 1 (it counts the query)");
  }
  if (options.window == kUnlimitedWindow) {
    throw Error(ErrorCode::bad_option, "ring cache: the window is unlimited; use a contiguous or paged cache");
  }
  if (options.capacity < options.window) {
    throw Error(ErrorCode::bad_option, "ring cache: capacity is " + std::to_string(options.capacity) +
                                           ", must be at least the window, " + std::to_string(options.window));
  }
  if (options.kept_tokens < 0) {
    throw Error(ErrorCode::bad_option,
                "ring cache: kept_tokens is " + std::to_string(options.kept_tokens) + ", must be at least 0");
  }
  std::int64_t slots = 0;
  if (__builtin_add_overflow(options.capacity, options.kept_tokens, &slots)) {
    throw Error(ErrorCode::bad_shape, "ring cache: capacity + kept_tokens overflows 63 bits");
  }
  return row_layout(shape, options.order, slots);
}

// The oldest position that the query at `position` sees in its window.
std::int64_t window_start(std::int64_t position, std::int64_t window) {
  return std::max<std::int64_t>(0, position - window + 1);
}

}  // namespace

RingCache::RingCache(const CacheShape& shape, const RingOptions& options)
    : options_(options), layout_(ring_layout(shape, options)), memory_(CacheMemory::allocate(layout_.bytes)) {}

RingCache::RingCache(const CacheShape& shape, const RingOptions& options, std::span<std::byte> memory)
    : options_(options), layout_(ring_layout(shape, options)), memory_(CacheMemory::lend(memory, layout_.bytes)) {}

std::int64_t RingCache::bytes_needed(const CacheShape& shape, const RingOptions& options) {
  return ring_layout(shape, options).bytes;
}

std::int64_t RingCache::slot_of(std::int64_t position) const {
  const std::int64_t kept = options_.kept_tokens;
  return position < kept ? position : kept + (position - kept) % options_.capacity;
}

// Rows from `first_needed` on (and the kept ones) of a chunk that ends up at length_ + n. Stretches that do not wrap go
// to store_rows whole.
void RingCache::store(const NewRows& rows, RowConverter convert) {
  const std::int64_t kept = options_.kept_tokens, capacity = options_.capacity;
  const std::int64_t end = length_ + rows.n;
  std::int64_t position = length_;
  if (position < kept) {
    const std::int64_t count = std::min(kept, end) - position;
    store_rows(layout_, memory_.data(), position, rows, 0, count, convert);
    position += count;
  }
  position = std::max(position, end - capacity);
  while (position < end) {
    const std::int64_t slot = slot_of(position);
    const std::int64_t count = std::min(end - position, kept + capacity - slot);
    store_rows(layout_, memory_.data(), slot, rows, position - length_, count, convert);
    position += count;
  }
}

void RingCache::set_state(std::int64_t length, std::int64_t oldest_live) {
  length_ = length;
  oldest_live_ = length == 0 ? 0 : oldest_live;
  run_count_ = 0;
  const auto add = [&](std::int64_t position, std::int64_t rows) {
    if (rows > 0)
      runs_[static_cast<std::size_t>(run_count_++)] =
          row_run(layout_, memory_.data(), slot_of(position), position, rows);
  };
  const std::int64_t kept = options_.kept_tokens, capacity = options_.capacity;
  add(0, std::min(kept, length_));
  const std::int64_t first = std::max(kept, oldest_live_);
  if (first >= length_) return;
  const std::int64_t before_wrap = std::min(length_ - first, kept + capacity - slot_of(first));
  add(first, before_wrap);
  add(first + before_wrap, length_ - first - before_wrap);
}

bool RingCache::can_append(std::int64_t n) const {
  std::int64_t end = 0;
  if (n < 0 || __builtin_add_overflow(length_, n, &end)) return false;
  return end - options_.capacity <= window_start(length_, options_.window);
}

void RingCache::require_room(std::int64_t n) const {
  if (can_append(n)) return;
  const std::int64_t room = window_start(length_, options_.window) + options_.capacity - length_;
  throw Error(ErrorCode::no_capacity,
              "ring cache: append of " + std::to_string(n) + " rows at length " + std::to_string(length_) +
                  " would overwrite rows that its first query sees (capacity " + std::to_string(options_.capacity) +
                  ", window " + std::to_string(options_.window) + "); at most " + std::to_string(room) +
                  " at once, or append_tail");
}

void RingCache::append(const NewRows& rows) {
  check_new_rows(layout_.shape, rows, length_, "ring cache");
  if (rows.n == 0) return;
  require_room(rows.n);
  append_tail(rows);
}

void RingCache::append_tail(const NewRows& rows) {
  check_new_rows(layout_.shape, rows, length_, "ring cache");
  if (rows.n == 0) return;
  store(rows, default_row_converter());
  const std::int64_t end = length_ + rows.n;
  set_state(end, std::max(oldest_live_, end - options_.capacity));
}

void RingCache::extend(std::int64_t n) {
  std::int64_t end = 0;
  if (n < 0 || __builtin_add_overflow(length_, n, &end)) {
    throw Error(ErrorCode::bad_shape,
                "ring cache: " + std::to_string(n) + " rows to add, must be at least 0 and stay within 63 bits");
  }
  require_room(n);
  set_state(end, std::max(oldest_live_, end - options_.capacity));
}

bool RingCache::can_truncate_to(std::int64_t length) const {
  if (length < 0 || length > length_) return false;
  return length == 0 || window_start(length, options_.window) >= oldest_live_;
}

void RingCache::truncate_to(std::int64_t length) {
  if (length < 0 || length > length_) {
    throw Error(ErrorCode::bad_position, "ring cache: truncate_to(" + std::to_string(length) +
                                             ") must be from 0 to the length, " + std::to_string(length_));
  }
  if (!can_truncate_to(length)) {
    throw Error(ErrorCode::bad_position,
                "ring cache: truncate_to(" + std::to_string(length) + ") needs rows from position " +
                    std::to_string(window_start(length, options_.window)) + " on, the oldest not overwritten is " +
                    std::to_string(oldest_live_) + "; a larger capacity keeps more to go back to");
  }
  set_state(length, oldest_live_);
}

void RingCache::drop_last(std::int64_t n) {
  if (n < 0 || n > length_) {
    throw Error(ErrorCode::bad_position, "ring cache: drop_last(" + std::to_string(n) +
                                             ") must be from 0 to the length, " + std::to_string(length_));
  }
  truncate_to(length_ - n);
}

RingCache RingCache::fork() const {
  RingCache copy(layout_.shape, options_);
  for (std::int64_t i = 0; i < run_count_; ++i) {
    const RowRun& run = runs_[static_cast<std::size_t>(i)];
    const std::int64_t slot = slot_of(run.first_position);
    copy_rows(layout_, memory_.data(), slot, copy.layout_, copy.memory_.data(), slot, run.rows);
  }
  copy.set_state(length_, oldest_live_);
  return copy;
}

std::int64_t RingCache::live_rows() const {
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < run_count_; ++i) rows += runs_[static_cast<std::size_t>(i)].rows;
  return rows;
}

CacheBytes RingCache::bytes() const { return {live_rows() * bytes_per_token(layout_.shape), memory_.bytes()}; }

KvView RingCache::view() const {
  KvView view = layout_.strides;
  view.runs = runs_.data();
  view.run_count = run_count_;
  view.end_position = length_;
  return view;
}

}  // namespace kvroof
