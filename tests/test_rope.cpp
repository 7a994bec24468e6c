// RoPE and projections: each instruction set equals the lane twin bit for bit; pairings, positions and refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/rope.hpp"
#include "reference/inputs.hpp"
#include "reference/lane_twin.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"
#include "tests/support/guarded_buffer.hpp"

namespace kvroof::test {
namespace {

std::vector<float> values(std::size_t count, std::uint64_t seed) {
  std::vector<float> list(count);
  for (std::size_t i = 0; i < count; ++i) list[i] = reference::uniform(seed, i);
  return list;
}

GuardedBuffer guarded(const std::vector<float>& from, Edge edge) {
  GuardedBuffer buffer(from.size() * sizeof(float), edge, sizeof(float));
  std::copy(from.begin(), from.end(), buffer.as<float>());
  return buffer;
}

class Rope : public EachIsa {};

TEST_P(Rope, EqualsTheTwinAtEveryPositionAndDim) {
  for (const std::int64_t d : {2, 4, 6, 30, 32, 34, 62, 64, 66, 80, 128, 256}) {
    const std::vector<double> inv_freq = rope_inv_freq(d, 10000.0);
    for (const std::int64_t position : {std::int64_t{0}, std::int64_t{1}, std::int64_t{20}, std::int64_t{511},
                                        std::int64_t{131071}, (std::int64_t{1} << 31) - 1}) {
      for (const RopePairing pairing : {RopePairing::interleaved, RopePairing::half_split}) {
        for (const Edge edge : {Edge::end, Edge::start}) {
          const std::int64_t heads = 3, stride = d + 5;  // what lies between the heads stays as it is
          std::vector<float> expected = values(static_cast<std::size_t>((heads - 1) * stride + d), 11);
          GuardedBuffer x = guarded(expected, edge);
          rope(x.as<float>(), heads, stride, d, position, inv_freq.data(), pairing, isa());
          for (std::int64_t h = 0; h < heads; ++h) {
            reference::twin_rope(expected.data() + h * stride, d, position, inv_freq.data(),
                                 pairing == RopePairing::interleaved);
          }
          EXPECT_TRUE(same_bits(Strided(x.as<float>(), static_cast<std::int64_t>(expected.size())), expected,
                                "d " + std::to_string(d) + " position " + std::to_string(position)));
          EXPECT_TRUE(x.intact());
        }
      }
    }
  }
}

// The same rotation over other pairs: interleaved on permuted data is half-split; from position 1 on the two differ.
TEST_P(Rope, PairingsArePermutationsOfEachOther) {
  constexpr std::int64_t d = 64;
  const std::vector<double> inv_freq = rope_inv_freq(d, 10000.0);
  for (const std::int64_t position : {0, 1, 77, 5000}) {
    const std::vector<float> x = values(d, 3);
    std::vector<float> half = x, pairs(d), wrong = x;
    for (std::size_t i = 0; i < d / 2; ++i) pairs[2 * i] = x[i], pairs[2 * i + 1] = x[i + d / 2];
    rope(half.data(), 1, d, d, position, inv_freq.data(), RopePairing::half_split, isa());
    rope(pairs.data(), 1, d, d, position, inv_freq.data(), RopePairing::interleaved, isa());
    rope(wrong.data(), 1, d, d, position, inv_freq.data(), RopePairing::interleaved, isa());
    std::vector<float> back(d);
    for (std::size_t i = 0; i < d / 2; ++i) back[i] = pairs[2 * i], back[i + d / 2] = pairs[2 * i + 1];
    EXPECT_TRUE(same_bits(back, half, "position " + std::to_string(position)));
    EXPECT_EQ(static_cast<bool>(same_bits(wrong, half, "")), position == 0) << position;
  }
}

TEST_P(Rope, RotatesByTheAngleItSays) {
  const std::vector<double> inv_freq = rope_inv_freq(8, 10000.0, 2.0);
  for (const std::int64_t position : {1, 100, 30000}) {
    std::vector<float> x(8, 0.0f);
    for (std::size_t i = 0; i < 4; ++i) x[2 * i] = 1.0f;
    rope(x.data(), 1, 8, 8, position, inv_freq.data(), RopePairing::interleaved, isa());
    for (std::size_t i = 0; i < 4; ++i) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(i) / 4.0) / 2.0;
      // one rounding to float; the double sincos errs by a few 2^-53, pow in the table by as many of the angle
      const double bound = 0x1p-24 + (4.0 + angle) * 0x1p-50;
      EXPECT_LE(std::fabs(static_cast<double>(x[2 * i]) - std::cos(angle)), bound) << position << " " << i;
      EXPECT_LE(std::fabs(static_cast<double>(x[2 * i + 1]) - std::sin(angle)), bound) << position << " " << i;
    }
  }
}

TEST_P(Rope, NanStaysInItsPair) {
  const std::vector<double> inv_freq = rope_inv_freq(32, 10000.0);
  std::vector<float> clean = values(32, 9), x = clean;
  x[10] = bits_float(0xff800001u);
  rope(clean.data(), 1, 32, 32, 5, inv_freq.data(), RopePairing::half_split, isa());
  rope(x.data(), 1, 32, 32, 5, inv_freq.data(), RopePairing::half_split, isa());
  for (std::size_t i = 0; i < 32; ++i) {
    if (i % 16 == 10) {
      EXPECT_EQ(float_bits(x[i]), 0x7fc00000u);
    } else {
      EXPECT_EQ(float_bits(x[i]), float_bits(clean[i]));
    }
  }
}

TEST(RopeTables, BadOnesAreRefused) {
  const auto code = [](std::int64_t d, double base, double factor) {
    try {
      rope_inv_freq(d, base, factor);
      return std::string("accepted");
    } catch (const Error& error) {
      return std::string(error_name(error.code));
    }
  };
  for (const std::int64_t d :
       {std::int64_t{0}, std::int64_t{-2}, std::int64_t{7}, std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_EQ(code(d, 10000.0, 1.0), "bad_shape") << d;
  }
  for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(code(8, bad, 1.0), "bad_option") << bad;
    EXPECT_EQ(code(8, 10000.0, bad), "bad_option") << bad;
  }
  EXPECT_EQ(code(8, 10000.0, 1.0), "accepted");
}

class Projection : public EachIsa {};

TEST_P(Projection, EqualsTheTwinAtEverySize) {
  for (const std::int64_t outputs : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 130}) {
    for (const std::int64_t inputs : {1, 2, 7, 16, 33, 100}) {
      const std::vector<float> w = values(static_cast<std::size_t>(outputs * inputs), 21);
      const std::vector<float> x = values(static_cast<std::size_t>(inputs), 22);
      std::vector<float> expected(static_cast<std::size_t>(outputs));
      reference::twin_project(w.data(), x.data(), outputs, inputs, expected.data());
      std::vector<float> packed(packed_weight_floats(outputs, inputs), bits_float(0x7fc00000u));
      pack_weights(w.data(), outputs, inputs, packed.data());
      for (const Edge edge : {Edge::end, Edge::start}) {
        GuardedBuffer from = guarded(x, edge), weights = guarded(packed, edge);
        GuardedBuffer y(expected.size() * sizeof(float), edge, sizeof(float));
        project(weights.as<float>(), from.as<float>(), outputs, inputs, y.as<float>(), isa());
        EXPECT_TRUE(same_bits(Strided(y.as<float>(), outputs), expected,
                              std::to_string(outputs) + " x " + std::to_string(inputs)));
        EXPECT_TRUE(y.intact());
      }
    }
  }
}

KVROOF_INSTANTIATE_EACH_ISA(Rope);
KVROOF_INSTANTIATE_EACH_ISA(Projection);

}  // namespace
}  // namespace kvroof::test
