// kvroof: public interface of the microkernels. Needs nothing but the standard library to include.
//
// Decode attention: out = softmax(mask(softcap(q K^T * scale) + ALiBi) with sink) V for n new tokens of every sequence
// of a batch, reading K and V where they lie. Method: split-KV flash decoding with a fixed split; the exact order of
// operations (and so the exact bits) is the definition in reference/lane_twin.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/error.hpp"
#include "kernels/storage.hpp"
#include "kernels/views.hpp"

namespace kvroof {

// ---- numerics definition -------------------------------------------------------------------------------------------
inline constexpr int kDefinition = 1;              // goes into results and golden files
inline constexpr int kLanes = 16;                  // the 16-lane vector
inline constexpr std::int64_t kSegmentRows = 512;  // positions of one segment; segments start at its multiples

// ---- instruction sets ----------------------------------------------------------------------------------------------
enum class Isa : std::uint8_t { portable, avx2, avx512, neon };

const char* isa_name(Isa isa);     // lower case, as in KVROOF_ISA, rows and file names
bool isa_built(Isa isa);           // compiled into this library
bool isa_supported(Isa isa);       // built, and this CPU and OS can run it
std::string isa_missing(Isa isa);  // why not: "not built for this architecture", "CPU lacks avx512bw"; "" if supported
Isa isa_from_name(const std::string& name);  // throws Error(bad_isa) naming the choices
// The one used when none is asked for: environment KVROOF_ISA if set, else the widest supported. Throws Error(bad_isa)
// where KVROOF_ISA names one that is unknown or cannot run here. Read once, at first use.
Isa default_isa();

// ---- numerics modes ------------------------------------------------------------------------------------------------
// reproducible: the bits follow from the definition alone, the same on every ISA. native: multiplies in the narrow
// formats the CPU has instructions for (queries and weights are rounded to them too), so the bits are the ISA's own;
// they still do not depend on threads, batch, chunk or layout. The error bound is stated in reference/oracle.hpp.
enum class Mode : std::uint8_t { reproducible, native };

const char* mode_name(Mode mode);
// Why native mode cannot read these storages with this ISA here: "no native kernel for f32 storage", "CPU lacks
// avx512_bf16"; "" if it can.
std::string native_missing(Isa isa, Storage k_storage, Storage v_storage);
// The instructions native mode adds to an ISA, as result rows name them: "avx512_bf16"; "" if there are none.
const char* native_isa_name(Isa isa);

// ---- decode attention ----------------------------------------------------------------------------------------------
inline constexpr std::int64_t kUnlimitedWindow = std::numeric_limits<std::int64_t>::max();

struct AttentionShape {
  std::int64_t query_heads = 0;  // Hq; query head h reads KV head h / (Hq/Hkv)
  std::int64_t kv_heads = 0;     // Hkv, must divide Hq
  std::int64_t key_dim = 0;      // Dk >= 1
  std::int64_t value_dim = 0;    // Dv >= 1, may differ from Dk
};

struct AttentionOptions {
  float scale = std::numeric_limits<float>::quiet_NaN();  // required: multiplies the dot product; no hidden 1/sqrt(Dk)
  std::int64_t window = kUnlimitedWindow;  // W >= 1: key j is visible to query i iff 0 <= i-j < W (or j < kept_tokens)
  std::int64_t kept_tokens = 0;            // the first rows that stay visible beside the window
  float softcap = std::numeric_limits<float>::infinity();  // c > 0: s -> c*tanh(s/c); infinity: none
  const float* alibi_slopes = nullptr;                     // [Hq] or null: adds slope * (j - i)
  const float* sink_logits = nullptr;  // [Hq] or null: adds exp(sink) to the sum, no value row, not scaled or capped
};

// One sequence of the batch: its n newest tokens are the queries. Query r has position kv.end_position - n + r and sees
// only rows at or before it (bottom-right causal). n = 0 is a no-op. kv.end_position = 0 needs n = 0.
// A query that sees no row at all gets out = 0 and lse = -inf (lse = sink where there is one).
struct AttentionSequence {
  const float* q = nullptr;  // q[r*q_row_stride + h*q_head_stride + d], floats
  std::int64_t q_row_stride = 0, q_head_stride = 0;
  std::int64_t n = 0;
  KvView kv;
  float* out = nullptr;  // out[r*out_row_stride + h*out_head_stride + d], floats; must not overlap q or the rows
  std::int64_t out_row_stride = 0, out_head_stride = 0;
  float* lse = nullptr;  // lse[r*Hq + h] or null: max + log(sum), natural log, sink included
};

// MLA by reconstruction: head h's key is [W_UK_h c, rotated key], its value W_UV_h c, made tile by tile from the latent
// c and used at once. Weights as pack_weights (rope.hpp) leaves them, one head after another. See mla.hpp.
struct LatentExpansion {
  std::int64_t rope_dim = 0;    // of the key; key_dim - rope_dim columns come from the latent
  const float* w_uk = nullptr;  // [Hq] x packed [key_dim - rope_dim][latent_dim]
  const float* w_uv = nullptr;  // [Hq] x packed [value_dim][latent_dim]
};

struct AttentionArgs {
  AttentionShape shape;
  AttentionOptions options;
  std::span<const AttentionSequence> sequences;  // all with one storage pair and latent_dim
  const LatentExpansion* expansion = nullptr;    // rows are latents to be expanded: then kv_heads == query_heads
  Mode mode = Mode::reproducible;                // native: Error(bad_isa) where native_missing says why not
  // Neighbours in the batch with n = 1, no window in reach and the same first rows (the same pointers, as after a fork
  // of a paged cache) read whole segments of them once for all; costs workspace, changes no bit. decode_attention reads
  // them for each sequence where the workspace is too small for it.
  bool share_prefix = true;
  std::int64_t segment_begin = 0;  // only rows of segments [segment_begin, segment_end) are read: with
  std::int64_t segment_end =
      std::numeric_limits<std::int64_t>::max();  // attention_partials only, else leave them alone
};

// Work is cut into `parts` shares of nearly equal bytes, cut at segment boundaries; the result's bits do not depend on
// how many. Run every part (any thread, any order, each with its own index), then, after all of them, every merge part.
// Nothing is allocated. Throws only from attention_check and attention_workspace_bytes.
//
// attention_check validates everything else relies on; the three calls below it do not check again.
void attention_check(const AttentionArgs& args);
// Workspace must be 64-byte aligned. Depends on the views only by what share_prefix finds; run and merge parts take the
// same args.
std::size_t attention_workspace_bytes(const AttentionArgs& args, int parts);
void attention_run_part(const AttentionArgs& args, int parts, int part, std::byte* workspace, Isa isa);
void attention_merge_part(const AttentionArgs& args, int parts, int part, std::byte* workspace, Isa isa);

// The thin default around the above: checks, then one OpenMP parallel region with `threads` threads.
// workspace: at least attention_workspace_bytes(args, threads), or the same without share_prefix.
void decode_attention(const AttentionArgs& args, std::span<std::byte> workspace, int threads);
void decode_attention(const AttentionArgs& args, std::span<std::byte> workspace, int threads, Isa isa);

// ---- one context over several processes
// -------------------------------------------------------------------------------- Each process holds the rows of a
// range of whole segments (its views need list no others) and sets segment_begin and segment_end to it; shape, options,
// q, n, end_position and out layout are the same everywhere. It computes partials, a plain block of bytes that may be
// sent to a machine of the same byte order; one process joins the blocks of all, in ascending order of their segments,
// by the same fixed tree: the bits are those of one process with all rows.
std::size_t attention_partials_bytes(const AttentionArgs& args);  // the same in every process
// partials: attention_partials_bytes(args), 64-byte aligned. workspace as for decode_attention. out is not touched.
void attention_partials(const AttentionArgs& args, std::span<std::byte> workspace, int threads,
                        std::span<std::byte> partials, Isa isa);
// Writes out and lse. The blocks are used up (joined in place). No rows are read: the views need only end_position,
// storage and latent_dim. Throws Error(bad_view) if a block does not belong to these args.
void attention_finish_partials(const AttentionArgs& args, std::span<std::byte* const> blocks, Isa isa);

// Bytes rule: unique cache bytes that must be read: every row visible to at least one query, K and V at storage width
// plus int8 scales, once per KV head; an MLA row once for all heads. Every sequence counts for itself, also where
// share_prefix reads for several at once. q, out, weights, tables and partials are not counted.
std::int64_t attention_bytes(const AttentionArgs& args);
// Bytes of one row of an MLA cache (KvView::latent_dim).
std::int64_t latent_row_bytes(Storage storage, std::int64_t latent_dim, std::int64_t rope_dim);
// 2*Dk + 2*Dv per visible (query head, query, row); with an expansion also the 2*latent_dim*(nope + Dv) per (head,
// row), counted once however the queries are tiled.
std::int64_t attention_flops(const AttentionArgs& args);

// ---- conversions between f32 and storage
// ----------------------------------------------------------------------------- Round to nearest, ties to even;
// subnormals kept; overflow to inf; a NaN is quieted and its payload truncated (f32 to f32 included). n elements, any
// alignment of the element type, no overlap. int8 is per row: see store_rows.
void convert_to_f16(const float* from, std::uint16_t* to, std::size_t n, Isa isa);
void convert_to_bf16(const float* from, std::uint16_t* to, std::size_t n, Isa isa);
void convert_from_f16(const std::uint16_t* from, float* to, std::size_t n, Isa isa);
void convert_from_bf16(const std::uint16_t* from, float* to, std::size_t n, Isa isa);
// One row of d values to any storage; int8 writes its scale to *scale (unused otherwise).
void store_row(Storage storage, const float* from, std::size_t d, std::byte* to, float* scale, Isa isa);
void load_row(Storage storage, const std::byte* from, const float* scale, std::size_t d, float* to, Isa isa);

}  // namespace kvroof
