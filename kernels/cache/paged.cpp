#include "kernels/cache/paged.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "kernels/cache/page_table.hpp"

namespace kvroof {
namespace {

constexpr std::uint32_t kMostReferences = std::numeric_limits<std::uint32_t>::max();

RowLayout page_layout(const CacheShape& shape, const PagedOptions& options) {
  if (options.page_rows < 1) {
    throw Error(ErrorCode::bad_shape,
                "paged cache: page_rows is " + std::to_string(options.page_rows) + ", must be at least 1");
  }
  if (options.page_count < 1) {
    throw Error(ErrorCode::bad_shape,
                "paged cache: page_count is " + std::to_string(options.page_count) + ", must be at least 1");
  }
  return row_layout(shape, options.order, options.page_rows);
}

// The library's own tables run out of memory like its rows do: as an Error.
template <typename Change>
void or_out_of_memory(const Change& change) {
  try {
    change();
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory, "paged cache: no memory for its tables; use fewer or larger pages");
  } catch (const std::length_error&) {
    throw Error(ErrorCode::out_of_memory, "paged cache: no memory for its tables; use fewer or larger pages");
  }
}

template <typename T>
void make_room(std::vector<T>& list, std::size_t more) {
  if (list.capacity() - list.size() < more) list.reserve(std::max(list.size() + more, list.capacity() * 2));
}

}  // namespace

std::int64_t PagedCache::bytes_needed(const CacheShape& shape, const PagedOptions& options) {
  const RowLayout page = page_layout(shape, options);
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(page.bytes, options.page_count, &bytes)) {
    throw Error(ErrorCode::bad_shape, "paged cache: " + std::to_string(options.page_count) + " pages of " +
                                          std::to_string(page.bytes) + " bytes overflow 63 bits; use fewer pages");
  }
  return bytes;
}

PagedCache::PagedCache(const CacheShape& shape, const PagedOptions& options) : PagedCache(shape, options, {}, false) {}

PagedCache::PagedCache(const CacheShape& shape, const PagedOptions& options, std::span<std::byte> memory)
    : PagedCache(shape, options, memory, true) {}

PagedCache::PagedCache(const CacheShape& shape, const PagedOptions& options, std::span<std::byte> memory, bool lent)
    : layout_(page_layout(shape, options)) {
  const std::int64_t bytes = bytes_needed(shape, options);
  page_total_ = options.page_count;
  if (!options.page_order.empty()) {
    page_total_ = static_cast<std::int64_t>(options.page_order.size());
    or_out_of_memory([&] {
      page_order_.assign(options.page_order.begin(), options.page_order.end());
      std::vector<PageId> sorted = page_order_;
      std::sort(sorted.begin(), sorted.end());
      const bool distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
      if (!distinct || sorted.front() < 0 || sorted.back() >= options.page_count) {
        throw Error(ErrorCode::bad_option, "paged cache: page_order must hold distinct page ids from 0 to " +
                                               std::to_string(options.page_count - 1));
      }
    });
  }
  memory_ = lent ? CacheMemory::lend(memory, bytes) : CacheMemory::allocate(bytes);
  or_out_of_memory([&] {
    references_.resize(static_cast<std::size_t>(options.page_count));
    given_back_.reserve(static_cast<std::size_t>(page_total_));
  });
}

// ---- sequences ------------------------------------------------------------------------------------------------------

const PagedCache::Sequence& PagedCache::find(SequenceId sequence, const char* call) const {
  if (sequence.index < sequences_.size()) {
    const Sequence& found = sequences_[sequence.index];
    if (found.live && found.generation == sequence.generation) return found;
  }
  throw Error(ErrorCode::bad_handle,
              std::string("paged cache: ") + call + " of sequence " + std::to_string(sequence.index) + " (generation " +
                  std::to_string(sequence.generation) + "), which does not exist or was released");
}

PagedCache::Sequence& PagedCache::find(SequenceId sequence, const char* call) {
  return const_cast<Sequence&>(std::as_const(*this).find(sequence, call));
}

// Gives `sequence` a place and a handle; pages are not touched.
SequenceId PagedCache::place(Sequence sequence) {
  if (free_places_.empty()) {
    if (sequences_.size() >= std::numeric_limits<std::uint32_t>::max()) {
      throw Error(ErrorCode::no_capacity, "paged cache: no more sequence handles; release some sequences");
    }
    or_out_of_memory([&] {
      make_room(free_places_, sequences_.size() + 1);
      sequences_.emplace_back();
    });
    free_places_.push_back(static_cast<std::uint32_t>(sequences_.size() - 1));
  }
  const std::uint32_t index = free_places_.back();
  free_places_.pop_back();
  Sequence& at = sequences_[index];
  sequence.generation = at.generation;
  sequence.live = true;
  at = std::move(sequence);
  return {index, at.generation};
}

SequenceId PagedCache::create() { return place({}); }

SequenceId PagedCache::fork(SequenceId sequence) {
  const Sequence& source = find(sequence, "fork");
  for (const PageId page : source.pages) {
    if (references_[static_cast<std::size_t>(page)] == kMostReferences) {
      throw Error(ErrorCode::no_capacity, "paged cache: page " + std::to_string(page) + " has too many sharers");
    }
  }
  Sequence copy;
  or_out_of_memory([&] { copy = source; });
  const SequenceId fork = place(std::move(copy));
  for (const PageId page : sequences_[fork.index].pages) share_page(page);
  return fork;
}

void PagedCache::release(SequenceId sequence) {
  Sequence& released = find(sequence, "release");
  truncate(released, 0);
  released = Sequence{.pages = {}, .runs = {}, .length = 0, .generation = released.generation + 1, .live = false};
  // A place whose generations are used up is never given out again, so an old handle can never come true.
  if (released.generation != 0) free_places_.push_back(sequence.index);
}

// ---- pages ----------------------------------------------------------------------------------------------------------

PageId PagedCache::take_page() {
  PageId page = 0;
  if (!given_back_.empty()) {
    page = given_back_.back();
    given_back_.pop_back();
  } else {
    page = page_order_.empty() ? handed_out_ : page_order_[static_cast<std::size_t>(handed_out_)];
    ++handed_out_;
  }
  references_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void PagedCache::share_page(PageId page) {
  if (++references_[static_cast<std::size_t>(page)] == 2) ++pages_shared_;
}

void PagedCache::drop_page(PageId page) {
  const std::uint32_t left = --references_[static_cast<std::size_t>(page)];
  if (left == 1) --pages_shared_;
  if (left == 0) given_back_.push_back(page);
}

RowRun PagedCache::page_run(PageId page, std::int64_t index, std::int64_t length) const {
  const std::int64_t first = index * layout_.slots;
  return row_run(layout_, block(page), 0, first, std::min(layout_.slots, length - first));
}

// ---- rows -----------------------------------------------------------------------------------------------------------

bool PagedCache::copies_last_page(const Sequence& sequence) const {
  return sequence.length % layout_.slots != 0 && references_[static_cast<std::size_t>(sequence.pages.back())] > 1;
}

std::int64_t PagedCache::pages_needed(const Sequence& sequence, std::int64_t n) const {
  if (n == 0) return 0;
  const std::int64_t more =
      pages_of(sequence.length + n, layout_.slots) - static_cast<std::int64_t>(sequence.pages.size());
  return more + (copies_last_page(sequence) ? 1 : 0);
}

void PagedCache::extend(Sequence& sequence, std::int64_t n) {
  std::int64_t length = 0;
  if (n < 0 || __builtin_add_overflow(sequence.length, n, &length)) {
    throw Error(ErrorCode::bad_shape,
                "paged cache: " + std::to_string(n) + " rows to add, must be at least 0 and stay within 63 bits");
  }
  if (n == 0) return;
  const std::int64_t needed = pages_needed(sequence, n);
  if (needed > free_pages()) {
    throw Error(ErrorCode::no_capacity, "paged cache: " + std::to_string(n) + " rows need " + std::to_string(needed) +
                                            " pages, " + std::to_string(free_pages()) + " of " +
                                            std::to_string(page_total_) + " are free; release or truncate sequences");
  }
  or_out_of_memory([&] {
    make_room(sequence.pages, static_cast<std::size_t>(needed));
    make_room(sequence.runs, static_cast<std::size_t>(needed));
  });

  // From here on nothing can fail.
  const std::int64_t page_rows = layout_.slots;
  if (copies_last_page(sequence)) {
    const PageId shared = sequence.pages.back();
    const PageId own = take_page();
    copy_rows(layout_, block(shared), 0, layout_, block(own), 0, sequence.length % page_rows);
    drop_page(shared);
    sequence.pages.back() = own;
  }
  const auto count = static_cast<std::size_t>(pages_of(length, page_rows));
  const std::size_t first_changed = static_cast<std::size_t>(sequence.length / page_rows);
  while (sequence.pages.size() < count) sequence.pages.push_back(take_page());
  sequence.runs.resize(first_changed);
  for (std::size_t i = first_changed; i < count; ++i) {
    sequence.runs.push_back(page_run(sequence.pages[i], static_cast<std::int64_t>(i), length));
  }
  sequence.length = length;
}

void PagedCache::truncate(Sequence& sequence, std::int64_t length) {
  const auto count = static_cast<std::size_t>(pages_of(length, layout_.slots));
  while (sequence.pages.size() > count) {
    drop_page(sequence.pages.back());
    sequence.pages.pop_back();
    sequence.runs.pop_back();
  }
  if (count > 0) sequence.runs.back() = page_run(sequence.pages.back(), static_cast<std::int64_t>(count) - 1, length);
  sequence.length = length;
}

void PagedCache::extend(SequenceId sequence, std::int64_t n) { extend(find(sequence, "extend"), n); }

void PagedCache::append(SequenceId sequence, const NewRows& rows) {
  Sequence& to = find(sequence, "append");
  check_new_rows(layout_.shape, rows, to.length, "paged cache");
  const RowConverter convert = default_row_converter();  // may refuse KVROOF_ISA: before anything changes
  std::int64_t position = to.length;
  extend(to, rows.n);
  for (std::int64_t done = 0; done < rows.n;) {
    const std::int64_t slot = position % layout_.slots;
    const std::int64_t count = std::min(rows.n - done, layout_.slots - slot);
    const PageId page = to.pages[static_cast<std::size_t>(position / layout_.slots)];
    store_rows(layout_, block(page), slot, rows, done, count, convert);
    position += count;
    done += count;
  }
}

void PagedCache::truncate_to(SequenceId sequence, std::int64_t length) {
  Sequence& at = find(sequence, "truncate_to");
  if (length < 0 || length > at.length) {
    throw Error(ErrorCode::bad_position, "paged cache: truncate_to(" + std::to_string(length) +
                                             ") must be from 0 to the length, " + std::to_string(at.length));
  }
  truncate(at, length);
}

void PagedCache::drop_last(SequenceId sequence, std::int64_t n) {
  Sequence& at = find(sequence, "drop_last");
  if (n < 0 || n > at.length) {
    throw Error(ErrorCode::bad_position, "paged cache: drop_last(" + std::to_string(n) +
                                             ") must be from 0 to the length, " + std::to_string(at.length));
  }
  truncate(at, at.length - n);
}

// ---- what there is --------------------------------------------------------------------------------------------------

std::int64_t PagedCache::length(SequenceId sequence) const { return find(sequence, "length").length; }

std::span<const PageId> PagedCache::pages(SequenceId sequence) const { return find(sequence, "pages").pages; }

KvView PagedCache::view(SequenceId sequence) const {
  const Sequence& at = find(sequence, "view");
  KvView view = layout_.strides;
  view.runs = at.runs.data();
  view.run_count = static_cast<std::int64_t>(at.runs.size());
  view.end_position = at.length;
  return view;
}

RowSlot PagedCache::slot(SequenceId sequence, std::int64_t position, std::int64_t head) const {
  const Sequence& at = find(sequence, "slot");
  const PageId page = at.pages[static_cast<std::size_t>(position / layout_.slots)];
  return row_slot(layout_, block(page), position % layout_.slots, head);
}

std::int64_t PagedCache::free_pages() const {
  return page_total_ - handed_out_ + static_cast<std::int64_t>(given_back_.size());
}

std::int64_t PagedCache::pages_needed(SequenceId sequence, std::int64_t n) const {
  const Sequence& at = find(sequence, "pages_needed");
  std::int64_t end = 0;
  if (n < 0 || __builtin_add_overflow(at.length, n, &end)) {
    throw Error(ErrorCode::bad_shape,
                "paged cache: pages_needed of " + std::to_string(n) + " rows, must be at least 0");
  }
  return pages_needed(at, n);
}

std::int64_t PagedCache::references(PageId page) const {
  if (page < 0 || page >= static_cast<std::int64_t>(references_.size())) return 0;
  return references_[static_cast<std::size_t>(page)];
}

PagedOccupancy PagedCache::occupancy() const {
  PagedOccupancy now;
  for (const Sequence& sequence : sequences_) {
    if (!sequence.live) continue;
    ++now.sequences;
    now.tokens += sequence.length;
  }
  now.pages_total = page_total_;
  now.pages_free = free_pages();
  now.pages_used = now.pages_total - now.pages_free;
  now.pages_shared = pages_shared_;
  return now;
}

CacheBytes PagedCache::bytes() const {
  return {(page_total_ - free_pages()) * layout_.slots * bytes_per_token(layout_.shape), memory_.bytes()};
}

}  // namespace kvroof
