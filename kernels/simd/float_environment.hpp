// The definition rounds to nearest and keeps subnormals; a caller's thread may not. Default mode inside, theirs after.
#pragma once

#include "kernels/simd/isa.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kvroof::KVROOF_NS {
namespace {

class FloatEnvironment {
 public:
#if defined(__x86_64__)
  FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FloatEnvironment() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
  FloatEnvironment() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(std::uint64_t{0}));
  }
  ~FloatEnvironment() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }
#else
#error "kvroof: how does this architecture set its rounding and subnormal mode?"
#endif
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  unsigned saved_;
#else
  std::uint64_t saved_;
#endif
};

}  // namespace
}  // namespace kvroof::KVROOF_NS
