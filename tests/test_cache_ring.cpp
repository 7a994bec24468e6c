// The ring cache: named cases beside the model test. W is the window, C the capacity, N the length.
#include "kernels/cache/ring.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cache/contiguous.hpp"
#include "kernels/rope.hpp"
#include "tests/test_cache_attend.hpp"
#include "tests/test_cache_models.hpp"

namespace kvroof::test_cache {
namespace {

constexpr CacheShape kShape{.kv_heads = 1, .key_dim = 4, .value_dim = 2};

RingCache ring(std::int64_t capacity, std::int64_t window, std::int64_t kept = 0, const CacheShape& shape = kShape) {
  return RingCache(shape, {.order = RowOrder::head_major, .capacity = capacity, .window = window, .kept_tokens = kept});
}

std::vector<std::int64_t> positions(const RingCache& cache) {
  std::vector<std::int64_t> seen;
  const KvView view = cache.view();
  for (std::int64_t i = 0; i < view.run_count; ++i) {
    for (std::int64_t r = 0; r < view.runs[i].rows; ++r) {
      seen.push_back(view.runs[i].first_position + r);
      // V[t] = t, so the row itself says whether it is the one that the position claims.
      const auto* v = reinterpret_cast<const float*>(view.runs[i].v + r * view.v_row_stride);
      EXPECT_EQ(v[0], static_cast<float>(seen.back()));
    }
  }
  return seen;
}

std::vector<std::int64_t> range(std::int64_t first, std::int64_t end) {
  std::vector<std::int64_t> list(static_cast<std::size_t>(end - first));
  std::iota(list.begin(), list.end(), first);
  return list;
}

AttentionOptions window(std::int64_t w, std::int64_t kept = 0) {
  AttentionOptions options;
  options.window = w;
  options.kept_tokens = kept;
  return options;
}

TEST(CacheRing, TheBareExerciseKeepsTheNewestC) {
  RingCache cache = ring(8, 8);
  cache.append(CountingRows(kShape, 0, 6));
  EXPECT_EQ(positions(cache), range(0, 6));
  for (std::int64_t t = 6; t < 12; ++t) {
    cache.append(CountingRows(kShape, t, 1));
    EXPECT_EQ(positions(cache), range(std::max<std::int64_t>(0, t + 1 - 8), t + 1));
  }
}

TEST(CacheRing, PrefillAndDecodeInTurn) {
  RingCache cache = ring(16, 8);
  std::int64_t t = 0;
  for (const std::int64_t n : {3, 4, 2, 9, 1, 9, 1, 1, 9}) {
    cache.append(CountingRows(kShape, t, n));
    t += n;
    EXPECT_EQ(positions(cache), range(std::max<std::int64_t>(0, t - 16), t));
  }
}

TEST(CacheRing, EveryChunkFromEveryFillLevel) {
  for (std::int64_t fill = 0; fill <= 16; ++fill) {
    for (const std::int64_t n : {2, 5, 15, 16, 17, 40}) {
      RingCache cache = ring(16, 16);
      for (std::int64_t t = 0; t < fill; ++t) cache.append(CountingRows(kShape, t, 1));
      if (fill + n <= 16) {
        cache.append(CountingRows(kShape, fill, n));
      } else {
        require_error(ErrorCode::no_capacity, "append", [&] { cache.append(CountingRows(kShape, fill, n)); });
        EXPECT_EQ(positions(cache), range(0, fill));
        cache.append_tail(CountingRows(kShape, fill, n));
      }
      EXPECT_EQ(positions(cache), range(std::max<std::int64_t>(0, fill + n - 16), fill + n));
      EXPECT_EQ(cache.next_position(), fill + n);
      EXPECT_LE(cache.live_rows(), 16);
    }
  }
}

TEST(CacheRing, AChunkKeepsTheWindowOfItsFirstQuery) {
  RingCache small = ring(6, 6);
  small.append(CountingRows(kShape, 0, 6));
  require_error(ErrorCode::no_capacity, "C = 6", [&] { small.append(CountingRows(kShape, 6, 4)); });
  EXPECT_EQ(positions(small), range(0, 6));
  RingCache eight = ring(8, 6);
  eight.append(CountingRows(kShape, 0, 6));
  require_error(ErrorCode::no_capacity, "C = 8", [&] { eight.append(CountingRows(kShape, 6, 4)); });

  RingCache nine = ring(9, 6);  // W + n - 1: the least that works
  nine.append(CountingRows(kShape, 0, 6));
  nine.append(CountingRows(kShape, 6, 4));
  const std::vector<float> out = attend(nine.view(), kShape, 1, 4, window(6));
  for (std::int64_t r = 0; r < 4; ++r) {  // the query at 6+r sees 1+r ... 6+r
    EXPECT_EQ(out[static_cast<std::size_t>(2 * r)], 3.5f + static_cast<float>(r));
  }
}

TEST(CacheRing, SlotsThatWereNeverFilledTakeNoPart) {
  const RingOptions options{.order = RowOrder::head_major, .capacity = 8, .window = 8, .kept_tokens = 0};
  CacheMemory arena = CacheMemory::allocate(RingCache::bytes_needed(kShape, options));
  std::memset(arena.data(), 0xff, static_cast<std::size_t>(arena.bytes()));  // NaN in f32
  RingCache cache(kShape, options, {arena.data(), static_cast<std::size_t>(arena.bytes())});
  cache.append(CountingRows(kShape, 0, 3));
  EXPECT_EQ(attend(cache.view(), kShape, 1, 1, window(8))[0], 1.0f);
}

TEST(CacheRing, RollbackOfRejectedDrafts) {
  const auto filled = [](std::int64_t capacity, std::int64_t length) {
    RingCache cache = ring(capacity, 8);
    for (std::int64_t t = 0; t < length; ++t) cache.append(CountingRows(kShape, t, 1));
    return cache;
  };
  // ok means: the next result is that of a cache that never saw the drafts.
  const auto as_if_never_seen = [&](RingCache cache, std::int64_t capacity) {
    const std::int64_t at = cache.length();
    RingCache fresh = filled(capacity, at);
    const std::vector<float> q = random_queries(kShape, 1, 1);
    cache.append(CountingRows(kShape, at, 1));
    fresh.append(CountingRows(kShape, at, 1));
    return same_bits(attend(cache.view(), kShape, 1, 1, window(8), q),
                     attend(fresh.view(), kShape, 1, 1, window(8), q));
  };
  {
    RingCache cache = filled(8, 9);
    require_error(ErrorCode::bad_position, "C = W = 8, N = 9, r = 2", [&] { cache.drop_last(2); });
    EXPECT_EQ(positions(cache), range(1, 9));
    cache.drop_last(1);
    EXPECT_TRUE(as_if_never_seen(std::move(cache), 8));
    RingCache all = filled(8, 9);
    all.drop_last(9);
    EXPECT_EQ(all.length(), 0);
    EXPECT_EQ(all.oldest_live(), 0);
    EXPECT_TRUE(as_if_never_seen(std::move(all), 8));
  }
  for (std::int64_t r = 1; r <= 5; ++r) {
    RingCache cache = filled(12, 13);
    cache.drop_last(r);
    EXPECT_TRUE(as_if_never_seen(std::move(cache), 12)) << r;
  }
  RingCache cache = filled(12, 13);
  require_error(ErrorCode::bad_position, "C = 12, W = 8, N = 13, r = 6", [&] { cache.drop_last(6); });
  // Rolling back step by step does not lower what was overwritten.
  for (int i = 0; i < 5; ++i) cache.drop_last(1);
  EXPECT_EQ(cache.oldest_live(), 1);
  require_error(ErrorCode::bad_position, "the sixth", [&] { cache.drop_last(1); });
}

TEST(CacheRing, TruncateToAndDropLastAreTwoFunctionsWithoutSignMeaning) {
  RingCache cache = ring(8, 8);
  cache.append(CountingRows(kShape, 0, 3));
  cache.truncate_to(3);
  EXPECT_EQ(cache.length(), 3);
  require_error(ErrorCode::bad_position, "truncate_to(len+1)", [&] { cache.truncate_to(4); });
  require_error(ErrorCode::bad_position, "drop_last(5) of 3", [&] { cache.drop_last(5); });
  require_error(ErrorCode::bad_position, "drop_last(-5)", [&] { cache.drop_last(-5); });
  EXPECT_EQ(positions(cache), range(0, 3));
  cache.truncate_to(0);
  EXPECT_EQ(cache.live_rows(), 0);
}

// Nothing here moves stored rows to other positions (an int8 row with RoPE applied could only be requantised, which
// loses bits): a position is fixed when the row is stored, and it is the absolute one however many rows were
// overwritten.
TEST(CacheRing, PositionsAreAbsoluteAndRopeUsesThem) {
  const std::vector<double> inv_freq = rope_inv_freq(kShape.key_dim, 10000.0);
  RingCache cache = ring(8, 8);
  const auto rotated = [&](std::int64_t position) {
    CountingRows rows(kShape, position, 1);
    rope(rows.k.data(), 1, 0, kShape.key_dim, position, inv_freq.data(), RopePairing::half_split, default_isa());
    return rows;
  };
  for (std::int64_t t = 0; t < 20; ++t) cache.append(rotated(cache.next_position()));
  EXPECT_EQ(cache.next_position(), 20);
  cache.append(rotated(cache.next_position()));
  const KvView view = cache.view();
  const RowRun& newest = view.runs[view.run_count - 1];
  EXPECT_EQ(newest.first_position + newest.rows - 1, 20);
  const CountingRows direct = rotated(20), stale = rotated(8);
  const std::byte* row = newest.k + (newest.rows - 1) * view.k_row_stride;
  EXPECT_EQ(std::memcmp(row, direct.k.data(), 4 * sizeof(float)), 0);
  EXPECT_NE(std::memcmp(row, stale.k.data(), 4 * sizeof(float)), 0);
}

TEST(CacheRing, KeptTokensStayBesideTheWindow) {
  RingCache cache = ring(6, 5, 3);
  ContiguousCache whole(kShape);
  cache.append(CountingRows(kShape, 0, 2));  // the kept rows arrive in two chunks
  whole.append(CountingRows(kShape, 0, 2));
  for (std::int64_t t = 2; t < 40; t += 2) {
    cache.append(CountingRows(kShape, t, 2));
    whole.append(CountingRows(kShape, t, 2));
    const std::vector<float> q = random_queries(kShape, 1, 2);
    EXPECT_TRUE(same_bits(attend(cache.view(), kShape, 1, 2, window(5, 3), q),
                          attend(whole.view(), kShape, 1, 2, window(5, 3), q)));
  }
  std::vector<std::int64_t> expected = range(0, 3);
  const std::vector<std::int64_t> rest = range(34, 40);
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(positions(cache), expected);
  EXPECT_EQ(cache.bytes().used, 9 * bytes_per_token(kShape));
}

TEST(CacheRing, AppendTailKeepsTheNewestCAndTheKeptOnes) {
  RingCache cache = ring(4, 3, 2);
  cache.append_tail(CountingRows(kShape, 0, 50));
  EXPECT_EQ(positions(cache), (std::vector<std::int64_t>{0, 1, 46, 47, 48, 49}));
  EXPECT_EQ(cache.oldest_live(), 46);
  EXPECT_EQ(cache.next_position(), 50);
}

TEST(CacheRing, AnyPlaceOfTheWrapGivesTheBitsOfTheContiguousCache) {
  const CacheShape shape{
      .kv_heads = 2, .key_dim = 20, .value_dim = 17, .k_storage = Storage::f16, .v_storage = Storage::int8};
  const std::int64_t w = 530;  // longer than a segment
  for (const RowOrder order : {RowOrder::head_major, RowOrder::token_major}) {
    RingCache cache(shape, {.order = order, .capacity = w + 6, .window = w, .kept_tokens = 0});
    ContiguousCache whole(shape, order);
    const std::vector<float> q = random_queries(shape, 4, 7);
    for (std::int64_t t = 0; t < 1400; t += 7) {
      cache.append(RandomRows(shape, 3, t, 7));
      whole.append(RandomRows(shape, 3, t, 7));
      if (t % 35 == 0) {
        ASSERT_TRUE(
            same_bits(attend(cache.view(), shape, 4, 7, window(w), q), attend(whole.view(), shape, 4, 7, window(w), q)))
            << t;
      }
    }
  }
}

TEST(CacheRing, RefusesWhatIsNoRing) {
  require_error(ErrorCode::bad_option, "W = 0", [] { ring(8, 0); });
  require_error(ErrorCode::bad_option, "W = -1", [] { ring(8, -1); });
  require_error(ErrorCode::bad_option, "unlimited window", [] { ring(kUnlimitedWindow, kUnlimitedWindow); });
  require_error(ErrorCode::bad_option, "C < W", [] { ring(7, 8); });
  require_error(ErrorCode::bad_option, "k = -1", [] { ring(8, 8, -1); });
  require_error(ErrorCode::bad_shape, "C + k beyond 63 bits", [] { ring(kUnlimitedWindow - 1, 8, 8); });
  require_error(ErrorCode::out_of_memory, "2^44 slots", [] { ring(std::int64_t{1} << 44, 8); });
}

TEST(CacheRing, ForkIsIndependent) {
  RingCache cache = ring(8, 6, 1);
  for (std::int64_t t = 0; t < 13; ++t) cache.append(CountingRows(kShape, t, 1));
  RingCache copy = cache.fork();
  EXPECT_EQ(positions(copy), positions(cache));
  EXPECT_EQ(copy.oldest_live(), cache.oldest_live());
  copy.append(CountingRows(kShape, 13, 3));
  EXPECT_EQ(cache.length(), 13);
  EXPECT_EQ(positions(cache).back(), 12);
  EXPECT_EQ(positions(copy).back(), 15);
}

}  // namespace
}  // namespace kvroof::test_cache
