// The contiguous cache against a vector of tokens.
#include <cstring>
#include <optional>

#include "kernels/cache/contiguous.hpp"
#include "tests/test_cache_models.hpp"

namespace kvroof::test_cache {
namespace {

struct Modelled {
  ContiguousCache cache;
  std::vector<Token> tokens;
};

std::int64_t size_of(Storage storage, std::int64_t dim) {
  return dim * static_cast<std::int64_t>(storage_bytes(storage));
}

void check(const Modelled& m) {
  std::vector<PlacedToken> expected;
  for (const Token token : m.tokens) expected.emplace_back(expected.size(), token);
  const auto length = static_cast<std::int64_t>(m.tokens.size());
  require(m.cache.length() == length && m.cache.next_position() == length, "length");
  require(m.cache.capacity() >= length, "capacity below length");
  require_view(m.cache.view(), m.cache.shape(), expected, length, 1);
  require(m.cache.bytes().used == length * bytes_per_token(m.cache.shape()), "bytes used");
  require(m.cache.bytes().reserved >= m.cache.bytes().used, "bytes reserved");
  if (length > 0) {
    const RowRun& run = m.cache.view().runs[0];
    require(reinterpret_cast<std::uintptr_t>(run.k) % 64 == 0 && reinterpret_cast<std::uintptr_t>(run.v) % 64 == 0,
            "rows do not start at a multiple of 64 bytes");
  }
}

}  // namespace

void contiguous_model(OpSource& ops) {
  const CacheShape shape = random_shape(ops);
  const RowOrder order = ops.next(2) == 0 ? RowOrder::head_major : RowOrder::token_major;
  const std::int64_t capacity = ops.between(0, 30);
  const bool lent = ops.next(4) == 0;
  CacheMemory arena;
  std::optional<Modelled> m;
  if (lent) {
    arena = CacheMemory::allocate(ContiguousCache::bytes_needed(shape, order, capacity) + 64);
    const std::span<std::byte> memory(arena.data(), static_cast<std::size_t>(arena.bytes()));
    m.emplace(Modelled{ContiguousCache(shape, order, capacity, memory), {}});
  } else {
    m.emplace(Modelled{ContiguousCache(shape, order, capacity), {}});
  }
  std::optional<Modelled> other;  // a fork that must not change while this one does
  bool can_grow = !lent;
  Token next_token = 0;

  while (!ops.done()) {
    const auto length = static_cast<std::int64_t>(m->tokens.size());
    switch (ops.next(9)) {
      case 0:
      case 1:
      case 2: {
        std::vector<Token> added(ops.next(5));
        for (Token& token : added) token = ++next_token;
        const TokenRows rows(shape, added, static_cast<std::int64_t>(ops.next(3)));
        const std::int64_t n = rows.rows().n;
        if (!can_grow && length + n > m->cache.capacity()) {
          require_error(ErrorCode::no_capacity, "append to full lent memory", [&] { m->cache.append(rows.rows()); });
        } else {
          m->cache.append(rows.rows());
          m->tokens.insert(m->tokens.end(), added.begin(), added.end());
        }
        break;
      }
      case 3: {  // extend, then rows written in place
        const Token token = ++next_token;
        if (!can_grow && length == m->cache.capacity()) break;
        m->cache.extend(1);
        m->tokens.push_back(token);
        const TokenRows rows(shape, {&token, 1}, 0);
        // Through the layout's own slots: a block of one row is the plainest way to have the row's bytes in its
        // storage.
        const RowLayout one = row_layout(shape, order, 1);
        const CacheMemory block = CacheMemory::allocate(one.bytes);
        store_rows(one, block.data(), 0, rows.rows(), 0, 1, default_row_converter());
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          const RowSlot from = row_slot(one, block.data(), 0, h), to = m->cache.slot(length, h);
          const std::int64_t k_bytes =
              shape.latent_dim > 0 ? bytes_per_token(shape) : size_of(shape.k_storage, shape.key_dim);
          std::memcpy(to.k, from.k, static_cast<std::size_t>(k_bytes));
          if (shape.latent_dim > 0) continue;
          std::memcpy(to.v, from.v, static_cast<std::size_t>(size_of(shape.v_storage, shape.value_dim)));
          if (to.k_scale != nullptr) *to.k_scale = *from.k_scale;
          if (to.v_scale != nullptr) *to.v_scale = *from.v_scale;
        }
        break;
      }
      case 4: {
        const std::int64_t to = ops.between(-1, length + 1);
        if (to < 0 || to > length) {
          require_error(ErrorCode::bad_position, "truncate_to", [&] { m->cache.truncate_to(to); });
        } else {
          m->cache.truncate_to(to);
          m->tokens.resize(static_cast<std::size_t>(to));
        }
        break;
      }
      case 5: {
        const std::int64_t n = ops.between(-1, 4);
        if (n < 0 || n > length) {
          require_error(ErrorCode::bad_position, "drop_last", [&] { m->cache.drop_last(n); });
        } else {
          m->cache.drop_last(n);
          m->tokens.resize(static_cast<std::size_t>(length - n));
        }
        break;
      }
      case 6: {
        const std::int64_t rows = ops.between(0, 60);
        if (!can_grow && rows > m->cache.capacity()) {
          require_error(ErrorCode::no_capacity, "reserve of lent memory", [&] { m->cache.reserve(rows); });
        } else {
          m->cache.reserve(rows);
          require(m->cache.capacity() >= rows, "reserve");
        }
        break;
      }
      case 7:  // go on with the fork and keep the original, or the other way round
        if (ops.next(2) == 0) {
          other.emplace(Modelled{m->cache.fork(), m->tokens});
        } else {
          Modelled copy{m->cache.fork(), m->tokens};
          other = std::move(m);
          m.emplace(std::move(copy));
          can_grow = true;
        }
        break;
      case 8:  // sizes no machine has, and sizes that no 64-bit number holds
        if (!can_grow) break;
        require_error(ErrorCode::out_of_memory, "reserve of 2^48 bytes",
                      [&] { m->cache.reserve((std::int64_t{1} << 48) / bytes_per_token(shape)); });
        require_error(ErrorCode::bad_shape, "reserve of 2^62 rows", [&] { m->cache.reserve(std::int64_t{1} << 62); });
        break;
    }
    check(*m);
    if (other) check(*other);
  }
}

}  // namespace kvroof::test_cache
