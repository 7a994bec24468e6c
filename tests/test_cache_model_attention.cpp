// Attention over sequences that grow, roll back and fork in caches of every kind, against the lane twin over a plain
// list of tokens: layouts, page sizes, places of the wrap, chunks, batches, parts and instruction sets all at once.
#include <algorithm>
#include <cstring>
#include <optional>
#include <variant>

#include "kernels/cache/contiguous.hpp"
#include "kernels/cache/page_table.hpp"
#include "kernels/cache/paged.hpp"
#include "kernels/cache/ring.hpp"
#include "reference/half.hpp"
#include "reference/inputs.hpp"
#include "reference/lane_twin.hpp"
#include "reference/mla_row.hpp"
#include "tests/test_cache_models.hpp"

namespace kvroof::test_cache {
namespace {

using reference::AttentionProblem;

struct Paged {
  PagedCache* pool;
  SequenceId id;
};

struct Member {
  std::variant<ContiguousCache, RingCache, Paged> cache;
  std::vector<Token> tokens;

  std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
  KvView view() const {
    if (const auto* paged = std::get_if<Paged>(&cache)) return paged->pool->view(paged->id);
    if (const auto* ring = std::get_if<RingCache>(&cache)) return ring->view();
    return std::get<ContiguousCache>(cache).view();
  }
};

// The model: what all sequences share, in the words of both sides.
struct Model {
  CacheShape shape;
  std::int64_t query_heads = 0;
  AttentionOptions options;
  std::vector<float> slopes, sinks;

  explicit Model(OpSource& ops) : shape(random_shape(ops)) {
    query_heads = shape.kv_heads * ops.between(1, 4);
    options.scale = 0.5f;
    if (ops.next(2) == 0) {
      options.window = ops.next(4) == 0 ? ops.between(500, 530) : ops.between(1, 12);
      options.kept_tokens = ops.next(2) == 0 ? 0 : ops.between(1, 4);
    }
    if (ops.next(4) == 0) options.softcap = 2.0f;
    const auto per_head = [&](std::uint64_t seed, std::vector<float>& list) -> const float* {
      if (ops.next(4) != 0) return nullptr;
      for (std::int64_t h = 0; h < query_heads; ++h)
        list.push_back(reference::uniform(seed, static_cast<std::uint64_t>(h)));
      return list.data();
    };
    options.alibi_slopes = per_head(501, slopes);
    options.sink_logits = per_head(502, sinks);
  }
  Model(const Model&) = delete;  // options point into it

  bool windowed() const { return options.window != kUnlimitedWindow; }

  // Appends a row in its stored meaning, by the references' conversions.
  void store(Storage storage, const std::vector<float>& row, std::vector<float>& to, std::vector<float>& scales) const {
    if (storage == Storage::int8) {
      std::vector<std::int8_t> codes(row.size());
      scales.push_back(reference::quantize_int8_row(row.data(), row.size(), codes.data()));
      to.insert(to.end(), codes.begin(), codes.end());
      return;
    }
    for (const float x : row) {
      to.push_back(storage == Storage::f16    ? reference::f16_to_f32(reference::f32_to_f16(x))
                   : storage == Storage::bf16 ? reference::bf16_to_f32(reference::f32_to_bf16(x))
                                              : x);
    }
  }

  void store_latent(Token token, AttentionProblem& p) const {
    const auto kind = static_cast<reference::StorageKind>(shape.k_storage);
    const std::int64_t rope = shape.key_dim - shape.latent_dim;
    const std::vector<float> row = token_row(token, 0, 0, shape.key_dim);
    std::vector<std::byte> bytes(static_cast<std::size_t>(reference::mla_row_bytes(kind, shape.latent_dim, rope)));
    std::vector<float> values(row.size());
    reference::mla_encode_row(kind, row.data(), shape.latent_dim, rope, bytes.data());
    reference::mla_decode_row(kind, bytes.data(), shape.latent_dim, rope, values.data());
    p.k.insert(p.k.end(), values.begin(), values.end());
    p.v.insert(p.v.end(), values.begin(), values.begin() + shape.latent_dim);
  }

  AttentionProblem problem(const std::vector<Token>& tokens, std::int64_t n, const std::vector<float>& q) const {
    AttentionProblem p;
    p.query_heads = query_heads;
    p.kv_heads = shape.kv_heads;
    p.key_dim = shape.key_dim;
    p.value_dim = shape.value_dim;
    p.n = n;
    p.T = static_cast<std::int64_t>(tokens.size());
    p.q = q;
    p.scale = options.scale;
    p.window = options.window;
    p.kept_tokens = options.kept_tokens;
    p.softcap = options.softcap;
    p.alibi_slopes = slopes;
    p.sink_logits = sinks;
    for (const Token token : tokens) {
      if (shape.latent_dim > 0) {
        store_latent(token, p);
        continue;
      }
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        store(shape.k_storage, token_row(token, 0, h, shape.key_dim), p.k, p.k_scale);
        store(shape.v_storage, token_row(token, 1, h, shape.value_dim), p.v, p.v_scale);
      }
    }
    return p;
  }
};

// The most new tokens whose first query still finds its window.
std::int64_t most_queries(const Member& m) {
  const auto* ring = std::get_if<RingCache>(&m.cache);
  if (ring == nullptr) return m.length();
  std::int64_t n = m.length();
  while (n > 0 && std::max<std::int64_t>(0, m.length() - n - ring->options().window + 1) < ring->oldest_live()) --n;
  return n;
}

struct Call {
  std::vector<float> q, out, lse;
  std::int64_t n = 0;
};

Isa random_isa(OpSource& ops) {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::neon}) {
    if (isa_supported(isa)) isas.push_back(isa);
  }
  return isas[static_cast<std::size_t>(ops.next(isas.size()))];
}

// All parts in a random order, now and then by as many threads.
void run(const AttentionArgs& args, OpSource& ops, Isa isa) {
  const int parts = static_cast<int>(ops.between(1, 8));
  const std::size_t bytes = attention_workspace_bytes(args, parts);
  const CacheMemory workspace = CacheMemory::allocate(static_cast<std::int64_t>(bytes));
  if (bytes > 0) std::memset(workspace.data(), 0xff, bytes);
  if (ops.next(16) == 0) {
    decode_attention(args, {workspace.data(), bytes}, parts, isa);
    return;
  }
  attention_check(args);
  std::vector<int> order;
  for (int part = 0; part < parts; ++part)
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(ops.next(order.size() + 1)), part);
  for (const int part : order) attention_run_part(args, parts, part, workspace.data(), isa);
  for (const int part : order) attention_merge_part(args, parts, part, workspace.data(), isa);
}

void require_twin(const Model& model, const std::vector<Member>& members, OpSource& ops, std::uint64_t call) {
  std::vector<Call> calls(members.size());
  std::vector<AttentionSequence> sequences(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    Call& c = calls[i];
    c.n = std::min(most_queries(members[i]), ops.next(8) == 0 ? ops.between(0, 20) : ops.between(0, 3));
    c.q.resize(static_cast<std::size_t>(c.n * model.query_heads * model.shape.key_dim));
    for (std::size_t j = 0; j < c.q.size(); ++j) c.q[j] = 2.0f * reference::uniform(7000 + 10 * call + i, j);
    c.out.assign(static_cast<std::size_t>(c.n * model.query_heads * model.shape.value_dim), -7.0f);
    c.lse.assign(static_cast<std::size_t>(c.n * model.query_heads), -7.0f);
    AttentionSequence& s = sequences[i];
    s.q = c.q.data();
    s.q_head_stride = model.shape.key_dim;
    s.q_row_stride = model.query_heads * model.shape.key_dim;
    s.n = c.n;
    s.kv = members[i].view();
    s.out = c.out.data();
    s.out_head_stride = model.shape.value_dim;
    s.out_row_stride = model.query_heads * model.shape.value_dim;
    s.lse = c.lse.data();
  }
  AttentionArgs args;
  args.shape = {model.query_heads, model.shape.kv_heads, model.shape.key_dim, model.shape.value_dim};
  args.options = model.options;
  args.sequences = sequences;
  const Isa isa = random_isa(ops);
  run(args, ops, isa);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Call& c = calls[i];
    if (c.n == 0) continue;
    std::vector<float> out, lse;
    reference::lane_twin_attention(model.problem(members[i].tokens, c.n, c.q), out, lse);
    require(out.size() == c.out.size() && std::memcmp(out.data(), c.out.data(), out.size() * sizeof(float)) == 0 &&
                std::memcmp(lse.data(), c.lse.data(), lse.size() * sizeof(float)) == 0,
            "attention over member " + std::to_string(i) + " (cache kind " + std::to_string(members[i].cache.index()) +
                ", length " + std::to_string(members[i].length()) + ", n " + std::to_string(c.n) + ", " +
                isa_name(isa) + ") differs from the lane twin over its tokens");
  }
}

RowOrder random_order(OpSource& ops) { return ops.next(2) == 0 ? RowOrder::head_major : RowOrder::token_major; }

PagedCache random_pool(const CacheShape& shape, OpSource& ops) {
  PagedOptions options;
  options.order = random_order(ops);
  options.page_rows = ops.next(2) == 0 ? ops.between(1, 3) : ops.between(4, 70);
  options.page_count = ops.between(1, 2000 / options.page_rows);
  std::vector<PageId> backwards;  // a page is seldom where its neighbour is
  for (PageId page = options.page_count - 1; page >= 0; page -= 2) backwards.push_back(page);
  for (PageId page = options.page_count - 2; page >= 0; page -= 2) backwards.push_back(page);
  options.page_order = backwards;
  return PagedCache(shape, options);
}

Member random_member(const Model& model, PagedCache (&pools)[2], OpSource& ops) {
  const std::uint64_t kind = ops.next(3);
  if (kind == 0) return {ContiguousCache(model.shape, random_order(ops), ops.between(0, 20)), {}};
  if (kind == 1 && model.windowed()) {
    RingOptions options;
    options.order = random_order(ops);
    options.window = model.options.window;
    options.capacity = options.window + ops.between(0, 9);
    options.kept_tokens = model.options.kept_tokens;
    return {RingCache(model.shape, options), {}};
  }
  PagedCache& pool = pools[ops.next(2)];
  return {Paged{&pool, pool.create()}, {}};
}

// Whether the append is taken, and what of it is refused.
bool append(Member& m, const NewRows& rows) {
  if (auto* paged = std::get_if<Paged>(&m.cache)) {
    if (paged->pool->pages_needed(paged->id, rows.n) > paged->pool->free_pages()) {
      require_error(ErrorCode::no_capacity, "append", [&] { paged->pool->append(paged->id, rows); });
      return false;
    }
    paged->pool->append(paged->id, rows);
    return true;
  }
  if (auto* ring = std::get_if<RingCache>(&m.cache)) {
    if (!ring->can_append(rows.n)) {
      require_error(ErrorCode::no_capacity, "append", [&] { ring->append(rows); });
      ring->append_tail(rows);
      return true;
    }
    ring->append(rows);
    return true;
  }
  std::get<ContiguousCache>(m.cache).append(rows);
  return true;
}

bool truncate(Member& m, std::int64_t length) {
  if (auto* paged = std::get_if<Paged>(&m.cache)) {
    paged->pool->truncate_to(paged->id, length);
    return true;
  }
  if (auto* ring = std::get_if<RingCache>(&m.cache)) {
    if (!ring->can_truncate_to(length)) {
      require_error(ErrorCode::bad_position, "truncate_to", [&] { ring->truncate_to(length); });
      return false;
    }
    ring->truncate_to(length);
    return true;
  }
  std::get<ContiguousCache>(m.cache).truncate_to(length);
  return true;
}

Member fork(const Member& m) {
  if (const auto* paged = std::get_if<Paged>(&m.cache))
    return {Paged{paged->pool, paged->pool->fork(paged->id)}, m.tokens};
  if (const auto* ring = std::get_if<RingCache>(&m.cache)) return {ring->fork(), m.tokens};
  return {std::get<ContiguousCache>(m.cache).fork(), m.tokens};
}

}  // namespace

void attention_model(OpSource& ops) {
  const Model model(ops);
  PagedCache pools[2] = {random_pool(model.shape, ops), random_pool(model.shape, ops)};
  const std::int64_t longest = ops.next(16) == 0 ? 600 : 24;  // rarely past a segment: the twin is slow
  constexpr std::size_t kMembers = 5;
  std::vector<Member> members;
  Token next_token = 0;
  for (std::uint64_t call = 0; !ops.done(); ++call) {
    const std::uint64_t op = ops.next(10);
    if (members.empty() || (op == 0 && members.size() < kMembers)) {
      members.push_back(random_member(model, pools, ops));
      continue;
    }
    const auto which = static_cast<std::size_t>(ops.next(members.size()));
    Member& m = members[which];
    if (op <= 5) {
      const bool prompt = m.length() == 0 && ops.next(2) == 0;
      std::vector<Token> added(static_cast<std::size_t>(prompt ? ops.between(1, longest) : ops.between(0, 4)));
      for (Token& token : added) token = ++next_token;
      const TokenRows rows(model.shape, added, static_cast<std::int64_t>(ops.next(3)));
      if (append(m, rows.rows())) m.tokens.insert(m.tokens.end(), added.begin(), added.end());
    } else if (op <= 7) {
      const std::int64_t to =
          ops.next(8) == 0 ? ops.between(0, m.length()) : std::max<std::int64_t>(0, m.length() - ops.between(0, 5));
      if (truncate(m, to)) m.tokens.resize(static_cast<std::size_t>(to));
    } else if (op == 8 && members.size() < kMembers) {
      members.push_back(fork(m));
    } else if (op == 9) {
      if (const auto* paged = std::get_if<Paged>(&m.cache)) paged->pool->release(paged->id);
      members.erase(members.begin() + static_cast<std::ptrdiff_t>(which));
    }
    require_twin(model, members, ops, call);
  }
}

}  // namespace kvroof::test_cache
