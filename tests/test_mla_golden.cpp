// Golden output hashes of multi-head latent attention: lane twin and every instruction set must give them.
#include <gtest/gtest.h>

#include "reference/lane_twin.hpp"
#include "tests/support/attend.hpp"
#include "tests/support/attend_mla.hpp"
#include "tests/support/each_isa.hpp"
#include "tests/support/golden.hpp"

namespace kvroof::test {
namespace {

constexpr const char* kPath = KVROOF_SOURCE_DIR "/tests/golden/mla.json";

void expect_hash(const Golden& golden, const std::string& name, const std::vector<float>& out,
                 const std::vector<float>& lse) {
  ASSERT_EQ(golden.hashes.count(name), 1u) << name;
  EXPECT_EQ(hex_hash(attention_hash(out, lse)), golden.hashes.at(name)) << name;
}

class MlaGolden : public EachIsa {};

TEST_P(MlaGolden, EveryInstructionSetGivesTheHashesOfAttention) {
  const Golden golden = load_golden(kPath);
  std::uint64_t seed = 0;
  for (const MlaCaseSpec& spec : golden_mla_cases()) {
    ++seed;
    const MlaCase c = make_mla_case(spec);
    const MlaWeights weights = make_weights(c);
    const LatentCache cache(c, kLatentCacheKinds[seed % 3], seed);
    for (const reference::MlaForm form : kMlaForms) {
      How how;
      how.isa = isa();
      how.parts = 1 + static_cast<int>(seed % 4);
      const Attention a = attend_mla(weights, c, cache.view(), form, how);
      expect_hash(golden, golden_name(form, spec), a.out, a.lse);
    }
  }
}

TEST_P(MlaGolden, EveryInstructionSetGivesTheHashesOfCompression) {
  const Golden golden = load_golden(kPath);
  for (const CompressSpec& spec : golden_compress_cases()) {
    const CompressCase c = make_compress_case(spec);
    const std::vector<float> up(static_cast<std::size_t>(spec.latent_dim));
    const MlaWeights weights({1, 1, spec.rope_dim, 1, spec.latent_dim, spec.model_dim},
                             {up, up, c.weights.w_dkv, c.weights.w_kr});
    MlaTokens tokens{
        c.x.data(),          spec.model_dim,     spec.n,
        spec.first_position, c.weights.inv_freq, spec.interleaved ? RopePairing::interleaved : RopePairing::half_split};
    std::vector<float> rows(static_cast<std::size_t>(spec.n * (spec.latent_dim + spec.rope_dim)));
    mla_compress(weights, tokens, rows.data(), 2, isa());
    expect_hash(golden, describe(spec), rows, {});
  }
}

KVROOF_INSTANTIATE_EACH_ISA(MlaGolden);

TEST(MlaGoldenFile, IsOfThisDefinitionAndComplete) {
  const Golden golden = load_golden(kPath);
  EXPECT_EQ(golden.definition, kDefinition);
  EXPECT_EQ(golden.definition, reference::kTwinDefinition);
  EXPECT_EQ(golden.hashes.size(), 2 * golden_mla_cases().size() + golden_compress_cases().size());
  for (const MlaCaseSpec& spec : golden_mla_cases()) {
    for (const reference::MlaForm form : kMlaForms) {
      const Attention a = mla_twin(form, make_mla_case(spec));
      expect_hash(golden, golden_name(form, spec), a.out, a.lse);
    }
  }
  for (const CompressSpec& spec : golden_compress_cases())
    expect_hash(golden, describe(spec), compress_twin(make_compress_case(spec)), {});
}

}  // namespace
}  // namespace kvroof::test
