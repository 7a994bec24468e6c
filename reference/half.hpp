// Storage conversions by bits alone: no half type of the compiler, no instruction, no float arithmetic except in the
// int8 row, whose definition is arithmetic. What the kernels' conversions are held to.
//
// f16 is IEEE binary16, bf16 the upper half of binary32. Narrowing rounds to nearest, ties to even; subnormals are kept
// on both sides; overflow goes to inf; a NaN keeps its sign and the upper bits of its payload and is made quiet.
#pragma once

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace kvroof::reference {

enum class StorageKind : std::uint8_t { f32, f16, bf16, int8 };  // in the order of the kernels' Storage

inline std::uint32_t float_bits(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float bits_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Drops the lower `count` bits (1..31), rounding to nearest, ties to even.
inline std::uint32_t shift_right_rne(std::uint32_t x, int count) {
  const std::uint32_t kept = x >> count;
  const std::uint32_t dropped = x & ((1u << count) - 1);
  const std::uint32_t half = 1u << (count - 1);
  return kept + (dropped > half || (dropped == half && (kept & 1)) ? 1u : 0u);
}

inline std::uint16_t f32_to_f16(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  }
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  std::uint32_t half;
  if (exponent >= 16) {
    half = 0x7c00u;
  } else if (exponent >= -14) {
    // Rebias by 127 - 15; a carry out of the rounded significand moves into the exponent, up to inf, as it should.
    half = shift_right_rne(magnitude - (112u << 23), 13);
  } else if (exponent >= -25) {
    // Subnormal: units of 2^-24. The significand with its leading bit counts units of 2^(exponent - 23).
    const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    half = shift_right_rne(significand, -1 - exponent);
  } else {
    half = 0;
  }
  return static_cast<std::uint16_t>(sign | half);
}

inline float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  std::uint32_t fraction = half & 0x3ffu;
  if (exponent == 31) return bits_float(sign | 0x7f800000u | (fraction != 0 ? 0x400000u | (fraction << 13) : 0u));
  if (exponent != 0) return bits_float(sign | ((exponent + 112) << 23) | (fraction << 13));
  if (fraction == 0) return bits_float(sign);
  std::uint32_t scale = 113;  // exponent field of 2^-14
  while ((fraction & 0x400u) == 0) {
    fraction <<= 1;
    --scale;
  }
  return bits_float(sign | (scale << 23) | ((fraction & 0x3ffu) << 13));
}

inline std::uint16_t f32_to_bf16(float value) {
  const std::uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>(shift_right_rne(bits, 16));
}

inline float bf16_to_f32(std::uint16_t half) {
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  return bits_float((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : bits);
}

// A NaN put into f32 storage is quieted, nothing else changes.
inline float f32_to_storage(float value) {
  const std::uint32_t bits = float_bits(value);
  return (bits & 0x7fffffffu) > 0x7f800000u ? bits_float(bits | 0x400000u) : value;
}

// int8 row as lane_twin.hpp defines it; returns the scale.
inline float quantize_int8_row(const float* from, std::size_t d, std::int8_t* to) {
  float amax = 0.0f;
  bool finite = true;
  for (std::size_t i = 0; i < d; ++i) {
    const float magnitude = std::fabs(from[i]);
    if (!(magnitude <= FLT_MAX)) finite = false;
    if (magnitude > amax) amax = magnitude;
  }
  float scale = amax / 127.0f;
  if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
  if (scale < FLT_MIN) scale = 0.0f;
  const bool zeros = !finite || scale == 0.0f;
  for (std::size_t i = 0; i < d; ++i) {
    to[i] = zeros ? std::int8_t{0} : static_cast<std::int8_t>(std::nearbyint(from[i] / scale));
  }
  return scale;
}

}  // namespace kvroof::reference
