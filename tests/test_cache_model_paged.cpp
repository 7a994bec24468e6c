// The paged cache against one list of tokens per sequence, with the pages' reference counts counted again from the
// lists of pages after every operation.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "kernels/cache/page_table.hpp"
#include "kernels/cache/paged.hpp"
#include "tests/test_cache_models.hpp"

namespace kvroof::test_cache {
namespace {

struct Live {
  SequenceId id;
  std::vector<Token> tokens;
};

struct Modelled {
  PagedCache cache;
  std::int64_t page_count = 0;
  std::set<PageId> allowed;  // by page_order
  std::vector<Live> live;
  std::vector<SequenceId> released;
};

void check_sequence(const Modelled& m, const Live& s) {
  std::vector<PlacedToken> expected;
  for (const Token token : s.tokens) expected.emplace_back(expected.size(), token);
  const auto length = static_cast<std::int64_t>(s.tokens.size());
  require(m.cache.length(s.id) == length && m.cache.next_position(s.id) == length, "length");
  const std::int64_t pages = pages_of(length, m.cache.page_rows());
  require(static_cast<std::int64_t>(m.cache.pages(s.id).size()) == pages, "number of pages");
  const KvView view = m.cache.view(s.id);
  require(view.run_count == pages, "one run a page");
  require_view(view, m.cache.shape(), expected, length, pages);
}

// Occupancy and references follow from the sequences' page lists alone.
void check_pool(const Modelled& m) {
  std::map<PageId, std::int64_t> holders;
  std::int64_t tokens = 0;
  for (const Live& s : m.live) {
    tokens += static_cast<std::int64_t>(s.tokens.size());
    for (const PageId page : m.cache.pages(s.id)) {
      require(m.allowed.count(page) == 1, "page " + std::to_string(page) + " is not one that may be used");
      ++holders[page];
    }
  }
  std::int64_t shared = 0;
  for (PageId page = -1; page <= m.page_count; ++page) {
    const auto found = holders.find(page);
    const std::int64_t count = found == holders.end() ? 0 : found->second;
    require(m.cache.references(page) == count, "references of page " + std::to_string(page));
    shared += count > 1 ? 1 : 0;
  }
  const PagedOccupancy now = m.cache.occupancy();
  const auto used = static_cast<std::int64_t>(holders.size());
  require(now.sequences == static_cast<std::int64_t>(m.live.size()) && now.tokens == tokens, "occupancy of sequences");
  require(now.pages_used == used && now.pages_shared == shared, "occupancy of pages");
  require(now.pages_total == static_cast<std::int64_t>(m.allowed.size()) && now.pages_free == now.pages_total - used &&
              m.cache.free_pages() == now.pages_free,
          "free pages");
  require(m.cache.bytes().used == used * m.cache.page_rows() * bytes_per_token(m.cache.shape()), "bytes used");
}

void check_released(Modelled& m, SequenceId id) {
  const ErrorCode code = ErrorCode::bad_handle;
  require_error(code, "double release", [&] { m.cache.release(id); });
  require_error(code, "fork after release", [&] { m.cache.fork(id); });
  require_error(code, "append after release", [&] { m.cache.append(id, NewRows{}); });
  require_error(code, "extend after release", [&] { m.cache.extend(id, 1); });
  require_error(code, "truncate_to after release", [&] { m.cache.truncate_to(id, 0); });
  require_error(code, "view after release", [&] { m.cache.view(id); });
  require_error(code, "length after release", [&] { m.cache.length(id); });
}

Modelled random_pool(OpSource& ops, CacheMemory& arena) {
  const CacheShape shape = random_shape(ops);
  PagedOptions options;
  options.order = ops.next(2) == 0 ? RowOrder::head_major : RowOrder::token_major;
  options.page_rows = ops.next(3) == 0 ? 1 : ops.between(2, 9);
  options.page_count = ops.between(1, 40);
  std::vector<PageId> order;
  std::set<PageId> allowed;
  for (PageId page = 0; page < options.page_count; ++page) allowed.insert(page);
  if (ops.next(2) == 0) {  // a random subset in random order
    for (PageId page = 0; page < options.page_count; ++page) {
      order.insert(order.begin() + ops.between(0, static_cast<std::int64_t>(order.size())), page);
    }
    order.resize(static_cast<std::size_t>(ops.between(1, options.page_count)));
    allowed = std::set<PageId>(order.begin(), order.end());
    options.page_order = order;
  }
  if (ops.next(4) != 0) return {PagedCache(shape, options), options.page_count, allowed, {}, {}};
  arena = CacheMemory::allocate(PagedCache::bytes_needed(shape, options));
  return {PagedCache(shape, options, {arena.data(), static_cast<std::size_t>(arena.bytes())}),
          options.page_count,
          allowed,
          {},
          {}};
}

}  // namespace

void paged_model(OpSource& ops) {
  CacheMemory arena;
  Modelled m = random_pool(ops, arena);
  const CacheShape shape = m.cache.shape();
  const std::int64_t page_rows = m.cache.page_rows();
  Token next_token = 0;

  while (!ops.done()) {
    const std::uint64_t op = ops.next(10);
    if (m.live.empty() || op == 0) {
      if (m.live.size() < 6) m.live.push_back({m.cache.create(), {}});
      check_pool(m);
      continue;
    }
    const auto which = static_cast<std::size_t>(ops.next(m.live.size()));
    Live& s = m.live[which];
    const auto length = static_cast<std::int64_t>(s.tokens.size());
    switch (op) {
      case 1:
      case 2:
      case 3:
      case 4: {
        std::vector<Token> added(ops.next(2) == 0 ? 1 : ops.next(static_cast<std::uint64_t>(2 * page_rows + 3)));
        for (Token& token : added) token = ++next_token;
        const TokenRows rows(shape, added, static_cast<std::int64_t>(ops.next(3)));
        const std::int64_t n = rows.rows().n;
        std::int64_t needed = pages_of(length + n, page_rows) - pages_of(length, page_rows);
        if (n > 0 && length % page_rows != 0 && m.cache.references(m.cache.pages(s.id).back()) > 1) ++needed;
        require(m.cache.pages_needed(s.id, n) == needed, "pages_needed");
        if (needed > m.cache.free_pages()) {
          require_error(ErrorCode::no_capacity, "append", [&] { m.cache.append(s.id, rows.rows()); });
          break;
        }
        const std::int64_t free_before = m.cache.free_pages();
        m.cache.append(s.id, rows.rows());
        s.tokens.insert(s.tokens.end(), added.begin(), added.end());
        require(m.cache.free_pages() == free_before - needed, "pages taken");
        break;
      }
      case 5: {
        const std::int64_t to = ops.between(-1, length + 1);
        if (to < 0 || to > length) {
          require_error(ErrorCode::bad_position, "truncate_to", [&] { m.cache.truncate_to(s.id, to); });
        } else {
          m.cache.truncate_to(s.id, to);
          s.tokens.resize(static_cast<std::size_t>(to));
        }
        break;
      }
      case 6: {
        const std::int64_t n = ops.between(-1, 4);
        if (n < 0 || n > length) {
          require_error(ErrorCode::bad_position, "drop_last", [&] { m.cache.drop_last(s.id, n); });
        } else {
          m.cache.drop_last(s.id, n);
          s.tokens.resize(static_cast<std::size_t>(length - n));
        }
        break;
      }
      case 7:
      case 8:
        if (m.live.size() < 6) {
          Live copy{m.cache.fork(s.id), s.tokens};
          m.live.push_back(std::move(copy));
        }
        break;
      case 9:
        m.cache.release(s.id);
        m.released.push_back(s.id);
        m.live.erase(m.live.begin() + static_cast<std::ptrdiff_t>(which));
        break;
    }
    for (const Live& each : m.live) check_sequence(m, each);
    if (!m.released.empty()) check_released(m, m.released[static_cast<std::size_t>(ops.next(m.released.size()))]);
    check_pool(m);
  }
  for (const Live& s : m.live) m.cache.release(s.id);
  m.live.clear();
  check_pool(m);
  require(m.cache.free_pages() == m.cache.occupancy().pages_total, "all pages are back");
}

}  // namespace kvroof::test_cache
