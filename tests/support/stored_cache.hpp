// Puts the rows of a case into memory the way a cache would, in any layout, and describes them with a KvView. What the
// kernel must not read is poisoned: rows that no query sees, slots that hold nothing, the padding between rows, and the
// guard pages at both ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/views.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/guarded_buffer.hpp"

namespace kvroof::test {

enum class Poison : std::uint8_t { nan, plus_inf, minus_inf, huge };  // huge: 1e30, or the storage's largest
inline constexpr Poison kPoisons[] = {Poison::nan, Poison::plus_inf, Poison::minus_inf, Poison::huge};
const char* poison_name(Poison poison);

enum class LayoutKind : std::uint8_t {
  head_major,   // [h][t][D], one run
  token_major,  // [t][h][D], one run
  interleaved,  // token-major with K and V of a head side by side in one array
  wrapped,      // a ring: slot = (position + shift) mod capacity; kept tokens lie apart; two or three runs
  paged,        // pages in shuffled places of one pool, one run per page
  shredded,     // one array, but described by many runs of random length
};
inline constexpr LayoutKind kLayoutKinds[] = {LayoutKind::head_major, LayoutKind::token_major, LayoutKind::interleaved,
                                              LayoutKind::wrapped,    LayoutKind::paged,       LayoutKind::shredded};

struct Layout {
  LayoutKind kind = LayoutKind::head_major;
  std::int64_t page_rows = 16;  // paged
  std::uint64_t seed = 1;       // strides, padding, page order, place of the wrap
  Poison poison = Poison::nan;
  Edge edge = Edge::end;        // which end of every array touches its guard page
  bool drop_invisible = false;  // leave rows that no query sees out of the runs where whole runs allow it
};
std::string describe(const Layout& layout);
Layout random_layout(std::uint64_t seed);
// Every kind with every poison; pages of 4 rows, and of 16 at the arrays' other end.
std::vector<Layout> poisoned_layouts(std::uint64_t seed);
// Both ends of every array at its guard page, in one run and in pages of 3 rows.
std::vector<Layout> edge_layouts();

class StoredCache {
 public:
  StoredCache(const Case& c, const Layout& layout);

  const KvView& view() const { return view_; }
  std::uint64_t hash() const;  // of everything the kernel may only read
  bool intact() const;

 private:
  struct Place {  // where things lie, in elements of each array
    std::int64_t k_row = 0, k_head = 0, v_row = 0, v_head = 0, ks_row = 0, ks_head = 0, vs_row = 0, vs_head = 0;
    std::int64_t block_rows = 0;  // rows of one block (the whole cache, or a page)
    std::int64_t k_block = 0, v_block = 0, ks_block = 0, vs_block = 0;
  };
  struct Slots {  // position -> (block, row), as runs
    struct Run {
      std::int64_t position, rows, block, row;
    };
    std::vector<Run> runs;
    std::int64_t blocks = 1;
  };
  static Slots choose_slots(const Case& c, const Layout& layout, Choices& choose, std::int64_t& block_rows);
  static Place choose_place(const Case& c, const Layout& layout, Choices& choose, std::int64_t block_rows);
  void write_rows(const Case& c, const Slots::Run& run, const Place& place, const std::vector<char>& visible);

  GuardedBuffer k_, v_, k_scale_, v_scale_, runs_;
  bool shared_ = false;        // V lives in k_
  std::int64_t v_offset_ = 0;  // bytes from k_'s payload, where shared
  KvView view_;
};

// One flag per row: does any query of the case see it?
std::vector<char> visible_rows(const reference::AttentionProblem& problem);

}  // namespace kvroof::test
