// The paged cache: one pool of pages of P rows for many sequences, which grow page by page, share pages after a fork
// and give them back.
//
// A page is one block [K | V | int8 scales][h][P][D] (or [P][h][D], see RowOrder): in head order the P rows of one head
// are one stretch of P*D values, which is what a kernel that takes one head at a time reads; page and planes start at
// multiples of 64 bytes. A sequence's page i holds positions i*P ... i*P+P-1; its view has one run a page and never
// takes neighbouring pages for adjacent memory. Slots beyond a sequence's length hold whatever was there (pages are
// never cleared) and are in nobody's view.
//
// fork() shares all pages; the first append into a shared, half-filled last page copies that page's rows of the writer
// (copy-on-write), so no sequence ever sees another's tokens. Sequences are named by handles with a generation: using
// or releasing a released one is Error(bad_handle), even after its place was given to another.
//
// Every call either does all it says or throws Error and leaves everything as it was. Const calls may run on many
// threads at once; a call that changes the cache needs it alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cache/memory.hpp"
#include "kernels/cache/rows.hpp"

namespace kvroof {

using PageId = std::int64_t;

struct SequenceId {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;  // 0 is never valid, so a default SequenceId names nothing
  bool operator==(const SequenceId&) const = default;
};

struct PagedOptions {
  RowOrder order = RowOrder::head_major;
  std::int64_t page_rows = 16;  // P >= 1
  std::int64_t page_count = 0;  // pages of the pool, >= 1
  // The pages in the order in which they are handed out the first time; distinct ids, and the only ones ever used.
  // Empty: 0, 1, 2, ... Pages given back are handed out again first, the newest before older ones.
  std::span<const PageId> page_order = {};
};

struct PagedOccupancy {
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;        // sum of the sequences' lengths, shared rows counted for each
  std::int64_t pages_total = 0;   // that can be handed out
  std::int64_t pages_used = 0;    // by at least one sequence
  std::int64_t pages_shared = 0;  // by at least two
  std::int64_t pages_free = 0;
};

class PagedCache {
 public:
  PagedCache(const CacheShape& shape, const PagedOptions& options);
  // The pool in memory of the caller, 64-byte aligned and at least bytes_needed(); it must outlive the cache.
  PagedCache(const CacheShape& shape, const PagedOptions& options, std::span<std::byte> memory);
  static std::int64_t bytes_needed(const CacheShape& shape, const PagedOptions& options);

  PagedCache(PagedCache&&) noexcept = default;  // handles and views stay valid for the new object
  PagedCache& operator=(PagedCache&&) noexcept = default;

  SequenceId create();                   // an empty sequence
  SequenceId fork(SequenceId sequence);  // one with the same rows; copies no row
  void release(SequenceId sequence);

  // n tokens at positions length ... length+n-1. Error(no_capacity) where the pool has too few free pages.
  void append(SequenceId sequence, const NewRows& rows);
  // The same, but the caller then writes the rows itself through slot(); until then they hold anything.
  void extend(SequenceId sequence, std::int64_t n);
  // Keeps the first `length` rows, gives back pages that hold none of them. Error(bad_position) unless in 0 ... length.
  void truncate_to(SequenceId sequence, std::int64_t length);
  void drop_last(SequenceId sequence, std::int64_t n);  // Error(bad_position) for n < 0 or more rows than there are

  std::int64_t length(SequenceId sequence) const;
  std::int64_t next_position(SequenceId sequence) const { return length(sequence); }
  // Page ids in order of position. Valid until the next change of this sequence, like the view.
  std::span<const PageId> pages(SequenceId sequence) const;
  KvView view(SequenceId sequence) const;
  // The row of `position` (0 ... length-1, unchecked) and `head`. Rows of shared pages belong to every sharer.
  RowSlot slot(SequenceId sequence, std::int64_t position, std::int64_t head) const;

  std::int64_t free_pages() const;
  // New pages that appending n rows takes, the copy of a shared last page included. For admission control.
  std::int64_t pages_needed(SequenceId sequence, std::int64_t n) const;
  std::int64_t references(PageId page) const;  // sequences that hold the page; 0 for a free or unknown one
  PagedOccupancy occupancy() const;
  CacheBytes bytes() const;  // used: whole pages in use, each once; reserved: the pool
  std::int64_t page_rows() const { return layout_.slots; }
  const CacheShape& shape() const { return layout_.shape; }

 private:
  struct Sequence {
    std::vector<PageId> pages;
    std::vector<RowRun> runs;  // one a page, kept in step with every change
    std::int64_t length = 0;
    std::uint32_t generation = 1;
    bool live = false;
  };

  PagedCache(const CacheShape& shape, const PagedOptions& options, std::span<std::byte> memory, bool lent);
  const Sequence& find(SequenceId sequence, const char* call) const;
  Sequence& find(SequenceId sequence, const char* call);
  bool copies_last_page(const Sequence& sequence) const;
  std::int64_t pages_needed(const Sequence& sequence, std::int64_t n) const;
  void extend(Sequence& sequence, std::int64_t n);
  void truncate(Sequence& sequence, std::int64_t length);
  SequenceId place(Sequence sequence);
  PageId take_page();
  void share_page(PageId page);
  void drop_page(PageId page);
  std::byte* block(PageId page) const { return memory_.data() + page * layout_.bytes; }
  RowRun page_run(PageId page, std::int64_t index, std::int64_t length) const;

  RowLayout layout_;  // of one page
  CacheMemory memory_;
  std::vector<PageId> page_order_;         // empty: ascending ids
  std::int64_t page_total_ = 0;            // pages that can be handed out
  std::int64_t handed_out_ = 0;            // of the first-time order
  std::vector<PageId> given_back_;         // a stack, with room for all pages, so that giving back cannot fail
  std::vector<std::uint32_t> references_;  // by page id
  std::int64_t pages_shared_ = 0;
  std::vector<Sequence> sequences_;
  std::vector<std::uint32_t> free_places_;  // in sequences_, with room for all
};

}  // namespace kvroof
