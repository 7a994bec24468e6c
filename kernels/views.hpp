// How a cache describes its rows to a kernel: an ordered list of runs. Plain data, no ownership.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/storage.hpp"

namespace kvroof {

// `rows` consecutive positions whose K rows (and V rows, and int8 scales) each lie at one constant stride.
// All pointers address KV head 0 of the first row of the run.
struct RowRun {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  const float* k_scale = nullptr;  // int8 K only, else null
  const float* v_scale = nullptr;  // int8 V only, else null
  std::int64_t first_position = 0;
  std::int64_t rows = 0;
};

// One sequence's rows. Row t of run r, KV head h: k + t*k_row_stride + h*k_head_stride (bytes), likewise v; scales the
// same with their own strides (in floats). Strides are shared by all runs and may be any value at which rows do not
// overlap; no alignment beyond the element type is needed. Runs are in ascending position, do not overlap, and may
// leave gaps where no query looks. `end_position` is one past the newest row: the position the next append gets.
struct KvView {
  const RowRun* runs = nullptr;
  std::int64_t run_count = 0;
  std::int64_t end_position = 0;
  Storage k_storage = Storage::f32;
  Storage v_storage = Storage::f32;
  std::int64_t k_row_stride = 0, k_head_stride = 0;
  std::int64_t v_row_stride = 0, v_head_stride = 0;
  std::int64_t k_scale_row_stride = 0, k_scale_head_stride = 0;
  std::int64_t v_scale_row_stride = 0, v_scale_head_stride = 0;
  // > 0: rows are those of multi-head latent attention, one for all heads: latent_dim columns of latent, then the
  // rotated key. V is the first latent_dim columns of the K row (same pointers, strides and storage). int8 rows hold
  // the latent's integers, a float scale per 128 of them (the last group may be short), then the rotated key in bf16,
  // unaligned and without gaps: 512 + 16 + 128 bytes for 512 + 64.
  std::int64_t latent_dim = 0;
};

}  // namespace kvroof
