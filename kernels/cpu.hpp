// What this CPU and operating system can run. Asked of the CPU itself (CPUID and XCR0 on x86, HWCAP on Arm): a feature
// counts only if the operating system also saves its registers.
#pragma once

#include <string>

#include "kernels/kernels.hpp"

namespace kvroof {

struct CpuFeatures {
  // x86
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512cd = false, avx512vl = false;
  bool avx512bf16 = false, avx512fp16 = false, avx512vnni = false;
  bool amx_tile = false, amx_bf16 = false, amx_int8 = false;  // a process must still ask the kernel for permission
  bool os_saves_ymm = false, os_saves_zmm = false, os_saves_tiles = false;
  // aarch64
  bool neon = false, arm_bf16 = false, arm_sve = false;
};

const CpuFeatures& cpu_features();  // read once

// How rows that will be needed are best fetched from memory (kernels/TUNING.md): `bytes` ahead of those in use (in
// pages, `page_bytes`), into cache `level`, and as so many streams at once: stream s fetches the s-th part of what is
// ahead, streams taking turns row by row. Hardware prefetchers run along every stream, and more of them keep more lines
// on their way.
inline constexpr int kFetchStreams = 8;
enum class CacheLevel { l1, l2 };
struct FetchOrder {
  int streams;  // kFetchStreams, or 1: in the order in which rows are used
  int bytes, page_bytes;
  CacheLevel level;
};
FetchOrder fetch_order();  // measured best on CPUs like this one

// What the CPU or the system lacks for `isa`, "" if nothing: "CPU lacks avx512bw", "system does not save zmm
// registers".
std::string cpu_missing(Isa isa);

// Features of the list above that are there, in that order, separated by blanks. For result files and error texts.
std::string cpu_feature_names();

}  // namespace kvroof
