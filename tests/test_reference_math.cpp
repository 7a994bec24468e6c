// Accuracy of the functions of the numerics definition against the C library's double and long double. The bounds are
// those that the oracle's error formula uses, and the ones in ulp that the documentation states.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "reference/inputs.hpp"
#include "reference/lane_twin.hpp"

namespace kvroof::reference {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kCutOff = -0x1.5d589ep+6f;  // ln(FLT_MIN)

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
float from_bits(std::uint32_t x) { return std::bit_cast<float>(x); }

struct Accuracy {
  double relative = 0;  // in units of 2^-24
  double ulp = 0;       // in units of the last place of the exact result
  float worst = 0;
};

// Every `stride`-th float between two of one sign, both ends included.
template <class Twin, class Exact>
Accuracy measure(float from, float to, std::uint32_t stride, Twin twin, Exact exact) {
  Accuracy a;
  const auto look = [&](std::uint32_t b) {
    const float x = from_bits(b);
    const double e = exact(static_cast<double>(x));
    const double error = std::fabs(static_cast<double>(twin(x)) - e);
    if (e == 0.0) return;
    int exponent;
    std::frexp(e, &exponent);
    const double ulp = error / std::ldexp(1.0, exponent - 24);
    a.relative = std::max(a.relative, error / std::fabs(e) * 0x1p24);
    if (ulp > a.ulp) a.ulp = ulp, a.worst = x;
  };
  for (std::uint64_t b = bits(from); b < bits(to); b += stride) look(static_cast<std::uint32_t>(b));
  look(bits(to));
  return a;
}

#define EXPECT_ACCURACY(accuracy, relative_bound, ulp_bound)                                 \
  do {                                                                                       \
    const Accuracy measured = accuracy;                                                      \
    EXPECT_LE(measured.relative, relative_bound) << "in units of 2^-24";                     \
    EXPECT_LE(measured.ulp, ulp_bound) << "at " << std::hexfloat << measured.worst;          \
    EXPECT_GE(measured.ulp, 0.4) << "a float result cannot be this close: is it looked at?"; \
  } while (false)

TEST(ReferenceMath, ExpWithin1Point02Ulp) {
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_ACCURACY(measure(-0x1p-20f, kCutOff, 509, twin_exp, exact), 1.5, 1.02);
  EXPECT_ACCURACY(measure(-1.0f, kCutOff, 61, twin_exp, exact), 1.5, 1.02);
  EXPECT_ACCURACY(measure(0x1p-20f, 20.0f, 509, twin_exp, exact), 1.5, 1.02);
}

TEST(ReferenceMath, ExpAtItsEdges) {
  EXPECT_EQ(bits(twin_exp(0.0f)), bits(1.0f));
  EXPECT_EQ(bits(twin_exp(-0.0f)), bits(1.0f));
  EXPECT_EQ(bits(twin_exp(-kInf)), bits(0.0f));
  EXPECT_EQ(bits(twin_exp(-100.0f)), bits(0.0f));
  EXPECT_EQ(bits(twin_exp(std::nextafter(kCutOff, -kInf))), bits(0.0f));
  EXPECT_GE(twin_exp(kCutOff), std::numeric_limits<float>::min()) << "the smallest result is normal";
  EXPECT_TRUE(std::isnan(twin_exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(twin_exp(-std::numeric_limits<float>::quiet_NaN())));
}

TEST(ReferenceMath, TanhWithin1Point35Ulp) {
  const auto exact = [](double x) { return std::tanh(x); };
  EXPECT_ACCURACY(measure(0x1p-126f, 0.625f, 1009, twin_tanh, exact), 2.5, 1.35);
  EXPECT_ACCURACY(measure(0.625f, 12.0f, 31, twin_tanh, exact), 2.5, 1.35);
  for (std::uint32_t b = bits(12.0f); b < bits(kInf); b += 10007) ASSERT_EQ(twin_tanh(from_bits(b)), 1.0f);
}

TEST(ReferenceMath, TanhAtItsEdges) {
  EXPECT_EQ(bits(twin_tanh(0.0f)), bits(0.0f));
  EXPECT_EQ(bits(twin_tanh(-0.0f)), bits(-0.0f));
  EXPECT_EQ(bits(twin_tanh(kInf)), bits(1.0f));
  EXPECT_EQ(bits(twin_tanh(-kInf)), bits(-1.0f));
  EXPECT_EQ(bits(twin_tanh(3.0e38f)), bits(1.0f));
  EXPECT_TRUE(std::isnan(twin_tanh(std::numeric_limits<float>::quiet_NaN())));
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const float x = 12.0f * uniform(7, i);
    EXPECT_LE(std::fabs(twin_tanh(x)), 1.0f);
    EXPECT_EQ(bits(twin_tanh(-x)), bits(-twin_tanh(x)));
  }
  // Where the two branches meet nothing jumps by more than the errors of both.
  const float low = twin_tanh(std::nextafter(0.625f, 0.0f)), high = twin_tanh(0.625f);
  EXPECT_LE(std::fabs(high - low), 3 * 0x1p-24f);
}

TEST(ReferenceMath, LogWithin1Point98Ulp) {
  const auto exact = [](double x) { return std::log(x); };
  EXPECT_ACCURACY(measure(0x1p-126f, 0x1.fffffep127f, 1999, twin_log, exact), 3.0, 1.98);
  EXPECT_ACCURACY(measure(1.0f, 0x1p20f, 199, twin_log, exact), 3.0, 1.98);
  EXPECT_ACCURACY(measure(0.99f, 1.02f, 1, twin_log, exact), 3.0, 1.98);
}

TEST(ReferenceMath, LogAtItsEdges) {
  EXPECT_EQ(bits(twin_log(1.0f)), bits(0.0f));
  EXPECT_EQ(twin_log(0.0f), -kInf);
  EXPECT_EQ(twin_log(kInf), kInf);
  EXPECT_TRUE(std::isnan(twin_log(std::numeric_limits<float>::quiet_NaN())));
}

// In double 2.4 ulp, and 3.5 next to multiples of pi/2, where the reduction cancels digits. RoPE rounds once to float:
// that adds half an ulp, beside which the rest is nothing.
TEST(ReferenceMath, SincosWithin3Point5UlpOfDouble) {
  double worst = 0, worst_float = 0;
  const auto look = [&](double angle) {
    double sine, cosine;
    twin_sincos(angle, sine, cosine);
    const long double exact[2] = {std::sin(static_cast<long double>(angle)), std::cos(static_cast<long double>(angle))};
    const double got[2] = {sine, cosine};
    for (int i = 0; i < 2; ++i) {
      if (exact[i] == 0) {
        EXPECT_EQ(got[i], 0.0);
        continue;
      }
      int exponent;
      std::frexp(static_cast<double>(exact[i]), &exponent);
      const long double error = std::fabs(static_cast<long double>(got[i]) - exact[i]);
      worst = std::max(worst, static_cast<double>(error / std::ldexp(1.0L, exponent - 53)));
      const long double rounded = std::fabs(static_cast<long double>(static_cast<float>(got[i])) - exact[i]);
      worst_float = std::max(worst_float, static_cast<double>(rounded / std::ldexp(1.0L, exponent - 24)));
    }
  };
  for (std::uint64_t i = 0; i < 30000; ++i) {
    const double unit = static_cast<double>(mix64(i) >> 11) * 0x1p-53;
    look(unit * 8);              // small angles
    look(unit * 1e6);            // long contexts
    look(std::ldexp(unit, 31));  // the whole domain
    look(std::ldexp(unit + 0.5, -static_cast<int>(i % 60)));
    look(static_cast<double>(i) * 1.57079632679489661923);  // near the multiples of pi/2, where digits cancel
    look(static_cast<double>(i));                           // inv_freq = 1
  }
  EXPECT_LE(worst, 3.5) << "ulp of double";
  EXPECT_GE(worst, 0.5) << "a double result cannot be this close: is it looked at?";
  EXPECT_LE(worst_float, 0.5 + 1e-8) << "ulp of float, after rounding once";
}

// The bits themselves belong to the definition: another hash is another definition, and needs another number.
TEST(ReferenceMath, FunctionsKeepTheBitsOfTheDefinition) {
  ASSERT_EQ(kTwinDefinition, 1);
  OutputHash exponential, hyperbolic, logarithm, circular, projection;
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const float x = uniform(1, i), y = uniform(2, i);
    exponential.add(bits(twin_exp(-90.0f * x * x)));
    hyperbolic.add(bits(twin_tanh(12.0f * x * y)));
    logarithm.add(bits(twin_log(std::ldexp(1.0f + std::fabs(x), static_cast<int>(i % 250) - 125))));
    double sine, cosine;
    twin_sincos(static_cast<double>(i) * 1234.567, sine, cosine);
    for (const double d : {sine, cosine}) {
      const std::uint64_t wide = std::bit_cast<std::uint64_t>(d);
      circular.add(static_cast<std::uint32_t>(wide));
      circular.add(static_cast<std::uint32_t>(wide >> 32));
    }
  }
  float w[8 * 100], x[100], y[8];
  for (std::uint64_t i = 0; i < 800; ++i) w[i] = uniform(3, i);
  for (std::uint64_t i = 0; i < 100; ++i) x[i] = uniform(4, i);
  twin_project(w, x, 8, 100, y);
  const double inv_freq[4] = {1.0, 0.1, 0.01, 0.001};
  twin_rope(y, 8, 123456, inv_freq, false);
  for (const float value : y) projection.add(bits(value));
  EXPECT_EQ(exponential.value, 0x620c2d6aeb5c3143ull);
  EXPECT_EQ(hyperbolic.value, 0xbf166d6b579d3b5aull);
  EXPECT_EQ(logarithm.value, 0x3ee2c0761927fcabull);
  EXPECT_EQ(circular.value, 0x68355fe815b9e0a2ull);
  EXPECT_EQ(projection.value, 0x4960adc3f5f20b93ull);
}

}  // namespace
}  // namespace kvroof::reference
