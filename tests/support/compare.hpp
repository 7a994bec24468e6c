// Three claims, three comparers; nothing called "near" with a bare constant.
//   same_bits   equal bit for bit (lane twin, ISA, layout, thread and chunk invariance)
//   exact       equal as numbers (integer-valued inputs, where every order of summation gives the same sum)
//   within      |actual - expected| <= the bound stated for that element by a formula
// A NaN never equals anything unless the test asks for it (Nan::allowed): a NaN reference would otherwise hide a broken
// kernel. Failures print the index, both values in hexadecimal float, the distance in ULP, and how to reproduce.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/half.hpp"

namespace kvroof::test {

enum class Nan : std::uint8_t { refused, allowed };

// A dense [outer][inner] block read through strides: two kernels may return the same values in different layouts.
struct Strided {
  const float* data = nullptr;
  std::int64_t outer = 0, inner = 0;
  std::int64_t outer_stride = 0, inner_stride = 1;

  Strided(const std::vector<float>& dense)
      : data(dense.data()), outer(1), inner(static_cast<std::int64_t>(dense.size())) {}
  Strided(const float* first, std::int64_t count) : data(first), outer(1), inner(count) {}
  Strided(const float* first, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
          std::int64_t column_stride = 1)
      : data(first), outer(rows), inner(columns), outer_stride(row_stride), inner_stride(column_stride) {}

  std::int64_t size() const { return outer * inner; }
  float at(std::int64_t i) const { return data[i / inner * outer_stride + i % inner * inner_stride]; }
};

// `what` names the case so that it can be rebuilt: describe(spec), the ISA, the layout.
testing::AssertionResult same_bits(const Strided& actual, const Strided& expected, const std::string& what,
                                   Nan nan = Nan::refused);
testing::AssertionResult exact(const Strided& actual, const Strided& expected, const std::string& what);
// `bound` has one entry per element; `formula` is printed. Infinite expected values must match exactly.
testing::AssertionResult within(const Strided& actual, const std::vector<double>& expected,
                                const std::vector<double>& bound, const std::string& formula, const std::string& what);

using reference::bits_float;
using reference::float_bits;
inline bool is_canonical_nan(float x) { return float_bits(x) == 0x7fc00000u; }  // the only one that kernels write
// Representable values between a and b; UINT64_MAX where either is NaN.
std::uint64_t ulp_distance(float a, float b);
// The command that runs the test that is running now, and only it.
std::string reproduce_command();

}  // namespace kvroof::test
