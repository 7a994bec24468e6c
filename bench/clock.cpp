#include "bench/clock.hpp"

#include <algorithm>

namespace kvroof::bench {
namespace {

#if defined(__x86_64__)
#define KVROOF_ADD "add %1, %0\n\t"  // by register: some cores do additions of constants for free
#elif defined(__aarch64__)
#define KVROOF_ADD "add %0, %0, %1\n\t"
#endif

#ifdef KVROOF_ADD
constexpr std::int64_t kAddsPerRound = 32;

double ns_of(std::int64_t rounds) {
  std::uint64_t value = 1;
  const std::uint64_t step = 3;
  const std::int64_t start = now_ns();
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile(KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD
                     KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD
                         KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD
                             KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD KVROOF_ADD
                 : "+r"(value)
                 : "r"(step));
  }
  return static_cast<double>(now_ns() - start);
}
#endif

}  // namespace

std::optional<double> measured_mhz() {
#ifdef KVROOF_ADD
  constexpr std::int64_t kRounds = 20000;  // 640,000 cycles
  double best = ns_of(kRounds);
  for (int run = 0; run < 7; ++run) best = std::min(best, ns_of(kRounds));
  return static_cast<double>(kRounds * kAddsPerRound) / best * 1e3;
#else
  return std::nullopt;
#endif
}

}  // namespace kvroof::bench
