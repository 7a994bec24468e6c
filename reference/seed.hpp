// The sources' own small programs as functions, with the numbers they print. Plain float loops in the order of the
// originals, since the printed values are facts to be reproduced.
#pragma once

#include <cstdint>
#include <vector>

namespace kvroof::reference {

// The generator behind the printed check values: that of the Microsoft C run-time (glibc's gives other weights).
class SeedRandom {
 public:
  explicit SeedRandom(std::uint32_t seed) : state_(seed) {}
  int next() {  // 0 .. 32767
    state_ = state_ * 214013u + 2531011u;
    return static_cast<int>((state_ >> 16) & 0x7fffu);
  }
  float unit() { return static_cast<float>(next()) / 32767.0f; }     // 0 .. 1
  float around_zero(float size) { return (unit() * 2 - 1) * size; }  // -size .. size

 private:
  std::uint32_t state_;
};

// Key and value projections over a generation of n tokens, one unit per token and layer.
std::int64_t seed_projections_without_cache(std::int64_t n);
std::int64_t seed_projections_with_cache(std::int64_t n);

// The exactness program: 4 tokens of width 4, key dim 3, weights from generator seed 42 drawn WQ, WK, WV in turn for
// each element, scale 1/sqrt(3). Both ways give one row of 3 per position.
inline constexpr int kSeedTokens = 4, kSeedModelDim = 4, kSeedKeyDim = 3;
struct SeedExactness {
  float wq[kSeedKeyDim][kSeedModelDim], wk[kSeedKeyDim][kSeedModelDim], wv[kSeedKeyDim][kSeedModelDim];
  float x[kSeedTokens][kSeedModelDim];
  float recomputed[kSeedTokens][kSeedKeyDim];
  float cached[kSeedTokens][kSeedKeyDim];
};
SeedExactness seed_exactness();

// Six tokens through one head (model width 6, key dim 4), with a cache and without: what was counted on the way.
struct SeedWalk {
  std::vector<std::int64_t> length_before, length_after, projections;  // per token, with the cache
  std::int64_t projections_with_cache = 0, projections_without_cache = 0;
  std::int64_t cache_floats = 0;
  std::vector<float> out, out_without_cache;  // [6][6]
};
SeedWalk seed_walk();

// The latent-compression toy: one token's hidden state through W_DKV and back through W_UK and W_UV.
inline constexpr int kSeedMlaModelDim = 64, kSeedMlaHeads = 8, kSeedMlaHeadDim = 8;
inline constexpr int kSeedMlaLatent = 16, kSeedMlaRope = 8;
struct SeedMla {
  std::vector<float> w_dkv, w_uk, w_uv;              // [16][64], [64][16], [64][16]
  std::vector<float> h, latent;                      // [64], [16]
  std::vector<float> k, v;                           // [64] each, rebuilt from the latent
  std::int64_t standard_floats = 0, mla_floats = 0;  // per token
};
SeedMla seed_mla();

// bytes = 2 * L * B * T * Hkv * Dh * s
std::int64_t seed_cache_bytes(std::int64_t layers, std::int64_t batch, std::int64_t T, std::int64_t kv_heads,
                              std::int64_t head_dim, std::int64_t element_bytes);
// One latent and one rotated key per token and layer.
std::int64_t seed_mla_bytes(std::int64_t layers, std::int64_t T, std::int64_t latent, std::int64_t rope,
                            std::int64_t element_bytes);

}  // namespace kvroof::reference
