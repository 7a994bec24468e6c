// Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1). A token's keys and values of all heads
// are kept as one row, a latent c of d_c floats and one rotated key k_R that all heads share, and made from it where
// needed:
//
//   c = W_DKV x,   k_R = RoPE(W_KR x)                    compress: this row is the cache
//   k_h = [W_UK_h c, k_R],   v_h = W_UV_h c              head h's key and value
//   out_h = sum over visible j of softmax((q_h . k_hj) * scale)_j v_hj,   q_h = [q_nope, RoPE(q_rope)]
//
// Two forms compute it, each with its own bits (reference/mla.hpp is the definition of both):
//
//   reconstruct  k and v are made tile by tile (64 rows) and used at once, never the whole K or V. Per head and row
//                2 d_c (nope + value) flops, shared by up to one tile of queries, then 2 (nope + rope + value) a query.
//   absorbed     (W_UK_h c) . q = c . (W_UK_h^T q): W_UK is folded into the query, attention runs over the latent rows
//                themselves with the latent as value (Dk = d_c + rope, Dv = d_c, one KV head), W_UV_h comes after the
//                sum. Per head, query and row 2 (2 d_c + rope) flops and two small matrices per query.
//
// Few queries a row: absorbed. Very many: reconstruct. Where they cross depends on the machine, so MlaPlan compares
// times that measure_mla_costs() took on it.
//
//   MlaShape shape{.heads = 128, .nope_dim = 128, .rope_dim = 64, .value_dim = 128, .latent_dim = 512,
//                  .model_dim = 7168};
//   MlaWeights weights(shape, {.w_uk = uk, .w_uv = uv, .w_dkv = dkv, .w_kr = kr});
//   ContiguousCache cache(mla_cache_shape(shape, Storage::bf16));  // or RingCache, PagedCache
//   MlaTokens tokens{x, model_dim, n, cache.next_position(), inv_freq, RopePairing::interleaved};
//   mla_compress(weights, tokens, rows, threads);
//   cache.append(packed_rows(cache.shape(), n, rows, nullptr));
//   sequence.kv = cache.view();  // with q, n, out: an AttentionSequence
//   MlaArgs args{&weights, {.scale = scale}, {&sequence, 1}};
//   mla_attention(args, mla_plan(args, costs).form, workspace, threads);
//
// scale is the caller's whole factor, with whatever a model's long-context rule puts on top of 1/sqrt(nope + rope)
// (DeepSeek-V3: 0.135234); with a single visible row it has no effect, so a test at T = 1 says nothing about it.
// inv_freq and the pairing must be the model's own, for k_R and for the query alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cache/memory.hpp"
#include "kernels/cache/rows.hpp"
#include "kernels/rope.hpp"

namespace kvroof {

struct MlaShape {
  std::int64_t heads = 0;       // query heads
  std::int64_t nope_dim = 0;    // of a head's query and key, the part made from the latent (no position)
  std::int64_t rope_dim = 0;    // the rotated part: even, 0 for none
  std::int64_t value_dim = 0;   // of a head's value and output
  std::int64_t latent_dim = 0;  // d_c
  std::int64_t model_dim = 0;   // of the hidden state; 0: no compression, rows come from elsewhere
};

// Throws Error(bad_shape), naming the dimension.
void mla_check_shape(const MlaShape& shape);

// The shape for ContiguousCache, RingCache and PagedCache, which keep latent rows like any other. A row takes
// latent_row_bytes(): 656 bytes for 512 + 64 in int8.
CacheShape mla_cache_shape(const MlaShape& shape, Storage storage);

// ---- weights ----
// Row-major, head after head. The spans' sizes must be exactly these, else Error(bad_shape) before anything is done.
// (Checkpoints often keep W_UK and W_UV of a head one after the other in one matrix; take them apart first.)
struct MlaWeightSource {
  std::span<const float> w_uk;   // [heads][nope_dim][latent_dim]
  std::span<const float> w_uv;   // [heads][value_dim][latent_dim]
  std::span<const float> w_dkv;  // [latent_dim][model_dim], empty where model_dim is 0
  std::span<const float> w_kr;   // [rope_dim][model_dim], empty where model_dim or rope_dim is 0
};

// The weights as the kernels read them (pack_weights of rope.hpp), copied once: W_UK for reconstruct, W_UK transposed
// for the fold, W_UV for both, W_DKV and W_KR for compress. f32. Const calls may run on many threads at once.
class MlaWeights {
 public:
  MlaWeights(const MlaShape& shape, const MlaWeightSource& source);  // throws bad_shape, bad_view (null), out_of_memory

  const MlaShape& shape() const { return shape_; }
  bool compresses() const { return shape_.model_dim > 0; }
  const float* w_uk(std::int64_t head) const { return w_uk_ + head * uk_floats_; }
  const float* w_uk_transposed(std::int64_t head) const { return w_ukt_ + head * ukt_floats_; }
  const float* w_uv(std::int64_t head) const { return w_uv_ + head * uv_floats_; }
  const float* w_dkv() const { return w_dkv_; }
  const float* w_kr() const { return w_kr_; }
  std::int64_t packed_bytes() const { return memory_.bytes(); }

 private:
  MlaShape shape_;
  CacheMemory memory_;
  std::int64_t uk_floats_ = 0, ukt_floats_ = 0, uv_floats_ = 0;  // of one head
  const float *w_uk_ = nullptr, *w_ukt_ = nullptr, *w_uv_ = nullptr, *w_dkv_ = nullptr, *w_kr_ = nullptr;
};

// ---- compress ----
struct MlaTokens {
  const float* x = nullptr;  // hidden states, token r at x + r*row_stride, model_dim floats
  std::int64_t row_stride = 0;
  std::int64_t n = 0;
  std::int64_t first_position = 0;   // absolute, of token 0: the cache's next_position()
  std::span<const double> inv_freq;  // [rope_dim/2]
  RopePairing pairing = RopePairing::interleaved;
};

// rows [n][latent_dim + rope_dim] = (c, k_R) in f32, which the cache then rounds to its storage. Any token's bits are
// the same alone and in a chunk. Bytes: W_DKV and W_KR once.
void mla_compress(const MlaWeights& weights, const MlaTokens& tokens, float* rows, int threads);
void mla_compress(const MlaWeights& weights, const MlaTokens& tokens, float* rows, int threads, Isa isa);
// The same on a caller's own threads: check once, then run every part, in any order.
void mla_check_tokens(const MlaWeights& weights, const MlaTokens& tokens, const float* rows);
void mla_compress_part(const MlaWeights& weights, const MlaTokens& tokens, float* rows, int parts, int part, Isa isa);

// ---- attention ----
enum class MlaForm : std::uint8_t { absorbed, reconstruct };
const char* mla_form_name(MlaForm form);

// As in decode attention, with q [n][heads][nope_dim + rope_dim] (the rope part rotated: rope() with head_stride, from
// element nope_dim on), out [n][heads][value_dim], and kv the view of a latent cache. Chunks and any number of
// sequences; options mean the same as there.
struct MlaArgs {
  const MlaWeights* weights = nullptr;
  AttentionOptions options;
  std::span<const AttentionSequence> sequences;
  Mode mode = Mode::reproducible;  // native: of the attention over latent rows; the folds stay what they are
};

// Mode native goes with the absorbed form and the storages and ISAs of native_missing(); else Error(bad_isa). To
// reconstruct has no native kernel: its keys and values are f32 sums that native mode would round once more.

// Throws Error before anything is written. The calls of MlaWork below do not check again.
void mla_check(const MlaArgs& args);

// Peak memory beside cache, weights, q and out; nothing else is allocated.
//   reconstruct  per part less than 16 tiles of 64 x (latent + nope + rope + value) floats for up to 64 new tokens a
//                sequence, 64 tiles for any number. Does not grow with T but for four partial results (value_dim + 2
//                floats a query, of at most 256 queries) per doubling.
//   absorbed     (2 latent + rope) floats per new token and head, beside the attention's own parts.
// A long chunk may be cut into shorter calls; the bits stay the same.
std::size_t mla_workspace_bytes(const MlaArgs& args, MlaForm form, int parts);  // workspace must be 64-byte aligned

// The work of one call on a caller's own threads. For every phase in order: run all parts (any thread, any order), then
// go on to the next phase only when all are done. Nothing is allocated and nothing throws.
//
//   MlaWork work = mla_prepare(args, form, parts, workspace, isa);
//   for (MlaPhase phase : kMlaPhases) { on every thread: mla_run_part(work, phase, part); barrier; }
enum class MlaPhase : std::uint8_t {
  fold,    // q' = W_UK^T q per head and token (absorbed only; else empty)
  attend,  // attention_run_part
  merge,   // attention_merge_part
  expand,  // W_UV on the latent results (absorbed only; else empty)
};
inline constexpr MlaPhase kMlaPhases[] = {MlaPhase::fold, MlaPhase::attend, MlaPhase::merge, MlaPhase::expand};

struct MlaWork {
  MlaForm form = MlaForm::absorbed;
  int parts = 1;
  Isa isa = Isa::portable;
  const MlaWeights* weights = nullptr;
  std::span<const AttentionSequence> sequences;  // the caller's
  AttentionArgs attention;                       // what the attention kernel gets
  std::int64_t tokens = 0;                       // new tokens of all sequences
  float* queries = nullptr;                      // absorbed: q' [tokens][heads][latent + rope]
  float* latents = nullptr;                      // and what attention gives, [tokens][heads][latent]
  std::byte* attention_memory = nullptr;
};

// Checks everything, lays the workspace out. args.sequences and the weights must outlive the work.
MlaWork mla_prepare(const MlaArgs& args, MlaForm form, int parts, std::span<std::byte> workspace, Isa isa);
void mla_run_part(const MlaWork& work, MlaPhase phase, int part);

// The thin default: checks, then one OpenMP parallel region.
void mla_attention(const MlaArgs& args, MlaForm form, std::span<std::byte> workspace, int threads);
void mla_attention(const MlaArgs& args, MlaForm form, std::span<std::byte> workspace, int threads, Isa isa);
// The absorbed form by its name, both folds included: reads the cache once and W_UK, W_UV once.
inline void mla_absorbed_step(const MlaArgs& args, std::span<std::byte> workspace, int threads, Isa isa) {
  mla_attention(args, MlaForm::absorbed, workspace, threads, isa);
}

// The middle of the absorbed form alone, for engines that fold elsewhere: q [n][heads][latent_dim + rope_dim] is q' and
// the rotated query, out [n][heads][latent_dim] the weighted latents. No weights; attention_check,
// attention_workspace_bytes, attention_bytes, attention_flops and decode_attention take these arguments as they are,
// and with another `mode`.
AttentionArgs mla_absorbed_args(const MlaShape& shape, const AttentionOptions& options,
                                std::span<const AttentionSequence> sequences);
void mla_absorbed(const MlaShape& shape, const AttentionOptions& options, std::span<const AttentionSequence> sequences,
                  std::span<std::byte> workspace, int threads, Isa isa);
// And what stands before and after it, on dense arrays: q [tokens][heads][nope + rope] -> absorbed
// [tokens][heads][latent + rope]; latent [tokens][heads][latent] -> out [tokens][heads][value].
void mla_fold_queries(const MlaWeights& weights, const float* q, std::int64_t tokens, float* absorbed, int threads,
                      Isa isa);
void mla_expand_latents(const MlaWeights& weights, const float* latent, std::int64_t tokens, float* out, int threads,
                        Isa isa);

// Bytes rule: the cache's as in attention_bytes(); mla_weight_bytes() is W_UK and W_UV once (f32, without the padding
// of packing), which mla_absorbed_step adds to it.
std::int64_t mla_cache_bytes(const MlaArgs& args);
std::int64_t mla_weight_bytes(const MlaShape& shape);
// Multiplications and additions of a whole call in this form, both folds included: see attention_flops().
std::int64_t mla_flops(const MlaArgs& args, MlaForm form);

// ---- which form ----
// Seconds, as measured with `threads` threads. A "pass" is one row going by one tile of queries, a "pair" one query
// head meeting one visible row.
struct MlaCosts {
  double absorbed_pass = 0;  // all heads share it
  double absorbed_pair = 0;
  double fold_call = 0;         // both folds, what the first token pays: reading the weights
  double fold_token = 0;        // and each token, all heads
  double reconstruct_pass = 0;  // per head: the row through W_UK and W_UV
  double reconstruct_pair = 0;
  int threads = 0;
};

// Times small runs of both forms with these weights: a few tens of milliseconds on one core at DeepSeek-V3's size.
// Allocates what it needs. Measure once per machine, storage and thread count.
MlaCosts measure_mla_costs(const MlaWeights& weights, Storage storage, int threads);
MlaCosts measure_mla_costs(const MlaWeights& weights, Storage storage, int threads, Isa isa);

struct MlaPlan {
  MlaForm form = MlaForm::absorbed;
  double absorbed_seconds = 0, reconstruct_seconds = 0;  // predicted
};

// The form that `costs` predict to be faster for this call; absorbed where they are equal, and in native mode, which
// has no other (the costs are those of reproducible mode). Throws Error(bad_option) for
// costs that were not measured (not finite, negative, or all zero).
MlaPlan mla_plan(const MlaArgs& args, const MlaCosts& costs);
inline void mla_attention(const MlaArgs& args, const MlaPlan& plan, std::span<std::byte> workspace, int threads,
                          Isa isa) {
  mla_attention(args, plan.form, workspace, threads, isa);
}

}  // namespace kvroof
