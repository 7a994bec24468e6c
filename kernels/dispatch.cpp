// Which instruction sets are compiled in, which of them this machine can run, and which one is used.
#include <array>
#include <cstdlib>
#include <iterator>
#include <string>

#include "kernels/cpu.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/kernels.hpp"

#define KVROOF_ISA_ROW(name)        \
  namespace kvroof::isa_##name {    \
    extern const KernelTable table; \
  }
#include "kvroof_isa_rows.inc"
#undef KVROOF_ISA_ROW
#if defined(__x86_64__)
namespace kvroof::isa_avx512_bf16 {
extern const NativeTable native_table;
}
#endif
#ifdef KVROOF_BUILT_AVX512_L2
namespace kvroof::isa_avx512_l2 {
void attention_run_part(const AttentionArgs& args, int parts, int part, std::byte* workspace, std::byte* partials);
}
#endif

namespace kvroof {
namespace {

constexpr Isa kIsas[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::neon};

// Null where the row is not compiled in.
const KernelTable* find_table(Isa isa) {
#ifdef KVROOF_BUILT_AVX512_L2
  static const KernelTable into_l2 = [] {
    KernelTable table = isa_avx512::table;
    table.attention_run_part = isa_avx512_l2::attention_run_part;
    return table;
  }();
  if (isa == Isa::avx512 && fetch_order().level == CacheLevel::l2) return &into_l2;
#endif
  switch (isa) {
#define KVROOF_ISA_ROW(name) \
  case Isa::name:            \
    return &isa_##name::table;
#include "kvroof_isa_rows.inc"
#undef KVROOF_ISA_ROW
    default: return nullptr;
  }
}

std::string supported_names() {
  std::string names;
  for (const Isa isa : kIsas) {
    if (isa_supported(isa)) names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  return names;
}

// `where` says who asked: "KVROOF_ISA=avx512".
void require_supported(Isa isa, const std::string& where) {
  const std::string missing = isa_missing(isa);
  if (missing.empty()) return;
  throw Error(ErrorCode::bad_isa, where + " cannot run here: " + missing + "; this machine runs " + supported_names());
}

Isa choose_default() {
  if (const char* asked = std::getenv("KVROOF_ISA"); asked != nullptr && *asked != '\0') {
    Isa isa{};
    try {
      isa = isa_from_name(asked);
    } catch (const Error& error) {
      throw Error(ErrorCode::bad_isa, std::string("environment variable KVROOF_ISA: ") + error.what());
    }
    require_supported(isa, std::string("KVROOF_ISA=") + asked);
    return isa;
  }
  for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::neon}) {
    if (isa_supported(isa)) return isa;
  }
  return Isa::portable;
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::portable: return "portable";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::neon: return "neon";
  }
  return "unknown";
}

bool isa_built(Isa isa) { return find_table(isa) != nullptr; }

bool isa_supported(Isa isa) { return isa_missing(isa).empty(); }

std::string isa_missing(Isa isa) {
  if (!isa_built(isa)) return "not built for this architecture";
  return cpu_missing(isa);
}

Isa isa_from_name(const std::string& name) {
  std::string choices;
  for (const Isa isa : kIsas) {
    if (name == isa_name(isa)) return isa;
    choices += (choices.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw Error(ErrorCode::bad_isa, "unknown instruction set \"" + name + "\"; known are " + choices);
}

Isa default_isa() {
  static const Isa isa = choose_default();  // a throw leaves it unset: the next call tries again and says the same
  return isa;
}

const KernelTable& kernel_table(Isa isa) {
  // looked up in every call of a kernel: texts are made only to refuse
  static const std::array<bool, std::size(kIsas)> supported = [] {
    std::array<bool, std::size(kIsas)> s{};
    for (const Isa i : kIsas) s[static_cast<std::size_t>(i)] = isa_supported(i);
    return s;
  }();
  const auto index = static_cast<std::size_t>(isa);
  if (index >= supported.size() || !supported[index])
    require_supported(isa, std::string("instruction set ") + isa_name(isa));
  return *find_table(isa);
}

const char* mode_name(Mode mode) { return mode == Mode::native ? "native" : "reproducible"; }

const char* native_isa_name(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return "avx512_bf16";
#endif
  (void)isa;
  return "";
}

std::string native_missing(Isa isa, Storage k_storage, Storage v_storage) {
  if (const std::string missing = isa_missing(isa); !missing.empty()) return missing;
  if (*native_isa_name(isa) == '\0') return std::string("no native kernel for ") + isa_name(isa);
  for (const Storage storage : {k_storage, v_storage})
    if (storage != Storage::bf16) return std::string("no native kernel for ") + storage_name(storage) + " storage";
  if (!cpu_features().avx512bf16) return "CPU lacks avx512_bf16";
  return "";
}

const NativeTable& native_table(Isa isa, Storage k_storage, Storage v_storage) {
  if (const std::string missing = native_missing(isa, k_storage, v_storage); !missing.empty())
    throw Error(ErrorCode::bad_isa, "mode native cannot run here: " + missing);
#if defined(__x86_64__)
  return isa_avx512_bf16::native_table;
#else
  throw Error(ErrorCode::bad_isa, "mode native cannot run here");  // not reached: native_isa_name is empty
#endif
}

}  // namespace kvroof
