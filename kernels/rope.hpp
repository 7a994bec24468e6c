// Rotary position embedding and projections: what a decode step needs around attention.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.hpp"

namespace kvroof {

// RoPE pairs elements (2i, 2i+1) in `interleaved` and (i, i + d/2) in `half_split`; models trained with one are wrong
// with the other.
enum class RopePairing : std::uint8_t { interleaved, half_split };

// inv_freq[i] = base^(-2i/d) / factor, i < d/2 (Su et al. 2021, "RoFormer"; factor > 1 is linear position
// interpolation). Throws Error(bad_shape) for odd or non-positive d, Error(bad_option) for base or factor not positive
// and finite.
std::vector<double> rope_inv_freq(std::int64_t d, double base, double factor = 1.0);

// Rotates `heads` heads of d values each (head h at x + h*head_stride) in place by the absolute position. Position
// 0 <= position and position * inv_freq below 2^31. NaN in a pair stays in that pair. Bits: lane_twin.hpp "RoPE".
void rope(float* x, std::int64_t heads, std::int64_t head_stride, std::int64_t d, std::int64_t position,
          const double* inv_freq, RopePairing pairing, Isa isa);

// ALiBi slopes (Press et al. 2021). `interleaved` is the rule of the paper's code, which trained models use: for head
// counts that are no power of two the slopes of the next smaller power of two are followed by every second slope of the
// next larger one. `geometric` is one series 2^(-8(h+1)/heads). Throws Error(bad_shape) for heads < 1.
enum class AlibiRule : std::uint8_t { interleaved, geometric };
std::vector<float> alibi_slopes(std::int64_t heads, AlibiRule rule = AlibiRule::interleaved);

// y = W x, W [outputs][inputs] row-major, packed once by pack_weights into lanes over outputs (16 outputs side by side,
// the last group padded with zeros). Each output is one FMA chain over ascending inputs, so a row's bits do not depend
// on how many rows are projected together. y must not overlap x.
std::size_t packed_weight_floats(std::int64_t outputs, std::int64_t inputs);
void pack_weights(const float* w, std::int64_t outputs, std::int64_t inputs, float* packed);
void project(const float* packed, const float* x, std::int64_t outputs, std::int64_t inputs, float* y, Isa isa);

}  // namespace kvroof
