// The longer half of the tests of multi-head latent attention: a real model's dimensions at a context of 1000, and many
// more random cases.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/attend.hpp"
#include "tests/support/attend_mla.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

TEST(LongMla, EachFormWithinItsBoundAtAContextOf1000) {
  MlaCaseSpec spec;
  spec.shape = kMlaV2Lite;
  spec.T = 1000;
  spec.scale = 0.114721f;
  const MlaCase c = make_mla_case(spec);
  const LatentCache cache(c, LatentCacheKind::paged, 1);
  const MlaWeights weights = make_weights(c);
  for (const reference::MlaForm form : kMlaForms) {
    const reference::OracleAnswer oracle = reference::mla_oracle(form, c.problem);
    const Attention twin = mla_twin(form, c);
    for (const Isa isa : runnable_isas()) {
      How how;
      how.isa = isa;
      how.parts = 3;
      const Attention a = attend_mla(weights, c, cache.view(), form, how);
      expect_same_bits(a, twin, golden_name(form, spec) + " " + describe(how));
      EXPECT_LE(worst_error_over_bound(oracle, a.out, a.lse), 1.0) << golden_name(form, spec);
    }
  }
}

TEST(LongMla, RandomCases) {
  for (std::uint64_t seed = 1000; seed < 2000; ++seed) {
    if (!case_selected(static_cast<std::int64_t>(seed))) continue;
    const MlaCase c = make_mla_case(random_mla_spec(seed, 3'000'000));
    const MlaWeights weights = make_weights(c);
    Choices choose(seed);
    const LatentCache cache(c, choose.pick(kLatentCacheKinds), seed);
    for (const reference::MlaForm form : kMlaForms) {
      const Attention twin = mla_twin(form, c);
      for (const Isa isa : runnable_isas()) {
        How how;
        how.isa = isa;
        how.parts = static_cast<int>(choose.between(1, 8));
        how.order_seed = choose.next();
        expect_same_bits(attend_mla(weights, c, cache.view(), form, how, seed), twin,
                         golden_name(form, c.spec) + " " + cache.name() + " " + describe(how));
      }
      EXPECT_TRUE(cache.intact());
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace kvroof::test
