#include "bench/decode_setup.hpp"

#include <algorithm>
#include <cmath>

namespace kvroof::bench {

KvView contiguous_strides(const DecodeCase& c) { return row_layout(cache_shape(c), c.order, c.T).strides; }

Check check_rival(const DecodeSetup& setup, const float* out, Storage precision) {
  const DecodeCase& c = setup.c;
  Check check;
  check.done = true;
  double largest = 0, error = 0;
  bool finite = true;
  for (const DecodeSetup::Sample& sample : *setup.samples) {
    for (std::int64_t d = 0; d < c.shape.value_dim; ++d) {
      const double right = sample.answer.out[static_cast<std::size_t>(d)];
      const double got = out[sample.head * c.shape.value_dim + d];
      largest = std::max(largest, std::abs(right));
      error = std::max(error, std::abs(got - right));
      finite = finite && std::isfinite(got);
    }
  }
  // Unit round-off of the compute type: query, probabilities and result are each rounded to it. In f16 probabilities
  // near 1/T become subnormal with spacing 2^-24, relative T*2^-25. f32 sums T products in any order.
  const double T = static_cast<double>(c.T);
  switch (precision) {
    case Storage::f16: check.bound = 8 * 0x1p-11 + T * 0x1p-25; break;
    case Storage::bf16: check.bound = 8 * 0x1p-8; break;
    default: check.bound = 1e-5 + 8 * std::sqrt(T) * 0x1p-24; break;
  }
  check.rule =
      std::string("largest error over largest output, heads 0 and Hq-1, computed in ") + storage_name(precision);
  check.max_error = largest > 0 ? error / largest : error;
  check.passed = finite && check.max_error <= check.bound;
  return check;
}

}  // namespace kvroof::bench
