// One cached row of multi-head latent attention as bytes: the latent, then the rotated key that all heads share.
//
//   f32, f16, bf16   d_c + d_rope elements of that storage
//   int8             d_c integers, then one float scale per group of 128 of them (the last group may be short), then
//   the
//                    rotated key in bf16: 512 + 16 + 128 = 656 bytes for 512 + 64. A latent value is float(integer) *
//                    scale, rounded once, wherever it is used.
// Scales and halves lie unaligned where the sizes before them say so.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reference/half.hpp"

namespace kvroof::reference {

inline constexpr std::int64_t kMlaGroup = 128;

inline std::int64_t mla_groups(std::int64_t latent_dim) { return (latent_dim + kMlaGroup - 1) / kMlaGroup; }

inline std::int64_t mla_row_bytes(StorageKind storage, std::int64_t latent_dim, std::int64_t rope_dim) {
  switch (storage) {
    case StorageKind::f32: return 4 * (latent_dim + rope_dim);
    case StorageKind::f16:
    case StorageKind::bf16: return 2 * (latent_dim + rope_dim);
    case StorageKind::int8: return latent_dim + 4 * mla_groups(latent_dim) + 2 * rope_dim;
  }
  return 0;
}

// `values`: d_c latent values, then d_rope of the rotated key.
static inline void mla_encode_row(StorageKind storage, const float* values, std::int64_t latent_dim,
                                  std::int64_t rope_dim, std::byte* row) {
  const auto put = [](std::byte* at, const auto& x) { std::memcpy(at, &x, sizeof x); };
  if (storage == StorageKind::int8) {
    std::byte* scales = row + latent_dim;
    std::byte* rope = scales + 4 * mla_groups(latent_dim);
    for (std::int64_t g = 0; g < mla_groups(latent_dim); ++g) {
      const std::int64_t first = g * kMlaGroup, count = std::min(kMlaGroup, latent_dim - first);
      std::int8_t q[kMlaGroup];
      put(scales + 4 * g, quantize_int8_row(values + first, static_cast<std::size_t>(count), q));
      std::memcpy(row + first, q, static_cast<std::size_t>(count));
    }
    for (std::int64_t i = 0; i < rope_dim; ++i) put(rope + 2 * i, f32_to_bf16(values[latent_dim + i]));
    return;
  }
  for (std::int64_t i = 0; i < latent_dim + rope_dim; ++i) {
    if (storage == StorageKind::f32) put(row + 4 * i, f32_to_storage(values[i]));
    if (storage == StorageKind::f16) put(row + 2 * i, f32_to_f16(values[i]));
    if (storage == StorageKind::bf16) put(row + 2 * i, f32_to_bf16(values[i]));
  }
}

// What a stored row means. (static: each build of the scalar baseline keeps its own copy, compiled its own way.)
static inline void mla_decode_row(StorageKind storage, const std::byte* row, std::int64_t latent_dim,
                                  std::int64_t rope_dim, float* values) {
  const auto half = [](const std::byte* at) {
    std::uint16_t x;
    std::memcpy(&x, at, sizeof x);
    return x;
  };
  const auto single = [](const std::byte* at) {
    float x;
    std::memcpy(&x, at, sizeof x);
    return x;
  };
  if (storage == StorageKind::int8) {
    const std::byte* scales = row + latent_dim;
    const std::byte* rope = scales + 4 * mla_groups(latent_dim);
    for (std::int64_t i = 0; i < latent_dim; ++i) {
      values[i] = static_cast<float>(static_cast<std::int8_t>(row[i])) * single(scales + 4 * (i / kMlaGroup));
    }
    for (std::int64_t i = 0; i < rope_dim; ++i) values[latent_dim + i] = bf16_to_f32(half(rope + 2 * i));
    return;
  }
  for (std::int64_t i = 0; i < latent_dim + rope_dim; ++i) {
    if (storage == StorageKind::f32) values[i] = single(row + 4 * i);
    if (storage == StorageKind::f16) values[i] = f16_to_f32(half(row + 2 * i));
    if (storage == StorageKind::bf16) values[i] = bf16_to_f32(half(row + 2 * i));
  }
}

}  // namespace kvroof::reference
