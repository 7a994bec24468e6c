// Puts the thread's floating-point unit into a state that a caller may have left it in, and back.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvroof::test {

#if defined(__x86_64__)
inline std::uint64_t float_state() { return _mm_getcsr(); }
inline void set_float_state(std::uint64_t state) { _mm_setcsr(static_cast<unsigned>(state)); }
inline constexpr std::uint64_t kDefaultFloatState = 0x1f80;
inline constexpr std::uint64_t kFlushToZero = 0x1f80 | 0x8040;  // FTZ and DAZ
inline constexpr std::uint64_t kTowardZero = 0x1f80 | 0x6000;
inline constexpr std::uint64_t kTrapping =
    0x1f80 & ~0x0f80u;  // invalid, denormal, zero divide, overflow, underflow trap
inline constexpr bool kTrapsExist = true;
#elif defined(__aarch64__)
inline std::uint64_t float_state() {
  std::uint64_t state;
  asm volatile("mrs %0, fpcr" : "=r"(state));
  return state;
}
inline void set_float_state(std::uint64_t state) { asm volatile("msr fpcr, %0" ::"r"(state)); }
inline constexpr std::uint64_t kDefaultFloatState = 0;
inline constexpr std::uint64_t kFlushToZero = std::uint64_t{1} << 24;
inline constexpr std::uint64_t kTowardZero = std::uint64_t{3} << 22;
inline constexpr std::uint64_t kTrapping = 0;  // Arm cores need not have traps
inline constexpr bool kTrapsExist = false;
#endif

class ScopedFloatState {
 public:
  explicit ScopedFloatState(std::uint64_t state) : before_(float_state()) { set_float_state(state); }
  ~ScopedFloatState() { set_float_state(before_); }
  ScopedFloatState(const ScopedFloatState&) = delete;
  ScopedFloatState& operator=(const ScopedFloatState&) = delete;

 private:
  std::uint64_t before_;
};

}  // namespace kvroof::test
