// First include of every file that is compiled once per instruction set. The build passes -DKVROOF_ISA=<row>; this
// header turns it into the namespace of the row's code and gives it a private copy of xsimd.
//
//   #include "kernels/simd/isa.hpp"
//   namespace kvroof::KVROOF_NS { namespace { ... } }
//
// Rules for such files, proved by tools/check_isa_objects: everything lives in KVROOF_NS, and nothing of the standard
// library that could stay behind as an out-of-line function (algorithms, containers, streams). Otherwise two rows
// define one symbol with different instructions, and the linker keeps whichever it met first.
#pragma once

#ifndef KVROOF_ISA
#error "KVROOF_ISA is not set: this file belongs to an instruction-set row (cmake/isa_rows.cmake)"
#endif
#ifdef __FAST_MATH__
#error "kvroof's reproducible mode is a contract on bits: build without -ffast-math"
#endif
#if __FINITE_MATH_ONLY__
#error "kvroof's kernels rely on NaN and infinity: build without -ffinite-math-only"
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#define KVROOF_CAT_(a, b) a##b
#define KVROOF_CAT(a, b) KVROOF_CAT_(a, b)

#define KVROOF_NS KVROOF_CAT(isa_, KVROOF_ISA)

// Row tests for #if: KVROOF_ROW == KVROOF_ROW_avx512.
#define KVROOF_ROW_portable 1
#define KVROOF_ROW_avx2 2
#define KVROOF_ROW_avx512 3
#define KVROOF_ROW_neon 4
#define KVROOF_ROW_avx512_l2 3    // row avx512, rows of the cache fetched into L2 instead of L1
#define KVROOF_ROW_avx512_bf16 3  // native mode's instructions on top of row avx512
#define KVROOF_ROW KVROOF_CAT(KVROOF_ROW_, KVROOF_ISA)

#if KVROOF_ROW == KVROOF_ROW_avx2 && !(defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))
#error "row avx2 needs -mavx2 -mfma -mf16c"
#elif KVROOF_ROW == KVROOF_ROW_avx512 && !(defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
                                           defined(__AVX512VL__) && defined(__FMA__) && defined(__F16C__))
#error "row avx512 needs -mavx512f -mavx512bw -mavx512dq -mavx512cd -mavx512vl -mfma -mf16c"
#elif KVROOF_ROW == KVROOF_ROW_neon && !defined(__aarch64__)
#error "row neon is for aarch64"
#elif KVROOF_ROW == 0
#error "KVROOF_ISA is not a known row"
#endif

#if KVROOF_ROW != KVROOF_ROW_portable
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
// Two rows may compile the same xsimd architecture with different flags; under one name the linker would merge them.
#define xsimd KVROOF_CAT(xsimd_for_, KVROOF_ISA)
// (Names in angle brackets are not expanded, so this renames the namespace and nothing else.)
#include <xsimd/xsimd.hpp>  // the only place that includes it
#endif
