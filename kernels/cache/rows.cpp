#include "kernels/cache/rows.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/kernel_table.hpp"

namespace kvroof {
namespace {

std::int64_t checked_product(std::int64_t a, std::int64_t b, const char* what) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw Error(ErrorCode::bad_shape, std::string("cache: ") + what + " overflows 63 bits (" + std::to_string(a) +
                                          " x " + std::to_string(b) + "); use fewer rows or heads");
  }
  return product;
}

std::int64_t checked_sum(std::int64_t a, std::int64_t b, const char* what) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw Error(ErrorCode::bad_shape, std::string("cache: ") + what + " overflows 63 bits; use fewer rows or heads");
  }
  return sum;
}

std::int64_t next_plane(std::int64_t offset, std::int64_t bytes) {
  const std::int64_t end = checked_sum(checked_sum(offset, bytes, "a block"), kRowAlignment - 1, "a block");
  return end / kRowAlignment * kRowAlignment;
}

void require_positive(std::int64_t value, const char* name) {
  if (value < 1) {
    throw Error(ErrorCode::bad_shape,
                std::string("cache: ") + name + " is " + std::to_string(value) + ", must be at least 1");
  }
}

void check_shape(const CacheShape& shape) {
  require_positive(shape.kv_heads, "kv_heads");
  require_positive(shape.key_dim, "key_dim");
  require_positive(shape.value_dim, "value_dim");
  if (shape.latent_dim == 0) return;
  const bool fits = shape.latent_dim > 0 && shape.kv_heads == 1 && shape.value_dim == shape.latent_dim &&
                    shape.key_dim >= shape.latent_dim && shape.k_storage == shape.v_storage;
  if (!fits) {
    throw Error(ErrorCode::bad_shape,
                "cache: latent_dim is " + std::to_string(shape.latent_dim) +
                    ", needs kv_heads 1, value_dim = latent_dim, key_dim = latent_dim + rope_dim and one storage");
  }
}

// Latent int8 rows carry their scales inside; all other int8 rows have them in a plane of their own.
bool has_scale_plane(const CacheShape& shape, Storage storage) {
  return storage == Storage::int8 && shape.latent_dim == 0;
}

std::int64_t k_row_bytes(const CacheShape& shape) {
  if (shape.latent_dim > 0)
    return latent_row_bytes(shape.k_storage, shape.latent_dim, shape.key_dim - shape.latent_dim);
  return shape.key_dim * static_cast<std::int64_t>(storage_bytes(shape.k_storage));
}

std::int64_t v_row_bytes(const CacheShape& shape) {
  return shape.value_dim * static_cast<std::int64_t>(storage_bytes(shape.v_storage));
}

void store_latent_row(const CacheShape& shape, const float* from, std::byte* to, RowConverter convert) {
  if (shape.k_storage != Storage::int8) {
    convert(shape.k_storage, from, static_cast<std::size_t>(shape.key_dim), to, nullptr);
    return;
  }
  constexpr std::int64_t kGroup = 128;
  std::byte* scale_at = to + shape.latent_dim;
  for (std::int64_t column = 0; column < shape.latent_dim; column += kGroup) {
    const std::int64_t count = std::min(kGroup, shape.latent_dim - column);
    float scale = 0.0f;
    convert(Storage::int8, from + column, static_cast<std::size_t>(count), to + column, &scale);
    std::memcpy(scale_at, &scale, sizeof scale);
    scale_at += sizeof scale;
  }
  // Through a buffer: behind an odd latent_dim the halves lie at odd addresses.
  constexpr std::int64_t kPiece = 64;
  for (std::int64_t column = shape.latent_dim; column < shape.key_dim; column += kPiece) {
    const auto count = static_cast<std::size_t>(std::min(kPiece, shape.key_dim - column));
    std::uint16_t halves[kPiece];
    convert(Storage::bf16, from + column, count, reinterpret_cast<std::byte*>(halves), nullptr);
    std::memcpy(scale_at, halves, count * sizeof(std::uint16_t));
    scale_at += count * sizeof(std::uint16_t);
  }
}

// Row and head stride of one plane of the block, `row` being the size of one row of one head.
void plane_strides(const RowLayout& layout, std::int64_t row, std::int64_t& row_stride, std::int64_t& head_stride) {
  const bool head_major = layout.order == RowOrder::head_major;
  row_stride = head_major ? row : row * layout.shape.kv_heads;
  head_stride = head_major ? row * layout.slots : row;
}

// One plane's rows between two blocks. Where both sides hold a stretch without gaps, it goes in one piece.
void copy_plane(const std::byte* from, std::int64_t from_row, std::int64_t from_head, std::byte* to,
                std::int64_t to_row, std::int64_t to_head, std::size_t row_bytes, std::int64_t count,
                std::int64_t heads) {
  const auto row = static_cast<std::int64_t>(row_bytes);
  if (from_row == row && to_row == row) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::memcpy(to + h * to_head, from + h * from_head, row_bytes * static_cast<std::size_t>(count));
    }
    return;
  }
  if (from_head == row && to_head == row && from_row == row * heads && to_row == row * heads) {
    std::memcpy(to, from, row_bytes * static_cast<std::size_t>(count * heads));
    return;
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t r = 0; r < count; ++r) {
      std::memcpy(to + r * to_row + h * to_head, from + r * from_row + h * from_head, row_bytes);
    }
  }
}

constexpr std::int64_t kScaleBytes = sizeof(float);

}  // namespace

NewRows packed_rows(const CacheShape& shape, std::int64_t n, const float* k, const float* v) {
  NewRows rows;
  rows.n = n;
  rows.k = k;
  rows.v = v;
  rows.k_head_stride = shape.key_dim;
  rows.k_row_stride = shape.key_dim * shape.kv_heads;
  rows.v_head_stride = shape.value_dim;
  rows.v_row_stride = shape.value_dim * shape.kv_heads;
  return rows;
}

std::int64_t bytes_per_token(const CacheShape& shape) {
  check_shape(shape);
  if (shape.latent_dim > 0) {
    checked_product(shape.key_dim, 8, "a row");  // more than any storage takes, scales included
    return k_row_bytes(shape);
  }
  const auto side = [](Storage storage, std::int64_t dim) {
    const std::int64_t row = checked_product(dim, static_cast<std::int64_t>(storage_bytes(storage)), "a row");
    return storage == Storage::int8 ? checked_sum(row, kScaleBytes, "a row") : row;
  };
  const std::int64_t head =
      checked_sum(side(shape.k_storage, shape.key_dim), side(shape.v_storage, shape.value_dim), "a token");
  return checked_product(head, shape.kv_heads, "a token");
}

RowLayout row_layout(const CacheShape& shape, RowOrder order, std::int64_t slots) {
  if (slots < 0) {
    throw Error(ErrorCode::bad_shape, "cache: " + std::to_string(slots) + " rows asked for, must be at least 0");
  }
  // The product over everything is checked once, so the strides below, all smaller, cannot overflow.
  checked_product(bytes_per_token(shape), slots, "rows x bytes per token");

  RowLayout layout;
  layout.shape = shape;
  layout.order = order;
  layout.slots = slots;
  KvView& strides = layout.strides;
  strides.k_storage = shape.k_storage;
  strides.v_storage = shape.v_storage;
  const std::int64_t k_row = k_row_bytes(shape), v_row = v_row_bytes(shape);
  plane_strides(layout, k_row, strides.k_row_stride, strides.k_head_stride);
  const std::int64_t rows = slots * shape.kv_heads;
  if (shape.latent_dim > 0) {  // V is a part of the K row: the same place, the same strides
    strides.latent_dim = shape.latent_dim;
    strides.v_row_stride = strides.k_row_stride;
    strides.k_head_stride = strides.v_head_stride = 0;  // every head reads the same row
    layout.bytes = next_plane(0, rows * k_row);
    return layout;
  }
  plane_strides(layout, v_row, strides.v_row_stride, strides.v_head_stride);
  layout.v_offset = next_plane(0, rows * k_row);
  layout.bytes = next_plane(layout.v_offset, rows * v_row);
  if (shape.k_storage == Storage::int8) {
    plane_strides(layout, 1, strides.k_scale_row_stride, strides.k_scale_head_stride);
    layout.k_scale_offset = layout.bytes;
    layout.bytes = next_plane(layout.bytes, rows * kScaleBytes);
  }
  if (shape.v_storage == Storage::int8) {
    plane_strides(layout, 1, strides.v_scale_row_stride, strides.v_scale_head_stride);
    layout.v_scale_offset = layout.bytes;
    layout.bytes = next_plane(layout.bytes, rows * kScaleBytes);
  }
  return layout;
}

RowSlot row_slot(const RowLayout& layout, std::byte* block, std::int64_t slot, std::int64_t head) {
  const KvView& s = layout.strides;
  RowSlot at;
  at.k = block + slot * s.k_row_stride + head * s.k_head_stride;
  at.v = block + layout.v_offset + slot * s.v_row_stride + head * s.v_head_stride;
  if (has_scale_plane(layout.shape, layout.shape.k_storage)) {
    at.k_scale = reinterpret_cast<float*>(block + layout.k_scale_offset) + slot * s.k_scale_row_stride +
                 head * s.k_scale_head_stride;
  }
  if (has_scale_plane(layout.shape, layout.shape.v_storage)) {
    at.v_scale = reinterpret_cast<float*>(block + layout.v_scale_offset) + slot * s.v_scale_row_stride +
                 head * s.v_scale_head_stride;
  }
  return at;
}

RowConverter default_row_converter() {
  static const RowConverter converter = kernel_table(default_isa()).store_row;
  return converter;
}

void store_rows(const RowLayout& layout, std::byte* block, std::int64_t slot, const NewRows& rows, std::int64_t first,
                std::int64_t count, RowConverter convert) {
  const CacheShape& shape = layout.shape;
  if (shape.latent_dim > 0) {
    for (std::int64_t r = 0; r < count; ++r) {
      store_latent_row(shape, rows.k + (first + r) * rows.k_row_stride, row_slot(layout, block, slot + r, 0).k,
                       convert);
    }
    return;
  }
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      const RowSlot at = row_slot(layout, block, slot + r, h);
      convert(shape.k_storage, rows.k + (first + r) * rows.k_row_stride + h * rows.k_head_stride,
              static_cast<std::size_t>(shape.key_dim), at.k, at.k_scale);
      convert(shape.v_storage, rows.v + (first + r) * rows.v_row_stride + h * rows.v_head_stride,
              static_cast<std::size_t>(shape.value_dim), at.v, at.v_scale);
    }
  }
}

void copy_rows(const RowLayout& from, const std::byte* from_block, std::int64_t from_slot, const RowLayout& to,
               std::byte* to_block, std::int64_t to_slot, std::int64_t count) {
  if (count == 0) return;
  const CacheShape& shape = from.shape;
  const KvView& f = from.strides;
  const KvView& t = to.strides;
  // Only addresses are taken through the source; nothing is written to it.
  const RowSlot source = row_slot(from, const_cast<std::byte*>(from_block), from_slot, 0);
  const RowSlot target = row_slot(to, to_block, to_slot, 0);
  copy_plane(source.k, f.k_row_stride, f.k_head_stride, target.k, t.k_row_stride, t.k_head_stride,
             static_cast<std::size_t>(k_row_bytes(shape)), count, shape.kv_heads);
  if (shape.latent_dim > 0) return;
  copy_plane(source.v, f.v_row_stride, f.v_head_stride, target.v, t.v_row_stride, t.v_head_stride,
             static_cast<std::size_t>(v_row_bytes(shape)), count, shape.kv_heads);
  const auto copy_scales = [&](const float* a, std::int64_t a_row, std::int64_t a_head, float* b, std::int64_t b_row,
                               std::int64_t b_head) {
    copy_plane(reinterpret_cast<const std::byte*>(a), a_row * kScaleBytes, a_head * kScaleBytes,
               reinterpret_cast<std::byte*>(b), b_row * kScaleBytes, b_head * kScaleBytes, kScaleBytes, count,
               shape.kv_heads);
  };
  if (source.k_scale != nullptr) {
    copy_scales(source.k_scale, f.k_scale_row_stride, f.k_scale_head_stride, target.k_scale, t.k_scale_row_stride,
                t.k_scale_head_stride);
  }
  if (source.v_scale != nullptr) {
    copy_scales(source.v_scale, f.v_scale_row_stride, f.v_scale_head_stride, target.v_scale, t.v_scale_row_stride,
                t.v_scale_head_stride);
  }
}

RowRun row_run(const RowLayout& layout, const std::byte* block, std::int64_t slot, std::int64_t first_position,
               std::int64_t rows) {
  const RowSlot at = row_slot(layout, const_cast<std::byte*>(block), slot, 0);
  RowRun run;
  run.k = at.k;
  run.v = at.v;
  run.k_scale = at.k_scale;
  run.v_scale = at.v_scale;
  run.first_position = first_position;
  run.rows = rows;
  return run;
}

void check_new_rows(const CacheShape& shape, const NewRows& rows, std::int64_t length, const char* cache) {
  if (rows.n < 0) {
    throw Error(ErrorCode::bad_shape,
                std::string(cache) + ".append: n is " + std::to_string(rows.n) + ", must be at least 0");
  }
  const bool needs_v = shape.latent_dim == 0;
  if (rows.n > 0 && (rows.k == nullptr || (needs_v && rows.v == nullptr))) {
    throw Error(ErrorCode::bad_view, std::string(cache) + ".append: " + (rows.k == nullptr ? "k" : "v") +
                                         " is null, must point to the new rows");
  }
  std::int64_t end = 0;
  if (__builtin_add_overflow(length, rows.n, &end)) {
    throw Error(ErrorCode::bad_shape, std::string(cache) + ".append: length + n overflows 63 bits");
  }
}

}  // namespace kvroof
