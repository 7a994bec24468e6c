// The operations of one ISA build, as its table lists them.
#pragma once

#include "kernels/kernel_table.hpp"

namespace kvroof::KVROOF_NS {

// decode_attention.cpp
void attention_run_part(const AttentionArgs& args, int parts, int part, std::byte* workspace, std::byte* partials);
void attention_merge_part(const AttentionArgs& args, int parts, int part, std::byte* workspace, std::byte* partials);
void attention_finish_partials(const AttentionArgs& args, std::byte* const* blocks, std::size_t count);
// convert_rows.cpp
void convert_to_f16(const float* from, std::uint16_t* to, std::size_t n);
void convert_to_bf16(const float* from, std::uint16_t* to, std::size_t n);
void convert_from_f16(const std::uint16_t* from, float* to, std::size_t n);
void convert_from_bf16(const std::uint16_t* from, float* to, std::size_t n);
void store_row(Storage storage, const float* from, std::size_t d, std::byte* to, float* scale);
void load_row(Storage storage, const std::byte* from, const float* scale, std::size_t d, float* to);
// project.cpp
void project(const float* packed, const float* x, std::int64_t outputs, std::int64_t inputs, float* y);
// rope.cpp
void rope(float* x, std::int64_t heads, std::int64_t head_stride, std::int64_t d, std::int64_t position,
          const double* inv_freq, bool interleaved);

}  // namespace kvroof::KVROOF_NS
