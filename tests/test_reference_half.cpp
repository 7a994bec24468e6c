// The references' own conversions, proved by arithmetic in double: every code, every rounding boundary between two
// neighbouring codes, and the faults that others had.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "reference/half.hpp"
#include "reference/inputs.hpp"

namespace kvroof::reference {
namespace {

struct Format {
  const char* name;
  int exponent_bits, fraction_bits;
  std::uint16_t (*narrow)(float);
  float (*widen)(std::uint16_t);

  std::uint32_t infinity() const { return ((1u << exponent_bits) - 1) << fraction_bits; }
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  // What a code below infinity means, from the definition of the format.
  double meaning(std::uint32_t code) const {
    const int exponent = static_cast<int>(code >> fraction_bits);
    const int fraction = static_cast<int>(code & ((1u << fraction_bits) - 1));
    return exponent == 0 ? std::ldexp(fraction, 1 - bias() - fraction_bits)
                         : std::ldexp(fraction + (1 << fraction_bits), exponent - bias() - fraction_bits);
  }
};

const Format kFormats[] = {{"f16", 5, 10, f32_to_f16, f16_to_f32}, {"bf16", 8, 7, f32_to_bf16, bf16_to_f32}};

class ReferenceHalf : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, ReferenceHalf, testing::ValuesIn(kFormats),
                         [](const auto& format) { return format.param.name; });

TEST_P(ReferenceHalf, EveryCodeWidensToItsMeaningAndBack) {
  const Format& f = GetParam();
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const float wide = f.widen(static_cast<std::uint16_t>(code));
    const std::uint32_t magnitude = code & 0x7fffu;
    if (magnitude > f.infinity()) {
      ASSERT_TRUE(std::isnan(wide)) << code;
      const std::uint32_t quiet = code | 1u << (f.fraction_bits - 1);
      ASSERT_EQ(f.narrow(wide), quiet) << code;
      ASSERT_EQ(float_bits(wide), ((code & 0x8000u) << 16) | 0x7f800000u |
                                      ((quiet & ((1u << f.fraction_bits) - 1)) << (23 - f.fraction_bits)));
      continue;
    }
    const double meaning = magnitude == f.infinity() ? std::numeric_limits<double>::infinity() : f.meaning(magnitude);
    ASSERT_EQ(static_cast<double>(std::fabs(wide)), meaning) << code;
    ASSERT_EQ(std::signbit(wide), code >= 0x8000u) << code;
    ASSERT_EQ(f.narrow(wide), code);
  }
}

TEST_P(ReferenceHalf, RoundsToNearestTiesToEvenBetweenAllNeighbours) {
  const Format& f = GetParam();
  for (std::uint32_t code = 0; code < f.infinity(); ++code) {
    // Overflow rounds as if the next binade went on, so infinity stands for the first value of it.
    const double upper = f.meaning(code + 1);
    const float middle = static_cast<float>((f.meaning(code) + upper) / 2);
    ASSERT_EQ(static_cast<double>(middle), (f.meaning(code) + upper) / 2) << "boundary is a float";
    const std::uint32_t even = code % 2 == 0 ? code : code + 1;
    for (const std::uint32_t sign : {0u, 0x8000u}) {
      const float s = sign ? -1.0f : 1.0f;
      ASSERT_EQ(f.narrow(s * middle), sign | even) << code;
      ASSERT_EQ(f.narrow(s * std::nextafter(middle, 0.0f)), sign | code) << code;
      ASSERT_EQ(f.narrow(s * std::nextafter(middle, FLT_MAX)), sign | (code + 1)) << code;
    }
  }
  EXPECT_EQ(f.narrow(FLT_MAX), f.infinity());
  EXPECT_EQ(f.narrow(-FLT_MAX), f.infinity() | 0x8000u);
}

TEST_P(ReferenceHalf, IsMonotoneOverDenseSamples) {
  const Format& f = GetParam();
  std::uint16_t before = 0;
  for (std::uint64_t bits = 0; bits <= 0x7f800000u; bits += 1021) {
    const std::uint16_t code = f.narrow(bits_float(static_cast<std::uint32_t>(bits)));
    ASSERT_GE(code, before) << bits;
    before = code;
  }
}

TEST_P(ReferenceHalf, NanIsQuietedAndItsPayloadTruncated) {
  const Format& f = GetParam();
  for (const std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xffc00000u, 0x7fbfffffu, 0xffffffffu, 0x7f812345u}) {
    const std::uint32_t expected = ((nan >> 16) & 0x8000u) | f.infinity() | 1u << (f.fraction_bits - 1) |
                                   ((nan & 0x7fffffu) >> (23 - f.fraction_bits));
    EXPECT_EQ(f.narrow(bits_float(nan)), expected) << std::hex << nan;
  }
}

TEST(ReferenceHalfEdges, FaultsThatOthersHad) {
  EXPECT_EQ(f32_to_bf16(1.01171875f), 0x3f82) << "truncation gives 0x3f81";
  EXPECT_EQ(f32_to_f16(1.9997f), 0x4000) << "the carry moves into the exponent";
  EXPECT_EQ(f32_to_bf16(0x1p-127f), 0x0040) << "subnormals are kept";
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000) << "a tie with zero";
  EXPECT_EQ(f32_to_f16(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(f32_to_f16(-0x1p-26f), 0x8000);
  EXPECT_EQ(f32_to_f16(6e-8f), 0x0001);
  EXPECT_EQ(float_bits(f32_to_storage(bits_float(0xff800001u))), 0xffc00001u);
  EXPECT_EQ(float_bits(f32_to_storage(1e-40f)), float_bits(1e-40f));
}

// ---- int8 rows -----------------------------------------------------------------------------------------------------
struct Quantized {
  std::vector<std::int8_t> q;
  float scale;
};
Quantized quantize(const std::vector<float>& row) {
  Quantized r{std::vector<std::int8_t>(row.size()), 0};
  r.scale = quantize_int8_row(row.data(), row.size(), r.q.data());
  return r;
}

// Half a step, plus the roundings of the scale (amax/127, division, product): 127 * 2 u of a step and u of the value.
void expect_within_half_a_step(const std::vector<float>& row) {
  const Quantized r = quantize(row);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double back = static_cast<double>(r.q[i]) * r.scale;
    EXPECT_LE(std::fabs(back - row[i]), (0.5 + 127 * 0x1p-23) * r.scale) << i << ": " << row[i];
  }
}

TEST(ReferenceInt8, ConstantRowsAndTinySpreads) {
  for (const float x : {100.0f, -7.5f, 65504.0f, 1e30f, 1e-30f, FLT_MAX, 1.0f}) {
    const Quantized r = quantize(std::vector<float>(64, x));
    EXPECT_EQ(r.scale, std::fabs(x) / 127.0f);
    for (const std::int8_t q : r.q) EXPECT_EQ(q, x > 0 ? 127 : -127);
    expect_within_half_a_step(std::vector<float>(64, x));
  }
  std::vector<float> spread(64);
  for (std::size_t i = 0; i < spread.size(); ++i) spread[i] = 1.0f + 3e-5f * static_cast<float>(i) / 63.0f;
  expect_within_half_a_step(spread);
}

TEST(ReferenceInt8, ZerosAndWhatIsTooSmall) {
  for (const float x : {0.0f, -0.0f, 1e-40f, 127.0f * FLT_MIN * 0.99f}) {
    const Quantized r = quantize(std::vector<float>(17, x));
    EXPECT_EQ(float_bits(r.scale), 0u);
    for (const std::int8_t q : r.q) EXPECT_EQ(q, 0);
  }
  EXPECT_EQ(quantize({127.0f * FLT_MIN}).scale, FLT_MIN);
}

TEST(ReferenceInt8, NanOrInfinityPoisonsTheScaleOnly) {
  for (const float x : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                        -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{7}, std::size_t{15}}) {
      std::vector<float> row(16, 2.0f);
      row[at] = x;
      const Quantized r = quantize(row);
      EXPECT_EQ(float_bits(r.scale), 0x7fc00000u);
      for (const std::int8_t q : r.q) EXPECT_EQ(q, 0);
    }
  }
}

TEST(ReferenceInt8, TiesGoToEvenAndNothingPassesPlusMinus127) {
  const Quantized ties = quantize({127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f});
  EXPECT_EQ(ties.scale, 1.0f);
  EXPECT_EQ(ties.q, (std::vector<std::int8_t>{127, 0, 2, 2, 0, -2, -2}));
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    std::vector<float> row(33);
    for (std::size_t i = 0; i < row.size(); ++i)
      row[i] = std::ldexp(uniform(seed, i), static_cast<int>(seed % 200) - 100);
    expect_within_half_a_step(row);
    int largest = 0;
    for (const std::int8_t q : quantize(row).q) largest = std::max(largest, std::abs(static_cast<int>(q)));
    EXPECT_EQ(largest, 127);
  }
}

}  // namespace
}  // namespace kvroof::reference
