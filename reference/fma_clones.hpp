// Compiles a function twice on x86-64, plain and with the FMA instructions, and picks one at run time. The plain copy
// calls fma() of the C library, which is exact but slow where the baseline lacks the instruction. Both give the same
// bits: fma is rounded once by definition, and -ffp-contract=off keeps the compiler from making others.
//
// A hand-made choice instead of target_clones: no ifunc resolver that runs before a sanitizer is ready.
// Only the body, inlined into both wrappers, sees FMA; nothing with external linkage is compiled for it.
#pragma once

#define KVROOF_ALWAYS_INLINE inline __attribute__((always_inline))
#define KVROOF_FMA(a, b, c) __builtin_fmaf(a, b, c)
#define KVROOF_FMA64(a, b, c) __builtin_fma(a, b, c)

#if defined(__x86_64__) && !defined(__FMA__)
#define KVROOF_FMA_CLONES(result, name, parameters, arguments, body)                     \
  result name##_plain parameters { return body arguments; }                              \
  __attribute__((target("fma"))) result name##_fma parameters { return body arguments; } \
  result name parameters { return cpu_has_fma() ? name##_fma arguments : name##_plain arguments; }
#else
#define KVROOF_FMA_CLONES(result, name, parameters, arguments, body) \
  result name parameters { return body arguments; }
#endif

namespace kvroof::reference {

#if defined(__x86_64__)
inline bool cpu_has_fma() {
  // The compiler's run-time also checks that the operating system saves the registers.
  static const bool has = __builtin_cpu_supports("fma") != 0;
  return has;
}
#endif

}  // namespace kvroof::reference
