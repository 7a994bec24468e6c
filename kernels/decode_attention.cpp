// The calls of kernels.hpp that hand over to one ISA's table, and the OpenMP default around the attention parts.
#include <omp.h>

#include <string>

#include "kernels/attention_split.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/rope.hpp"

namespace kvroof {

namespace {

using RunPart = void (*)(const AttentionArgs&, int parts, int part, std::byte* workspace, std::byte* partials);

RunPart run_part(const AttentionArgs& args, Isa isa) {
  const KernelTable& table = kernel_table(isa);
  if (args.mode == Mode::reproducible || args.sequences.empty()) return table.attention_run_part;
  if (args.expansion != nullptr)
    throw Error(ErrorCode::bad_isa, "mode native cannot reconstruct from latent rows: no native kernel for it");
  const KvView& kv = args.sequences.front().kv;
  return native_table(isa, kv.k_storage, kv.v_storage).attention_run_part;
}

}  // namespace

void attention_run_part(const AttentionArgs& args, int parts, int part, std::byte* workspace, Isa isa) {
  run_part(args, isa)(args, parts, part, workspace, nullptr);
}

void attention_merge_part(const AttentionArgs& args, int parts, int part, std::byte* workspace, Isa isa) {
  kernel_table(isa).attention_merge_part(args, parts, part, workspace, nullptr);
}

namespace {

void require(ErrorCode code, const char* name, std::span<const std::byte> memory, std::size_t bytes) {
  if (memory.size() < bytes || reinterpret_cast<std::uintptr_t>(memory.data()) % 64 != 0)
    throw Error(code, std::string(name) + " has " + std::to_string(memory.size()) + " bytes: needs " +
                          std::to_string(bytes) + ", aligned to 64");
}

void run_all(const AttentionArgs& args, RunPart run, std::span<std::byte> workspace, int threads, std::byte* partials,
             Isa isa) {
  const auto merge = kernel_table(isa).attention_merge_part;
  const bool merges = !nothing_to_merge(args);
  if (threads == 1) {
    run(args, 1, 0, workspace.data(), partials);
    if (merges) merge(args, 1, 0, workspace.data(), partials);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    // the run-time may grant fewer threads than asked for; the parts are shared out all the same
    const int team = omp_get_num_threads();
    for (int part = omp_get_thread_num(); part < threads; part += team)
      run(args, threads, part, workspace.data(), partials);
    if (merges) {  // the same on every thread
#pragma omp barrier
      for (int part = omp_get_thread_num(); part < threads; part += team)
        merge(args, threads, part, workspace.data(), partials);
    }
  }
}

}  // namespace

void decode_attention(const AttentionArgs& args, std::span<std::byte> workspace, int threads) {
  decode_attention(args, workspace, threads, default_isa());
}

void decode_attention(const AttentionArgs& args, std::span<std::byte> workspace, int threads, Isa isa) {
  attention_check(args);
  const RunPart run = run_part(args, isa);  // refuses what this machine cannot run before anything else
  AttentionArgs call = args;
  std::size_t bytes = attention_workspace_bytes(call, threads);
  if (bytes > workspace.size() && call.share_prefix) {
    call.share_prefix = false;
    bytes = attention_workspace_bytes(call, threads);
  }
  if (bytes == 0) return;
  require(ErrorCode::bad_workspace, "workspace", workspace, bytes);
  run_all(call, run, workspace, threads, nullptr, isa);
}

std::size_t attention_partials_bytes(const AttentionArgs& args) {
  attention_workspace_bytes(args, 1);  // the shape's refusals
  if (args.sequences.empty()) return 0;
  AttentionArgs slice = args;
  slice.segment_end = slice.segment_begin = 1;  // any slice: groups do not depend on which
  const AttentionSplit split = make_attention_split(slice, 1);
  AttentionCursor cursor(slice, split, 1, 0);
  AttentionGroup group;
  std::size_t groups = 0;
  while (cursor.next_group(group)) ++groups;
  return groups * partials_entry_bytes(split);
}

void attention_partials(const AttentionArgs& args, std::span<std::byte> workspace, int threads,
                        std::span<std::byte> partials, Isa isa) {
  const RunPart run = run_part(args, isa);  // refuses what this machine cannot run before anything else
  if (args.segment_end == kUnlimitedWindow)
    throw Error(ErrorCode::bad_option, "segment_end is not set: partials are of a stated range of segments");
  attention_check(args);
  require(ErrorCode::bad_workspace, "workspace", workspace, attention_workspace_bytes(args, threads));
  require(ErrorCode::bad_workspace, "partials", partials, attention_partials_bytes(args));
  const AttentionSplit split = make_attention_split(args, threads);
  AttentionCursor cursor(args, split, 1, 0);
  AttentionGroup group;
  while (cursor.next_group(group)) {  // a group without rows here leaves no nodes
    auto* entry = reinterpret_cast<PartialsEntry*>(partials.data() +
                                                   static_cast<std::size_t>(group.id) * partials_entry_bytes(split));
    entry->group_id = group.id;
    entry->results = group.heads * group.queries;
    entry->node_count = 0;
  }
  run_all(args, run, workspace, threads, partials.data(), isa);
}

void attention_finish_partials(const AttentionArgs& args, std::span<std::byte* const> blocks, Isa isa) {
  AttentionArgs whole = args;
  whole.segment_begin = whole.segment_end = kUnlimitedWindow - 1;  // past every row: everything but the runs is checked
  attention_check(whole);
  if (blocks.empty()) throw Error(ErrorCode::bad_view, "no blocks of partials: one is needed from every process");
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b] == nullptr || reinterpret_cast<std::uintptr_t>(blocks[b]) % 64 != 0)
      throw Error(ErrorCode::bad_view, "block " + std::to_string(b) + " of partials is null or not aligned to 64");
  }
  whole.segment_begin = 0;
  whole.segment_end = kUnlimitedWindow - 1;  // still a slice: the groups of attention_partials
  const AttentionSplit split = make_attention_split(whole, 1);
  AttentionCursor cursor(whole, split, 1, 0);
  AttentionGroup group;
  while (cursor.next_group(group)) {
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const auto* entry = reinterpret_cast<const PartialsEntry*>(blocks[b] + static_cast<std::size_t>(group.id) *
                                                                                 partials_entry_bytes(split));
      if (entry->group_id != group.id || entry->results != group.heads * group.queries || entry->node_count < 0 ||
          entry->node_count > split.node_slots)
        throw Error(ErrorCode::bad_view,
                    "block " + std::to_string(b) + " of partials is damaged or belongs to other arguments");
    }
  }
  kernel_table(isa).attention_finish_partials(whole, blocks.data(), blocks.size());
}

void convert_to_f16(const float* from, std::uint16_t* to, std::size_t n, Isa isa) {
  kernel_table(isa).convert_to_f16(from, to, n);
}
void convert_to_bf16(const float* from, std::uint16_t* to, std::size_t n, Isa isa) {
  kernel_table(isa).convert_to_bf16(from, to, n);
}
void convert_from_f16(const std::uint16_t* from, float* to, std::size_t n, Isa isa) {
  kernel_table(isa).convert_from_f16(from, to, n);
}
void convert_from_bf16(const std::uint16_t* from, float* to, std::size_t n, Isa isa) {
  kernel_table(isa).convert_from_bf16(from, to, n);
}

void store_row(Storage storage, const float* from, std::size_t d, std::byte* to, float* scale, Isa isa) {
  kernel_table(isa).store_row(storage, from, d, to, scale);
}
void load_row(Storage storage, const std::byte* from, const float* scale, std::size_t d, float* to, Isa isa) {
  kernel_table(isa).load_row(storage, from, scale, d, to);
}

void project(const float* packed, const float* x, std::int64_t outputs, std::int64_t inputs, float* y, Isa isa) {
  kernel_table(isa).project(packed, x, outputs, inputs, y);
}

void rope(float* x, std::int64_t heads, std::int64_t head_stride, std::int64_t d, std::int64_t position,
          const double* inv_freq, RopePairing pairing, Isa isa) {
  kernel_table(isa).rope(x, heads, head_stride, d, position, inv_freq, pairing == RopePairing::interleaved);
}

}  // namespace kvroof
