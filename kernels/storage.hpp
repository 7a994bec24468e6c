// Storage types of a KV cache. Arithmetic is always f32; storage only says how a row lies in memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvroof {

// f16 is IEEE binary16, bf16 the upper half of binary32. int8 carries one float scale per row and KV head in a
// separate array: value = int8 * scale, scale = amax/127 (a row with NaN or inf has scale NaN, one below FLT_MIN is
// stored as zeros with scale 0).
enum class Storage : std::uint8_t { f32, f16, bf16, int8 };

inline constexpr Storage kStorages[] = {Storage::f32, Storage::f16, Storage::bf16, Storage::int8};

constexpr std::size_t storage_bytes(Storage s) { return s == Storage::f32 ? 4 : s == Storage::int8 ? 1 : 2; }

constexpr const char* storage_name(Storage s) {
  switch (s) {
    case Storage::f32: return "f32";
    case Storage::f16: return "f16";
    case Storage::bf16: return "bf16";
    case Storage::int8: return "int8";
  }
  return "?";
}

}  // namespace kvroof
