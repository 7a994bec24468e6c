#include "kernels/cpu.hpp"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace kvroof {
namespace {

struct Named {
  const char* name;
  bool CpuFeatures::*present;
};

constexpr Named kFeatures[] = {
    {"avx2", &CpuFeatures::avx2},
    {"fma", &CpuFeatures::fma},
    {"f16c", &CpuFeatures::f16c},
    {"avx512f", &CpuFeatures::avx512f},
    {"avx512bw", &CpuFeatures::avx512bw},
    {"avx512dq", &CpuFeatures::avx512dq},
    {"avx512cd", &CpuFeatures::avx512cd},
    {"avx512vl", &CpuFeatures::avx512vl},
    {"avx512bf16", &CpuFeatures::avx512bf16},
    {"avx512fp16", &CpuFeatures::avx512fp16},
    {"avx512vnni", &CpuFeatures::avx512vnni},
    {"amx_tile", &CpuFeatures::amx_tile},
    {"amx_bf16", &CpuFeatures::amx_bf16},
    {"amx_int8", &CpuFeatures::amx_int8},
    {"neon", &CpuFeatures::neon},
    {"bf16", &CpuFeatures::arm_bf16},
    {"sve", &CpuFeatures::arm_sve},
};

#if defined(__x86_64__)

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(unsigned leaf, unsigned subleaf) {
  Leaf out;
  if (!__get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx)) return Leaf{};
  return out;
}

bool bit(unsigned word, int n) { return (word >> n) & 1u; }

// The register sets that the operating system saves on a context switch. As an instruction, because the intrinsic wants
// a target flag that this file must not have.
std::uint64_t xcr0() {
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

CpuFeatures read_features() {
  CpuFeatures f;
  const Leaf leaf1 = cpuid(1, 0);
  if (!bit(leaf1.ecx, 27)) return f;  // OSXSAVE: without it xgetbv faults and nothing wide is saved
  const std::uint64_t saved = xcr0();
  f.os_saves_ymm = (saved & 0x6) == 0x6;
  f.os_saves_zmm = (saved & 0xe6) == 0xe6;
  f.os_saves_tiles = (saved & 0x60000) == 0x60000;
  const Leaf leaf7 = cpuid(7, 0);
  const Leaf leaf7_1 = leaf7.eax >= 1 ? cpuid(7, 1) : Leaf{};
  if (f.os_saves_ymm) {
    f.fma = bit(leaf1.ecx, 12);
    f.f16c = bit(leaf1.ecx, 29);
    f.avx2 = bit(leaf1.ecx, 28) && bit(leaf7.ebx, 5);
  }
  if (f.os_saves_zmm) {
    f.avx512f = bit(leaf7.ebx, 16);
    f.avx512dq = bit(leaf7.ebx, 17);
    f.avx512cd = bit(leaf7.ebx, 28);
    f.avx512bw = bit(leaf7.ebx, 30);
    f.avx512vl = bit(leaf7.ebx, 31);
    f.avx512vnni = bit(leaf7.ecx, 11);
    f.avx512fp16 = bit(leaf7.edx, 23);
    f.avx512bf16 = bit(leaf7_1.eax, 5);
  }
  if (f.os_saves_tiles) {
    f.amx_bf16 = bit(leaf7.edx, 22);
    f.amx_tile = bit(leaf7.edx, 24);
    f.amx_int8 = bit(leaf7.edx, 25);
  }
  return f;
}

#elif defined(__aarch64__)

CpuFeatures read_features() {
  CpuFeatures f;
#if defined(__linux__)
  const unsigned long hwcap = getauxval(AT_HWCAP);
  const unsigned long hwcap2 = getauxval(AT_HWCAP2);
  f.neon = (hwcap >> 1) & 1;        // HWCAP_ASIMD
  f.arm_sve = (hwcap >> 22) & 1;    // HWCAP_SVE
  f.arm_bf16 = (hwcap2 >> 14) & 1;  // HWCAP2_BF16
#else
  f.neon = true;  // part of the architecture
#endif
  return f;
}

#else

CpuFeatures read_features() { return CpuFeatures{}; }

#endif

std::string lacking(std::initializer_list<bool CpuFeatures::*> needed) {
  const CpuFeatures& have = cpu_features();
  std::string names;
  for (const auto member : needed) {
    if (have.*member) continue;
    for (const Named& feature : kFeatures) {
      if (feature.present == member) names += (names.empty() ? "" : " ") + std::string(feature.name);
    }
  }
  return names.empty() ? "" : "CPU lacks " + names;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = read_features();
  return features;
}

FetchOrder fetch_order() {
#if defined(__x86_64__)
  static const bool intel = cpuid(0, 0).ebx == 0x756e6547;  // "Genu"
  if (intel && cpu_features().avx512fp16)
    return {kFetchStreams, 65536, 32768, CacheLevel::l2};  // Sapphire Rapids and later
  if (intel) return {kFetchStreams, 65536, 65536, CacheLevel::l1};
#endif
  return {1, 8192, 8192, CacheLevel::l1};
}

std::string cpu_missing(Isa isa) {
  [[maybe_unused]] const CpuFeatures& have = cpu_features();
  switch (isa) {
    case Isa::portable: return "";
    case Isa::avx2: {
#if defined(__x86_64__)
      if (!have.os_saves_ymm) return "CPU lacks avx, or the system does not save its registers";
#endif
      return lacking({&CpuFeatures::avx2, &CpuFeatures::fma, &CpuFeatures::f16c});
    }
    case Isa::avx512: {
#if defined(__x86_64__)
      if (!have.os_saves_zmm) return "CPU lacks avx512f, or the system does not save its registers";
#endif
      return lacking({&CpuFeatures::avx512f, &CpuFeatures::avx512bw, &CpuFeatures::avx512dq, &CpuFeatures::avx512cd,
                      &CpuFeatures::avx512vl, &CpuFeatures::fma, &CpuFeatures::f16c});
    }
    case Isa::neon: return lacking({&CpuFeatures::neon});
  }
  return "unknown instruction set";
}

std::string cpu_feature_names() {
  std::string names;
  for (const Named& feature : kFeatures) {
    if (cpu_features().*feature.present) names += (names.empty() ? "" : " ") + std::string(feature.name);
  }
  return names;
}

}  // namespace kvroof
