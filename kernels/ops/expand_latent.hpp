// MLA reconstruct, one tile: to[r][o] = sum over k of w[o][k] latent[r][k], each output one FMA chain over ascending k
// from +0 (the definition's "projection"), lanes over outputs. A panel of 64 outputs x 64 k of the weights (16 KiB)
// stays in L1 while all rows of the tile pass; the running sums go through `to`. Flops: 2 * rows * outputs *
// latent_dim.
#pragma once

#include "kernels/simd/lanes.hpp"

namespace kvroof::KVROOF_NS {
namespace {

constexpr int kExpandRows = 4;
constexpr int kExpandBlocks = kAccumulators / kExpandRows;  // vectors of 16 outputs
constexpr std::int64_t kExpandDepth = 64;

template <int B>
KVROOF_ALONE inline void expand_block(const float* const* latent, std::int64_t k0, std::int64_t k1, const float* w,
                                      std::int64_t inputs, float* to, std::int64_t stride) {
  Vec16 sum[kExpandRows * B];
#pragma GCC unroll 4
  for (int r = 0; r < kExpandRows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) sum[r * B + b] = k0 == 0 ? zero() : load(to + r * stride + b * kLanes);
  }
  for (std::int64_t k = k0; k < k1; ++k) {
    Vec16 weight[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) weight[b] = load(w + (b * inputs + k) * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kExpandRows; ++r) {
      const Vec16 x = broadcast(latent[r][k]);
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sum[r * B + b] = fma(weight[b], x, sum[r * B + b]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kExpandRows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) store(to + r * stride + b * kLanes, sum[r * B + b]);
  }
}

// rows: a multiple of 4. `to` has room for outputs rounded up to 16 in every row.
inline void expand_latent(const float* const* latent, int rows, std::int64_t inputs, const float* w,
                          std::int64_t outputs, float* to, std::int64_t stride) {
  constexpr std::int64_t kPanel = kExpandBlocks * kLanes;
  for (std::int64_t o = 0; o < outputs; o += kPanel) {
    const std::int64_t blocks = outputs - o >= kPanel ? kExpandBlocks : (outputs - o + kLanes - 1) / kLanes;
    for (std::int64_t k = 0; k < inputs; k += kExpandDepth) {
      const std::int64_t end = inputs - k < kExpandDepth ? inputs : k + kExpandDepth;
      for (int r = 0; r < rows; r += kExpandRows) {
        float* at = to + r * stride + o;
        if (blocks == kExpandBlocks) {
          expand_block<kExpandBlocks>(latent + r, k, end, w + o * inputs, inputs, at, stride);
        } else {
          for (std::int64_t b = 0; b < blocks; ++b)
            expand_block<1>(latent + r, k, end, w + (o + b * kLanes) * inputs, inputs, at + b * kLanes, stride);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvroof::KVROOF_NS
