// Golden output hashes, committed with the number of the numerics definition: lane twin and every instruction set must
// give them. A file that is missing or damaged is a failure.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <stdexcept>

#include "reference/lane_twin.hpp"
#include "tests/support/attend.hpp"
#include "tests/support/each_isa.hpp"
#include "tests/support/golden.hpp"

namespace kvroof::test {
namespace {

constexpr const char* kPath = KVROOF_SOURCE_DIR "/tests/golden/decode_attention.json";

class AttentionGolden : public EachIsa {};

TEST_P(AttentionGolden, EveryInstructionSetGivesTheHashes) {
  const Golden golden = load_golden(kPath);
  std::uint64_t seed = 0;
  for (const CaseSpec& spec : golden_cases()) {
    How how;
    how.isa = isa();
    how.parts = 1 + static_cast<int>(++seed % 4);
    const Attention a = attend(make_case(spec), random_layout(seed), how);
    ASSERT_EQ(golden.hashes.count(describe(spec)), 1u) << describe(spec);
    EXPECT_EQ(hex_hash(attention_hash(a.out, a.lse)), golden.hashes.at(describe(spec)))
        << describe(spec) << " " << describe(how);
  }
}

KVROOF_INSTANTIATE_EACH_ISA(AttentionGolden);

TEST(AttentionGoldenFile, IsOfThisDefinitionAndComplete) {
  const Golden golden = load_golden(kPath);
  EXPECT_EQ(golden.definition, kDefinition);
  EXPECT_EQ(golden.definition, reference::kTwinDefinition);
  EXPECT_EQ(golden.hashes.size(), golden_cases().size());
  for (const CaseSpec& spec : golden_cases()) {
    const Attention a = twin(make_case(spec));
    ASSERT_EQ(golden.hashes.count(describe(spec)), 1u) << describe(spec);
    EXPECT_EQ(hex_hash(attention_hash(a.out, a.lse)), golden.hashes.at(describe(spec))) << describe(spec);
  }
}

TEST(AttentionGoldenFile, DamagedOnesAreRefused) {
  const auto refused = [](const std::string& text, const std::string& expected) {
    const std::string path = testing::TempDir() + "kvroof_golden_damaged.json";
    std::ofstream(path) << text;
    try {
      load_golden(path);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
    std::remove(path.c_str());
  };
  const std::string rule = std::string("\"window_rule\": \"") + kWindowRule + "\"";
  refused("", "not a JSON object");
  refused("[1]", "not a JSON object");
  refused("{\"definition\": 1, \"reason\": \"x\", \"cases\": {\"a\": \"0x0\"}}",
          "window rule");  // no silent reinterpretation
  refused(
      "{\"definition\": 1, \"window_rule\": \"W keys before the query\", \"reason\": \"x\", \"cases\": {\"a\": "
      "\"0x0\"}}",
      "window rule");
  refused("{" + rule + ", \"reason\": \"x\", \"cases\": {\"a\": \"0x0\"}}", "definition");
  refused("{" + rule + ", \"definition\": 1, \"cases\": {\"a\": \"0x0\"}}", "reason");
  refused("{" + rule + ", \"definition\": 1, \"reason\": \"x\", \"cases\": {}}", "no cases");
  EXPECT_THROW(load_golden(testing::TempDir() + "kvroof_golden_that_is_not_there.json"), std::runtime_error);
}

}  // namespace
}  // namespace kvroof::test
