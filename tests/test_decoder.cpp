// The decoder stack with caches against the path that projects all keys and values again at every step: the same bits
// at every position, for prefill in chunks, decode, forks and rollbacks, in full, windowed and ring layers.
#include "kernels/decoder.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>

#include "reference/inputs.hpp"
#include "reference/recompute.hpp"
#include "reference/seed.hpp"
#include "tests/support/each_isa.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/test_cache_attend.hpp"
#include "tests/test_cache_models.hpp"

namespace kvroof::test_decoder {
namespace {

using test_cache::require_error;

std::vector<float> random_floats(std::uint64_t seed, std::int64_t n, float size) {
  std::vector<float> list(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = size * reference::uniform(seed, i);
  return list;
}

// One model in the words of both sides.
struct Model {
  reference::RecomputeStack stack;
  std::vector<DecoderLayer> layers;

  explicit Model(std::int64_t model_dim) { stack.model_dim = model_dim; }

  // Adds a layer with random weights. `layer` comes with shape, options, storage and cache filled in.
  void add(DecoderLayer layer) {
    const AttentionShape& s = layer.shape;
    const std::int64_t m = stack.model_dim;
    const std::uint64_t seed = 100 * (layers.size() + 1);
    reference::RecomputeLayer r;
    r.query_heads = s.query_heads;
    r.kv_heads = s.kv_heads;
    r.key_dim = s.key_dim;
    r.value_dim = s.value_dim;
    r.wq = random_floats(seed, s.query_heads * s.key_dim * m, 0.6f);
    r.wk = random_floats(seed + 1, s.kv_heads * s.key_dim * m, 0.6f);
    r.wv = random_floats(seed + 2, s.kv_heads * s.value_dim * m, 0.6f);
    r.wo = random_floats(seed + 3, m * s.query_heads * s.value_dim, 0.6f);
    r.k_storage = static_cast<reference::StorageKind>(layer.k_storage);
    r.v_storage = static_cast<reference::StorageKind>(layer.v_storage);
    r.scale = layer.options.scale;
    r.window = layer.options.window;
    r.kept_tokens = layer.options.kept_tokens;
    r.softcap = layer.options.softcap;
    const auto copied = [&](const float* values) {
      return values == nullptr ? std::vector<float>() : std::vector<float>(values, values + s.query_heads);
    };
    r.alibi_slopes = copied(layer.options.alibi_slopes);
    r.sink_logits = copied(layer.options.sink_logits);
    r.inv_freq = layer.inv_freq;
    r.rope_interleaved = layer.pairing == RopePairing::interleaved;
    stack.layers.push_back(std::move(r));
    layers.push_back(std::move(layer));
  }

  Decoder decoder() {
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const reference::RecomputeLayer& r = stack.layers[l];
      layers[l].wq = r.wq.data();
      layers[l].wk = r.wk.data();
      layers[l].wv = r.wv.data();
      layers[l].wo = r.wo.data();
    }
    return Decoder(stack.model_dim, layers);
  }
};

// Scale 1/sqrt(key_dim); all else is the default.
DecoderLayer layer_of(AttentionShape shape, Storage k_storage = Storage::f32, Storage v_storage = Storage::f32) {
  DecoderLayer layer;
  layer.shape = shape;
  layer.options.scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
  layer.k_storage = k_storage;
  layer.v_storage = v_storage;
  return layer;
}

// Four layers of different kinds: full MHA with RoPE; ring with kept tokens, GQA, RoPE the other way; window over a
// contiguous cache with soft-cap and ALiBi, int8 keys; ring with sinks, MQA, odd sizes.
Model hybrid_model() {
  static const float slopes[] = {0.25f, 0.0625f};
  static const float sinks[] = {0.5f, -1.0f, 2.0f};
  Model model(20);
  DecoderLayer full = layer_of({3, 3, 8, 8});
  full.inv_freq = rope_inv_freq(8, 10000.0);
  model.add(full);

  DecoderLayer kept = layer_of({4, 2, 16, 5}, Storage::f16, Storage::f16);
  kept.options.window = 33;
  kept.options.kept_tokens = 4;
  kept.inv_freq = rope_inv_freq(16, 500000.0, 8.0);
  kept.pairing = RopePairing::half_split;
  kept.ring_capacity = 50;
  model.add(kept);

  DecoderLayer windowed = layer_of({2, 2, 7, 18}, Storage::int8, Storage::bf16);
  windowed.options.window = 70;
  windowed.options.softcap = 3.0f;
  windowed.options.alibi_slopes = slopes;
  windowed.order = RowOrder::token_major;
  model.add(windowed);

  DecoderLayer sink = layer_of({3, 1, 17, 3}, Storage::bf16, Storage::int8);
  sink.options.window = 12;
  sink.options.sink_logits = sinks;
  sink.order = RowOrder::token_major;
  sink.ring_capacity = 40;
  model.add(sink);
  return model;
}

// A generation under test: what went in and what came out at every position so far.
struct Generation {
  DecoderState state;
  std::vector<float> x, y;

  void step(const Decoder& decoder, const std::vector<float>& tokens, int threads, Isa isa) {
    const std::size_t at = y.size();
    x.insert(x.end(), tokens.begin(), tokens.end());
    y.resize(x.size(), -1.0f);
    decoder.step(state, x.data() + at, static_cast<std::int64_t>(tokens.size()) / decoder.model_dim(), y.data() + at,
                 threads, isa);
  }
  void drop_last(const Decoder& decoder, std::int64_t n) {
    state.drop_last(n);
    x.resize(x.size() - static_cast<std::size_t>(n * decoder.model_dim()));
    y.resize(x.size());
  }
  Generation fork() const { return {state.fork(), x, y}; }
};

testing::AssertionResult equals_recompute(const Model& model, const Generation& g) {
  const std::int64_t length = g.state.length();
  std::vector<float> expected;
  reference::recompute(model.stack, g.x, length, expected);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&expected[i], &g.y[i], sizeof(float)) != 0) {
      return testing::AssertionFailure() << "position " << static_cast<std::int64_t>(i) / model.stack.model_dim
                                         << " of " << length << ", column "
                                         << static_cast<std::int64_t>(i) % model.stack.model_dim << ": cached "
                                         << std::hexfloat << g.y[i] << ", recomputed " << expected[i];
    }
  }
  return testing::AssertionSuccess();
}

// `target` positions of decode and prefill with random forks and rollbacks; every output is compared, those that are
// rolled back too.
void run_generation(Isa isa, std::uint64_t seed, std::int64_t target) {
  Model model = hybrid_model();
  const Decoder decoder = model.decoder();
  test_cache::SeededOps choose(seed, 0);
  std::uint64_t token = seed * 1000000;
  Generation now{decoder.start(), {}, {}};
  int forks = 0, rollbacks = 0;
  while (now.state.length() < target) {
    const std::uint64_t op = choose.next(40);
    if (op <= 1 &&
        now.state.length() > 0) {  // go on with a fork; the original must still be what it was, and go on too
      Generation other = now.fork();
      std::swap(now, other);
      now.step(decoder, random_floats(++token, decoder.model_dim(), 1.0f), 1, isa);
      other.step(decoder, random_floats(++token, decoder.model_dim(), 1.0f), 1, isa);
      ASSERT_TRUE(equals_recompute(model, other)) << "seed " << seed;
      ++forks;
    } else if (op <= 5) {
      const std::int64_t n = choose.between(0, 12);
      if (n > now.state.length()) continue;
      if (!now.state.can_truncate_to(now.state.length() - n)) {
        require_error(ErrorCode::bad_position, "rollback", [&] { now.state.drop_last(n); });
        continue;
      }
      ASSERT_TRUE(equals_recompute(model, now)) << "seed " << seed;
      now.drop_last(decoder, n);
      ++rollbacks;
    } else {
      const std::int64_t n = op < 37 ? 1 : choose.between(1, 40);  // 40: more than the rings take at once
      now.step(decoder, random_floats(++token, n * decoder.model_dim(), 1.0f), op % 2 == 0 ? 1 : 2, isa);
    }
  }
  EXPECT_TRUE(equals_recompute(model, now)) << "seed " << seed;
  EXPECT_GT(forks, 2) << "seed " << seed;
  EXPECT_GT(rollbacks, 2) << "seed " << seed;
}

class DecoderIsa : public test::EachIsa {};
KVROOF_INSTANTIATE_EACH_ISA(DecoderIsa);

TEST_P(DecoderIsa, EqualsRecomputeThroughForksAndRollbacks) { run_generation(isa(), 1, 160); }

TEST(Decoder, EqualsRecomputeOverSeveralHundredSteps) { run_generation(default_isa(), 2, 400); }

TEST(Decoder, LongPromptInOnePieceEqualsOneTokenAtATime) {
  Model model = hybrid_model();
  const Decoder decoder = model.decoder();
  EXPECT_EQ(decoder.chunk_limit(), 18);  // the first ring: 50 - 33 + 1
  const std::vector<float> x = random_floats(7, 600 * decoder.model_dim(), 1.0f);
  std::vector<float> whole(x.size()), single(x.size());
  DecoderState a = decoder.start(), b = decoder.start();
  decoder.step(a, x.data(), 600, whole.data(), 2);
  for (std::int64_t t = 0; t < 600; ++t) {
    decoder.step(b, x.data() + t * decoder.model_dim(), 1, single.data() + t * decoder.model_dim(), 1);
  }
  EXPECT_TRUE(test_cache::same_bits(whole, single));
  EXPECT_EQ(a.length(), 600);
  EXPECT_EQ(a.projections(), 4 * 600);
}

// The kept layout (all KV heads in one cache) against one cache per head, fed and read alone.
TEST(Decoder, OneCachePerLayerIsOneCachePerHead) {
  const CacheShape shape{.kv_heads = 3, .key_dim = 16, .value_dim = 8};
  const CacheShape one{.kv_heads = 1, .key_dim = 16, .value_dim = 8};
  ContiguousCache together(shape);
  std::vector<ContiguousCache> alone;
  for (int h = 0; h < 3; ++h) alone.emplace_back(one);
  const std::int64_t length = 100;
  const test_cache::RandomRows rows(shape, 4, 0, length);
  together.append(rows);
  for (std::int64_t h = 0; h < 3; ++h) {
    NewRows head = rows.rows;
    head.k += h * shape.key_dim;
    head.v += h * shape.value_dim;
    alone[static_cast<std::size_t>(h)].append(head);
  }
  const std::vector<float> q = test_cache::random_queries(shape, 6, 1);
  const std::vector<float> out = test_cache::attend(together.view(), shape, 6, 1, {}, q);
  for (std::size_t h = 0; h < 3; ++h) {
    const std::vector<float> q_head(q.begin() + static_cast<std::ptrdiff_t>(h * 32),
                                    q.begin() + static_cast<std::ptrdiff_t>((h + 1) * 32));
    const std::vector<float> expected(out.begin() + static_cast<std::ptrdiff_t>(h * 16),
                                      out.begin() + static_cast<std::ptrdiff_t>((h + 1) * 16));
    EXPECT_TRUE(test_cache::same_bits(test_cache::attend(alone[h].view(), one, 2, 1, {}, q_head), expected)) << h;
  }
}

TEST(Decoder, CountsWhatTheSourcesCount) {
  Model model(6);
  model.add(layer_of({1, 1, 4, 4}));
  const Decoder decoder = model.decoder();
  DecoderState state = decoder.start();
  const std::vector<float> x = random_floats(1, 100 * 6, 1.0f);
  std::vector<float> y(x.size()), expected;
  std::int64_t without_cache = 0;
  for (std::int64_t t = 0; t < 100; ++t) {
    decoder.step(state, x.data() + t * 6, 1, y.data() + t * 6, 1);
    without_cache += reference::recompute_step(model.stack, x, t + 1, expected);
    EXPECT_EQ(std::memcmp(expected.data(), y.data() + t * 6, 6 * sizeof(float)), 0) << t;
    EXPECT_EQ(state.projections(), t + 1);
    if (t + 1 == 6) {
      EXPECT_EQ(without_cache, 21);
      EXPECT_EQ(state.bytes().used, 48 * 4);
    }
    if (t + 1 == 10) {
      EXPECT_EQ(without_cache, 55);
    }
  }
  EXPECT_EQ(without_cache, 5050);

  Model twelve(4);
  for (int l = 0; l < 12; ++l) twelve.add(layer_of({12, 12, 2, 2}));
  EXPECT_EQ(twelve.decoder().cache_count(), 144);

  // 2 layers x 2 heads at 1000 tokens, 8 query heads per KV head: an eighth of the cache.
  const auto bytes = [](std::int64_t layers, std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
    return layers * tokens * bytes_per_token({.kv_heads = heads, .key_dim = dim, .value_dim = dim});
  };
  EXPECT_EQ(bytes(12, 1, 12, 64), 73728);
  EXPECT_EQ(bytes(12, 1024, 12, 64), std::int64_t{72} << 20);
  EXPECT_EQ(bytes(32, 4096, 32, 128), std::int64_t{4} << 30);
  EXPECT_EQ(bytes(80, 1, 64, 128), 5242880);
  EXPECT_EQ(bytes(80, 1, 8, 128) * 8, bytes(80, 1, 64, 128));
}

// The exactness program's printed check: position 0 and position 3.
TEST(Decoder, ReproducesThePrintedCheck) {
  const reference::SeedExactness seed = reference::seed_exactness();
  const float wo[4][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {0, 0, 0}};
  DecoderLayer layer = layer_of({1, 1, 3, 3});
  layer.wq = seed.wq[0];
  layer.wk = seed.wk[0];
  layer.wv = seed.wv[0];
  layer.wo = wo[0];
  const Decoder decoder(4, {&layer, 1});
  DecoderState state = decoder.start();
  float y[4][4];
  for (int t = 0; t < 4; ++t) decoder.step(state, seed.x[t], 1, y[t], 1);
  const auto printed = [](const float* row) {
    char text[64];
    std::snprintf(text, sizeof text, "%+.4f %+.4f %+.4f", static_cast<double>(row[0]), static_cast<double>(row[1]),
                  static_cast<double>(row[2]));
    return std::string(text);
  };
  EXPECT_EQ(printed(y[0]), "+0.0429 -0.2115 +0.1646");
  EXPECT_EQ(printed(y[3]), "+0.0398 -0.1019 +0.0901");
}

TEST(Decoder, RollbackIsAllLayersOrNone) {
  Model model(8);
  DecoderLayer full = layer_of({1, 1, 4, 4});
  model.add(full);
  DecoderLayer tight = full;
  tight.options.window = 8;
  tight.ring_capacity = 10;
  model.add(tight);
  const Decoder decoder = model.decoder();
  DecoderState state = decoder.start();
  const std::vector<float> x = random_floats(1, 20 * 8, 1.0f);
  std::vector<float> y(x.size());
  decoder.step(state, x.data(), 20, y.data(), 1);
  require_error(ErrorCode::bad_position, "4 tokens back", [&] { state.drop_last(4); });
  EXPECT_EQ(state.view(0).end_position, 20);
  EXPECT_EQ(state.view(1).end_position, 20);
  require_error(ErrorCode::bad_position, "-1", [&] { state.drop_last(-1); });
  require_error(ErrorCode::bad_position, "21", [&] { state.drop_last(21); });
  state.drop_last(3);
  EXPECT_EQ(state.view(0).end_position, 17);
  EXPECT_EQ(state.view(1).end_position, 17);
  std::vector<float> again(3 * 8);
  decoder.step(state, x.data() + 17 * 8, 3, again.data(), 1);
  EXPECT_EQ(std::memcmp(again.data(), y.data() + 17 * 8, again.size() * sizeof(float)), 0);
}

TEST(Decoder, RefusesLayersThatDoNotFit) {
  const auto build = [](auto change) {
    Model model(8);
    model.add(layer_of({2, 1, 4, 4}));
    model.decoder();  // fills in the weights
    change(model.layers[0]);
    Decoder(8, model.layers);
  };
  build([](DecoderLayer&) {});
  require_error(ErrorCode::bad_shape, "heads that do not divide", [&] {
    build([](DecoderLayer& l) {
      l.shape.query_heads = 3;
      l.shape.kv_heads = 2;
    });
  });
  require_error(ErrorCode::bad_option, "no scale", [&] { build([](DecoderLayer& l) { l.options = {}; }); });
  require_error(ErrorCode::bad_view, "no weights", [&] { build([](DecoderLayer& l) { l.wo = nullptr; }); });
  require_error(ErrorCode::bad_shape, "frequencies", [&] { build([](DecoderLayer& l) { l.inv_freq = {1.0}; }); });
  require_error(ErrorCode::bad_option, "a ring without window",
                [&] { build([](DecoderLayer& l) { l.ring_capacity = 9; }); });
  require_error(ErrorCode::bad_shape, "no layers", [&] { Decoder(8, {}); });
  require_error(ErrorCode::bad_shape, "no model", [&] { build([](DecoderLayer& l) { Decoder(0, {&l, 1}); }); });

  Model model(8);
  model.add(layer_of({1, 1, 4, 4}));
  const Decoder decoder = model.decoder();
  DecoderState state = decoder.start();
  float x[8] = {}, y[8];
  require_error(ErrorCode::bad_shape, "n = -1", [&] { decoder.step(state, x, -1, y, 1); });
  require_error(ErrorCode::bad_shape, "no threads", [&] { decoder.step(state, x, 1, y, 0); });
  require_error(ErrorCode::bad_view, "x = null", [&] { decoder.step(state, nullptr, 1, y, 1); });
  decoder.step(state, nullptr, 0, nullptr, 1);
  EXPECT_EQ(state.length(), 0);
}

TEST(Decoder, RefusesSizesThatOverflowOrExceedMemory) {
  const float w = 1.0f;  // never read: the sizes are refused first
  DecoderLayer layer = layer_of({1, 1, 4, 4});
  layer.wq = layer.wk = layer.wv = layer.wo = &w;
  require_error(ErrorCode::bad_shape, "model_dim 2^62", [&] { Decoder(std::int64_t{1} << 62, {&layer, 1}); });
  require_error(ErrorCode::bad_shape, "model_dim 2^63 - 1", [&] { Decoder(INT64_MAX, {&layer, 1}); });
#if !KVROOF_TEST_SANITIZED
  require_error(ErrorCode::out_of_memory, "2^50 bytes", [&] { Decoder(std::int64_t{1} << 44, {&layer, 1}); });
#endif
}

TEST(Decoder, RefusesForeignStatesAndLayers) {
  const auto model_of = [](auto change) {
    Model model(8);
    DecoderLayer layer = layer_of({2, 2, 4, 4});
    layer.options.window = 8;
    change(layer);
    model.add(layer);
    return model;
  };
  Model model = model_of([](DecoderLayer&) {});
  const Decoder decoder = model.decoder();
  float x[8] = {}, y[8];
  const auto foreign = [&](const char* name, auto change) {
    Model other = model_of(change);
    DecoderState state = other.decoder().start();
    require_error(ErrorCode::bad_shape, name, [&] { decoder.step(state, x, 1, y, 1); });
    EXPECT_EQ(state.length(), 0);
  };
  foreign("storage", [](DecoderLayer& l) { l.k_storage = Storage::f16; });
  foreign("kv_heads", [](DecoderLayer& l) { l.shape.kv_heads = 1; });
  foreign("value_dim", [](DecoderLayer& l) { l.shape.value_dim = 3; });
  foreign("order", [](DecoderLayer& l) { l.order = RowOrder::token_major; });
  foreign("ring", [](DecoderLayer& l) { l.ring_capacity = 9; });
  DecoderState state = decoder.start();
  decoder.step(state, x, 1, y, 1);
  require_error(ErrorCode::bad_shape, "layer 1", [&] { state.view(1); });
  require_error(ErrorCode::bad_shape, "layer -1", [&] { state.view(-1); });
  EXPECT_EQ(state.view(0).end_position, 1);
}

}  // namespace
}  // namespace kvroof::test_decoder
