// How the caches lay rows in memory: the shape of a row, the two row orders, and where slot s of head h lies inside one
// block of memory. Contiguous and ring caches are one block, a page of the paged cache is one block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.hpp"

namespace kvroof {

// head_major: [h][slot][D], every head's rows are one stream (what a kernel that takes one head at a time reads best).
// token_major: [slot][h][D], an append writes one stretch (what engines that keep a token's heads together have).
enum class RowOrder : std::uint8_t { head_major, token_major };

constexpr const char* row_order_name(RowOrder order) { return order == RowOrder::head_major ? "head" : "token"; }

struct CacheShape {
  std::int64_t kv_heads = 0;   // Hkv >= 1
  std::int64_t key_dim = 0;    // Dk >= 1
  std::int64_t value_dim = 0;  // Dv >= 1
  Storage k_storage = Storage::f32;
  Storage v_storage = Storage::f32;  // may differ from k_storage
  // > 0: rows of multi-head latent attention, one for all heads (KvView::latent_dim). A row is the latent and the
  // rotated key, K = all of it, V = its first latent_dim columns, stored once: kv_heads must be 1, key_dim latent_dim +
  // rope_dim, value_dim latent_dim, both storages the same. int8: every 128 columns of the latent are an int8 row of
  // their own.
  std::int64_t latent_dim = 0;
};

// 512 + 64 columns and the like.
constexpr CacheShape latent_shape(std::int64_t latent_dim, std::int64_t rope_dim, Storage storage) {
  return {1, latent_dim + rope_dim, latent_dim, storage, storage, latent_dim};
}

// n new tokens in f32: row r, head h, column d is k[r*k_row_stride + h*k_head_stride + d], likewise v. Strides are in
// floats and free (0 repeats a row, negative goes backwards). Must not lie in the cache's own memory. Latent rows come
// as k alone, v is not looked at.
struct NewRows {
  std::int64_t n = 0;
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t k_row_stride = 0, k_head_stride = 0;
  std::int64_t v_row_stride = 0, v_head_stride = 0;
};

// The usual case: k is [n][Hkv][Dk] and v is [n][Hkv][Dv] without gaps.
NewRows packed_rows(const CacheShape& shape, std::int64_t n, const float* k, const float* v);

// used: what the stored rows take at storage width, scales included. reserved: what was allocated (or lent) for rows.
struct CacheBytes {
  std::int64_t used = 0;
  std::int64_t reserved = 0;
};

// All rows of one token, scales included: Hkv * (Dk*sk + Dv*sv) and 4 more a row for int8; latent_row_bytes
// (kernels.hpp) for latent rows.
std::int64_t bytes_per_token(const CacheShape& shape);

// Where one row of one head lies. The scale pointers are null unless that side is int8.
struct RowSlot {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  float* k_scale = nullptr;
  float* v_scale = nullptr;
};

// Rows of every block start at a multiple of this; so does each of the block's planes.
inline constexpr std::int64_t kRowAlignment = 64;

// One block: K plane, V plane (none for latent rows), then the K scales and V scales of int8 sides, each plane in
// `order` with `slots` slots.
struct RowLayout {
  CacheShape shape;
  RowOrder order = RowOrder::head_major;
  std::int64_t slots = 0;
  std::int64_t v_offset = 0, k_scale_offset = 0, v_scale_offset = 0, bytes = 0;  // from the block's start, in bytes
  KvView strides;  // storage and strides filled in, no runs
};

// Throws Error(bad_shape) for sizes below 1 (slots: below 0) and where any size in bytes leaves 63 bits.
RowLayout row_layout(const CacheShape& shape, RowOrder order, std::int64_t slots);

RowSlot row_slot(const RowLayout& layout, std::byte* block, std::int64_t slot, std::int64_t head);

// One row of d values from f32 to any storage (store_row of kernels.hpp on one instruction set).
using RowConverter = void (*)(Storage storage, const float* from, std::size_t d, std::byte* to, float* scale);
// That of default_isa(), looked up once. Throws what default_isa() throws.
RowConverter default_row_converter();

// Rows [first, first+count) of `rows` into slots [slot, slot+count), converted to storage. Cannot fail.
void store_rows(const RowLayout& layout, std::byte* block, std::int64_t slot, const NewRows& rows, std::int64_t first,
                std::int64_t count, RowConverter convert);

// count rows from one block to another of the same shape; orders and slot counts may differ. Bits are copied as they
// are.
void copy_rows(const RowLayout& from, const std::byte* from_block, std::int64_t from_slot, const RowLayout& to,
               std::byte* to_block, std::int64_t to_slot, std::int64_t count);

RowRun row_run(const RowLayout& layout, const std::byte* block, std::int64_t slot, std::int64_t first_position,
               std::int64_t rows);

// What every append checks first: n >= 0, pointers given where n > 0, length + n within 63 bits. `cache` names the
// caller.
void check_new_rows(const CacheShape& shape, const NewRows& rows, std::int64_t length, const char* cache);

}  // namespace kvroof
