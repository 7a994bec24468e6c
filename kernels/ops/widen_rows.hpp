// Rows of any storage as f32 in scratch, for many queries at once: a row is converted once, not once per query.
#pragma once

#include "kernels/simd/lanes.hpp"

namespace kvroof::KVROOF_NS {
namespace {

struct Columns {
  std::int64_t begin, count;
  std::int64_t latent_dim;  // of an MLA int8 row; unused otherwise
};

template <Storage S>
inline void widen_run(const std::byte* from, std::int64_t count, float* to) {
  constexpr std::int64_t kStep = kLanes * static_cast<std::int64_t>(storage_bytes(S));
  for (; count >= kLanes; count -= kLanes, from += kStep, to += kLanes) store(to, load_as<S>(from));
  if (count > 0) store_partial(to, load_partial_as<S>(from, static_cast<int>(count)), static_cast<int>(count));
}

// One MLA int8 row: integers x their group's scale, then the rotated key in bf16 (KvView::latent_dim).
inline void widen_latent_int8(const std::byte* row, Columns columns, float* to) {
  constexpr std::int64_t kGroup = 128;
  const std::int64_t groups = (columns.latent_dim + kGroup - 1) / kGroup;
  std::int64_t column = columns.begin;
  const std::int64_t end = column + columns.count;
  while (column < end && column < columns.latent_dim) {
    const std::int64_t group = column / kGroup;
    std::int64_t stop = (group + 1) * kGroup;
    stop = stop < columns.latent_dim ? stop : columns.latent_dim;
    stop = stop < end ? stop : end;
    float scale;
    __builtin_memcpy(&scale, row + columns.latent_dim + group * 4, sizeof scale);
    const Vec16 factor = broadcast(scale);
    for (; stop - column >= kLanes; column += kLanes, to += kLanes)
      store(to, load_as<Storage::int8>(row + column) * factor);
    if (const int rest = static_cast<int>(stop - column); rest > 0) {
      store_partial(to, load_partial_as<Storage::int8>(row + column, rest) * factor, rest);
      to += rest;
      column = stop;
    }
  }
  if (column < end)
    widen_run<Storage::bf16>(row + columns.latent_dim + 4 * groups + 2 * (column - columns.latent_dim), end - column,
                             to);
}

// to[r] points at `columns` of row r: in scratch[r*stride], or where it lies if it is f32 already and no copy is
// wanted.
template <Storage S, bool Grouped>
inline void widen_rows(const std::byte* const* rows, int count, std::int64_t offset, Columns columns, float* scratch,
                       std::int64_t stride, const float** to, bool copy = false) {
  for (int r = 0; r < count; ++r) {
    const std::byte* from = rows[r] + offset;
    if constexpr (Grouped) {
      static_assert(S == Storage::int8);
      to[r] = scratch + r * stride;
      widen_latent_int8(from, columns, scratch + r * stride);
    } else if constexpr (S == Storage::f32) {
      to[r] = copy ? scratch + r * stride : reinterpret_cast<const float*>(from) + columns.begin;
      if (copy) widen_run<S>(from + columns.begin * 4, columns.count, scratch + r * stride);
    } else {
      to[r] = scratch + r * stride;
      widen_run<S>(from + columns.begin * static_cast<std::int64_t>(storage_bytes(S)), columns.count,
                   scratch + r * stride);
    }
  }
}

// Columns [column, column + n) of one row, n <= 16, zeros after them.
template <Storage S, bool Grouped>
inline Vec16 load_columns(const std::byte* row, std::int64_t column, int n, std::int64_t latent_dim) {
  if constexpr (Grouped) {
    alignas(64) float wide[kLanes] = {};
    widen_latent_int8(row, {column, n, latent_dim}, wide);
    return load(wide);
  } else {
    const std::byte* from = row + column * static_cast<std::int64_t>(storage_bytes(S));
    return n == kLanes ? load_as<S>(from) : load_partial_as<S>(from, n);
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
