#include "tests/support/attend.hpp"

#include <gtest/gtest.h>

#include "tests/support/compare.hpp"

namespace kvroof::test {

std::vector<Attention> attend(const Sequences& sequences, const How& how) {
  std::string damage;
  std::vector<Attention> results = run_attention(sequences, how, damage);
  EXPECT_EQ(damage, "") << describe(how) << "\n  reproduce: " << reproduce_command();
  return results;
}

Attention attend(const Case& c, const Layout& layout, const How& how) {
  Sequences one;
  one.push_back(std::make_unique<StoredSequence>(c, layout));
  return attend(one, how).front();
}

Attention attend_view(const Case& c, const KvView& view, const How& how) {
  Sequences one;
  one.push_back(std::make_unique<StoredSequence>(c, Layout{}));
  one.front()->read_from(view);
  return attend(one, how).front();
}

void expect_same_bits(const Attention& actual, const Attention& expected, const std::string& what, bool nan_allowed) {
  const Nan nan = nan_allowed ? Nan::allowed : Nan::refused;
  EXPECT_TRUE(same_bits(actual.out, expected.out, what + " (out)", nan));
  if (!actual.lse.empty() || !expected.lse.empty()) {
    EXPECT_TRUE(same_bits(actual.lse, expected.lse, what + " (lse)", nan));
  }
}

void expect_spoiled(const Attention& a, const Attention& clean, const CaseSpec& spec,
                    const std::function<bool(std::int64_t r, std::int64_t h, std::int64_t d)>& spoiled) {
  std::size_t row = 0, at = 0;
  for (std::int64_t r = 0; r < spec.n; ++r) {
    for (std::int64_t h = 0; h < spec.query_heads; ++h, ++row) {
      for (std::int64_t d = -1; d < spec.value_dim; ++d) {
        const float x = d < 0 ? a.lse[row] : a.out[at], before = d < 0 ? clean.lse[row] : clean.out[at];
        if (d >= 0) ++at;
        if (spoiled(r, h, d)) {
          ASSERT_TRUE(is_canonical_nan(x)) << describe(spec) << " r " << r << " h " << h << " d " << d << " is " << x;
        } else {
          ASSERT_EQ(float_bits(x), float_bits(before)) << describe(spec) << " r " << r << " h " << h << " d " << d;
        }
      }
    }
  }
}

}  // namespace kvroof::test
