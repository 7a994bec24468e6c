// The compute roof of native mode on AVX512-BF16: independent chains of the dot instruction on elements as they lie in
// the cache, each vector of them loaded once for the whole group of query heads. Nothing has to be widened.
#include "bench/probe.hpp"
#include "kernels/native/bf16_dot.hpp"

namespace kvroof::bench::KVROOF_NS {
namespace {

using namespace kvroof::KVROOF_NS;

constexpr int kChains = 16;  // latency 6 x 2 ports = 12

volatile float sink;  // keeps the chains alive without storing them in the timed loop

template <int kGroup>
double dot_group(const std::byte* block, std::size_t elements, double flops) {
  constexpr int kVectors = kGroup >= kChains ? 1 : kChains / kGroup;  // every chain at least once a round
  const std::size_t rounds = elements / static_cast<std::size_t>(kVectors * kPairLanes);
  const double per_pass = 2.0 * kPairLanes * kVectors * kGroup * static_cast<double>(rounds);
  const std::int64_t passes = static_cast<std::int64_t>(flops / per_pass) + 1;
  Vec16 chains[kChains];
  for (int c = 0; c < kChains; ++c) chains[c] = broadcast(static_cast<float>(c));  // equal ones would be merged
  constexpr std::uint16_t kPair[2] = {0x3e80, 0x3e80};                             // 0.25
  const Pairs weight = broadcast_pair(kPair);
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    for (std::size_t r = 0; r < rounds; ++r) {
      const std::byte* p = block + r * static_cast<std::size_t>(kVectors * kPairLanes) * 2;
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const Pairs x = load_pairs(p + v * kPairLanes * 2);
#pragma GCC unroll 32
        for (int g = 0; g < kGroup; ++g) {
          Vec16& chain = chains[(v * kGroup + g) % kChains];
          chain = dot_pairs(x, weight, chain);
        }
      }
    }
  }
  float sum = 0;
  for (int c = 0; c < kChains; ++c) sum += tree_sum(chains[c]);
  sink = sum;
  return per_pass * static_cast<double>(passes);
}

double dot(int group, const std::byte* block, std::size_t elements, double flops) {
  if (group >= 32) return dot_group<32>(block, elements, flops);
  if (group >= 16) return dot_group<16>(block, elements, flops);
  if (group >= 8) return dot_group<8>(block, elements, flops);
  if (group >= 4) return dot_group<4>(block, elements, flops);
  if (group >= 2) return dot_group<2>(block, elements, flops);
  return dot_group<1>(block, elements, flops);
}

}  // namespace

extern const NativeProbe native_probe;
const NativeProbe native_probe = {dot};

}  // namespace kvroof::bench::KVROOF_NS
