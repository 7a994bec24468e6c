// All 2^32 floats to f16 and bf16 on every instruction set, against the bit code of reference/half.hpp. About a minute
// per set; label "long".
#include <gtest/gtest.h>

#include <vector>

#include "kernels/kernels.hpp"
#include "reference/half.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

class LongConversions : public EachIsa {};

TEST_P(LongConversions, EveryFloat) {
  constexpr std::uint32_t kBlock = 1u << 16;
  std::vector<float> from(kBlock);
  std::vector<std::uint16_t> f16(kBlock), bf16(kBlock);
  for (std::uint64_t base = 0; base < (std::uint64_t{1} << 32); base += kBlock) {
    for (std::uint32_t i = 0; i < kBlock; ++i) from[i] = reference::bits_float(static_cast<std::uint32_t>(base) + i);
    convert_to_f16(from.data(), f16.data(), kBlock, isa());
    convert_to_bf16(from.data(), bf16.data(), kBlock, isa());
    std::uint32_t wrong = 0;
    for (std::uint32_t i = 0; i < kBlock; ++i) {
      wrong += f16[i] != reference::f32_to_f16(from[i]);
      wrong += bf16[i] != reference::f32_to_bf16(from[i]);
    }
    ASSERT_EQ(wrong, 0u) << "in the floats with bits from 0x" << std::hex << base;
  }
}

KVROOF_INSTANTIATE_EACH_ISA(LongConversions);

}  // namespace
}  // namespace kvroof::test
