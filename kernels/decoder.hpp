// A small stack of attention layers with a KV cache: the decode step of an LLM without its MLP and norms. Shows how the
// kernels fit together, and is what the exactness tests hold to a path without any cache.
//
// Per layer and new token: q, k, v = WQ x, WK x, WV x; RoPE on q and k (optional); k and v appended to the layer's
// cache; attention of q over the cache; WO on the heads side by side. The result is the next layer's input. Each
// projection output is one FMA chain (rope.hpp), so a token's bits do not depend on how many are processed together:
// prefill in chunks of any size, decode one by one, roll back and go on, and the outputs are the same bits.
//
//   kvroof::Decoder decoder(model_dim, layers);
//   kvroof::DecoderState state = decoder.start();
//   decoder.step(state, prompt, prompt_tokens, y, threads);  // prefill
//   decoder.step(state, x, 1, y, threads);                   // decode
//
// One cache per layer and head: keys and values of layer l, head h depend on nothing in other layers or heads. A
// layer's Hkv caches grow in step and are kept in one cache object (in head order one stream per head, [h][t][D]), so
// one append and one length serve them all; a model of 12 layers x 12 KV heads holds 144 caches in 12 objects.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kernels/cache/contiguous.hpp"
#include "kernels/cache/ring.hpp"
#include "kernels/rope.hpp"

namespace kvroof {

struct DecoderLayer {
  AttentionShape shape;
  AttentionOptions options;  // scale is required; slopes and sinks are copied
  Storage k_storage = Storage::f32, v_storage = Storage::f32;

  // Row-major [outputs][inputs], copied (packed) by the Decoder.
  const float* wq = nullptr;  // [Hq*Dk][model]
  const float* wk = nullptr;  // [Hkv*Dk][model]
  const float* wv = nullptr;  // [Hkv*Dv][model]
  const float* wo = nullptr;  // [model][Hq*Dv]

  std::vector<double> inv_freq;  // [Dk/2] from rope_inv_freq, or empty: no RoPE
  RopePairing pairing = RopePairing::interleaved;

  RowOrder order = RowOrder::head_major;
  // 0: a contiguous cache. Else a ring of that many rows (>= options.window, which must not be unlimited) with
  // options.kept_tokens rows beside it.
  std::int64_t ring_capacity = 0;
};

class Decoder;

// One sequence: a cache per layer and the scratch memory of a step. Moves, forks by name.
class DecoderState {
 public:
  std::int64_t length() const { return length_; }
  std::int64_t next_position() const { return length_; }

  // Keeps the first `length` tokens, in every layer or in none: a ring that has overwritten rows which the next token
  // needs refuses with Error(bad_position) (the rule is in ring.hpp).
  bool can_truncate_to(std::int64_t length) const;
  void truncate_to(std::int64_t length);
  void drop_last(std::int64_t n);

  DecoderState fork() const;  // an independent copy of all rows

  std::int64_t layers() const { return static_cast<std::int64_t>(caches_.size()); }
  KvView view(std::int64_t layer) const;                     // Error(bad_shape) unless 0 <= layer < layers()
  CacheBytes bytes() const;                                  // over all layers
  std::int64_t projections() const { return projections_; }  // key/value projections made: one per token and layer

 private:
  friend class Decoder;
  using Cache = std::variant<ContiguousCache, RingCache>;

  DecoderState() = default;

  std::vector<Cache> caches_;
  std::int64_t length_ = 0;
  std::int64_t projections_ = 0;
  // Scratch of a step, grown on demand and never shrunk.
  std::vector<float> x_, q_, k_, v_, heads_;
  CacheMemory workspace_;
};

class Decoder {
 public:
  // Throws Error(bad_shape, bad_option or bad_view) for layers that do not fit together, Error(out_of_memory) where
  // their weights do not fit into memory.
  Decoder(std::int64_t model_dim, std::span<const DecoderLayer> layers);

  DecoderState start() const;  // an empty sequence

  // n >= 0 new tokens: x [n][model] -> y [n][model], y not overlapping x. Long inputs go through all layers in pieces
  // of at most chunk_limit() tokens. All that can be refused (sizes, memory for the rows) is refused before any row is
  // written. `state` must come from this Decoder: one whose
  // caches differ from the layers in kind, shape, storage or order is Error(bad_shape). Different states may step on
  // different threads.
  void step(DecoderState& state, const float* x, std::int64_t n, float* y, int threads) const;
  void step(DecoderState& state, const float* x, std::int64_t n, float* y, int threads, Isa isa) const;

  // The most tokens that all rings take at once (C - W + 1), and no more than keeps the scratch small.
  std::int64_t chunk_limit() const { return chunk_limit_; }
  std::int64_t model_dim() const { return model_dim_; }
  std::int64_t cache_count() const;  // layers x KV heads, as engines count them

 private:
  struct Layer {
    DecoderLayer source;  // its weight pointers are not used after packing
    CacheShape cache_shape;
    std::vector<float> wq, wk, wv, wo;  // packed
    std::vector<float> alibi_slopes, sink_logits;
  };

  void add_layer(const DecoderLayer& source, const std::string& name);
  void check_state(const DecoderState& state) const;
  DecoderState::Cache make_cache(const Layer& layer) const;
  void make_room(DecoderState& state, std::int64_t length, std::int64_t most) const;
  void chunk(DecoderState& state, const float* x, std::int64_t n, float* y, int threads, Isa isa) const;
  void attend(const Layer& layer, DecoderState& state, const KvView& kv, std::int64_t n, int threads, Isa isa) const;

  std::int64_t model_dim_;
  std::int64_t chunk_limit_;
  std::vector<Layer> layers_;
};

}  // namespace kvroof
