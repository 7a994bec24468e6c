// What one ISA build exports: one table of functions, filled in ops/table.cpp, looked up in dispatch.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.hpp"

namespace kvroof {

struct KernelTable {
  Isa isa;
  // partials: null, or where finished groups leave their nodes instead of writing out (attention_partials)
  void (*attention_run_part)(const AttentionArgs&, int parts, int part, std::byte* workspace, std::byte* partials);
  void (*attention_merge_part)(const AttentionArgs&, int parts, int part, std::byte* workspace, std::byte* partials);
  void (*attention_finish_partials)(const AttentionArgs&, std::byte* const* blocks, std::size_t count);
  void (*convert_to_f16)(const float*, std::uint16_t*, std::size_t);
  void (*convert_to_bf16)(const float*, std::uint16_t*, std::size_t);
  void (*convert_from_f16)(const std::uint16_t*, float*, std::size_t);
  void (*convert_from_bf16)(const std::uint16_t*, float*, std::size_t);
  void (*store_row)(Storage, const float*, std::size_t, std::byte*, float*);
  void (*load_row)(Storage, const std::byte*, const float*, std::size_t, float*);
  void (*project)(const float* packed, const float* x, std::int64_t outputs, std::int64_t inputs, float* y);
  void (*rope)(float* x, std::int64_t heads, std::int64_t head_stride, std::int64_t d, std::int64_t position,
               const double* inv_freq, bool interleaved);
};

// Native mode differs in how a part is run; its nodes are merged and finished by the ISA's own table.
struct NativeTable {
  void (*attention_run_part)(const AttentionArgs&, int parts, int part, std::byte* workspace, std::byte* partials);
};

// Throws Error(bad_isa) where native_missing gives a reason.
const NativeTable& native_table(Isa isa, Storage k_storage, Storage v_storage);

// Throws Error(bad_isa) if the ISA is not built in or this CPU lacks it.
const KernelTable& kernel_table(Isa isa);

}  // namespace kvroof
