#include "tests/support/attend_mla.hpp"

#include <gtest/gtest.h>

#include "tests/support/compare.hpp"

namespace kvroof::test {

std::vector<Attention> attend_mla(const MlaWeights& weights, const AttentionOptions& options, const MlaCalls& calls,
                                  reference::MlaForm form, const How& how) {
  std::string damage;
  std::vector<Attention> results = run_mla(weights, options, calls, form, how, damage);
  EXPECT_EQ(damage, "") << describe(how) << "\n  reproduce: " << reproduce_command();
  return results;
}

Attention attend_mla(const MlaWeights& weights, const MlaCase& c, const KvView& view, reference::MlaForm form,
                     const How& how, std::uint64_t seed) {
  MlaCalls calls;
  calls.push_back(std::make_unique<MlaCall>(c, view, seed));
  return attend_mla(weights, make_options(c), calls, form, how).front();
}

}  // namespace kvroof::test
