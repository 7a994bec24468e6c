// Tables that stand outside the numerics contract (their golden values are tests): RoPE frequencies, ALiBi slopes,
// packed weights.
#include "kernels/rope.hpp"

#include <cmath>
#include <string>

namespace kvroof {

std::vector<double> rope_inv_freq(std::int64_t d, double base, double factor) {
  if (d < 2 || d % 2 != 0)
    throw Error(ErrorCode::bad_shape, "rope dimension is " + std::to_string(d) + ": must be even and at least 2");
  if (!(base > 0.0) || !std::isfinite(base) || !(factor > 0.0) || !std::isfinite(factor))
    throw Error(ErrorCode::bad_option, "rope base and factor must be positive and finite");
  std::vector<double> inv_freq(static_cast<std::size_t>(d / 2));
  for (std::size_t i = 0; i < inv_freq.size(); ++i)
    inv_freq[i] = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(d)) / factor;
  return inv_freq;
}

namespace {

void append_series(std::vector<float>& slopes, std::int64_t heads, std::int64_t first, std::int64_t step,
                   std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    slopes.push_back(
        static_cast<float>(std::exp2(-8.0 * static_cast<double>(first + i * step) / static_cast<double>(heads))));
}

}  // namespace

std::vector<float> alibi_slopes(std::int64_t heads, AlibiRule rule) {
  if (heads < 1 || heads > (std::int64_t{1} << 20))
    throw Error(ErrorCode::bad_shape, "heads is " + std::to_string(heads) + ": must be 1 to 1048576");
  std::int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  std::vector<float> slopes;
  if (rule == AlibiRule::geometric || power == heads) {
    append_series(slopes, heads, 1, 1, heads);
  } else {
    append_series(slopes, power, 1, 1, power);
    append_series(slopes, 2 * power, 1, 2, heads - power);
  }
  return slopes;
}

std::size_t packed_weight_floats(std::int64_t outputs, std::int64_t inputs) {
  return static_cast<std::size_t>((outputs + kLanes - 1) / kLanes * kLanes * inputs);
}

void pack_weights(const float* w, std::int64_t outputs, std::int64_t inputs, float* packed) {
  for (std::int64_t block = 0; block < outputs; block += kLanes)
    for (std::int64_t k = 0; k < inputs; ++k)
      for (std::int64_t lane = 0; lane < kLanes; ++lane)
        packed[block * inputs + k * kLanes + lane] = block + lane < outputs ? w[(block + lane) * inputs + k] : 0.0f;
}

}  // namespace kvroof
