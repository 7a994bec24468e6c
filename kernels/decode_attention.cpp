// The calls of kernels.hpp that hand over to one ISA's table, and the OpenMP default around the attention parts.
#include <omp.h>

#include <string>

#include "kernels/kernel_table.hpp"
#include "kernels/rope.hpp"

namespace kvroof {

void attention_run_part(const AttentionArgs& args, int parts, int part, std::byte* workspace, Isa isa) {
  kernel_table(isa).attention_run_part(args, parts, part, workspace);
}

void attention_merge_part(const AttentionArgs& args, int parts, int part, std::byte* workspace, Isa isa) {
  kernel_table(isa).attention_merge_part(args, parts, part, workspace);
}

void decode_attention(const AttentionArgs& args, std::span<std::byte> workspace, int threads) {
  decode_attention(args, workspace, threads, default_isa());
}

void decode_attention(const AttentionArgs& args, std::span<std::byte> workspace, int threads, Isa isa) {
  const KernelTable& table = kernel_table(isa);
  attention_check(args);
  const std::size_t bytes = attention_workspace_bytes(args, threads);
  if (bytes == 0) return;
  if (workspace.size() < bytes || reinterpret_cast<std::uintptr_t>(workspace.data()) % 64 != 0)
    throw Error(ErrorCode::bad_workspace, "workspace has " + std::to_string(workspace.size()) + " bytes: needs " +
                                              std::to_string(bytes) + ", aligned to 64");
  if (threads == 1) {
    table.attention_run_part(args, 1, 0, workspace.data());
    return;  // one part finishes every group itself
  }
#pragma omp parallel num_threads(threads)
  {
    // the run-time may grant fewer threads than asked for; the parts are shared out all the same
    const int team = omp_get_num_threads();
    for (int part = omp_get_thread_num(); part < threads; part += team) table.attention_run_part(args, threads, part, workspace.data());
#pragma omp barrier
    for (int part = omp_get_thread_num(); part < threads; part += team) table.attention_merge_part(args, threads, part, workspace.data());
  }
}

void convert_to_f16(const float* from, std::uint16_t* to, std::size_t n, Isa isa) { kernel_table(isa).convert_to_f16(from, to, n); }
void convert_to_bf16(const float* from, std::uint16_t* to, std::size_t n, Isa isa) { kernel_table(isa).convert_to_bf16(from, to, n); }
void convert_from_f16(const std::uint16_t* from, float* to, std::size_t n, Isa isa) { kernel_table(isa).convert_from_f16(from, to, n); }
void convert_from_bf16(const std::uint16_t* from, float* to, std::size_t n, Isa isa) { kernel_table(isa).convert_from_bf16(from, to, n); }

void store_row(Storage storage, const float* from, std::size_t d, std::byte* to, float* scale, Isa isa) {
  kernel_table(isa).store_row(storage, from, d, to, scale);
}
void load_row(Storage storage, const std::byte* from, const float* scale, std::size_t d, float* to, Isa isa) {
  kernel_table(isa).load_row(storage, from, scale, d, to);
}

void project(const float* packed, const float* x, std::int64_t outputs, std::int64_t inputs, float* y, Isa isa) {
  kernel_table(isa).project(packed, x, outputs, inputs, y);
}

void rope(float* x, std::int64_t heads, std::int64_t head_stride, std::int64_t d, std::int64_t position, const double* inv_freq,
          RopePairing pairing, Isa isa) {
  kernel_table(isa).rope(x, heads, head_stride, d, position, inv_freq, pairing == RopePairing::interleaved);
}

}  // namespace kvroof
