// kvroof.h over the C++ interface: the caches.
#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <variant>

#include "kernels/c_api.hpp"
#include "kernels/cache/contiguous.hpp"
#include "kernels/cache/page_table.hpp"
#include "kernels/cache/paged.hpp"
#include "kernels/cache/ring.hpp"

using namespace kvroof;
using namespace kvroof::c_api;

struct kvroof_cache {
  std::variant<ContiguousCache, RingCache> rows;
};

struct kvroof_pool {
  PagedCache pages;
};

namespace {

static_assert(std::is_same_v<PageId, std::int64_t>);
static_assert(static_cast<int>(RowOrder::token_major) == KVROOF_TOKEN_MAJOR);

RowOrder row_order(kvroof_row_order order) {
  if (order > KVROOF_TOKEN_MAJOR) {
    throw Error(ErrorCode::bad_option, "kvroof: row order " + std::to_string(order) + " is unknown, must be 0 or 1");
  }
  return static_cast<RowOrder>(order);
}

CacheShape shape_of(const kvroof_cache_shape& s) {
  return {s.kv_heads, s.key_dim, s.value_dim, storage(s.k_storage), storage(s.v_storage), s.latent_dim};
}

NewRows rows_of(const kvroof_rows& r) {
  return {r.n, r.k, r.v, r.k_row_stride, r.k_head_stride, r.v_row_stride, r.v_head_stride};
}

RingOptions options_of(const kvroof_ring_options& o) {
  return {row_order(o.order), o.capacity, o.window, o.kept_tokens};
}

PagedOptions options_of(const kvroof_pool_options& o) {
  return {
      row_order(o.order), o.page_rows, o.page_count, {o.page_order, o.page_order == nullptr ? 0 : o.page_order_count}};
}

SequenceId id_of(kvroof_sequence_id id) { return {id.index, id.generation}; }

KvView view_of(const kvroof_view& view) {
  storage(view.k_storage);
  storage(view.v_storage);
  KvView result;
  static_assert(std::is_trivially_copyable_v<KvView>);
  std::copy_n(reinterpret_cast<const std::byte*>(&view), sizeof view, reinterpret_cast<std::byte*>(&result));
  return result;
}

void give(const KvView& view, kvroof_view* result) {
  std::copy_n(reinterpret_cast<const std::byte*>(&view), sizeof view,
              reinterpret_cast<std::byte*>(&need(result, "view")));
}

template <typename Cache>
Cache& the(kvroof_cache* cache, const char* call) {
  Cache* found = std::get_if<Cache>(&handle(cache).rows);
  if (found == nullptr) {
    throw Error(ErrorCode::bad_option, std::string("kvroof: this kind of cache has no ") + call);
  }
  return *found;
}

// `held`: the view has the position, which one that a ring has overwritten is not.
void require_row(bool held, std::int64_t position, std::int64_t length, std::int64_t head, std::int64_t heads) {
  if (head < 0 || head >= heads) {
    throw Error(ErrorCode::bad_shape,
                "kvroof: head is " + std::to_string(head) + ", must be from 0 to " + std::to_string(heads - 1));
  }
  if (!held) {
    throw Error(ErrorCode::bad_position, "kvroof: position " + std::to_string(position) +
                                             " is not in the cache, whose length is " + std::to_string(length));
  }
}

bool holds(const ContiguousCache& cache, std::int64_t position) { return position >= 0 && position < cache.length(); }

bool holds(const RingCache& cache, std::int64_t position) {
  return position >= 0 && position < cache.length() &&
         (position >= cache.oldest_live() || position < cache.options().kept_tokens);
}

kvroof_row_slot slot_of(const RowSlot& at) { return {at.k, at.v, at.k_scale, at.v_scale}; }

}  // namespace

extern "C" {

kvroof_rows kvroof_packed_rows(kvroof_cache_shape shape, int64_t n, const float* k, const float* v) {
  const int64_t k_row = shape.kv_heads * shape.key_dim, v_row = shape.kv_heads * shape.value_dim;
  return {n, k, v, k_row, shape.key_dim, v_row, shape.value_dim};
}

// ---- contiguous and ring cache --------------------------------------------------------------------------------------

kvroof_status kvroof_contiguous_create(kvroof_cache_shape shape, kvroof_row_order order, int64_t capacity, void* memory,
                                       size_t memory_bytes, kvroof_cache** cache) {
  return guarded([&] {
    kvroof_cache*& result = need(cache, "cache");
    const CacheShape s = shape_of(shape);
    const RowOrder o = row_order(order);
    result = memory == nullptr ? new kvroof_cache{ContiguousCache(s, o, capacity)}
                               : new kvroof_cache{ContiguousCache(s, o, capacity, lent(memory, memory_bytes))};
  });
}

kvroof_status kvroof_contiguous_bytes_needed(kvroof_cache_shape shape, kvroof_row_order order, int64_t capacity,
                                             int64_t* bytes) {
  return guarded(
      [&] { need(bytes, "bytes") = ContiguousCache::bytes_needed(shape_of(shape), row_order(order), capacity); });
}

kvroof_status kvroof_ring_create(kvroof_cache_shape shape, kvroof_ring_options options, void* memory,
                                 size_t memory_bytes, kvroof_cache** cache) {
  return guarded([&] {
    kvroof_cache*& result = need(cache, "cache");
    const CacheShape s = shape_of(shape);
    const RingOptions o = options_of(options);
    result = memory == nullptr ? new kvroof_cache{RingCache(s, o)}
                               : new kvroof_cache{RingCache(s, o, lent(memory, memory_bytes))};
  });
}

kvroof_status kvroof_ring_bytes_needed(kvroof_cache_shape shape, kvroof_ring_options options, int64_t* bytes) {
  return guarded([&] { need(bytes, "bytes") = RingCache::bytes_needed(shape_of(shape), options_of(options)); });
}

void kvroof_cache_destroy(kvroof_cache* cache) { delete cache; }

kvroof_status kvroof_cache_append(kvroof_cache* cache, kvroof_rows rows) {
  return guarded([&] { std::visit([&](auto& each) { each.append(rows_of(rows)); }, handle(cache).rows); });
}

kvroof_status kvroof_cache_append_tail(kvroof_cache* cache, kvroof_rows rows) {
  return guarded([&] { the<RingCache>(cache, "append_tail").append_tail(rows_of(rows)); });
}

kvroof_status kvroof_cache_extend(kvroof_cache* cache, int64_t n) {
  return guarded([&] { std::visit([&](auto& each) { each.extend(n); }, handle(cache).rows); });
}

kvroof_status kvroof_cache_slot(kvroof_cache* cache, int64_t position, int64_t head, kvroof_row_slot* slot) {
  return guarded([&] {
    std::visit(
        [&](auto& each) {
          kvroof_row_slot& result = need(slot, "slot");
          require_row(holds(each, position), position, each.length(), head, each.shape().kv_heads);
          result = slot_of(each.slot(position, head));
        },
        handle(cache).rows);
  });
}

kvroof_status kvroof_cache_can_append(const kvroof_cache* cache, int64_t n, int* allowed) {
  return guarded([&] {
    need(allowed, "allowed") = std::visit([&](const auto& each) { return each.can_append(n); }, handle(cache).rows);
  });
}

kvroof_status kvroof_cache_can_truncate_to(const kvroof_cache* cache, int64_t length, int* allowed) {
  return guarded([&] {
    need(allowed, "allowed") =
        std::visit([&](const auto& each) { return each.can_truncate_to(length); }, handle(cache).rows);
  });
}

kvroof_status kvroof_cache_oldest_live(const kvroof_cache* cache, int64_t* position) {
  return guarded([&] {
    const auto* ring = std::get_if<RingCache>(&handle(cache).rows);
    need(position, "position") = ring == nullptr ? 0 : ring->oldest_live();
  });
}

kvroof_status kvroof_cache_live_rows(const kvroof_cache* cache, int64_t* rows) {
  return guarded([&] {
    const kvroof_cache& of = handle(cache);
    const auto* ring = std::get_if<RingCache>(&of.rows);
    need(rows, "rows") = ring == nullptr ? std::get<ContiguousCache>(of.rows).length() : ring->live_rows();
  });
}

kvroof_status kvroof_cache_capacity(const kvroof_cache* cache, int64_t* rows) {
  return guarded([&] {
    const kvroof_cache& of = handle(cache);
    const auto* ring = std::get_if<RingCache>(&of.rows);
    need(rows, "rows") = ring == nullptr ? std::get<ContiguousCache>(of.rows).capacity() : ring->options().capacity;
  });
}

kvroof_status kvroof_cache_reserve(kvroof_cache* cache, int64_t rows) {
  return guarded([&] { the<ContiguousCache>(cache, "reserve").reserve(rows); });
}

kvroof_status kvroof_cache_truncate_to(kvroof_cache* cache, int64_t length) {
  return guarded([&] { std::visit([&](auto& each) { each.truncate_to(length); }, handle(cache).rows); });
}

kvroof_status kvroof_cache_drop_last(kvroof_cache* cache, int64_t n) {
  return guarded([&] { std::visit([&](auto& each) { each.drop_last(n); }, handle(cache).rows); });
}

kvroof_status kvroof_cache_fork(const kvroof_cache* cache, kvroof_cache** copy) {
  return guarded([&] {
    kvroof_cache*& result = need(copy, "copy");
    result = std::visit([](const auto& each) { return new kvroof_cache{each.fork()}; }, handle(cache).rows);
  });
}

kvroof_status kvroof_cache_length(const kvroof_cache* cache, int64_t* length) {
  return guarded(
      [&] { need(length, "length") = std::visit([](const auto& each) { return each.length(); }, handle(cache).rows); });
}

kvroof_status kvroof_cache_bytes(const kvroof_cache* cache, kvroof_bytes* bytes) {
  return guarded([&] {
    const CacheBytes b = std::visit([](const auto& each) { return each.bytes(); }, handle(cache).rows);
    need(bytes, "bytes") = {b.used, b.reserved};
  });
}

kvroof_status kvroof_cache_view(const kvroof_cache* cache, kvroof_view* view) {
  return guarded([&] { give(std::visit([](const auto& each) { return each.view(); }, handle(cache).rows), view); });
}

// ---- paged cache ----------------------------------------------------------------------------------------------------

kvroof_status kvroof_pool_create(kvroof_cache_shape shape, kvroof_pool_options options, void* memory,
                                 size_t memory_bytes, kvroof_pool** pool) {
  return guarded([&] {
    kvroof_pool*& result = need(pool, "pool");
    const CacheShape s = shape_of(shape);
    const PagedOptions o = options_of(options);
    result = memory == nullptr ? new kvroof_pool{PagedCache(s, o)}
                               : new kvroof_pool{PagedCache(s, o, lent(memory, memory_bytes))};
  });
}

kvroof_status kvroof_pool_bytes_needed(kvroof_cache_shape shape, kvroof_pool_options options, int64_t* bytes) {
  return guarded([&] { need(bytes, "bytes") = PagedCache::bytes_needed(shape_of(shape), options_of(options)); });
}

void kvroof_pool_destroy(kvroof_pool* pool) { delete pool; }

kvroof_status kvroof_sequence_create(kvroof_pool* pool, kvroof_sequence_id* sequence) {
  return guarded([&] {
    kvroof_sequence_id& result = need(sequence, "sequence");
    const SequenceId id = handle(pool).pages.create();
    result = {id.index, id.generation};
  });
}

kvroof_status kvroof_sequence_fork(kvroof_pool* pool, kvroof_sequence_id from, kvroof_sequence_id* sequence) {
  return guarded([&] {
    kvroof_sequence_id& result = need(sequence, "sequence");
    const SequenceId id = handle(pool).pages.fork(id_of(from));
    result = {id.index, id.generation};
  });
}

kvroof_status kvroof_sequence_release(kvroof_pool* pool, kvroof_sequence_id sequence) {
  return guarded([&] { handle(pool).pages.release(id_of(sequence)); });
}

kvroof_status kvroof_sequence_append(kvroof_pool* pool, kvroof_sequence_id sequence, kvroof_rows rows) {
  return guarded([&] { handle(pool).pages.append(id_of(sequence), rows_of(rows)); });
}

kvroof_status kvroof_sequence_extend(kvroof_pool* pool, kvroof_sequence_id sequence, int64_t n) {
  return guarded([&] { handle(pool).pages.extend(id_of(sequence), n); });
}

kvroof_status kvroof_sequence_slot(kvroof_pool* pool, kvroof_sequence_id sequence, int64_t position, int64_t head,
                                   kvroof_row_slot* slot) {
  return guarded([&] {
    const PagedCache& pages = handle(pool).pages;
    kvroof_row_slot& result = need(slot, "slot");
    const int64_t length = pages.length(id_of(sequence));
    require_row(position >= 0 && position < length, position, length, head, pages.shape().kv_heads);
    result = slot_of(pages.slot(id_of(sequence), position, head));
  });
}

kvroof_status kvroof_sequence_truncate_to(kvroof_pool* pool, kvroof_sequence_id sequence, int64_t length) {
  return guarded([&] { handle(pool).pages.truncate_to(id_of(sequence), length); });
}

kvroof_status kvroof_sequence_drop_last(kvroof_pool* pool, kvroof_sequence_id sequence, int64_t n) {
  return guarded([&] { handle(pool).pages.drop_last(id_of(sequence), n); });
}

kvroof_status kvroof_sequence_length(const kvroof_pool* pool, kvroof_sequence_id sequence, int64_t* length) {
  return guarded([&] { need(length, "length") = handle(pool).pages.length(id_of(sequence)); });
}

kvroof_status kvroof_sequence_pages_needed(const kvroof_pool* pool, kvroof_sequence_id sequence, int64_t n,
                                           int64_t* pages) {
  return guarded([&] { need(pages, "pages") = handle(pool).pages.pages_needed(id_of(sequence), n); });
}

kvroof_status kvroof_sequence_pages(const kvroof_pool* pool, kvroof_sequence_id sequence, const int64_t** pages,
                                    size_t* count) {
  return guarded([&] {
    const std::span<const PageId> list = handle(pool).pages.pages(id_of(sequence));
    const int64_t*& first = need(pages, "pages");
    need(count, "count") = list.size();
    first = list.data();
  });
}

kvroof_status kvroof_sequence_view(const kvroof_pool* pool, kvroof_sequence_id sequence, kvroof_view* view) {
  return guarded([&] { give(handle(pool).pages.view(id_of(sequence)), view); });
}

kvroof_status kvroof_pool_occupancy(const kvroof_pool* pool, kvroof_occupancy* occupancy) {
  return guarded([&] {
    const PagedOccupancy now = handle(pool).pages.occupancy();
    need(occupancy, "occupancy") = {now.sequences,  now.tokens,       now.pages_total,
                                    now.pages_used, now.pages_shared, now.pages_free};
  });
}

kvroof_status kvroof_pool_references(const kvroof_pool* pool, int64_t page, int64_t* references) {
  return guarded([&] { need(references, "references") = handle(pool).pages.references(page); });
}

kvroof_status kvroof_pool_bytes(const kvroof_pool* pool, kvroof_bytes* bytes) {
  return guarded([&] {
    const CacheBytes b = handle(pool).pages.bytes();
    need(bytes, "bytes") = {b.used, b.reserved};
  });
}

kvroof_status kvroof_page_table_view(const kvroof_page_geometry* pages, const int32_t* table, size_t table_entries,
                                     int64_t length, kvroof_row_run* runs, size_t run_capacity, kvroof_view* view) {
  return guarded([&] {
    const kvroof_page_geometry& p = need(pages, "pages");
    need(view, "view");
    PageGeometry geometry;
    geometry.k = static_cast<const std::byte*>(p.k);
    geometry.v = static_cast<const std::byte*>(p.v);
    geometry.k_scale = p.k_scale;
    geometry.v_scale = p.v_scale;
    geometry.k_page_stride = p.k_page_stride;
    geometry.v_page_stride = p.v_page_stride;
    geometry.k_scale_page_stride = p.k_scale_page_stride;
    geometry.v_scale_page_stride = p.v_scale_page_stride;
    geometry.page_rows = p.page_rows;
    geometry.page_count = p.page_count;
    geometry.strides = view_of(p.strides);
    if (table_entries > 0) need(table, "table");
    if (run_capacity > 0) need(runs, "runs");
    give(page_table_view(geometry, {table, table_entries}, length, {reinterpret_cast<RowRun*>(runs), run_capacity}),
         view);
  });
}

}  // extern "C"
