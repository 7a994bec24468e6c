// y = W x: each output is one FMA chain over ascending inputs, lanes over outputs (weights packed 16 outputs side by
// side). Four groups of 16 outputs are in flight: 4 chains x FMA latency 4 on two ports would want 8, but the weights
// come from memory, which is slower than either. Bytes: the packed weights once.
#include "kernels/simd/lanes.hpp"

#include "kernels/ops/ops.hpp"
#include "kernels/simd/float_environment.hpp"
#include "kernels/simd/math.hpp"

namespace kvroof::KVROOF_NS {
namespace {

template <int B>
void project_blocks(const float* packed, const float* x, std::int64_t inputs, Vec16* sum) {
#pragma GCC unroll 4
  for (int b = 0; b < B; ++b) sum[b] = zero();
  for (std::int64_t k = 0; k < inputs; ++k) {
    const Vec16 value = broadcast(x[k]);
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) sum[b] = fma(load(packed + (b * inputs + k) * kLanes), value, sum[b]);
  }
}

}  // namespace

void project(const float* packed, const float* x, std::int64_t outputs, std::int64_t inputs, float* y) {
  const FloatEnvironment environment;
  std::int64_t o = 0;
  for (; o + 4 * kLanes <= outputs; o += 4 * kLanes) {
    Vec16 sum[4];
    project_blocks<4>(packed + o * inputs, x, inputs, sum);
    for (int b = 0; b < 4; ++b) store(y + o + b * kLanes, canonical(sum[b]));
  }
  for (; o < outputs; o += kLanes) {
    Vec16 sum[1];
    project_blocks<1>(packed + o * inputs, x, inputs, sum);
    if (outputs - o >= kLanes)
      store(y + o, canonical(sum[0]));
    else
      store_partial(y + o, canonical(sum[0]), static_cast<int>(outputs - o));
  }
}

}  // namespace kvroof::KVROOF_NS
