// The contiguous cache: named cases beside the model test.
#include "kernels/cache/contiguous.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <type_traits>

#include "tests/test_cache_attend.hpp"
#include "tests/test_cache_models.hpp"

namespace kvroof::test_cache {
namespace {

constexpr CacheShape kShape{.kv_heads = 2, .key_dim = 4, .value_dim = 3};

TEST(CacheContiguous, SizesOfTheEquation) {
  // 6 tokens, one head of 4: 48 floats.
  EXPECT_EQ(6 * bytes_per_token({.kv_heads = 1, .key_dim = 4, .value_dim = 4}), 48 * 4);
  // 2*L*B*T*Hkv*Dh*s with 2,1,10,2,4,2: 640 bytes, 1280 at T = 20.
  const CacheShape half{
      .kv_heads = 2, .key_dim = 4, .value_dim = 4, .k_storage = Storage::f16, .v_storage = Storage::f16};
  EXPECT_EQ(2 * 10 * bytes_per_token(half), 640);
  EXPECT_EQ(2 * 20 * bytes_per_token(half), 1280);
  const CacheShape int8{
      .kv_heads = 8, .key_dim = 128, .value_dim = 128, .k_storage = Storage::int8, .v_storage = Storage::int8};
  EXPECT_EQ(bytes_per_token(int8), 2 * 8 * (128 + 4));
  ContiguousCache cache(half, RowOrder::token_major, 20);
  cache.append(CountingRows(half, 0, 10));
  EXPECT_EQ(2 * cache.bytes().used, 640);
  EXPECT_EQ(2 * cache.bytes().reserved, 1280);
}

TEST(CacheContiguous, TruncateToAndDropLastAreTwoFunctionsWithoutSignMeaning) {
  ContiguousCache cache(kShape);
  cache.append(CountingRows(kShape, 0, 3));
  cache.truncate_to(3);
  EXPECT_EQ(cache.length(), 3);
  require_error(ErrorCode::bad_position, "truncate_to(len+1)", [&] { cache.truncate_to(4); });
  require_error(ErrorCode::bad_position, "truncate_to(-5)", [&] { cache.truncate_to(-5); });
  require_error(ErrorCode::bad_position, "drop_last(5) of 3", [&] { cache.drop_last(5); });
  require_error(ErrorCode::bad_position, "drop_last(-1)", [&] { cache.drop_last(-1); });
  EXPECT_EQ(cache.length(), 3);
  cache.truncate_to(0);
  EXPECT_EQ(cache.length(), 0);
  EXPECT_EQ(cache.view().run_count, 0);
}

TEST(CacheContiguous, RefusalsChangeNothing) {
  for (const CacheShape& bad : {CacheShape{.kv_heads = 0, .key_dim = 4, .value_dim = 4},
                                CacheShape{.kv_heads = 2, .key_dim = 0, .value_dim = 4},
                                CacheShape{.kv_heads = 2, .key_dim = 4, .value_dim = 0},
                                CacheShape{.kv_heads = -1, .key_dim = 4, .value_dim = 4}}) {
    require_error(ErrorCode::bad_shape, "shape", [&] { ContiguousCache cache(bad); });
  }
  require_error(ErrorCode::bad_shape, "negative capacity",
                [] { ContiguousCache cache(kShape, RowOrder::head_major, -1); });
  require_error(ErrorCode::bad_shape, "2^32 heads of 2^32 columns", [] {
    ContiguousCache cache({.kv_heads = std::int64_t{1} << 32, .key_dim = std::int64_t{1} << 32, .value_dim = 1});
  });

  ContiguousCache cache(kShape, RowOrder::head_major, 4);
  cache.append(CountingRows(kShape, 0, 3));
  const KvView before = cache.view();
  NewRows rows = CountingRows(kShape, 3, 1).rows;
  rows.n = -1;
  require_error(ErrorCode::bad_shape, "n = -1", [&] { cache.append(rows); });
  rows.n = 1;
  rows.v = nullptr;
  require_error(ErrorCode::bad_view, "v = null", [&] { cache.append(rows); });
  rows.v = rows.k;
  rows.n = std::numeric_limits<std::int64_t>::max();
  require_error(ErrorCode::bad_shape, "length + n beyond 63 bits", [&] { cache.append(rows); });
  rows.n = std::int64_t{1} << 43;  // 2^43 rows of 56 bytes: more than an address space
  require_error(ErrorCode::out_of_memory, "2^43 rows", [&] { cache.append(rows); });
  EXPECT_EQ(cache.length(), 3);
  EXPECT_EQ(cache.capacity(), 4);
  EXPECT_EQ(cache.view().runs[0].k, before.runs[0].k);
}

TEST(CacheContiguous, LentMemoryIsCheckedAndNeverOutgrown) {
  const std::int64_t bytes = ContiguousCache::bytes_needed(kShape, RowOrder::head_major, 4);
  CacheMemory arena = CacheMemory::allocate(bytes + 64);
  const auto lend = [&](std::int64_t offset, std::int64_t size) {
    return ContiguousCache(kShape, RowOrder::head_major, 4, {arena.data() + offset, static_cast<std::size_t>(size)});
  };
  require_error(ErrorCode::bad_workspace, "one byte short", [&] { lend(0, bytes - 1); });
  require_error(ErrorCode::bad_workspace, "misaligned", [&] { lend(32, bytes); });
  ContiguousCache cache = lend(64, bytes);
  cache.append(CountingRows(kShape, 0, 4));
  EXPECT_EQ(reinterpret_cast<const std::byte*>(cache.view().runs[0].k), arena.data() + 64);
  require_error(ErrorCode::no_capacity, "a fifth row", [&] { cache.append(CountingRows(kShape, 4, 1)); });
  EXPECT_EQ(cache.length(), 4);
  ContiguousCache copy = cache.fork();  // has its own memory, so it grows
  copy.append(CountingRows(kShape, 4, 1));
  EXPECT_EQ(copy.length(), 5);
}

TEST(CacheContiguous, CopiesOnlyByName) {
  EXPECT_FALSE(std::is_copy_constructible_v<ContiguousCache>);
  EXPECT_TRUE(std::is_nothrow_move_constructible_v<ContiguousCache>);
}

TEST(CacheContiguous, GrowthIsAmortised) {
  ContiguousCache cache(kShape);
  std::int64_t growths = 0;
  for (std::int64_t t = 0; t < 5000; ++t) {
    const std::int64_t before = cache.capacity();
    cache.append(CountingRows(kShape, t, 1));
    growths += cache.capacity() != before ? 1 : 0;
  }
  EXPECT_LE(growths, 20);
  EXPECT_GE(growths, 5);
}

TEST(CacheContiguous, StridesAreFree) {
  // The newest token first in the caller's array, and one row repeated by stride 0.
  const CacheShape shape{.kv_heads = 1, .key_dim = 2, .value_dim = 2};
  const float k[] = {4, 5, 2, 3, 0, 1}, v[] = {7, 8};
  ContiguousCache cache(shape);
  cache.append(
      {.n = 3, .k = k + 4, .v = v, .k_row_stride = -2, .k_head_stride = 0, .v_row_stride = 0, .v_head_stride = 0});
  for (std::int64_t t = 0; t < 3; ++t) {
    const RowSlot row = cache.slot(t, 0);
    EXPECT_EQ(reinterpret_cast<const float*>(row.k)[0], static_cast<float>(2 * t));
    EXPECT_EQ(reinterpret_cast<const float*>(row.v)[1], 8.0f);
  }
}

TEST(CacheContiguous, LatentRowsAreStoredOnce) {
  EXPECT_EQ(bytes_per_token(latent_shape(512, 64, Storage::bf16)), 576 * 2);
  EXPECT_EQ(bytes_per_token(latent_shape(512, 64, Storage::int8)), 656);
  EXPECT_EQ(61 * bytes_per_token(latent_shape(512, 64, Storage::f16)) * 128000, 61LL * 576 * 2 * 128000);
  for (const Storage storage : kStorages) {
    const CacheShape shape = latent_shape(160, 16, storage);
    ContiguousCache cache(shape);
    const std::int64_t length = 40;
    const RandomRows rows(shape, 3, 0, length);
    NewRows k_alone = rows.rows;
    k_alone.v = nullptr;
    cache.append(k_alone);
    EXPECT_EQ(cache.bytes().used, length * bytes_per_token(shape));
    // Absorbed attention with q = 0: the mean of the latents. Each stored value is within half a step of what was
    // appended: of its group's scale (1/127) for int8, of 2^-9 and less for the others; the sum adds rounding.
    const std::vector<float> out = attend(cache.view(), shape, 2, 1);
    for (std::size_t column = 0; column < 160; ++column) {
      double mean = 0;
      for (std::size_t t = 0; t < static_cast<std::size_t>(length); ++t)
        mean += static_cast<double>(rows.k[t * 176 + column]);
      mean /= static_cast<double>(length);
      const double step = storage == Storage::int8   ? 0.5 / 127
                          : storage == Storage::bf16 ? 0x1p-9
                          : storage == Storage::f16  ? 0x1p-12
                                                     : 0;
      EXPECT_LE(std::abs(static_cast<double>(out[column]) - mean), step + 0x1p-20)
          << storage_name(storage) << ' ' << column;
      EXPECT_EQ(out[column], out[160 + column]);
    }
  }
  CacheShape bad = latent_shape(16, 4, Storage::f16);
  bad.kv_heads = 2;
  require_error(ErrorCode::bad_shape, "two heads", [&] { ContiguousCache cache(bad); });
  bad = latent_shape(16, 4, Storage::f16);
  bad.v_storage = Storage::f32;
  require_error(ErrorCode::bad_shape, "two storages", [&] { ContiguousCache cache(bad); });
  bad = latent_shape(16, 4, Storage::f16);
  bad.value_dim = 15;
  require_error(ErrorCode::bad_shape, "value_dim", [&] { ContiguousCache cache(bad); });
}

TEST(CacheContiguous, BothOrdersGiveTheSameBits) {
  const CacheShape shape{
      .kv_heads = 3, .key_dim = 20, .value_dim = 9, .k_storage = Storage::int8, .v_storage = Storage::bf16};
  ContiguousCache head(shape, RowOrder::head_major), token(shape, RowOrder::token_major);
  for (std::int64_t t = 0; t < 700; t += 7) {
    head.append(RandomRows(shape, 5, t, 7));
    token.append(RandomRows(shape, 5, t, 7));
  }
  const std::vector<float> q = random_queries(shape, 6, 5);
  EXPECT_TRUE(same_bits(attend(head.view(), shape, 6, 5, {}, q), attend(token.view(), shape, 6, 5, {}, q)));
}

}  // namespace
}  // namespace kvroof::test_cache
