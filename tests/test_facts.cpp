// The sources' facts about caching and memory, reproduced by the references' version of their programs.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "reference/recompute.hpp"
#include "reference/seed.hpp"

namespace kvroof::reference {
namespace {

constexpr double kGiB = 1073741824.0, kMiB = 1048576.0;

std::string printed(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

TEST(Facts, ProjectionsFallFromQuadraticToLinear) {
  struct Row {
    std::int64_t n, without, with;
    double saving;
  };
  for (const Row& row : {Row{10, 55, 10, 5.5}, Row{100, 5050, 100, 50.5}, Row{1000, 500500, 1000, 500.5},
                         Row{4096, 8390656, 4096, 2048.5}}) {
    EXPECT_EQ(seed_projections_without_cache(row.n), row.without);
    EXPECT_EQ(seed_projections_with_cache(row.n), row.with);
    const double saving = static_cast<double>(row.without) / static_cast<double>(row.with);
    EXPECT_EQ(saving, row.saving);
    EXPECT_EQ(saving, static_cast<double>(row.n + 1) / 2);
  }
}

TEST(Facts, SixTokensTakeSixProjectionsInsteadOfTwentyOne) {
  const SeedWalk walk = seed_walk();
  EXPECT_EQ(walk.length_before, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(walk.length_after, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(walk.projections, (std::vector<std::int64_t>{1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(walk.projections_with_cache, 6);
  EXPECT_EQ(walk.projections_without_cache, 21);
  EXPECT_EQ(walk.cache_floats, 48);
  ASSERT_EQ(walk.out.size(), 36u);
  for (std::size_t i = 0; i < walk.out.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(walk.out[i]), std::bit_cast<std::uint32_t>(walk.out_without_cache[i])) << i;
  }
}

TEST(Facts, PrintedCheckValuesComeFromTheMicrosoftGenerator) {
  SeedRandom random(42);
  EXPECT_EQ(random.next(), 175);  // its well-known sequence for this seed
  EXPECT_EQ(random.next(), 400);
  EXPECT_EQ(random.next(), 17869);

  const SeedExactness s = seed_exactness();
  const auto row = [](const float* r) {
    std::string text;
    for (int k = 0; k < kSeedKeyDim; ++k) text += printed(r[k], "%+.4f ");
    return text;
  };
  EXPECT_EQ(row(s.cached[0]), "+0.0429 -0.2115 +0.1646 ");
  EXPECT_EQ(row(s.cached[3]), "+0.0398 -0.1019 +0.0901 ");
}

TEST(Facts, CachedEqualsRecomputedBitForBitInTheSourcesProgram) {
  const SeedExactness s = seed_exactness();
  for (int i = 0; i < kSeedTokens; ++i) {
    for (int k = 0; k < kSeedKeyDim; ++k) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(s.cached[i][k]), std::bit_cast<std::uint32_t>(s.recomputed[i][k])) << i;
    }
  }
}

TEST(Facts, BytesFollowTheFormula) {
  EXPECT_EQ(seed_cache_bytes(2, 1, 10, 2, 4, 2), 640);
  EXPECT_EQ(seed_cache_bytes(2, 1, 20, 2, 4, 2), 1280);
  EXPECT_EQ(static_cast<double>(seed_cache_bytes(32, 1, 4096, 8, 128, 2)) / kMiB, 512.0);
  EXPECT_EQ(seed_cache_bytes(2, 1, 1000, 2, 64, 4), 2048000);  // 2 layers x 2 heads of 64 at 1000 tokens

  struct Model {
    std::int64_t layers, kv_heads, head_dim, T, bytes_per_token;
    const char* total;
    double unit;
    const char* format;
  };
  for (const Model& m :
       {Model{12, 12, 64, 1024, 73728, "72", kMiB, "%.0f"}, Model{32, 32, 128, 4096, 1048576, "4.0", kGiB, "%.1f"},
        Model{80, 64, 128, 4096, 5242880, "20.0", kGiB, "%.1f"}, Model{80, 8, 128, 4096, 655360, "2.50", kGiB, "%.2f"},
        Model{61, 128, 128, 128000, 7995392, "953.1", kGiB, "%.1f"}}) {
    EXPECT_EQ(seed_cache_bytes(m.layers, 1, 1, m.kv_heads, m.head_dim, 4), m.bytes_per_token);
    const double total = static_cast<double>(seed_cache_bytes(m.layers, 1, m.T, m.kv_heads, m.head_dim, 4));
    EXPECT_EQ(printed(total / m.unit, m.format), m.total);
  }
}

TEST(Facts, SharingAKeyHeadDividesTheCache) {
  EXPECT_EQ(seed_cache_bytes(80, 1, 4096, 64, 128, 4) / seed_cache_bytes(80, 1, 4096, 64 / 8, 128, 4), 8);
}

TEST(Facts, LatentCompressionFigures) {
  const SeedMla m = seed_mla();
  EXPECT_EQ(m.standard_floats, 128);
  EXPECT_EQ(m.mla_floats, 24);
  EXPECT_EQ(printed(static_cast<double>(m.standard_floats) / static_cast<double>(m.mla_floats), "%.1f"), "5.3");
  EXPECT_EQ(seed_cache_bytes(1, 1, 1, 128, 128, 1), 32768);
  EXPECT_EQ(seed_mla_bytes(1, 1, 512, 64, 1), 576);
  EXPECT_EQ(printed(32768.0 / 576.0, "%.1f"), "56.9");
  EXPECT_EQ(printed(static_cast<double>(seed_mla_bytes(61, 128000, 512, 64, 2)) / kGiB, "%.1f"), "8.4");
  EXPECT_EQ(printed(static_cast<double>(seed_cache_bytes(61, 1, 128000, 128, 128, 2)) / kGiB, "%.1f"), "476.6");
}

// ---- the same facts of the stack that the cached decoder is held to ------------------------------------------------
RecomputeStack small_stack(int layers, std::int64_t heads) {
  SeedRandom random(42);
  RecomputeStack stack;
  stack.model_dim = 6;
  for (int i = 0; i < layers; ++i) {
    RecomputeLayer layer;
    layer.query_heads = layer.kv_heads = heads;
    layer.key_dim = layer.value_dim = 4;
    layer.scale = 0.5f;
    const std::size_t weights = static_cast<std::size_t>(heads * 4 * stack.model_dim);
    for (auto* w : {&layer.wq, &layer.wk, &layer.wv, &layer.wo}) {
      w->resize(weights);
      for (float& x : *w) x = random.around_zero(0.2f);
    }
    stack.layers.push_back(layer);
  }
  return stack;
}

TEST(Facts, UncachedDecodingProjectsTwentyOneTimes) {
  const RecomputeStack stack = small_stack(1, 1);
  std::vector<float> x(6 * 6), y;
  SeedRandom random(7);
  for (float& value : x) value = random.around_zero(1.0f);
  std::int64_t projections = 0;
  for (std::int64_t T = 1; T <= 6; ++T) projections += recompute_step(stack, x, T, y);
  EXPECT_EQ(projections, 21);
}

TEST(Facts, EveryStepRepeatsTheRowsThatTheStepBeforeMade) {
  // The reason a cache can be exact: no position's output depends on what comes later.
  const RecomputeStack stack = small_stack(2, 2);
  std::vector<float> x(9 * 6), all, some;
  SeedRandom random(8);
  for (float& value : x) value = random.around_zero(1.0f);
  recompute(stack, x, 9, all);
  for (std::int64_t T = 1; T <= 9; ++T) {
    recompute(stack, x, T, some);
    for (std::size_t i = 0; i < some.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(some[i]), std::bit_cast<std::uint32_t>(all[i])) << T << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace kvroof::reference
