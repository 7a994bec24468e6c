// Counter-based inputs: element i of stream `seed` is a function of (seed, i) alone, so any thread may fill any part
// and every compiler and standard library gives the same values.
#pragma once

#include <cstdint>

namespace kvroof::reference {

inline std::uint64_t mix64(std::uint64_t x) {  // SplitMix64 finaliser (Steele, Lea, Flood 2014)
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Uniform on a grid of 2^-23 in [-1, 1): exact in f32.
inline float uniform(std::uint64_t seed, std::uint64_t i) {
  const std::uint64_t bits = mix64(mix64(seed) ^ i) >> 40;  // 24 bits
  return static_cast<float>(static_cast<std::int32_t>(bits) - (1 << 23)) * 0x1p-23f;
}

// FNV-1a over 32-bit words: the output hash of rows and golden files.
struct OutputHash {
  std::uint64_t value = 0xcbf29ce484222325ull;
  void add(std::uint32_t word) {
    for (int i = 0; i < 4; ++i) {
      value ^= (word >> (8 * i)) & 0xff;
      value *= 0x100000001b3ull;
    }
  }
};

}  // namespace kvroof::reference
