// The sources' facts about caching and memory on the library itself: its caches, its decoder.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/cache/contiguous.hpp"
#include "kernels/decoder.hpp"
#include "reference/recompute.hpp"
#include "reference/seed.hpp"

namespace kvroof {
namespace {

std::string printed(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

CacheShape cache_shape(std::int64_t heads, std::int64_t dim, Storage storage) {
  CacheShape s;
  s.kv_heads = heads;
  s.key_dim = s.value_dim = dim;
  s.k_storage = s.v_storage = storage;
  return s;
}

// ---- bytes ---------------------------------------------------------------------------------------------------------
TEST(FactsCache, BytesPerTokenOfRealModels) {
  struct Model {
    std::int64_t layers, kv_heads, head_dim, bytes;
  };
  for (const Model& m : {Model{12, 12, 64, 73728}, Model{32, 32, 128, 1048576}, Model{80, 64, 128, 5242880},
                         Model{80, 8, 128, 655360}, Model{61, 128, 128, 7995392}}) {
    EXPECT_EQ(m.layers * bytes_per_token(cache_shape(m.kv_heads, m.head_dim, Storage::f32)), m.bytes);
  }
  EXPECT_EQ(32 * 4096 * bytes_per_token(cache_shape(8, 128, Storage::f16)), std::int64_t{512} << 20);
}

TEST(FactsCache, UsedBytesFollowTheFormulaAsRowsAreAppended) {
  for (const RowOrder order : {RowOrder::head_major, RowOrder::token_major}) {
    const CacheShape shape = cache_shape(2, 4, Storage::f16);
    ContiguousCache cache(shape, order);
    const std::vector<float> rows(20 * 2 * 4, 1.0f);
    cache.append(packed_rows(shape, 10, rows.data(), rows.data()));
    EXPECT_EQ(2 * cache.bytes().used, 640) << "2 layers";
    cache.append(packed_rows(shape, 10, rows.data(), rows.data()));
    EXPECT_EQ(2 * cache.bytes().used, 1280) << "twice the length";
  }
}

TEST(FactsCache, HalfTheStorageIsHalfTheBytes) {
  const auto bytes = [](Storage s) { return bytes_per_token(cache_shape(8, 128, s)); };
  EXPECT_EQ(bytes(Storage::f32), 2 * bytes(Storage::f16));
  EXPECT_EQ(bytes(Storage::f16), bytes(Storage::bf16));
  EXPECT_EQ(bytes(Storage::int8), bytes(Storage::f32) / 4 + 2 * 8 * 4)
      << "a quarter, and a float scale per row and head";
}

TEST(FactsCache, EightQueryHeadsOnOneKeyHeadDivideTheCacheByEight) {
  EXPECT_EQ(bytes_per_token(cache_shape(64, 128, Storage::f32)),
            8 * bytes_per_token(cache_shape(8, 128, Storage::f32)));
}

// ---- the decoder ---------------------------------------------------------------------------------------------------
struct Stack {
  reference::RecomputeStack uncached;
  std::vector<DecoderLayer> layers;  // points into `uncached`

  explicit Stack(reference::RecomputeStack s) : uncached(std::move(s)) {
    for (const reference::RecomputeLayer& from : uncached.layers) {
      DecoderLayer layer;
      layer.shape = {from.query_heads, from.kv_heads, from.key_dim, from.value_dim};
      layer.options.scale = from.scale;
      layer.wq = from.wq.data();
      layer.wk = from.wk.data();
      layer.wv = from.wv.data();
      layer.wo = from.wo.data();
      layers.push_back(layer);
    }
  }
  Decoder decoder() const { return Decoder(uncached.model_dim, layers); }
};

Stack random_stack(std::int64_t layers, std::int64_t heads, std::int64_t model_dim, std::int64_t head_dim) {
  reference::SeedRandom random(42);
  reference::RecomputeStack stack;
  stack.model_dim = model_dim;
  for (std::int64_t i = 0; i < layers; ++i) {
    reference::RecomputeLayer layer;
    layer.query_heads = layer.kv_heads = heads;
    layer.key_dim = layer.value_dim = head_dim;
    layer.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    for (auto* w : {&layer.wq, &layer.wk, &layer.wv, &layer.wo}) {
      w->resize(static_cast<std::size_t>(heads * head_dim * model_dim));
      for (float& x : *w) x = random.around_zero(0.2f);
    }
    stack.layers.push_back(std::move(layer));
  }
  return Stack(std::move(stack));
}

std::vector<float> random_tokens(std::int64_t tokens, std::int64_t model_dim) {
  reference::SeedRandom random(43);
  std::vector<float> x(static_cast<std::size_t>(tokens * model_dim));
  for (float& value : x) value = random.around_zero(1.0f);
  return x;
}

TEST(FactsCache, SixTokensGrowTheCacheByOneEachAndFillFortyEightFloats) {
  const Stack stack = random_stack(1, 1, 6, 4);
  const Decoder decoder = stack.decoder();
  DecoderState state = decoder.start();
  const std::vector<float> x = random_tokens(6, 6);
  std::vector<float> y(6), uncached;
  std::int64_t projections_without_cache = 0;
  for (std::int64_t t = 0; t < 6; ++t) {
    EXPECT_EQ(state.length(), t);
    decoder.step(state, x.data() + t * 6, 1, y.data(), 1);
    EXPECT_EQ(state.length(), t + 1);
    EXPECT_EQ(state.projections(), t + 1);
    projections_without_cache += reference::recompute_step(stack.uncached, x, t + 1, uncached);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(y[i]), std::bit_cast<std::uint32_t>(uncached[i])) << t << ' ' << i;
    }
  }
  EXPECT_EQ(projections_without_cache, 21);
  EXPECT_EQ(state.bytes().used, 48 * 4);
}

TEST(FactsCache, TwelveLayersOfTwelveHeadsKeep144Caches) {
  const Stack stack = random_stack(12, 12, 6, 2);
  const Decoder decoder = stack.decoder();
  EXPECT_EQ(decoder.cache_count(), 144);
  DecoderState state = decoder.start();
  EXPECT_EQ(state.layers(), 12);
  const std::vector<float> x = random_tokens(3, 6);
  std::vector<float> y(18);
  decoder.step(state, x.data(), 3, y.data(), 1);
  EXPECT_EQ(state.bytes().used, 144 * 3 * (2 + 2) * 4) << "one cache: 3 rows of 2 + 2 floats";
  EXPECT_EQ(state.projections(), 12 * 3);
}

TEST(FactsCache, TwoLayersOfTwoHeadsAtAThousandTokens) {
  const Stack stack = random_stack(2, 2, 8, 4);
  const Decoder decoder = stack.decoder();
  DecoderState state = decoder.start();
  const std::vector<float> x = random_tokens(1000, 8);
  std::vector<float> y(8000);
  decoder.step(state, x.data(), 1000, y.data(), 1);
  EXPECT_EQ(state.length(), 1000);
  EXPECT_EQ(state.bytes().used, reference::seed_cache_bytes(2, 1, 1000, 2, 4, 4));
}

TEST(FactsCache, TheDecoderPrintsTheSourcesCheckValues) {
  const reference::SeedExactness seed = reference::seed_exactness();
  constexpr std::int64_t kModel = reference::kSeedModelDim, kKey = reference::kSeedKeyDim;
  reference::RecomputeStack one;
  one.model_dim = kModel;
  reference::RecomputeLayer layer;
  layer.query_heads = layer.kv_heads = 1;
  layer.key_dim = layer.value_dim = kKey;
  layer.scale = 1.0f / std::sqrt(3.0f);
  for (int i = 0; i < kKey; ++i) {
    layer.wq.insert(layer.wq.end(), seed.wq[i], seed.wq[i] + kModel);
    layer.wk.insert(layer.wk.end(), seed.wk[i], seed.wk[i] + kModel);
    layer.wv.insert(layer.wv.end(), seed.wv[i], seed.wv[i] + kModel);
  }
  // The program stops at the head: WO passes it on.
  layer.wo.assign(static_cast<std::size_t>(kModel * kKey), 0.0f);
  for (int i = 0; i < kKey; ++i) layer.wo[static_cast<std::size_t>(i * kKey + i)] = 1.0f;
  one.layers.push_back(layer);

  const Stack stack(std::move(one));
  const Decoder decoder = stack.decoder();
  DecoderState state = decoder.start();
  const std::vector<float> x(&seed.x[0][0], &seed.x[0][0] + reference::kSeedTokens * kModel);
  std::vector<std::string> rows;
  for (std::int64_t t = 0; t < reference::kSeedTokens; ++t) {
    std::vector<float> y(kModel), uncached;
    decoder.step(state, x.data() + t * kModel, 1, y.data(), 1);
    reference::recompute_step(stack.uncached, x, t + 1, uncached);
    std::string row;
    for (std::size_t i = 0; i < kKey; ++i) {
      row += printed(y[i], "%+.4f ");
      EXPECT_EQ(std::bit_cast<std::uint32_t>(y[i]), std::bit_cast<std::uint32_t>(uncached[i])) << t;
      EXPECT_NEAR(y[i], seed.cached[t][i], 1e-6) << "the plain loops round in another order";
    }
    rows.push_back(row);
  }
  EXPECT_EQ(rows[0], "+0.0429 -0.2115 +0.1646 ");
  EXPECT_EQ(rows[3], "+0.0398 -0.1019 +0.0901 ");
}

}  // namespace
}  // namespace kvroof
