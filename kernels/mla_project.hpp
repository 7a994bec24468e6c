// The matrices of multi-head latent attention that meet one token at a time: into the absorbed form, out of it, and
// from the hidden state to the latent. Inside the library; mla.hpp is the interface.
//
// Work is (head, block of 64 outputs, token), tokens innermost: a block's weights come from memory once and meet every
// token from the cache (64 x 128 floats of W_UK transposed: 32 KiB). A part is a contiguous stretch of that list, so it
// also reads a contiguous stretch of the weights.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/mla.hpp"

namespace kvroof {

// New tokens of all sequences, in their order, are the rows of the dense arrays: q' is [tokens][heads][latent + rope],
// latents [tokens][heads][latent].
void mla_fold_part(const MlaWeights& weights, std::span<const AttentionSequence> sequences, std::int64_t tokens,
                   float* absorbed, int parts, int part, Isa isa);
void mla_expand_part(const MlaWeights& weights, std::span<const AttentionSequence> sequences, std::int64_t tokens,
                     const float* latents, int parts, int part, Isa isa);

void mla_require_threads(int threads);

}  // namespace kvroof
