// Conversions between f32 and storage against the bit code of reference/half.hpp: every code of the half types, every
// exponent and rounding case of the floats (all 2^32 of them in test_conversions_all_floats), every length and
// alignment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/kernels.hpp"
#include "reference/half.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"
#include "tests/support/guarded_buffer.hpp"

namespace kvroof::test {
namespace {

class Conversions : public EachIsa {
 protected:
  std::uint16_t to_f16(float x) const {
    std::uint16_t half = 0xdead;
    convert_to_f16(&x, &half, 1, isa());
    return half;
  }
  std::uint16_t to_bf16(float x) const {
    std::uint16_t half = 0xdead;
    convert_to_bf16(&x, &half, 1, isa());
    return half;
  }
};

TEST_P(Conversions, EveryCodeOfTheHalfTypes) {
  std::vector<std::uint16_t> codes(65536);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(codes.size());
  std::vector<std::uint16_t> back(codes.size());
  convert_from_f16(codes.data(), wide.data(), codes.size(), isa());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    ASSERT_EQ(float_bits(wide[i]), float_bits(reference::f16_to_f32(codes[i]))) << std::hex << i;
  }
  convert_to_f16(wide.data(), back.data(), codes.size(), isa());
  for (std::size_t i = 0; i < codes.size(); ++i) {  // exact there and back; a NaN comes back quiet
    ASSERT_EQ(back[i], std::isnan(wide[i]) ? codes[i] | 0x200 : codes[i]) << std::hex << i;
  }
  convert_from_bf16(codes.data(), wide.data(), codes.size(), isa());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    ASSERT_EQ(float_bits(wide[i]), float_bits(reference::bf16_to_f32(codes[i]))) << std::hex << i;
  }
  convert_to_bf16(wide.data(), back.data(), codes.size(), isa());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    ASSERT_EQ(back[i], std::isnan(wide[i]) ? codes[i] | 0x40 : codes[i]) << std::hex << i;
  }
}

// Every sign and exponent with fractions around each rounding boundary of both types.
TEST_P(Conversions, RoundingCasesOfEveryExponent) {
  std::vector<float> inputs;
  for (std::uint32_t high = 0; high < 512; ++high) {
    for (int bit = 0; bit < 23; ++bit) {
      for (const std::uint32_t base : {0u, 1u << bit, (1u << bit) - 1u, 0x7fffffu, 0x7fffffu ^ (1u << bit)}) {
        for (const int off : {-1, 0, 1})
          inputs.push_back(bits_float((high << 23) + ((base + static_cast<std::uint32_t>(off)) & 0x7fffffu)));
      }
    }
  }
  for (std::uint64_t i = 0; i < 200000; ++i)
    inputs.push_back(bits_float(static_cast<std::uint32_t>(Choices(i).next())));
  std::vector<std::uint16_t> f16(inputs.size()), bf16(inputs.size());
  convert_to_f16(inputs.data(), f16.data(), inputs.size(), isa());
  convert_to_bf16(inputs.data(), bf16.data(), inputs.size(), isa());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(f16[i], reference::f32_to_f16(inputs[i])) << std::hex << float_bits(inputs[i]);
    ASSERT_EQ(bf16[i], reference::f32_to_bf16(inputs[i])) << std::hex << float_bits(inputs[i]);
  }
}

TEST_P(Conversions, KnownValues) {
  EXPECT_EQ(to_bf16(1.01171875f), 0x3F82);  // truncation gives 0x3F81
  EXPECT_EQ(to_bf16(bits_float(0x3F818000u)), 0x3F82);
  EXPECT_EQ(to_f16(1.9997f), 0x4000);     // a carry ORed into the exponent gives 0x3C00
  EXPECT_EQ(to_bf16(0x1p-127f), 0x0040);  // subnormals are kept
  EXPECT_EQ(to_f16(0x1p-24f), 0x0001);
  EXPECT_EQ(to_f16(0x1p-25f), 0x0000);  // tie to even
  EXPECT_EQ(to_f16(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(to_f16(-0.0f), 0x8000);
  EXPECT_EQ(to_f16(bits_float(0xff800001u)), 0xfe00);  // signalling, payload beyond the type's bits
  EXPECT_EQ(to_bf16(bits_float(0x7f800001u)), 0x7fc0);
}

// Lengths around the vector width at odd places; neither end may be touched, the result does not depend on the place.
TEST_P(Conversions, EveryLengthAndAlignment) {
  for (const Edge edge : {Edge::end, Edge::start}) {
    for (std::size_t n = 0; n <= 67; ++n) {
      for (std::size_t shift = 0; shift <= (edge == Edge::start ? 31u : 0u); ++shift) {
        GuardedBuffer floats((n + shift) * 4, edge, 4), halves((n + shift) * 2, edge, 2),
            wide((n + shift) * 4, edge, 4);
        float* from = floats.as<float>() + shift;
        std::uint16_t* to = halves.as<std::uint16_t>() + shift;
        float* back = wide.as<float>() + shift;
        for (std::size_t i = 0; i < n; ++i) from[i] = 0.001f + static_cast<float>(i) * 1.37f;
        for (const bool brain : {false, true}) {
          halves.fill(0x5a5a5a5au);
          wide.fill(0x5a5a5a5au);
          brain ? convert_to_bf16(from, to, n, isa()) : convert_to_f16(from, to, n, isa());
          brain ? convert_from_bf16(to, back, n, isa()) : convert_from_f16(to, back, n, isa());
          for (std::size_t i = 0; i < n; ++i) {
            ASSERT_EQ(to[i], brain ? reference::f32_to_bf16(from[i]) : reference::f32_to_f16(from[i])) << n << " " << i;
            ASSERT_EQ(back[i], brain ? reference::bf16_to_f32(to[i]) : reference::f16_to_f32(to[i])) << n << " " << i;
          }
          for (std::size_t i = 0; i < shift; ++i) {
            ASSERT_EQ(halves.as<std::uint16_t>()[i], 0x5a5a);
            ASSERT_EQ(float_bits(wide.as<float>()[i]), 0x5a5a5a5au);
          }
          ASSERT_TRUE(floats.intact() && halves.intact() && wide.intact()) << n;
        }
      }
    }
  }
}

std::vector<float> load_back(Storage storage, const std::vector<float>& row, Isa isa, float* scale_out = nullptr) {
  const std::size_t d = row.size();
  GuardedBuffer stored(d * storage_bytes(storage), Edge::end, storage_bytes(storage));
  float scale = bits_float(0x7fa5a5a5u);
  store_row(storage, row.data(), d, stored.data(), &scale, isa);
  std::vector<float> back(d);
  load_row(storage, stored.data(), &scale, d, back.data(), isa);
  if (scale_out != nullptr) *scale_out = scale;
  EXPECT_TRUE(stored.intact());
  return back;
}

TEST_P(Conversions, RowsOfEveryStorageEqualTheReference) {
  for (const std::size_t d :
       {1u, 2u, 7u, 8u, 15u, 16u, 17u, 31u, 32u, 33u, 64u, 72u, 80u, 100u, 112u, 128u, 256u, 576u}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      Choices choose(seed * 1000 + d);
      std::vector<float> row(d);
      const float unit = std::ldexp(1.0f, static_cast<int>(choose.between(-130, 120)));
      for (float& x : row) x = unit * ((static_cast<float>(choose.below(2001)) - 1000.0f) / 997.0f);
      for (const Storage storage : {Storage::f32, Storage::f16, Storage::bf16}) {
        const std::vector<float> back = load_back(storage, row, isa());
        std::vector<float> expected(row);
        for (float& x : expected) {
          if (storage == Storage::f16) x = reference::f16_to_f32(reference::f32_to_f16(x));
          if (storage == Storage::bf16) x = reference::bf16_to_f32(reference::f32_to_bf16(x));
        }
        EXPECT_TRUE(same_bits(back, expected, storage_name(storage)));
      }
      std::vector<std::int8_t> codes(d), expected(d);
      float scale = 0;
      store_row(Storage::int8, row.data(), d, reinterpret_cast<std::byte*>(codes.data()), &scale, isa());
      const float expected_scale = reference::quantize_int8_row(row.data(), d, expected.data());
      EXPECT_EQ(float_bits(scale), float_bits(expected_scale)) << "d " << d << " seed " << seed;
      EXPECT_EQ(codes, expected) << "d " << d << " seed " << seed;
      std::vector<float> back(d), product(d);
      load_row(Storage::int8, reinterpret_cast<const std::byte*>(codes.data()), &scale, d, back.data(), isa());
      for (std::size_t i = 0; i < d; ++i) product[i] = static_cast<float>(codes[i]) * scale;
      EXPECT_TRUE(same_bits(back, product, "int8 code x scale"));
    }
  }
}

// Half a step, for constant rows and tiny spreads too; the step is the scale that was stored.
TEST_P(Conversions, Int8ValuesAreWithinHalfAStep) {
  std::vector<std::vector<float>> rows = {std::vector<float>(64, 0.0f),    std::vector<float>(64, 100.0f),
                                          std::vector<float>(64, -7.5f),   std::vector<float>(100, 65504.0f),
                                          std::vector<float>(33, 3.0e38f), std::vector<float>(64, 0x1p-119f)};
  rows.push_back(std::vector<float>(64, 0.0f));
  rows.back()[13] = 1e-30f;
  rows.push_back({});
  for (int i = 0; i < 64; ++i) rows.back().push_back(1.0f + 3e-5f * static_cast<float>(i) / 63.0f);
  for (const std::vector<float>& row : rows) {
    float scale = 0;
    const std::vector<float> back = load_back(Storage::int8, row, isa(), &scale);
    ASSERT_TRUE(std::isfinite(scale));
    float largest = 0;
    for (const float x : row) largest = std::max(largest, std::fabs(x));
    EXPECT_EQ(scale, largest / 127.0f);
    std::vector<double> expected(row.begin(), row.end());
    // half a step, and the rounding of x / scale and of code * scale: two relative errors of 2^-24
    const std::vector<double> bound(row.size(),
                                    0.5 * static_cast<double>(scale) + 2 * 0x1p-24 * static_cast<double>(largest));
    EXPECT_TRUE(within(back, expected, bound, "scale/2 + 2u amax", "int8 row"));
  }
}

TEST_P(Conversions, Int8RowsBelowNormalAndWithNan) {
  for (const float tiny : {0x1p-126f, 0x1p-149f, 1e-37f}) {  // amax / 127 below FLT_MIN: zeros, never a division by 0
    const std::vector<float> row(20, tiny);
    float scale = 1;
    for (const float x : load_back(Storage::int8, row, isa(), &scale)) EXPECT_EQ(float_bits(x), 0u);
    EXPECT_EQ(float_bits(scale), 0u);
  }
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(), bits_float(0xff800001u)}) {
    for (const std::size_t at : {0u, 7u, 16u, 32u}) {
      std::vector<float> row(33, 1.0f);
      row[at] = bad;
      float scale = 1;
      for (const float x : load_back(Storage::int8, row, isa(), &scale)) EXPECT_TRUE(std::isnan(x));
      EXPECT_EQ(float_bits(scale), 0x7fc00000u);
    }
  }
}

TEST_P(Conversions, NanIsQuietedAndItsPayloadTruncated) {
  for (const std::uint32_t bits : {0x7f800001u, 0xffabcdefu, 0x7fc00000u, 0xffffffffu}) {
    const std::vector<float> row(19, bits_float(bits));
    std::vector<std::byte> stored(19 * 4);
    store_row(Storage::f32, row.data(), row.size(), stored.data(), nullptr, isa());
    std::uint32_t back = 0;
    std::memcpy(&back, stored.data() + 18 * 4, 4);
    EXPECT_EQ(back, bits | 0x400000u);
    EXPECT_EQ(to_f16(row[0]), ((bits >> 16) & 0x8000u) | 0x7e00u | ((bits >> 13) & 0x1ffu));
    EXPECT_EQ(to_bf16(row[0]), (bits >> 16) | 0x40u);
  }
}

KVROOF_INSTANTIATE_EACH_ISA(Conversions);

}  // namespace
}  // namespace kvroof::test
