// Tests that run once per instruction set built into the library. One that this CPU cannot run is SKIPPED with the
// reason. EachIsaMeta in test_support.cpp asserts that the sets named in KVROOF_EXPECT_ISAS (comma separated; CI sets
// it) really ran, so that a machine without AVX-512 cannot silently pass for one that has it.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/kernels.hpp"

namespace kvroof::test {

inline std::vector<Isa> built_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::neon}) {
    if (isa_built(isa)) isas.push_back(isa);
  }
  return isas;
}

inline std::vector<Isa> runnable_isas() {
  std::vector<Isa> isas;
  for (Isa isa : built_isas()) {
    if (isa_supported(isa)) isas.push_back(isa);
  }
  return isas;
}

class EachIsa : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) GTEST_SKIP() << isa_name(GetParam()) << ": " << isa_missing(GetParam());
  }
  Isa isa() const { return GetParam(); }
};

}  // namespace kvroof::test

#define KVROOF_INSTANTIATE_EACH_ISA(suite)                         \
  INSTANTIATE_TEST_SUITE_P(                                        \
      All, suite, testing::ValuesIn(::kvroof::test::built_isas()), \
      [](const testing::TestParamInfo<::kvroof::Isa>& each) { return std::string(::kvroof::isa_name(each.param)); })
