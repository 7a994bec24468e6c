// Conversions between f32 and storage. Round to nearest even, subnormals kept, NaN quieted with a truncated payload.
// Whole vectors where there are 16 elements, a padded copy for the rest: nothing beyond n is read or written.
#include "kernels/simd/lanes.hpp"

#include "kernels/ops/ops.hpp"
#include "kernels/simd/float_environment.hpp"
#include "kernels/simd/math.hpp"

namespace kvroof::KVROOF_NS {
namespace {

#if KVROOF_ROW == KVROOF_ROW_portable
std::uint16_t narrow_f16(float x) {
  const std::uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
  if (a >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65536 and up, inf
  if (a < 0x38800000u) {  // below 2^-14: adding 0.5 puts the subnormal's unit 2^-24 in the last bit and rounds to even
    return static_cast<std::uint16_t>(sign | (float_bits(bits_float(a) + 0.5f) - float_bits(0.5f)));
  }
  const std::uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);  // a carry runs into the exponent, up to inf
  return static_cast<std::uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}
#endif

void narrow16_f16(const float* from, std::uint16_t* to) {
#if KVROOF_ROW == KVROOF_ROW_avx512
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(_mm512_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT));
#elif KVROOF_ROW == KVROOF_ROW_avx2
  for (int i = 0; i < 16; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#elif KVROOF_ROW == KVROOF_ROW_neon
  for (int i = 0; i < 16; i += 4) vst1_u16(to + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i))));
#else
  for (int i = 0; i < 16; ++i) to[i] = narrow_f16(from[i]);
#endif
}

// Integer arithmetic on every ISA: the native instruction flushes subnormals.
void narrow16_bf16(const float* from, std::uint16_t* to) {
  std::uint32_t u[16];
  __builtin_memcpy(u, from, sizeof u);
  for (int i = 0; i < 16; ++i) {
    const std::uint32_t rounded = (u[i] + 0x7fffu + ((u[i] >> 16) & 1u)) >> 16;
    const std::uint32_t quieted = (u[i] >> 16) | 0x40u;
    to[i] = static_cast<std::uint16_t>((u[i] & 0x7fffffffu) > 0x7f800000u ? quieted : rounded);
  }
}

void copy16_f32(const float* from, float* to) {
  std::uint32_t u[16];
  __builtin_memcpy(u, from, sizeof u);
  for (int i = 0; i < 16; ++i) u[i] |= (u[i] & 0x7fffffffu) > 0x7f800000u ? 0x400000u : 0u;
  __builtin_memcpy(to, u, sizeof u);
}

template <Storage S>
void widen16(const std::byte* from, float* to) {
  store(to, load_as<S>(from));
}

template <class From, class To>
void convert(const From* from, To* to, std::size_t n, void (*convert16)(const From*, To*)) {
  const FloatEnvironment environment;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) convert16(from + i, to + i);
  if (i == n) return;
  From rest[16] = {};
  To converted[16];
  __builtin_memcpy(rest, from + i, (n - i) * sizeof(From));
  convert16(rest, converted);
  __builtin_memcpy(to + i, converted, (n - i) * sizeof(To));
}

template <Storage S>
void widen16_half(const std::uint16_t* from, float* to) {
  widen16<S>(reinterpret_cast<const std::byte*>(from), to);
  if constexpr (S == Storage::bf16) copy16_f32(to, to);  // the shift leaves a signalling NaN signalling
}

void store_int8(const float* from, std::size_t d, std::int8_t* to, float* scale) {
  const FloatEnvironment environment;
  Vec16 top = zero(), poison = zero();
  for (std::size_t i = 0; i < d; i += 16) {
    const Vec16 x = d - i >= 16 ? load(from + i) : load_partial(from + i, static_cast<int>(d - i));
    top = max(abs(x), top);
    poison = poison + (x - x);  // 0 while x is finite, else NaN
  }
  const float amax = max_lane(top);
  const bool finite = tree_sum(poison) == 0.0f;
  *scale = finite ? amax / 127.0f : quiet_nan();
  if (!(*scale >= 0x1p-126f)) {
    if (finite) *scale = 0.0f;
    __builtin_memset(to, 0, d);
    return;
  }
  const Vec16 divisor = broadcast(*scale), magic = broadcast(kExpMagic);
  for (std::size_t i = 0; i < d; i += 16) {
    const std::size_t count = d - i < 16 ? d - i : 16;
    const Vec16 x = count == 16 ? load(from + i) : load_partial(from + i, static_cast<int>(count));
    alignas(64) float rounded[16];  // the integer sits in the low bits after adding the magic number
    store(rounded, x / divisor + magic);
    for (std::size_t j = 0; j < count; ++j)
      to[i + j] = static_cast<std::int8_t>(__builtin_bit_cast(std::uint32_t, rounded[j]) & 0xffu);
  }
}

void load_int8(const std::int8_t* from, float scale, std::size_t d, float* to) {
  const FloatEnvironment environment;
  for (std::size_t i = 0; i < d; ++i) to[i] = static_cast<float>(from[i]) * scale;
}

}  // namespace

void convert_to_f16(const float* from, std::uint16_t* to, std::size_t n) { convert(from, to, n, narrow16_f16); }
void convert_to_bf16(const float* from, std::uint16_t* to, std::size_t n) { convert(from, to, n, narrow16_bf16); }
void convert_from_f16(const std::uint16_t* from, float* to, std::size_t n) {
  convert(from, to, n, widen16_half<Storage::f16>);
}
void convert_from_bf16(const std::uint16_t* from, float* to, std::size_t n) {
  convert(from, to, n, widen16_half<Storage::bf16>);
}

void store_row(Storage storage, const float* from, std::size_t d, std::byte* to, float* scale) {
  switch (storage) {
    case Storage::f32: convert(from, reinterpret_cast<float*>(to), d, copy16_f32); break;
    case Storage::f16: convert_to_f16(from, reinterpret_cast<std::uint16_t*>(to), d); break;
    case Storage::bf16: convert_to_bf16(from, reinterpret_cast<std::uint16_t*>(to), d); break;
    case Storage::int8: store_int8(from, d, reinterpret_cast<std::int8_t*>(to), scale); break;
  }
}

void load_row(Storage storage, const std::byte* from, const float* scale, std::size_t d, float* to) {
  switch (storage) {
    case Storage::f32: __builtin_memcpy(to, from, d * sizeof(float)); break;
    case Storage::f16: convert_from_f16(reinterpret_cast<const std::uint16_t*>(from), to, d); break;
    case Storage::bf16: convert_from_bf16(reinterpret_cast<const std::uint16_t*>(from), to, d); break;
    case Storage::int8: load_int8(reinterpret_cast<const std::int8_t*>(from), *scale, d, to); break;
  }
}

}  // namespace kvroof::KVROOF_NS
