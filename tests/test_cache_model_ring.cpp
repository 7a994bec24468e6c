// The ring cache against a list of all tokens ever appended and a plain count of how far the overwriting has come.
#include <algorithm>
#include <optional>

#include "kernels/cache/ring.hpp"
#include "tests/test_cache_models.hpp"

namespace kvroof::test_cache {
namespace {

struct Modelled {
  RingCache cache;
  std::vector<Token> tokens;      // by position, overwritten ones too
  std::int64_t furthest_end = 0;  // the greatest length since the cache was last empty
};

std::int64_t overwritten_below(const Modelled& m) {
  return std::max<std::int64_t>(0, m.furthest_end - m.cache.options().capacity);
}

// Every query of the chunk must find its whole window among the rows that are left after the chunk is written.
bool may_append(const Modelled& m, std::int64_t n) {
  const auto length = static_cast<std::int64_t>(m.tokens.size());
  const std::int64_t gone = length + n - m.cache.options().capacity;  // positions below are overwritten
  for (std::int64_t query = length; query < length + n; ++query) {
    for (std::int64_t key = std::max<std::int64_t>(0, query - m.cache.options().window + 1); key <= query; ++key) {
      if (key < gone) return false;
    }
  }
  return true;
}

bool may_truncate(const Modelled& m, std::int64_t length) {
  if (length == 0) return true;
  return std::max<std::int64_t>(0, length - m.cache.options().window + 1) >= overwritten_below(m);
}

void check(const Modelled& m) {
  const RingOptions& o = m.cache.options();
  const auto length = static_cast<std::int64_t>(m.tokens.size());
  std::vector<PlacedToken> expected;
  for (std::int64_t p = 0; p < length; ++p) {
    if (p < o.kept_tokens || p >= overwritten_below(m)) expected.emplace_back(p, m.tokens[static_cast<std::size_t>(p)]);
  }
  require(m.cache.length() == length && m.cache.next_position() == length, "length");
  require(m.cache.oldest_live() == overwritten_below(m), "oldest_live is " + std::to_string(m.cache.oldest_live()) +
                                                             ", expected " + std::to_string(overwritten_below(m)));
  require(m.cache.live_rows() == static_cast<std::int64_t>(expected.size()), "live_rows");
  require(m.cache.live_rows() <= o.capacity + o.kept_tokens, "more rows than slots");
  require(m.cache.bytes().used == m.cache.live_rows() * bytes_per_token(m.cache.shape()), "bytes used");
  require_view(m.cache.view(), m.cache.shape(), expected, length, o.kept_tokens > 0 ? 3 : 2);
}

void set_length(Modelled& m, std::int64_t length) {
  m.tokens.resize(static_cast<std::size_t>(length));
  if (length == 0) m.furthest_end = 0;
}

}  // namespace

void ring_model(OpSource& ops) {
  const CacheShape shape = random_shape(ops);
  RingOptions options;
  options.order = ops.next(2) == 0 ? RowOrder::head_major : RowOrder::token_major;
  options.window = ops.between(1, 10);
  options.capacity = options.window + (ops.next(3) == 0 ? 0 : ops.between(0, 8));
  options.kept_tokens = ops.next(2) == 0 ? 0 : ops.between(0, 5);
  CacheMemory arena;
  std::optional<Modelled> m;
  if (ops.next(4) == 0) {
    arena = CacheMemory::allocate(RingCache::bytes_needed(shape, options));
    m.emplace(Modelled{RingCache(shape, options, {arena.data(), static_cast<std::size_t>(arena.bytes())}), {}, 0});
  } else {
    m.emplace(Modelled{RingCache(shape, options), {}, 0});
  }
  std::optional<Modelled> other;
  Token next_token = 0;

  while (!ops.done()) {
    const auto length = static_cast<std::int64_t>(m->tokens.size());
    switch (ops.next(8)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        std::vector<Token> added(ops.next(2) == 0 ? 1 : ops.next(static_cast<std::uint64_t>(2 * options.capacity + 3)));
        for (Token& token : added) token = ++next_token;
        const TokenRows rows(shape, added, static_cast<std::int64_t>(ops.next(3)));
        const std::int64_t n = rows.rows().n;
        const bool tail = ops.next(4) == 0;
        const bool allowed = may_append(*m, n);
        require(m->cache.can_append(n) == allowed, "can_append(" + std::to_string(n) + ")");
        if (!tail && !allowed) {
          require_error(ErrorCode::no_capacity, "append", [&] { m->cache.append(rows.rows()); });
          break;
        }
        if (tail) {
          m->cache.append_tail(rows.rows());
        } else {
          m->cache.append(rows.rows());
        }
        m->tokens.insert(m->tokens.end(), added.begin(), added.end());
        m->furthest_end = std::max(m->furthest_end, static_cast<std::int64_t>(m->tokens.size()));
        break;
      }
      case 4:
      case 5: {
        const std::int64_t to =
            ops.next(8) == 0 ? ops.between(-1, length + 1) : std::max<std::int64_t>(0, length - ops.between(0, 5));
        const bool allowed = to >= 0 && to <= length && may_truncate(*m, to);
        require(m->cache.can_truncate_to(to) == allowed, "can_truncate_to(" + std::to_string(to) + ")");
        if (allowed) {
          m->cache.truncate_to(to);
          set_length(*m, to);
        } else {
          require_error(ErrorCode::bad_position, "truncate_to", [&] { m->cache.truncate_to(to); });
        }
        break;
      }
      case 6: {
        const std::int64_t n = ops.between(-1, 6);
        if (n >= 0 && n <= length && may_truncate(*m, length - n)) {
          m->cache.drop_last(n);
          set_length(*m, length - n);
        } else {
          require_error(ErrorCode::bad_position, "drop_last", [&] { m->cache.drop_last(n); });
        }
        break;
      }
      case 7:
        if (ops.next(2) == 0) {
          other.emplace(Modelled{m->cache.fork(), m->tokens, m->furthest_end});
        } else {
          Modelled copy{m->cache.fork(), m->tokens, m->furthest_end};
          other = std::move(m);
          m.emplace(std::move(copy));
        }
        break;
    }
    check(*m);
    if (other) check(*other);
  }
}

}  // namespace kvroof::test_cache
